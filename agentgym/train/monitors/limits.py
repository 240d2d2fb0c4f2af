"""Alarms about how episodes end: limits, unreadable calls, gates, missing scores.

Sources: the 10 % and 5 % of turns and tokens are those of AWS SageMaker AI, "Best practices for
multi-turn RL" (2 July 2026).
"""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.train.monitors.alarm import Alarm
from agentgym.train.monitors.evidence import Interval
from agentgym.train.monitors.history import RunHistory

TREND = 15
"""Steps over which a share must not be falling, for the monitor to call it stuck."""
_NOT_FALLING = 0.15
"""Part of a share that it must lose over those steps to count as falling."""

_MASKED_CAUSE = {
    "judge": (
        "the judge gives no usable verdict",
        "`agentgym judge check` with the same roles file; more `max_tokens` for the judge",
    ),
    "simulator": (
        "the user or tool simulator breaks",
        "`agentgym simulator` audit on the traces; a stronger model in [simulator]",
    ),
    "env": (
        "the environment raises",
        "the `error` of the masked traces; check_agent_env of agentgym.testing on the environment",
    ),
    "infra": (
        "servers or time-outs fail",
        "the `error` of the masked traces; lower concurrency, longer deadlines, healthy replicas",
    ),
    "stale": (
        "policy servers answered with weights that nobody knows",
        "the warnings about those servers; the sync of every replica",
    ),
    "nonfinite": (
        "rewards are NaN, infinite, or too large for the trainer's float32",
        "`verdict.components` of the masked traces, for the one that has no bounds",
    ),
}


def turn_cap(history: RunHistory) -> Iterator[Alarm]:
    """Episodes that run out of turns without a final answer."""
    seen = history.share("turn_cap_unanswered")
    if seen is not None and seen.low >= history.thresholds.turn_cap:
        right = history.recent("correct_if_completed")
        of_those = f"; of the episodes that finish {right:.0%} are right" if right else ""
        yield Alarm(
            name="turn_cap",
            step=history.now,
            seen=f"{percent(seen)} of episodes hit max_turns without a final answer (alarm at "
            f"{history.thresholds.turn_cap:.0%}){of_those}",
            cause="the turn budget is too small, or the policy doesn't know how to finish",
            change="max_turns = ceil(1.5 × turns a human needs); then a prompt that says how to "
            "finish",
            numbers={"share": seen.mean, "low": seen.low, "high": seen.high},
        )


def token_limit(history: RunHistory) -> Iterator[Alarm]:
    """Messages that the per-turn token limit cuts off."""
    seen = history.share("cut_off") or history.share("completions/clipped_ratio")
    if seen is None or seen.low < history.thresholds.token_limit:
        return
    clipped = history.recent("completions/clipped_ratio")
    beside = f"; TRL's completions/clipped_ratio is {clipped:.2f}" if clipped is not None else ""
    numbers = {"share": seen.mean, "low": seen.low, "high": seen.high}
    yield Alarm(
        name="token_limit",
        step=history.now,
        seen=f"{percent(seen)} of episodes have a message cut off by max_turn_tokens (alarm at "
        f"{history.thresholds.token_limit:.0%}){beside}",
        cause="a message that is cut off is seldom an action, so its episode earns little",
        change="a higher max_turn_tokens; or shorter reasoning, by the prompt or the chat "
        "template's arguments",
        numbers=numbers if clipped is None else {**numbers, "clipped_ratio": clipped},
    )


def context_limit(history: RunHistory) -> Iterator[Alarm]:
    """Episodes that don't fit in the context."""
    seen = history.share("truncated/context")
    if seen is not None and seen.low >= history.thresholds.token_limit:
        yield Alarm(
            name="context_limit",
            step=history.now,
            seen=f"{percent(seen)} of episodes end because the context is full (alarm at "
            f"{history.thresholds.token_limit:.0%})",
            cause="prompt, tool results and answers together outgrow max_context",
            change="a higher max_context; or shorter tool results",
            numbers={"share": seen.mean, "low": seen.low, "high": seen.high},
        )


