"""How like the real tools a tool simulator is: the same calls to both, compared.

Training against invented tools is only as good as the invention. Where an environment has real
tools, the same calls can be put to both. Every call is put to the simulator with the *real* answers
to all earlier calls of its episode as its memory, so that one slip isn't counted twenty times.

What is compared: whether both succeed or both fail; whether a result fits the result schema; which
fields a result has (`shape`), and which values they have (`values`). A simulator that can't know
the data will differ in values; one that differs in status or shape teaches a policy a wrong world.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from agentgym.client import ModelClient
from agentgym.core import AgentEnv
from agentgym.errors import ConfigError, EndpointError, SimulatorError, ToolError
from agentgym.json_schema import JsonSchema
from agentgym.metering import Meter, metered
from agentgym.simulator import SimulatedTool, SimulatedWorld, ToolSimulator
from agentgym.simulators.acting import words
from agentgym.simulators.memory import Contradiction, Draft, Entry, same
from agentgym.simulators.prompts import as_json
from agentgym.simulators.real_calls import RealCall, RealEpisode, gather_calls
from agentgym.types import Record, Usage

MOST_EXAMPLES = 3
"""Disagreements shown per tool."""
LONGEST_EXAMPLE = 2_000
"""Characters of a result in an example."""
SHORTEST_TEXT = 5
"""Words from which two different texts may be alike all the same."""
ANY_RESULT = {"type": ["object", "array", "string", "number", "boolean", "null"]}


class Disagreement(Record):
    """A call that the simulator answers differently."""

    arguments: dict[str, Any]
    real: str
    """The real answer, shortened."""
    simulated: str
    """The simulator's, shortened; or its fault."""
    differs: tuple[str, ...] = ()
    """Fields in which two results differ; at most ten."""


class ToolFidelity(Record):
    """How like one real tool its simulation is."""

    name: str
    calls: int
    """Calls put to both."""
    faults: int
    """Calls that the simulator gave no usable answer to; an episode would be masked."""
    same_status: int
    """Calls that both answered with a result, or both with an error."""
    results: int
    """Results of the simulator."""
    valid: int
    """Those of them that fit the result schema."""
    shape: float | None
    """Mean share of fields that are in both results, of those in either; None without a pair."""
    values: float | None
    """Mean likeness of the values, over the fields in either: 1 where equal, the share of words
    they share for two texts, else 0."""
    examples: tuple[Disagreement, ...] = ()


class Fidelity(Record):
    """How like an environment's real tools a simulator is."""

    env_id: str
    episodes: int
    """Episodes the calls come from."""
    tools: tuple[ToolFidelity, ...]
    unobserved: tuple[str, ...] = ()
    """Tools that were never called."""
    spent: dict[str, Usage] = Field(default_factory=dict)
    """What the simulator cost, by role."""


