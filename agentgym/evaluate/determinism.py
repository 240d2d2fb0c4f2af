"""Does the same call in the same state give the same result?

If it doesn't, two rollouts of a group differ by luck and not by what the policy did, and the
optimiser learns from the luck. Two ways to see: traces hold states that were reached more than
once; and an episode's actions can be played again, in the same environment after a reset (which
shows state that leaks from one episode into the next) and in a fresh one.

A simulated user answers by its own seed. So what a user says counts only where the seeds agree;
what a tool gives counts always.

Source: "same task twice, diff the messages", AWS SageMaker AI, "Best practices for multi-turn RL"
(2 July 2026).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium

from agentgym.trace import Trace
from agentgym.types import Action, Message, Record

_SHOWN = 200  # characters of a reply
_EXAMPLES = 3


class Differing(Record):
    """A call that gave two results."""

    task_id: str
    after: str
    """The policy's message, or "the start"."""
    first: str
    second: str


class Determinism(Record):
    """How often the same thing was done in the same state, and what came of it."""

    compared: int
    """Replies that could be held against an earlier one."""
    differing: int
    """Those that were not the same."""
    by_seed: int = 0
    """Replies that differed where the seeds did, too; not counted as differing."""
    examples: tuple[Differing, ...] = ()

    def __add__(self, other: Determinism) -> Determinism:
        return Determinism(
            compared=self.compared + other.compared,
            differing=self.differing + other.differing,
            by_seed=self.by_seed + other.by_seed,
            examples=(self.examples + other.examples)[:_EXAMPLES],
        )


class _Reply(NamedTuple):
    """What was said in a state."""

    all: bytes
    of_tools: bytes
    """The tools' part of it; a user may answer in the same breath."""
    shown: str
    seed: int | None


class TraceComparison:
    """Holds the replies of traces against each other; take each trace once, in any order."""

    def __init__(self) -> None:
        self._seen: dict[bytes, _Reply] = {}
        self._found = Determinism(compared=0, differing=0)

    @property
    def result(self) -> Determinism:
        """What was found up to now."""
        return self._found

    def add(self, trace: Trace) -> None:
        """Take a trace. One that a fault broke is left out: its last reply may be half of one."""
        if trace.failure_class not in (None, "policy", "judge") or trace.task_id is None:
            return
        state = hashlib.blake2b(f"{trace.env_spec}\0{trace.task_id}".encode(), digest_size=16)
        for said, replies in _exchanges(trace.messages):
            state.update(_text(said).encode())
            self._hold(state.digest(), trace, said, replies)
            state.update(_text(replies).encode())

    def _hold(
        self, state: bytes, trace: Trace, said: Message | None, replies: Sequence[Message]
    ) -> None:
        reply = _Reply(
            all=_short(replies),
            of_tools=_short([each for each in replies if each.get("role") == "tool"]),
            shown=_shown(replies),
            seed=trace.seed,
        )
        before = self._seen.setdefault(state, reply)
        if before is reply:
            return
        differs = before.all != reply.all
        example: tuple[Differing, ...] = ()
        if before.of_tools != reply.of_tools or (differs and before.seed == reply.seed):
            example = (
                Differing(
                    task_id=trace.task_id or "",
                    after="the start" if said is None else _shown([said]),
                    first=before.shown,
                    second=reply.shown,
                ),
            )
        self._found += Determinism(
            compared=1,
            differing=len(example),
            by_seed=int(differs and not example),
            examples=example,
        )


def compare_traces(traces: Iterable[Trace]) -> Determinism:
    """Compare the replies that traces of the same environment got in the same states."""
    comparison = TraceComparison()
    for trace in traces:
        comparison.add(trace)
    return comparison.result


