"""Alarms about how the policy's output moves over the run: its entropy and its length.

Changes of them are no fault by themselves, a policy that learns gets shorter and surer; they are
one together with a reward that doesn't come along.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from agentgym.train.monitors.alarm import Alarm
from agentgym.train.monitors.evidence import change
from agentgym.train.monitors.history import RIGHT, RunHistory, mean


class Ratio(NamedTuple):
    """A metric's mean in the last steps over that in the first ones."""

    before: float
    now: float
    value: float
    low: float
    high: float

    @property
    def numbers(self) -> dict[str, float]:
        """As an alarm shows them."""
        return {"before": self.before, "now": self.now, "ratio": self.value}


def entropy(history: RunHistory) -> Iterator[Alarm]:
    """The policy's entropy collapses or explodes, and the reward doesn't come along."""
    moved = since_start(history, "entropy")
    if moved is None or _has_learned(history):
        return
    if moved.high < 0.2:
        yield Alarm(
            name="entropy_collapse",
            step=history.now,
            seen=f"entropy fell from {moved.before:.3g} to {moved.now:.3g} nats per token while "
            f"{_reward_said(history)}",
            cause="the policy has become sure of something before it was right, and explores no "
            "more",
            change="a lower learning rate; a KL term (grpo.beta = 0.01), or more room upwards "
            "(grpo.epsilon_high = 0.28)",
            numbers=moved.numbers,
        )
    elif moved.low > 2.5:
        yield Alarm(
            name="entropy_explosion",
            step=history.now,
            seen=f"entropy rose from {moved.before:.3g} to {moved.now:.3g} nats per token while "
            f"{_reward_said(history)}",
            cause="the policy drifts towards noise: updates too large, or rewards that are noise",
            change="a lower learning rate; then grpo.beta = 0.01",
            numbers=moved.numbers,
        )


def length(history: RunHistory) -> Iterator[Alarm]:
    """Episodes get much shorter or longer, and the reward doesn't come along."""
    moved = since_start(history, "tokens")
    if moved is None or _has_learned(history):
        return
    if moved.high < 0.4:
        yield Alarm(
            name="length_collapse",
            step=history.now,
            seen=f"sampled tokens per episode fell from {moved.before:.3g} to {moved.now:.3g} "
            f"while {_reward_said(history)}",
            cause="the policy has learned to stop early: trying costs it more than giving up",
            change="the verdicts of some short traces; doing nothing must never beat trying "
            "(gates no_answer and truncated)",
            numbers=moved.numbers,
        )
    elif moved.low > 2.5:
        yield Alarm(
            name="length_explosion",
            step=history.now,
            seen=f"sampled tokens per episode rose from {moved.before:.3g} to {moved.now:.3g} "
            f"while {_reward_said(history)}",
            cause="the policy rambles: length costs nothing, or the loss favours long answers",
            change='grpo.loss_type = "dr_grpo"; a gate over_tokens',
            numbers=moved.numbers,
        )


def since_start(history: RunHistory, name: str) -> Ratio | None:
    """How a positive metric moved since the start; None before there are enough steps."""
    start = history.first(name)
    recent = history.last(name, history.thresholds.min_steps)
    enough = history.thresholds.min_steps
    if len(history.steps) < 2 * history.thresholds.window or len(recent) < enough:
        return None
    before, now = sum(start) / len(start), sum(recent) / len(recent)
    if before <= 0:
        return None
    moved = change(start, recent).scaled(1 / before)
    return Ratio(before, now, now / before, 1 + moved.low, 1 + moved.high)


def _has_learned(history: RunHistory) -> bool:
    """Whether the reward is above where it began, or near the top."""
    start = history.first("reward") or history.first("reward/mean")
    recent = history.last("reward") or history.last("reward/mean")
    success = history.recent("correct")
    if success is not None and success >= RIGHT:
        return True
    return bool(start and recent) and change(start, recent).low > 0


def _reward_said(history: RunHistory) -> str:
    start = mean(history.first("reward") or history.first("reward/mean"))
    recent = history.recent("reward")
    if recent is None:
        recent = history.recent("reward/mean")
    if start is None or recent is None:
        return "no reward was logged"
    return f"the reward went from {start:.3g} to {recent:.3g}"
