"""``agentgym/SupportDesk-v0``: serve a customer of an online shop, by its written policy.

The policy under training is the agent: it talks with a simulated customer, who has a hidden goal,
and works on a database with real tools. What it did is read from the database and the case file,
what it told the customer from the lines the customer heard.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any, ClassVar, TypeAlias, get_args

from agentgym.client import Endpoint
from agentgym.clients.connect import EndpointLike, connect
from agentgym.core import AgentEnv
from agentgym.envs.supportdesk.case_file import CaseFile
from agentgym.envs.supportdesk.consent import is_yes
from agentgym.envs.supportdesk.desk import Desk
from agentgym.envs.supportdesk.gates import support_gates
from agentgym.envs.supportdesk.prompts import written_policy
from agentgym.envs.supportdesk.service import records_of
from agentgym.envs.supportdesk.store import Store, changes
from agentgym.envs.supportdesk.tasks.table import (
    TASKS_PER_FAMILY,
    Split,
    TaskTable,
    shared_table,
)
from agentgym.envs.supportdesk.verifier import SupportVerifier
from agentgym.errors import (
    AgentGymError,
    ConfigError,
    EndpointError,
    ResetNeeded,
    SimulatorAbort,
    SimulatorError,
    UnknownTaskError,
)
from agentgym.gates import GateSpec
from agentgym.judge import Judge
from agentgym.judges.compose import Weighted
from agentgym.judges.rubric import Rubric
from agentgym.judges.rubric_judge import RubricJudge
from agentgym.simulator import (
    SimulatedWorld,
    UserDialogue,
    UserReply,
    UserSimulator,
    refused_replies,
)
from agentgym.simulators.scripted_user import ScriptedUser
from agentgym.simulators.user import HostedUser, expects_an_answer, visible
from agentgym.types import Message, Task, clean_text

UserLike: TypeAlias = UserSimulator | EndpointLike
JudgeLike: TypeAlias = Judge | EndpointLike

DEFAULT_MAX_TURNS = 30
"""The longest task takes the scripted expert 14 messages; models look up more."""
_LEFT = "left_agreeing"
"""The dialogue's note of a user who said goodbye together with a yes."""
JUDGE_WEIGHT = 0.3
"""What a judge's full marks add to the verifier's 1."""


