"""``agentgym/ToolWorld-v0``: chains of tool calls in worlds that a simulator answers for.

Every task comes with tools of its own, those of one domain and some of others, and with a question
or an errand that takes several of them. The embedded backend answers from records, so that the
right answer is known and a program judges. A hosted tool simulator makes its world up as it goes;
there, a rubric judges whether the answer follows from what the tools said.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from agentgym.client import Endpoint, ModelClient
from agentgym.copies import copied
from agentgym.core import AgentEnv
from agentgym.envs.toolworld.domains import CATALOGUES
from agentgym.envs.toolworld.judge import INVENTED_VALUE, AnswerVerifier
from agentgym.envs.toolworld.prompts import SYSTEM_PROMPT
from agentgym.envs.toolworld.tasks import Drawn, TaskSet, changes
from agentgym.envs.toolworld.templates import SPLITS, Catalogue, Split
from agentgym.errors import (
    AgentGymError,
    ConfigError,
    EndpointError,
    ResetNeeded,
    SimulatorError,
    UnknownTaskError,
)
from agentgym.gates import STANDARD_GATES
from agentgym.json_schema import JsonSchema
from agentgym.judge import GateSpec, GroupJudge, Judge
from agentgym.schema_tool import SchemaTool
from agentgym.simulator import (
    SimulatedTool,
    SimulatedWorld,
    ToolSimulator,
    refused_replies,
)
from agentgym.simulators.records import State
from agentgym.sync import run_inline
from agentgym.tools import ToolBox
from agentgym.types import Message, Task, clean_text

SimulatorSpec: TypeAlias = ToolSimulator | Endpoint | Mapping[str, Any] | ModelClient
JudgeSpec: TypeAlias = Judge | GroupJudge | Endpoint | Mapping[str, Any] | ModelClient

DEFAULT_MAX_TURNS = 24
"""Half as many again as the scripted expert takes at most, one call a turn."""
DEFAULT_TASKS_PER_FAMILY = 12
DEFAULT_DISTRACTORS = 4


class ToolWorldEnv(AgentEnv):
    """Answer questions and do errands that take a chain of tool calls, in eight domains.

    Args:
        split: ``"train"``, ``"validation"``, ``"test"``, or ``None`` for all tasks.
        domains: Names of built-in domains, or catalogues of your own; ``None`` for all built-in.
        simulator: Who answers the tools: ``None`` for the embedded backend; an ``Endpoint``, a
            mapping with its fields or a model client for a hosted simulator; or a
            ``ToolSimulator``.
        judge: Who scores: ``None`` for the verifier, which needs a backend that doesn't make its
            results up; an ``Endpoint``, a mapping or a model client for a rubric judge with the
            default rubric; or a ``Judge``. Whoever is given scores instead of the verifier.
        tasks_per_family: Tasks of each kind.
        task_seed: Decides the worlds and particulars of all tasks.
        distractors: Tools of other domains offered beside those of the task's own.
        max_turns: Most assistant messages per episode; ``None`` for no limit.
        gates: See ``agentgym.gates.resolve_gates``; ``None`` for the standard ones, and where
            results are made up one more against values that no tool gave.
        prompt: System prompt; ``""`` for none.
        render_mode: See ``AgentEnv``.

    Raises:
        ConfigError: If a value is not allowed, or the simulator makes results up and nobody judges.
    """

    supports_snapshot: ClassVar[bool] = True

    def __init__(
        self,
        *,
        split: Split | None = None,
        domains: Sequence[str | Catalogue] | None = None,
        simulator: SimulatorSpec | None = None,
        judge: JudgeSpec | None = None,
        tasks_per_family: int = DEFAULT_TASKS_PER_FAMILY,
        task_seed: int = 0,
        distractors: int = DEFAULT_DISTRACTORS,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        gates: Iterable[GateSpec] | None = None,
        prompt: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        if split is not None and split not in SPLITS:
            allowed = ", ".join(map(repr, (*SPLITS, None)))
            raise ConfigError(f"split={split!r}: use one of {allowed}")
        _check_whole("tasks_per_family", tasks_per_family, at_least=1)
        _check_whole("task_seed", task_seed)
        _check_whole("distractors", distractors, at_least=0)
        if prompt is not None and not isinstance(prompt, str):
            raise ConfigError(f"prompt={prompt!r}: use a text, or None for the default")
        chosen = _catalogues(domains)
        built_in = all(CATALOGUES.get(catalogue.name) is catalogue for catalogue in chosen)
        self.tasks = TaskSet(
            chosen,
            others=tuple(CATALOGUES.values()) if built_in else (),
            split=split,
            per_family=tasks_per_family,
            seed=task_seed,
            distractors=distractors,
        )
        self.split = split
        self._simulator = _simulator(simulator, embedded=self.tasks.simulator)
        self.fabricates = bool(getattr(self._simulator, "fabricates", True))
        if gates is None and self.fabricates:
            gates = (*STANDARD_GATES.values(), INVENTED_VALUE)
        self._prompt = SYSTEM_PROMPT if prompt is None else clean_text(prompt)
        self.awaits = not self._simulator.inline
        self._made: dict[str, SchemaTool] = {}
        self._world: SimulatedWorld | None = None
        self._before: State = {}
        self._drawn: Drawn | None = None
        super().__init__(
            tools=ToolBox(),
            judge=_judge(judge, fabricates=self.fabricates),
            max_turns=max_turns,
            gates=gates,
            render_mode=render_mode,
        )

    # --- tasks --------------------------------------------------------------------------------

    def task_ids(self) -> Sequence[str]:
        """Ids of all tasks of this split, family by family."""
        numbers = range(self.tasks.per_family)
        return [f"toolworld/{name}/{n}" for name in self.tasks.families for n in numbers]

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        """Take `options["task_id"]`, or draw a task with equal chances."""
        if "task_id" in options:
            task_id = options["task_id"]
        else:
            index = int(self.np_random.integers(len(self.tasks)))
            family_index, number = divmod(index, self.tasks.per_family)
            task_id = f"toolworld/{list(self.tasks.families)[family_index]}/{number}"
        name, number = self._parts(task_id)
        family = self.tasks.family(name)
        self._drawn = drawn = self.tasks.draw(family, number)
        return Task(
            task_id=task_id,
            split=family.split,
            reference=None if self.fabricates else drawn.reference,
            metadata={
                "family": family.name,
                "domain": family.catalogue.name,
                "template": family.template.name,
            },
        )

    def _parts(self, task_id: object) -> tuple[str, int]:
        """Family and number of a task id."""
        if isinstance(task_id, str) and task_id.startswith("toolworld/"):
            name, _, number = task_id.removeprefix("toolworld/").rpartition("/")
            if name in self.tasks.families and number in map(str, range(self.tasks.per_family)):
                return name, int(number)
        where = "" if self.split is None else f" in split {self.split!r}"
        raise UnknownTaskError(
            f"no task {task_id!r:.100}{where}; a task is 'toolworld/FAMILY/NUMBER' with a number "
            f"from 0 to {self.tasks.per_family - 1} and one of the families "
            f"{', '.join(self.tasks.families)}"
        )

    # --- the episode --------------------------------------------------------------------------

    async def start(self, task: Task) -> Sequence[Message]:
        """Make the task's world and tools."""
        drawn, self._drawn = self._drawn, None
        if drawn is None:
            raise RuntimeError("start() without choose_task()")
        self._before = {} if self.fabricates else drawn.state
        seed = int(self.np_random.integers(2**31))
        self._world = SimulatedWorld(
            tools=drawn.tools,
            seed=seed,
            background=_background(drawn) if self.fabricates else drawn.background,
            session=f"{task.task_id}/{seed}",  # the same again, so that a recording is found
            state=copied(self._before),
        )
        self.use_tools(ToolBox(self._tool(tool) for tool in drawn.tools))
        asked: Message = {"role": "user", "content": drawn.prompt}
        return ({"role": "system", "content": self._prompt}, asked) if self._prompt else (asked,)

    def _tool(self, tool: SimulatedTool) -> SchemaTool:
        """The callable tool; made once per name, since catalogues don't change."""
        if tool.name not in self._made:
            answer = self._answer_inline if self._simulator.inline else self._answer
            self._made[tool.name] = SchemaTool(
                tool.name,
                tool.description,
                tool.parameters,
                handler=functools.partial(answer, tool.name),
                inline=self._simulator.inline,
            )
        return self._made[tool.name]

    def _answer_inline(self, name: str, arguments: dict[str, Any]) -> Any:
        return run_inline(self._answer(name, arguments))

    async def _answer(self, name: str, arguments: dict[str, Any]) -> Any:
        """Have the simulator answer; whatever goes wrong there is not the policy's doing."""
        world = self._living()
        try:
            result = await self._simulator.call(world, name, arguments)
        except EndpointError as error:
            raise SimulatorError(f"the simulator's endpoint: {error}") from error
        except AgentGymError:
            raise
        except Exception as error:
            kind = type(self._simulator).__name__
            raise SimulatorError(
                f"{kind} crashed on {name!r}: {type(error).__name__}: {error}"
            ) from error
        if self.fabricates:
            schema = JsonSchema(world.tool(name).result, where=f"tool {name!r}, result")
            if faults := schema.faults(result):
                raise SimulatorError(f"the simulator's result of {name!r}: {'; '.join(faults)}")
        return result

    @property
    def world(self) -> SimulatedWorld | None:
        """The running episode's world, for audits of a tool simulator; None before `reset`."""
        return self._world

    def outcome(self) -> dict[str, Any]:
        """What the policy's calls changed in the world, and answers that were refused."""
        world = self._living()
        found: dict[str, Any] = {"changes": changes(self._before, world.state)}
        return found | refused_replies(world)

    def snapshot(self) -> Any:
        """The world, as it was and as it is."""
        return self._before, self._living()

    def restore(self, state: Any) -> None:
        """Continue in a world."""
        self._before, self._world = state
        self.use_tools(ToolBox(self._tool(tool) for tool in self._living().tools))

    def close(self) -> None:
        """Forget the episode."""
        self._world, self._before = None, {}
        super().close()

    # --- inside -------------------------------------------------------------------------------

    def _living(self) -> SimulatedWorld:
        if self._world is None:
            raise ResetNeeded("no episode is running: call reset() first")
        return self._world


