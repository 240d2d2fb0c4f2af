"""``agentgym/WebShop-v0``: find and buy the product an instruction describes.

The shop, its pages and the reward are the original's (arXiv:2207.01206), state by state; what was
broken there is listed as a deliberate difference in this environment's README. A policy acts with
the tools ``search`` and ``click``, or by writing ``search[...]`` and ``click[...]``.
"""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar

from agentgym.actions import TextCall
from agentgym.core import AgentEnv
from agentgym.envs.webshop.catalogue_generator import LEVELS, Level
from agentgym.envs.webshop.goals import SPLITS, Goal, GoalKind, Split, original_draw, split_of
from agentgym.envs.webshop.judge import PurchaseVerifier
from agentgym.envs.webshop.nouns import noun_finder
from agentgym.envs.webshop.pages import OBSERVATION_MODES, ObservationMode
from agentgym.envs.webshop.prompts import SYSTEM_PROMPT, explain_action
from agentgym.envs.webshop.reward import Reward, score_purchase
from agentgym.envs.webshop.session import Place, Session
from agentgym.envs.webshop.shop import World, shared_draw, shared_world
from agentgym.errors import (
    ConfigError,
    MalformedCall,
    ResetNeeded,
    ToolError,
    UnknownTaskError,
)
from agentgym.judge import GateSpec
from agentgym.spaces import AssistantSpace
from agentgym.tools import Tool, ToolBox
from agentgym.types import Message, Messages, Task, clean_text

GOAL_KINDS: tuple[GoalKind, ...] = ("human", "synthetic")
INVALID_ACTION_MODES = ("explain", "silent")
GOAL_DRAWS = ("proportional", "original")
DEFAULT_MAX_TURNS = 50
"""Room for long visits: an exact purchase takes about 5 turns, the longest recorded walk 25."""
DEFAULT_GATES = ("truncated", "malformed_call")

_IS_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}").fullmatch
_ARGUMENT_OF = {"search": "query", "click": "target"}


def read_action(text: str) -> tuple[str, str]:
    """Split ``name[argument]`` at the start of a text as the original; no match is ``("", "")``.

    The name reaches to the last ``[`` that a ``]`` follows on the same line, and what stands after
    the last ``]`` is ignored.
    """
    line = text.partition("\n")[0]  # by hand: a regular expression is quadratic in "[[[["
    end = line.rfind("]")
    start = line.rfind("[", 0, max(end - 1, 0))
    return (line[:start], line[start + 1 : end]) if start > 0 else ("", "")