def malformed(history: RunHistory) -> Iterator[Alarm]:
    """Unreadable calls that don't become fewer."""
    seen = history.share("malformed")
    if seen is None or seen.low < history.thresholds.malformed or _is_falling(history, "malformed"):
        return
    yield Alarm(
        name="malformed",
        step=history.now,
        seen=f"{percent(seen)} of episodes have a call that can't be read, and the share isn't "
        "falling",
        cause="the policy's output format and the parser disagree",
        change="one trace's first message, read against the environment's tools or text grammar; "
        "then the chat template's own tool format, or an example in the prompt",
        numbers={"share": seen.mean, "low": seen.low, "high": seen.high},
    )


def gates(history: RunHistory) -> Iterator[Alarm]:
    """A gate that nearly every episode fails."""
    for name in history.names("gates/"):
        seen = history.share(f"gates/{name}")
        if seen is None or seen.low < history.thresholds.gate:
            continue
        if _is_falling(history, f"gates/{name}"):
            continue
        yield Alarm(
            name=f"gate:{name}",
            step=history.now,
            seen=f"gate {name!r} fails for {percent(seen)} of episodes",
            cause="a gate that fails for all tells no two episodes apart, and hides the rest of "
            "the reward where it pins it to the floor",
            change=f"three traces with {name!r} in verdict.gates: is it the policy's doing? If so, "
            "say in the prompt what it asks for, or make its penalty smaller at first",
            numbers={"share": seen.mean, "low": seen.low, "high": seen.high},
        )


def masked(history: RunHistory) -> Iterator[Alarm]:
    """Episodes without a score, by who failed."""
    rows = history.share("masked/rows")
    if rows is not None and rows.low >= history.thresholds.masked / 5:
        yield Alarm(
            name="untrainable_rows",
            step=history.now,
            seen=f"{percent(rows)} of episodes could not be turned into a training row",
            cause="a turn's prompt doesn't extend the one before, the sampler sent no ids, or a "
            "task's opening fills the context",
            change="the training form of the model's chat template (docs/training.md, Models); "
            "where such traces have no turns, a higher max_context",
            numbers={"share": rows.mean, "low": rows.low, "high": rows.high},
        )
    # Not `masked` itself: in it are those that are left out on purpose, by `truncated` for one.
    seen = history.share(*(f"masked/{name}" for name in _MASKED_CAUSE))
    if seen is None or seen.low < history.thresholds.masked:
        return
    classes = {name: history.recent(f"masked/{name}") or 0.0 for name in _MASKED_CAUSE}
    worst = max(classes, key=lambda name: classes[name])
    cause, remedy = _MASKED_CAUSE[worst]
    each = ", ".join(f"{name} {share:.0%}" for name, share in classes.items() if share)
    yield Alarm(
        name="masked",
        step=history.now,
        seen=f"{percent(seen)} of episodes have no score ({each})",
        cause=f"{cause}; what can't be scored is seldom a random part of the tasks",
        change=remedy,
        numbers={"share": seen.mean, "low": seen.low, "high": seen.high, **classes},
    )


def _is_falling(history: RunHistory, name: str) -> bool:
    """Whether a share goes down by itself, or hasn't been watched for long enough to tell.

    A share that nothing escapes is not going down, however short it has been watched.
    """
    values = history.last(name, TREND)
    if values and min(values) >= 0.99:
        return False
    if len(values) < TREND:
        return True
    half = len(values) // 2
    before, after = sum(values[:half]) / half, sum(values[-half:]) / half
    return after < before * (1 - _NOT_FALLING / 2)


def percent(seen: Interval) -> str:
    """A share with its interval."""
    return f"{seen.mean:.0%} ({seen.low:.0%} to {seen.high:.0%})"
