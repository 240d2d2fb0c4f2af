"""Alarms about a reward that stands still.

A lack of progress is not a lack of evidence for progress: a standstill is only called one when the
interval leaves no room for a rise that would matter.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from agentgym.train.monitors.alarm import Alarm
from agentgym.train.monitors.evidence import change, rise_of
from agentgym.train.monitors.history import RIGHT, RunHistory

_RISE = 0.05
"""Rise over the whole trend, in parts of the reward's range, below which it is a standstill."""
_RISE_LEVEL = 0.05


def plateau(history: RunHistory) -> Iterator[Alarm]:
    """The reward stands still below its maximum."""
    span = history.reward_range
    if _rises(history, 2 * history.thresholds.trend):
        return
    for length in (history.thresholds.trend, 2 * history.thresholds.trend, 100):
        values = history.last("reward", length) or history.last("reward/mean", length)
        if span is None or len(values) < length:
            return
        low, high = span
        rise = rise_of(values, level=_RISE_LEVEL).scaled(1 / (high - low))
        level = (sum(values) / length - low) / (high - low)
        if rise.high >= _RISE or rise.mean < -_RISE / 2 or level >= history.thresholds.plateau:
            continue
        right = history.last("correct", length)
        if right and sum(right) / len(right) >= RIGHT:
            return
        # The reward may stand while success rises: partial credit is earned first.
        if len(right) == length and rise_of(right, level=_RISE_LEVEL).high >= 2 * _RISE:
            continue
        start = history.first("reward") or history.first("reward/mean")
        since = change(start, values)
        if since.high < 0 or _bends(values):
            return
        from_start = since.low <= 0
        numbers = {"level": level, "rise": rise.mean, "rise_high": rise.high, "steps": length}
        numbers |= {"reward": sum(values) / length, "best": high}
        begin = history.steps[-length].step
        seen = (
            f"the reward has been {sum(values) / length:.3g} from step {begin} to {history.now}, "
            f"with {high:.3g} the best episode so far; it rose by {rise.mean:.1%} of its range (at "
            f"most {rise.high:.1%})"
        )
        yield _flat(history, seen, numbers) if from_start else _stall(history, seen, numbers)
        return


def _rises(history: RunHistory, length: int) -> bool:
    """Whether the reward rose over the last steps, slowly perhaps; not where there are fewer."""
    values = history.last("reward", length) or history.last("reward/mean", length)
    span = history.reward_range
    if span is None or len(values) < length:
        return False
    rise = rise_of(values, level=_RISE_LEVEL).scaled(1 / (span[1] - span[0]))
    return rise.low > 0 and rise.mean >= _RISE


def _bends(values: Sequence[float]) -> bool:
    """Whether the values go up and down again, which a line through them doesn't show."""
    third = len(values) // 3
    parts = values[:third], values[third : 2 * third], values[-third:]
    moves = [change(a, b) for a, b in itertools.pairwise(parts)]
    return any(move.low > 0 or move.high < 0 for move in moves)


def _flat(history: RunHistory, seen: str, numbers: dict[str, float]) -> Alarm:
    """Nothing was learned since the first step."""
    bad = history.recent("malformed") or 0.0
    cause = "nothing reaches the policy: a learning rate too small, or rewards that are noise"
    remedy = "a learning rate 3 to 10 times as high (LoRA takes ten times that of full fine-tuning)"
    equal = history.recent("groups_equal") or 0.0
    if equal >= history.thresholds.no_signal:
        cause = f"{equal:.0%} of groups have all rewards equal, which is nothing to learn from"
        remedy = "what the alarm no_signal says, or larger batches"
    elif bad > 0.1:
        cause = f"output format and parser disagree: {bad:.0%} of episodes have a malformed call"
        remedy = "one trace's first message, read against the environment's tools or text grammar"
    return Alarm(
        name="flat", step=history.now, seen=f"flat from the start: {seen}", cause=cause,
        change=remedy, numbers=numbers,
    )  # fmt: skip


def _stall(history: RunHistory, seen: str, numbers: dict[str, float]) -> Alarm:
    """Learning came to a stop below the maximum."""
    never = _components_never_earned(history)
    if never:
        cause = f"component {never[0]!r} is never earned, so part of the reward is out of reach"
        remedy = (
            f"what earns {never[0]!r}, by hand, on one task: does the prompt's example show it? A "
            "stall at 3.7 of 5 came from an example without a required field"
        )
    else:
        cause = "the policy has learned what it can in this setting"
        remedy = (
            "with all other alarms silent, more capacity (LoRA rank 64 or 128); then harder "
            "or fresh tasks"
        )
    return Alarm(
        name="plateau", step=history.now, seen=seen, cause=cause, change=remedy, numbers=numbers
    )


def _components_never_earned(history: RunHistory) -> list[str]:
    """Components that were 0 in every episode of the trend, while others were not."""
    names = history.names("components/")
    length = history.thresholds.trend
    earned = {n for n in names if any(history.last(f"components/{n}", length))}
    return [n for n in names if n not in earned] if earned else []
