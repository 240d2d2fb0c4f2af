"""What the verdict looks at in an episode, and nothing else of it.

Traces hold conversations, and ten thousand of them don't fit in memory; what is asked of each is a
dozen facts. Result files hold about the same, without the conversations.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import Field

from agentgym.trace import Trace
from agentgym.types import FailureClass, Finite, Record, Verdict

_KINDS = ("difficulty", "level", "family", "domain", "template", "category", "kind")
"""Keys of a task's metadata that sort tasks, the most telling first."""
_PREVIOUS = "previous_verdicts"


class BaseEpisode(Record):
    """The facts of one episode of the policy that is to be trained."""

    task_id: str
    reward: Finite | None
    """None where it has no score: something other than the policy broke."""
    correct: bool | None
    """Whether it solved the task; None where nobody can tell."""
    completed: bool
    """Whether a final answer came."""
    score: Finite | None = None
    """What an external evaluation gives, which the reward has no part in; None without one."""
    unanswered_at_cap: bool = False
    """Whether it hit `max_turns` without a final answer."""
    cut_off: bool | None = False
    """Whether the per-turn token limit ended one of its messages; None where nothing says."""
    context_full: bool = False
    """Whether the context was full before it ended."""
    malformed: bool = False
    """Whether it has a call or text action that can't be read."""
    failure_class: FailureClass | None = None
    turns: int = Field(default=0, ge=0)
    kinds: dict[str, str] = Field(default_factory=dict)
    """What sort of task it is, by the env's own words: `{"family": "cancel"}`."""
    said: str | None = None
    """A digest of all that the policy said; None where nothing says."""
    correct_before: bool | None = None
    """What another judge said, where the episode was judged again."""

    @property
    def scored(self) -> bool:
        """Whether it counts."""
        return self.reward is not None


def base_episode(trace: Trace, *, score: float | None = None) -> BaseEpisode:
    """The facts of a trace.

    Args:
        trace: The trace.
        score: What the external evaluation gave it.
    """
    task = trace.metadata.get("task")
    return BaseEpisode(
        task_id=trace.task_id or trace.trace_id,
        reward=trace.reward,
        correct=trace.verdict.correct,
        completed=trace.verdict.completed,
        score=score,
        unanswered_at_cap=trace.truncation_reason == "turns" and not trace.verdict.completed,
        cut_off=any(turn.cut_off for turn in trace.turns),
        context_full=trace.truncation_reason == "context",
        malformed=trace.malformed_calls > 0,
        failure_class=trace.failure_class or trace.verdict.failure_class,
        turns=len(trace.turns),
        kinds=_kinds(task) if isinstance(task, Mapping) else {},
        said=_digest(trace),
        correct_before=_judged_before(trace),
    )


def _digest(trace: Trace) -> str:
    """Of what was sampled, or of the messages without the ids that are made up for calls."""
    said = [
        turn.completion_ids
        if turn.completion_ids is not None
        else (turn.message.get("content"), [(c.name, repr(c.raw_arguments)) for c in turn.calls])
        for turn in trace.turns
    ]
    return hashlib.blake2b(repr(said).encode("utf-8", "replace"), digest_size=12).hexdigest()


def _kinds(task: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(task[name]) for name in _KINDS if isinstance(task.get(name), str | int)}


def _judged_before(trace: Trace) -> bool | None:
    """What the judge before the last one said; `agentgym judge rescore` keeps it."""
    earlier = trace.metadata.get(_PREVIOUS)
    if not isinstance(earlier, list | tuple) or not earlier:
        return None
    return Verdict.model_validate(earlier[-1]).correct


def by_task(episodes: Iterable[BaseEpisode]) -> dict[str, list[BaseEpisode]]:
    """The episodes of each task."""
    found: dict[str, list[BaseEpisode]] = defaultdict(list)
    for episode in episodes:
        found[episode.task_id].append(episode)
    return dict(found)


def sorted_by_kind(
    episodes: Iterable[BaseEpisode], *, most: int = 40
) -> Iterator[tuple[str, str, list[BaseEpisode]]]:
    """The episodes by each sort of task that tells at least two apart.

    Args:
        episodes: Any.
        most: A name with more values than this sorts nothing.

    Yields:
        What sorts them (`family`), the value, and its episodes.
    """
    found: dict[str, dict[str, list[BaseEpisode]]] = {name: defaultdict(list) for name in _KINDS}
    for episode in episodes:
        for name, value in episode.kinds.items():
            found[name][value].append(episode)
    for name, values in found.items():
        if 2 <= len(values) <= most:
            for value in sorted(values):
                yield name, value, values[value]