def _catalogues(domains: Any) -> list[Catalogue]:
    if domains is None:
        return list(CATALOGUES.values())
    if isinstance(domains, str | Catalogue) or not isinstance(domains, Iterable):
        raise ConfigError(f"domains={domains!r:.100}: use a list of names or catalogues")
    found: list[Catalogue] = []
    for domain in domains:
        if not isinstance(domain, Catalogue):
            known = CATALOGUES.get(domain) if isinstance(domain, str) else None
            if known is None:
                raise ConfigError(
                    f"no domain {domain!r:.100}; there are {', '.join(CATALOGUES)}, or pass a "
                    "Catalogue"
                )
            domain = known
        if any(domain.name == other.name for other in found):
            raise ConfigError(f"domain {domain.name!r} is given twice; name each domain once")
        found.append(domain)
    return found


def _simulator(given: Any, *, embedded: ToolSimulator) -> ToolSimulator:
    if given is None:
        return embedded
    if isinstance(given, ToolSimulator):
        return given
    from agentgym.clients.connect import connect
    from agentgym.simulators.tools import HostedTools

    return HostedTools(connect(given, role="simulator"))


def _judge(given: Any, *, fabricates: bool) -> Any:
    if given is None:
        if fabricates:
            raise ConfigError(
                "judge=None: the simulator makes its results up, so no program knows the right "
                "answer; give judge= an Endpoint, a model client or a Judge. (A simulator that "
                "answers from the world's records says so with `fabricates = False`.)"
            )
        return AnswerVerifier()
    if isinstance(given, Judge | GroupJudge):
        return given
    from agentgym.clients.connect import connect
    from agentgym.judges.rubric_judge import RubricJudge

    return RubricJudge(connect(given, role="judge"))


def _background(drawn: Drawn) -> str:
    """What a model has to know to make up a world in which the task makes sense."""
    return (
        f"{drawn.background}\n\nThe assistant who calls the tools was asked: {drawn.prompt}\n\n"
        "The people and things named there exist in this world; the rest is for you to decide."
    )


def _check_whole(name: str, value: object, *, at_least: int | None = None) -> None:
    wrong = isinstance(value, bool) or not isinstance(value, int)
    if wrong or (at_least is not None and isinstance(value, int) and value < at_least):
        bound = "" if at_least is None else f" of at least {at_least}"
        raise ConfigError(f"{name}={value!r}: use a whole number{bound}")
