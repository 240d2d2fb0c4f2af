"""The alarm about a policy that was better before.

A mean over many steps is blind to a fall in the first ones, where half of the best window is
already down. So it is looked for in three ways: between windows of steps, whose scatter tells how
sure they are; from a single early step, which its own groups tell; and in the held-out evaluations,
task by task.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import NamedTuple

from agentgym.statistics import t_quantile, wilson_interval
from agentgym.train.monitors.alarm import Alarm
from agentgym.train.monitors.evidence import LEVEL, NOTHING, Interval, change, mean_of
from agentgym.train.monitors.history import RunHistory, Step, value_of
from agentgym.train.monitors.output import since_start
from agentgym.train.monitors.scores import gain

_DROP = 0.1
"""Fall from the best that is a collapse, in parts of the reward's range or of held-out tasks."""


class _Fall(NamedTuple):
    """A fall that there is evidence for."""

    said: str
    numbers: dict[str, float]


def collapse(history: RunHistory) -> Iterator[Alarm]:
    """The reward or held-out success fell from its best and stays down."""
    reward = _from_best_window(history) or _from_best_early_step(history)
    falls = [fall for fall in (reward, _held_out(history)) if fall is not None]
    if not falls:
        return
    said = ", ".join(fall.said for fall in falls)
    numbers = {name: value for fall in falls for name, value in fall.numbers.items()}
    for name, short in (("entropy", "entropy"), ("tokens", "tokens per episode")):
        moved = since_start(history, name)
        if moved is not None and not moved.low <= 1 <= moved.high:
            said += f", {short} went from {moved.before:.3g} to {moved.now:.3g}"
            numbers[f"{name}_ratio"] = moved.value
    off_policy = _is_off_policy(history)
    yield Alarm(
        name="collapse", step=history.now, seen=said,
        cause="training is off-policy: the episodes come from weights or numbers other than the "
        "trainer's" if off_policy else "the updates are too large for what the batches tell",
        change="fewer updates per rollout and fresher weights; then a lower learning rate"
        if off_policy else "the last good checkpoint with a third of the learning rate, or "
        "grpo.beta = 0.01",
        numbers=numbers,
    )  # fmt: skip


def _is_off_policy(history: RunHistory) -> bool:
    lag = history.recent("weights/lag") or 0.0
    ratio = history.recent("sampling/importance_sampling_ratio/mean")
    gap = history.recent("sampling/sampling_logp_difference/mean") or 0.0
    return lag > 0.5 or gap > 0.02 or (ratio is not None and abs(ratio - 1) > 0.05)


def _from_best_window(history: RunHistory) -> _Fall | None:
    """From the best window of steps to the last."""
    window = history.thresholds.window
    name = "reward" if history.of("reward") else "reward/mean"
    values = history.of(name)
    if len(values) < 2 * window:
        return None
    sums = [0.0, *itertools.accumulate(values)]
    windows = list(map(operator.sub, sums[window:-window], sums))
    best = max(range(len(windows)), key=windows.__getitem__)
    # The best of many windows is good by luck, and so is the worst of as many ends bad.
    level = LEVEL * (window / len(values)) ** 2
    fall = change(values[best : best + window], values[-window:], level=level)
    steps = history.steps_with(name)
    where = f"steps {steps[best]} to {steps[best + window - 1]}"
    before = sum(values[best : best + window]) / window
    return _fall(history, fall, where, before, sum(values[-window:]) / window)


def _from_best_early_step(history: RunHistory) -> _Fall | None:
    """From the best of the first steps, of its own, to the steps after it."""
    limits = history.thresholds
    early = history.steps[: 2 * limits.window][: -limits.min_steps]
    rewards = [value_of(step.values, "reward/mean") for step in early]
    known = [(reward, at) for at, reward in enumerate(rewards) if reward is not None]
    if not known:
        return None
    reward, at = max(known)
    later = history.steps[at + 1 :][-limits.window :]
    after = [v for step in later if (v := value_of(step.values, "reward/mean")) is not None]
    if len(after) < limits.min_steps:
        return None
    # As above: the best of so many, and as many ends.
    level = LEVEL / len(known) * min(1.0, limits.window / len(history.steps))
    before, now = _of_one_step(history, early[at], reward, level), mean_of(after, level=level)
    return _fall(history, now.minus(before), f"step {early[at].step}", reward, now.mean)


def _of_one_step(history: RunHistory, step: Step, reward: float, level: float) -> Interval:
    """A step's mean reward as its own groups tell it.

    No reward between two bounds scatters more than one that takes only these two (Bhatia and Davis,
    2000), and groups whose episodes are all alike rest on the groups only. So Wilson's interval for
    a share of the groups, scaled to the bounds, is too wide if anything; also where all earned the
    same.
    """
    groups = value_of(step.values, "groups") or 0.0
    lows, highs = history.of("reward/min"), history.of("reward/max")
    if groups < 2 or not lows or not highs or max(highs) <= min(lows):
        return NOTHING
    bottom, top = min(lows), max(highs)
    share = min(max((reward - bottom) / (top - bottom), 0.0), 1.0)
    z = t_quantile(int(groups) - 1, level)
    ends = [bottom + end * (top - bottom) for end in wilson_interval(share * groups, groups, z=z)]
    return Interval(reward, ends[0], ends[1], 1)


def _fall(
    history: RunHistory, fall: Interval, where: str, before: float, now: float
) -> _Fall | None:
    span = history.reward_range
    if span is None:
        return None
    fall = fall.scaled(1 / (span[1] - span[0]))
    if not fall.high <= -_DROP:  # which nothing known (NaN) isn't, either
        return None
    said = f"the reward fell from {before:.3g} ({where}) to {now:.3g}"
    return _Fall(said, {"best": before, "now": now, "fall": -fall.mean, "fall_low": -fall.high})


def _held_out(history: RunHistory) -> _Fall | None:
    """From the best held-out evaluation to the last one, on the tasks that both have."""
    if len(history.evaluations) < 2:
        return None
    *earlier, last = history.evaluations
    best = max(earlier, key=lambda score: score.success)
    fall = gain(best, last, level=LEVEL / len(earlier) ** 2)
    if fall.high > -_DROP:
        return None
    said = (
        f"success on held-out tasks fell from {best.success:.0%} (step {best.step}) to "
        f"{last.success:.0%} (step {last.step})"
    )
    return _Fall(said, {"held_out_fall": -fall.mean, "held_out_fall_low": -fall.high})