class SupportDeskEnv(AgentEnv):
    """Serve a customer of an online shop by its written policy, with tools and a simulated user.

    A message with tool calls is for the shop's systems, one without is what the customer hears;
    thoughts that a server left in it are heard by nobody.

    Args:
        split: ``"train"``, ``"validation"``, ``"test"``, or ``None`` for all; splits hold different
            task families.
        simulator: Who plays the customer: ``None`` for the scripted user, an `Endpoint` (or a
            mapping with its fields, or a client) for a model, or a `UserSimulator`.
        judge: A judge of the agent's manner beside the verifier: ``None`` for none, an `Endpoint`
            (or a mapping, or a client) for a model with the rubric `manner.toml`, or a `Judge`.
        data_seed: Fixes the shop and all tasks.
        tasks_per_family: How many tasks each family has.
        max_turns: Most assistant messages per episode; ``None`` for no limit.
        gates: As ``agentgym.gates.resolve_gates`` takes them, and the env's own by name (see the
            card); ``None`` for all of them.
        prompt: System prompt; default: the written policy.
        render_mode: See ``AgentEnv``.

    Raises:
        ConfigError: If a value is not allowed; the message names those that are.
    """

    supports_snapshot: ClassVar[bool] = True

    def __init__(
        self,
        *,
        split: Split | None = None,
        simulator: UserLike | None = None,
        judge: JudgeLike | None = None,
        data_seed: int = 0,
        tasks_per_family: int = TASKS_PER_FAMILY,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        gates: Iterable[GateSpec] | None = None,
        prompt: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        if split is not None and split not in get_args(Split):
            allowed = ", ".join(map(repr, get_args(Split)))
            raise ConfigError(f"split must be {allowed} or None, got {split!r:.60}")
        _check_whole("data_seed", data_seed, least=0)
        _check_whole("tasks_per_family", tasks_per_family, least=1)
        if prompt is not None and not isinstance(prompt, str):
            raise ConfigError(f"prompt must be a text or None, got {prompt!r:.60}")
        self.split = split
        self.simulator = _simulator(simulator)
        self.awaits = not self.simulator.inline
        self.table: TaskTable = shared_table(data_seed, tasks_per_family)
        self._ids = self.table.ids(split)
        self._prompt = written_policy() if prompt is None else clean_text(prompt)
        self._desk = Desk(self._transferred)
        super().__init__(
            tools=self._desk.toolbox(),
            judge=_judge(judge, SupportVerifier(self.table)),
            max_turns=max_turns,
            gates=support_gates(gates),
            render_mode=render_mode,
        )

    # --- tasks --------------------------------------------------------------------------------

    def task_ids(self) -> Sequence[str]:
        """Ids of all tasks of this split, family by family."""
        return list(self._ids)

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        """Take ``options["task_id"]``, or draw one of the split's tasks, all being equally likely.

        Raises:
            UnknownTaskError: If there is no such task in this split.
        """
        if "task_id" not in options:
            return self.table.tasks[self._ids[int(self.np_random.integers(len(self._ids)))]]
        task_id = options["task_id"]
        task = self.table.tasks.get(task_id) if isinstance(task_id, str) else None
        if task is None or self.split not in (None, task.split):
            where = "" if self.split is None else f" in split {self.split!r}"
            raise UnknownTaskError(
                f"no task {task_id!r:.100}{where}; there are {self._ids[0]!r} to {self._ids[-1]!r}"
            )
        return task

    # --- the episode --------------------------------------------------------------------------

    async def start(self, task: Task) -> Sequence[Message]:
        """Open the shop and let the customer speak first."""
        seed = int(self.np_random.integers(2**31))
        dialogue = UserDialogue(
            self.table.scenarios[task.task_id], seed=seed, session=f"{task.task_id}/{seed}"
        )
        self._desk.begin(Store(self.table.image), CaseFile(), dialogue)
        opened = await _played(self.simulator.open(dialogue))
        customer: Message = {"role": "user", "content": opened.text}
        return (
            ({"role": "system", "content": self._prompt}, customer) if self._prompt else (customer,)
        )

    async def reply(self, message: Message) -> Sequence[Message]:
        """Let the customer answer what the agent said.

        A user who leaves while agreeing to something leaves after the agent's next message, so that
        what they agreed to can still be done.
        """
        text = visible(message["content"] or "")
        dialogue = self._dialogue
        self._desk.hear(text)
        if dialogue.notes.get(_LEFT):
            dialogue.said.append(("agent", text))
            self.finish("user_done")
            return ()
        reply = await _played(self.simulator.reply(dialogue, text))
        if reply.ended == "done":
            if is_yes(reply.text) and expects_an_answer(text):
                dialogue.notes[_LEFT] = True
            else:
                self.finish("user_gave_up" if dialogue.notes.get("gave_up") else "user_done")
        return ({"role": "user", "content": reply.text},) if reply.text else ()

    @property
    def world(self) -> SimulatedWorld | None:
        """What the systems hold on the episode's customer, for audits of a tool simulator.

        It declares no tools; None before `reset`.
        """
        if self.running is None:
            return None
        task = self.running.task.reference
        records = records_of(self._desk.store, task.customer_id, also=task.look_up)
        return SimulatedWorld(tools=(), seed=self._dialogue.seed, state=records)

    def outcome(self) -> dict[str, Any]:
        """What the episode changed in the database, the case file, and the user's refused lines."""
        case, store = self._desk.case, self._desk.store
        return {
            "changes": changes(self.table.rows, store.rows(store.touched)),
            "identified": case.identified,
            "looked_up": list(case.looked_up),
            "heard": [dict(line) for line in case.heard],
            "writes": [dict(write) for write in case.writes],
            "transfer": case.transfer,
            "false_claims": case.false_claim,
            "gave_up": bool(self._dialogue.notes.get("gave_up")),
            "violations": {
                name: getattr(case, name)
                for name in ("unidentified_access", "wrong_customer", "unconfirmed_write")
            },
            **refused_replies(self._dialogue),
        }

    def snapshot(self) -> Any:
        """The database's image, the case file and the dialogue."""
        store = self._desk.store
        return (store.image(), store.touched), asdict(self._desk.case), self._dialogue

    def restore(self, state: Any) -> None:
        """Continue a conversation."""
        (image, touched), case, dialogue = state
        self._desk.begin(Store(image, touched), CaseFile(**case), dialogue)

    def close(self) -> None:
        """Forget the episode; the shared task table stays for other instances."""
        self._desk.close()
        super().close()

    # --- inside -------------------------------------------------------------------------------

    @property
    def _dialogue(self) -> UserDialogue:
        if self._desk.dialogue is None:
            raise ResetNeeded("no episode is running: call reset() first")
        return self._desk.dialogue

    def _transferred(self) -> None:
        self.finish("transferred")


async def _played(playing: Awaitable[UserReply]) -> UserReply:
    """The simulator's reply; whatever goes wrong with it is not the policy's doing.

    Raises:
        SimulatorAbort: If the simulator gave up its part; the episode is masked.
        SimulatorError: If it has no reply.
    """
    try:
        reply = await playing
    except EndpointError as error:
        raise SimulatorError(f"the user simulator's endpoint: {error}") from error
    except AgentGymError:
        raise
    except Exception as error:
        raise SimulatorError(
            f"the user simulator crashed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(reply, UserReply):
        raise SimulatorError(f"the user simulator must return a UserReply, got {reply!r:.100}")
    if reply.ended == "abort":
        raise SimulatorAbort(f"the user simulator gave up its part: {reply.text!r:.300}")
    return reply


def _simulator(given: UserLike | None) -> UserSimulator:
    if given is None:
        return ScriptedUser()
    if isinstance(given, UserSimulator):
        return given
    return HostedUser(connect(given, role="simulator"))


def _judge(given: JudgeLike | None, verifier: SupportVerifier) -> Judge:
    """The verifier, and beside it the judge of the agent's manner if there is one."""
    if given is None:
        return verifier
    if isinstance(given, Endpoint | Mapping) or not isinstance(given, Judge):
        rubric = Rubric.from_toml(str(files(__package__) / "manner.toml"))
        manner: Judge = RubricJudge(connect(given, role="judge"), rubric)
    else:
        manner = given
    top = float(getattr(manner, "highest", 1.0))
    return Weighted(
        {"service": (verifier, 1.0), "manner": (manner, JUDGE_WEIGHT / top)}, correct="service"
    )


def _check_whole(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r:.60}")