def play_twice(
    make_env: Callable[[], gymnasium.Env[Any, Any]],
    task_id: str,
    actions: Sequence[Action],
    *,
    seed: int = 0,
) -> Determinism:
    """Play the same actions on a task three times, and compare all that the environment said.

    Once in an environment, once more in the same one after a reset, and once in a fresh one.

    Args:
        make_env: Makes an environment; called twice.
        task_id: Which task.
        actions: What the policy does, turn by turn; those after the end are not played.
        seed: Of every reset.
    """
    env = make_env()
    try:
        first, again = (_played(env, task_id, actions, seed) for _ in range(2))
    finally:
        env.close()
    env = make_env()
    try:
        fresh = _played(env, task_id, actions, seed)
    finally:
        env.close()
    return _differences(task_id, first, again) + _differences(task_id, first, fresh)


def replay(make_env: Callable[[], gymnasium.Env[Any, Any]], trace: Trace) -> Determinism:
    """Play the actions of a trace as `play_twice` does; nothing is compared with the trace itself.

    Raises:
        ValueError: If the trace has no task.
    """
    if trace.task_id is None:
        raise ValueError(f"trace {trace.trace_id} has no task to play again")
    actions = [turn.message for turn in trace.turns]
    return play_twice(make_env, trace.task_id, actions, seed=trace.seed or 0)


_Played = list[tuple[Message | None, tuple[Message, ...]]]


def _played(
    env: gymnasium.Env[Any, Any], task_id: str, actions: Sequence[Action], seed: int
) -> _Played:
    """What was said, and what the environment replied, its opening first."""
    opening, _ = env.reset(seed=seed, options={"task_id": task_id})
    said: _Played = [(None, tuple(opening))]
    for action in actions:
        message = {"role": "assistant", "content": action} if isinstance(action, str) else action
        replies, _, terminated, truncated, _ = env.step(action)
        said.append((dict(message), tuple(replies)))
        if terminated or truncated:
            break
    return said


def _differences(task_id: str, first: _Played, second: _Played) -> Determinism:
    """Compare up to the first difference; from there on the states are not the same any more."""
    found = Determinism(compared=0, differing=0)
    for (said, replies), (_, others) in zip(first, second, strict=False):
        same = _text(replies) == _text(others)
        example = Differing(
            task_id=task_id,
            after="the start" if said is None else _shown([said]),
            first=_shown(replies),
            second=_shown(others),
        )
        found += Determinism(
            compared=1, differing=int(not same), examples=() if same else (example,)
        )
        if not same:
            return found
    return found


def _exchanges(messages: Sequence[Message]) -> Iterator[tuple[Message | None, list[Message]]]:
    """Each message of the policy with the replies to it; the opening comes with None."""
    said: Message | None = None
    replies: list[Message] = []
    for message in messages:
        if message.get("role") == "assistant":
            yield said, replies
            said, replies = message, []
        else:
            replies.append(message)
    if replies or said is None:
        yield said, replies


def _text(said: Any) -> str:
    """Messages as text, without the ids of calls: they are made up anew in each episode."""
    return json.dumps(_without_ids(said), sort_keys=True, ensure_ascii=True, default=repr) + "\n"


def _short(said: Any) -> bytes:
    return hashlib.blake2b(_text(said).encode(), digest_size=16).digest()


def _without_ids(value: Any) -> Any:
    if isinstance(value, Mapping):
        calls = {"tool_call_id"} | ({"id"} if "function" in value else set())
        return {key: _without_ids(item) for key, item in value.items() if key not in calls}
    if isinstance(value, list | tuple):
        return [_without_ids(item) for item in value]
    return value


def _shown(messages: Sequence[Message]) -> str:
    """The beginning of what messages say."""
    parts = []
    for message in messages:
        calls = message.get("tool_calls") or ()
        functions = [call.get("function") or {} for call in calls]
        called = [f"{each.get('name')}({each.get('arguments', '')})" for each in functions]
        parts.append(" ".join([str(message.get("content") or ""), *called]).strip())
    return " | ".join(parts)[:_SHOWN]