async def audit(
    env: AgentEnv,
    simulator: ToolSimulator,
    *,
    calls: int = 50,
    policy: ModelClient | None = None,
    seed: int = 0,
    concurrency: int = 8,
    on_call: Callable[[], None] = lambda: None,
) -> Fidelity:
    """Put an environment's real calls to a simulator.

    An env whose `world` is a `SimulatedWorld` while an episode runs is audited with its declared
    tools and records. Where that declares no tools, or there is none, tools are declared from their
    specs, with result schemas inferred from the real results, and the system prompt is background.

    Args:
        env: Has the real tools; it is reset and stepped.
        simulator: What is audited.
        calls: How many calls to compare.
        policy: Who makes the calls; None makes random valid ones.
        seed: Of episodes, random calls and simulator.
        concurrency: Episodes whose calls are put to the simulator at once.
        on_call: Told after every call put to the simulator.

    Raises:
        ConfigError: If the policy calls nothing, or `calls` is not positive.
        EndpointError: If the simulator's endpoint refused to go on (key, credit, budget).
    """
    if calls < 1 or concurrency < 1:
        raise ConfigError(f"calls and concurrency must be at least 1, got {calls}, {concurrency}")
    episodes = await gather_calls(env, calls=calls, policy=policy, seed=seed)
    declared = _declared(episodes)
    comparisons = {name: _Comparison(tool) for name, tool in declared.items()}
    room = asyncio.Semaphore(concurrency)

    async def put(number: int, episode: RealEpisode) -> None:
        async with room:
            for call, world in _worlds(episode, declared, seed=seed + number):
                comparison = comparisons[call.name]
                await comparison.put(simulator, call, world)
                on_call()

    with metered(Meter()) as meter:
        async with asyncio.TaskGroup() as group:
            for number, episode in enumerate(episodes):
                group.create_task(put(number, episode))
    if meter.refused:
        reason = "; ".join(meter.refused.values())
        raise EndpointError(f"the audit is not complete: {reason}", retryable=False)
    return Fidelity(
        env_id=env.spec.id if env.spec else type(env).__name__,
        episodes=len(episodes),
        tools=tuple(c.report() for c in comparisons.values() if c.calls),
        unobserved=tuple(name for name, c in comparisons.items() if not c.calls),
        spent=dict(meter.by_role),
    )


# --- declarations -----------------------------------------------------------------------------


def _declared(episodes: Sequence[RealEpisode]) -> dict[str, SimulatedTool]:
    """The tools as the simulator is told about them: by the env's own worlds, or inferred."""
    declared: dict[str, SimulatedTool] = {}
    results: dict[str, list[Any]] = {}
    for episode in episodes:
        for call in episode.calls:
            for tool in call.world.tools if call.world else ():
                declared.setdefault(tool.name, tool)
            if "result" in call.entry:
                results.setdefault(call.name, []).append(call.entry["result"])
    for episode in episodes:
        for spec in episode.tools:
            function = spec["function"]
            if function["name"] not in declared:
                declared[function["name"]] = SimulatedTool(
                    name=function["name"],
                    description=function.get("description", ""),
                    parameters=function["parameters"],
                    result=infer_schema(results.get(function["name"], ())),
                    effect="update",  # nobody said that it changes nothing
                )
    return declared


def infer_schema(values: Sequence[Any]) -> dict[str, Any]:
    """The narrowest plain JSON schema that fits all values; any value without one.

    Objects have the fields seen, required where all have them; types are united.
    """
    if not values:
        return dict(ANY_RESULT)
    kinds = {_kind(value) for value in values}
    if "number" in kinds:
        kinds.discard("integer")
    schema: dict[str, Any] = {"type": min(kinds) if len(kinds) == 1 else sorted(kinds)}
    if objects := [value for value in values if isinstance(value, Mapping)]:
        names = list(dict.fromkeys(name for each in objects for name in each))
        schema["properties"] = {
            name: infer_schema([each[name] for each in objects if name in each]) for name in names
        }
        if required := [name for name in names if all(name in each for each in objects)]:
            schema["required"] = required
    if items := [item for value in values if isinstance(value, list) for item in value]:
        schema["items"] = infer_schema(items)
    return schema


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def _worlds(
    episode: RealEpisode, declared: Mapping[str, SimulatedTool], *, seed: int
) -> Iterator[tuple[RealCall, SimulatedWorld]]:
    """Each call of an episode, with a world that knows the real answers before it."""
    own = {spec["function"]["name"] for spec in episode.tools}
    world = SimulatedWorld(
        tools=tuple(tool for name, tool in declared.items() if name in own),
        seed=seed,
        background=episode.background,
        session=f"audit-{seed}",
    )
    for call in episode.calls:
        if call.world is not None:
            known = copy.deepcopy(call.world)
            world = known if known.tools else dataclasses.replace(world, state=known.state)
        yield call, copy.deepcopy(world)
        if "result" in call.entry:
            draft = Draft(world)
            with contextlib.suppress(Contradiction):  # real tools may break what they declare
                draft.take(declared[call.name], call.entry["arguments"], call.entry["result"])
                draft.commit()
        world.log.append(copy.deepcopy(call.entry))


