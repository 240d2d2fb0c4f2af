"""All monitors, and one look with each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from agentgym.train.monitors import learning, limits, output, sampling, signal, success
from agentgym.train.monitors.alarm import Alarm
from agentgym.train.monitors.collapse import collapse
from agentgym.train.monitors.history import RunHistory

Check: TypeAlias = Callable[[RunHistory], Iterator[Alarm]]

CHECKS: tuple[Check, ...] = (
    # What breaks first, and explains what comes after it.
    limits.masked,
    limits.token_limit,
    limits.context_limit,
    limits.gates,
    limits.malformed,
    limits.turn_cap,
    signal.no_signal,
    signal.no_success,
    signal.identical_rollouts,
    sampling.no_gradient,
    sampling.nonfinite,
    sampling.logprob_gap,
    sampling.importance_ratio,
    sampling.stale_weights,
    learning.plateau,
    collapse,
    output.entropy,
    output.length,
    success.reward_without_correctness,
    success.unfinished,
    success.held_out_gap,
)

ALARMS = (
    "collapse", "context_limit", "entropy_collapse", "entropy_explosion", "flat", "gate",
    "held_out_gap", "identical_rollouts", "importance_ratio", "length_collapse",
    "length_explosion", "logprob_gap", "malformed", "masked", "no_gradient", "no_signal",
    "no_success", "nonfinite_logprobs", "nonfinite_loss", "plateau", "reward_without_correctness",
    "stale_weights", "token_limit", "turn_cap", "unfinished", "untrainable_rows",
)  # fmt: skip
"""Kinds of alarms (`Alarm.kind`)."""


def look(history: RunHistory) -> list[Alarm]:
    """Every alarm that the history as it stands gives evidence for."""
    certain = list(sampling.nonfinite_loss(history))  # no chance event, so one step is evidence
    if len(history.steps) < history.thresholds.min_steps:
        return certain
    return certain + [alarm for check in CHECKS for alarm in check(history)]