class WebShopEnv(AgentEnv):
    """Find and buy the product that an instruction describes, in the original WebShop.

    Observations are messages whose ``content`` is the page; ``info["available_actions"]`` says what
    can be clicked, as the original does.

    Args:
        data: Folder with WebShop's three data files, full or 1,000-product names; default: the
            embedded catalogue, which needs no files.
        goals: ``"human"`` (written instructions) or ``"synthetic"`` (one per option combination).
        data_seed: Fixes price ranges, price limits and goal texts; the original's ``random.seed``.
        split: ``"train"``, ``"validation"``, ``"test"``, or ``None`` for all goals.
        observation_mode: ``"text"`` or ``"text_rich"``.
        invalid_action: ``"explain"`` answers an impossible action with what is possible;
            ``"silent"`` shows the same page again, as the original does.
        nouns: ``"rule"``, ``"spacy"``, or a JSON file from product name to nouns.
        show_attrs: Whether item pages have an Attributes tab.
        max_turns: Most assistant messages per episode; ``None`` for no limit.
        gates: See ``agentgym.judge.resolve_gates``; ``()`` leaves the original's bare reward.
        num_products: Products taken from the head of the data, or generated.
        limit_goals: Goals kept, chosen as the original does; ``None`` or -1 for all.
        goal_draw: ``"proportional"`` draws goals by weight from this environment's seed;
            ``"original"`` repeats the original's sequence, the same in every process.
        page_size: Products per page of results; the original has 10.
        prompt: System prompt; ``""`` for none.
        difficulty: Level of the embedded catalogue: a name, or a `Level` of your own.
        catalogue_seed: Seed of the embedded catalogue.
        render_mode: See ``AgentEnv``.

    Raises:
        ConfigError: If a value is not allowed; the message names those that are.
        DataError: If the data is missing or wrong.
    """

    supports_snapshot: ClassVar[bool] = True

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        goals: GoalKind = "human",
        data_seed: int = 0,
        split: Split | None = None,
        observation_mode: ObservationMode = "text",
        invalid_action: str = "explain",
        nouns: str | Path = "rule",
        show_attrs: bool = False,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        gates: Iterable[GateSpec] | None = None,
        num_products: int | None = None,
        limit_goals: int | None = None,
        goal_draw: str = "proportional",
        page_size: int = 10,
        prompt: str | None = None,
        difficulty: str | Level = "standard",
        catalogue_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        _check_choice("goals", goals, GOAL_KINDS)
        _check_choice("split", split, (*SPLITS, None))
        _check_choice("observation_mode", observation_mode, OBSERVATION_MODES)
        _check_choice("invalid_action", invalid_action, INVALID_ACTION_MODES)
        _check_choice("goal_draw", goal_draw, GOAL_DRAWS)
        if not isinstance(difficulty, Level):
            _check_choice("difficulty", difficulty, tuple(LEVELS))
        _check_choice("show_attrs", show_attrs, (False, True))
        _check_type("data", data, (str, Path, NoneType), "the path of a folder, or None")
        _check_type("nouns", nouns, (str, Path), "'rule', 'spacy' or the path of a JSON file")
        _check_type("prompt", prompt, (str, NoneType), "a text, or None for the default")
        _check_count("page_size", page_size)
        limit_goals = None if limit_goals == -1 else limit_goals
        for name, count in (("num_products", num_products), ("limit_goals", limit_goals)):
            if count is not None:
                _check_count(name, count)
        for name, seed in (("data_seed", data_seed), ("catalogue_seed", catalogue_seed)):
            _check_seed(name, seed)
        super().__init__(
            tools=ToolBox([Tool(self.search, inline=True), Tool(self.click, inline=True)]),
            judge=PurchaseVerifier(),
            max_turns=max_turns,
            gates=DEFAULT_GATES if gates is None else gates,
            render_mode=render_mode,
        )
        self.world: World = shared_world(
            data=data,
            goals=goals,
            data_seed=data_seed,
            num_products=num_products,
            limit_goals=limit_goals,
            difficulty=difficulty,
            catalogue_seed=catalogue_seed,
        )
        self.goal_kind: GoalKind = goals
        self.split = split
        self.observation_mode: ObservationMode = observation_mode
        self._silent = invalid_action == "silent"
        self._nouns = noun_finder(str(nouns))
        self._show_attrs = show_attrs
        self._page_size = page_size
        self._prompt = SYSTEM_PROMPT if prompt is None else clean_text(prompt)
        self._draw = shared_draw(self.world, split)
        self._original_rng = random.Random() if goal_draw == "original" else None
        self._restart_original_draw()
        self._catalogue_info = {
            "name": self.world.shop.catalogue.name,
            "n_products": len(self.world.shop.catalogue),
            "digest": self.world.shop.catalogue.digest,
            "goals": goals,
            "n_goals": len(self.world.table),
            "goals_digest": self.world.table.digest,
        }
        self._goal: Goal | None = None
        self._session: Session | None = None
        self._reward: Reward | None = None

    # --- tasks --------------------------------------------------------------------------------

    def task_ids(self) -> Sequence[str]:
        """Ids of all tasks of this split, in order; each names a different goal."""
        return [self._task_id(number) for number in self._draw.numbers]

    def goal_of(self, task_id: str) -> Goal:
        """The goal behind a task id: for oracles and statistics, never for a policy.

        Raises:
            UnknownTaskError: If there is no such task in this split.
        """
        return self.world.table.goals[self._number_of(task_id)]

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        """Take ``options["task_id"]``, or draw a goal of the split by weight."""
        if "task_id" in options:
            number = self._number_of(options["task_id"])
        elif self._original_rng is not None:
            number = self._draw.numbers[original_draw(self._draw.cumulative, self._original_rng)]
        else:
            number = self._draw.at(self.np_random.random())
        goal = self.world.table.goals[number]
        return Task(
            task_id=self._task_id(number),
            split=split_of(len(self.world.table), number),
            reference=goal,
            metadata={**self._catalogue_info, "family": goal.product.category},
        )

    def _task_id(self, number: int) -> str:
        return f"webshop/{self.goal_kind}/{number}"

    def _number_of(self, task_id: object) -> int:
        prefix = f"webshop/{self.goal_kind}/"
        text = task_id.removeprefix(prefix) if isinstance(task_id, str) else ""
        if isinstance(task_id, str) and task_id.startswith(prefix) and _IS_NUMBER(text):
            number = int(text)
            if number in self._draw.numbers:
                return number
        numbers = self._draw.numbers
        where = "" if self.split is None else f" in split {self.split!r}"
        raise UnknownTaskError(
            f"no task {task_id!r:.100}{where}; there are {self._task_id(numbers[0])!r} to "
            f"{self._task_id(numbers[-1])!r}"
        )

    def _restart_original_draw(self) -> None:
        """Go to where the original's generator is after it constructed its environment."""
        if self._original_rng is not None:
            self._original_rng.setstate(self.world.table.draw_state)
            original_draw(self._draw.cumulative, self._original_rng)  # its constructor's own reset

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Messages, dict[str, Any]]:
        """`reset`, on the caller's event loop; a seed also restarts the original's draw."""
        if seed is not None:
            self._restart_original_draw()
        return await super().areset(seed=seed, options=options)

    # --- the episode --------------------------------------------------------------------------

    async def start(self, task: Task) -> Sequence[Message]:
        """Open the shop's first page."""
        goal: Goal = task.reference
        self._goal, self._reward = goal, None
        self._session = Session(
            self.world.shop,
            goal.instruction,
            show_attrs=self._show_attrs,
            page_size=self._page_size,
            seed=int(task.task_id.rsplit("/", 1)[1]),
        )
        page: Message = {"role": "user", "content": self._page()}
        return ({"role": "system", "content": self._prompt}, page) if self._prompt else (page,)

    def search(self, query: str) -> str:
        """Search the shop; works on every page and shows the first page of results.

        Args:
            query: Words to look for in product names, descriptions and options.
        """
        if self._visit().search(query):
            return self._page()
        raise ToolError(self._refusal("search", query))

    def click(self, target: str) -> str:
        """Click something on the current page: a button, a product id or an option value.

        Args:
            target: What to click, as the page shows it; upper and lower case are the same.
        """
        session = self._visit()
        if not session.click(target):
            raise ToolError(self._refusal("click", target))
        if session.place is Place.DONE:
            self._buy(session)
        return self._page()

    def parse_text(self, text: str) -> Sequence[TextCall]:
        """Read ``search[...]`` or ``click[...]`` at the start of a text, as the original does."""
        name, argument = read_action(text)
        if name not in _ARGUMENT_OF:
            raise MalformedCall(self._page() if self._silent else self._teach())
        return (TextCall(name, {_ARGUMENT_OF[name]: argument}),)

    def outcome(self) -> dict[str, Any]:
        """What was bought and what it was worth."""
        session, reward = self._visit(), self._reward
        if reward is None or session.product is None:
            return {"purchased": None, "score": 0.0, "details": {}}
        return {
            "purchased": session.product.asin,
            "options": dict(session.options),
            "price": self.world.table.prices[session.product.asin],
            "score": reward.score,
            "details": reward.details,
        }

    def extra_info(self) -> dict[str, Any]:
        """The available actions, and after `reset` which catalogue this is."""
        session = self._visit()
        available = session.available_actions()
        targets = [] if session.place is Place.START else available["clickables"]
        if isinstance(self.action_space, AssistantSpace):
            self.action_space.choices = {("click", "target"): targets}
        if session.place is Place.START:
            return {"available_actions": available, "catalogue": dict(self._catalogue_info)}
        return {"available_actions": available}

    def snapshot(self) -> Any:
        """The visit and the worth of the purchase, if there was one."""
        return self._goal, self._visit(), self._reward

    def restore(self, state: Any) -> None:
        """Continue a visit."""
        self._goal, self._session, self._reward = state
        self.extra_info()

    def close(self) -> None:
        """Forget the episode; the shared catalogue stays for other instances."""
        self._goal = self._session = self._reward = None
        super().close()

    # --- inside -------------------------------------------------------------------------------

    def _visit(self) -> Session:
        if self._session is None:
            raise ResetNeeded("no episode is running: call reset() first")
        return self._session

    def _page(self) -> str:
        return self._visit().page(self.observation_mode)

    def _buy(self, session: Session) -> None:
        if self._goal is None or session.product is None:
            raise RuntimeError("a purchase without a goal or a product")
        self._reward = score_purchase(
            session.product,
            self._goal,
            price=self.world.table.prices[session.product.asin],
            options=session.options,
            nouns=self._nouns,
        )
        session.score = self._reward.score
        self.finish("purchased")

    def _refusal(self, name: str, argument: str) -> str:
        if self._silent:
            return self._page()
        return explain_action(f"{name}[{argument}]", self._visit().clickables())

    def _teach(self) -> str:
        return explain_action(None, self._visit().clickables())


def _check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    if not any(value is one or (isinstance(value, str) and value == one) for one in allowed):
        raise ConfigError(f"{name}={value!r}: use one of {', '.join(map(repr, allowed))}")


def _check_type(name: str, value: object, kinds: tuple[type, ...], use: str) -> None:
    if not isinstance(value, kinds):
        raise ConfigError(f"{name}={value!r}: use {use}")


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}={value!r}: use a whole number of at least 1")


def _check_seed(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name}={value!r}: use a whole number")