# --- comparison -------------------------------------------------------------------------------


class _Comparison:
    """The real and the simulated answers of one tool."""

    def __init__(self, tool: SimulatedTool) -> None:
        self._tool = tool
        self._schema = JsonSchema(tool.result, where=f"tool {tool.name!r}, result")
        self.calls = self._faults = self._same_status = self._results = self._valid = 0
        self._pairs: list[tuple[float, float]] = []
        self._examples: list[Disagreement] = []

    async def put(self, simulator: ToolSimulator, call: RealCall, world: SimulatedWorld) -> None:
        """Put a call to the simulator and compare its answer."""
        self.calls += 1
        real, arguments = call.entry, dict(call.entry["arguments"])
        kind: Literal["result", "error"] = "result"
        try:
            answer = await simulator.call(world, call.name, copy.deepcopy(arguments))
        except ToolError as refusal:
            kind, answer = "error", str(refusal)
        except SimulatorError as error:
            self._faults += 1
            self._show(real, f"fault: {error}")
            return
        except Exception as error:  # a bug in it masks an episode just so
            self._faults += 1
            self._show(real, f"fault: {type(error).__name__}: {error}")
            return
        self._same_status += kind in real
        if kind == "result":
            self._results += 1
            self._valid += not self._schema.faults(answer)
        if kind not in real:
            self._show(real, as_json({kind: answer}))
        elif kind == "result":
            shape, values, differing = compare(real["result"], answer)
            self._pairs.append((shape, values))
            if differing:
                self._show(real, as_json(answer), differing)

    def _show(self, real: Entry, simulated: str, differs: Sequence[str] = ()) -> None:
        if len(self._examples) < MOST_EXAMPLES:
            told = real["result"] if "result" in real else {"error": real["error"]}
            self._examples.append(
                Disagreement(
                    arguments=real["arguments"],
                    real=as_json(told)[:LONGEST_EXAMPLE],
                    simulated=simulated[:LONGEST_EXAMPLE],
                    differs=tuple(differs[:10]),
                )
            )

    def report(self) -> ToolFidelity:
        """The figures."""
        n = len(self._pairs)
        return ToolFidelity(
            name=self._tool.name,
            calls=self.calls,
            faults=self._faults,
            same_status=self._same_status,
            results=self._results,
            valid=self._valid,
            shape=sum(shape for shape, _ in self._pairs) / n if n else None,
            values=sum(values for _, values in self._pairs) / n if n else None,
            examples=tuple(self._examples),
        )


def compare(real: Any, simulated: Any) -> tuple[float, float, list[str]]:
    """How alike two results are.

    Returns:
        Over the fields in either, the share in both, the mean likeness of their values, and the
        names of those that differ. A field is a path to a value that is no list and no object.
    """
    a, b = dict(_fields(real, "")), dict(_fields(simulated, ""))
    either = list(dict.fromkeys((*a, *b)))
    alike = {path: likeness(a[path], b[path]) for path in either if path in a and path in b}
    differing = [path or "result" for path in either if alike.get(path, 0.0) < 1]
    return len(alike) / len(either), sum(alike.values()) / len(either), differing


def likeness(real: Any, simulated: Any) -> float:
    """1 for equal values; for two texts the share of words they share (Dice); else 0."""
    if same(real, simulated):
        return 1.0
    if not (isinstance(real, str) and isinstance(simulated, str)):
        return 0.0
    a, b = Counter(words(real)), Counter(words(simulated))
    if min(a.total(), b.total()) < SHORTEST_TEXT:
        return 0.0  # a name or an id, which is right or wrong
    return min(0.99, 2 * (a & b).total() / (a.total() + b.total()))


def _fields(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _fields(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and value:
        for position, item in enumerate(value):
            yield from _fields(item, f"{path}[{position}]")
    else:
        yield path, value
