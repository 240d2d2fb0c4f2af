"""Alarms about how reward, success and the policy's output move over the run.

A lack of progress is not a lack of evidence for progress: a standstill is only called one when the
interval leaves no room for a rise that would matter. Changes of entropy and length are no fault by
themselves, a policy that learns gets shorter and surer; they are one together with a reward that
doesn't come along.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agentgym.train.monitors.alarm import Alarm
from agentgym.train.monitors.evidence import LEVEL, Interval, change, rise_of
from agentgym.train.monitors.history import RunHistory, Step, mean
from agentgym.train.monitors.scores import gain

_RISE = 0.05
"""Rise over the whole trend, in parts of the reward's range, below which it is a standstill."""
_RISE_LEVEL = 0.05
_DROP = 0.1
"""Fall from the best window, in parts of the reward's range, that is a collapse."""
_PAID = 0.4
"""Part of the best episode's reward that wrong episodes earn, for the reward to be at fault."""
_RIGHT = 0.9
"""Success rate from which there is nothing left to learn."""


class _Ratio(NamedTuple):
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
        if right and sum(right) / len(right) >= _RIGHT:
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


def collapse(history: RunHistory) -> Iterator[Alarm]:
    """The reward fell from its best and stays down."""
    window = history.thresholds.window
    name = "reward" if history.of("reward") else "reward/mean"
    values = history.of(name)
    span = history.reward_range
    if span is None or len(values) < 2 * window:
        return
    sums = [0.0, *itertools.accumulate(values)]
    windows = list(map(operator.sub, sums[window:-window], sums))
    best = max(range(len(windows)), key=windows.__getitem__)
    # The best of many windows is good by luck, and so is the worst of as many ends bad.
    level = LEVEL * (window / len(values)) ** 2
    fall = change(values[best : best + window], values[-window:], level=level)
    if fall.scaled(1 / (span[1] - span[0])).high > -_DROP:
        return
    fall = fall.scaled(1 / (span[1] - span[0]))
    peak, now = sum(values[best : best + window]) / window, sum(values[-window:]) / window
    lag = history.recent("weights/lag") or 0.0
    ratio = history.recent("sampling/importance_sampling_ratio/mean")
    gap = history.recent("sampling/sampling_logp_difference/mean") or 0.0
    off_policy = lag > 0.5 or gap > 0.02 or (ratio is not None and abs(ratio - 1) > 0.05)
    numbers = {"best": peak, "now": now, "fall": -fall.mean, "fall_low": -fall.high}
    steps = history.steps_with(name)
    said = (
        f"the reward fell from {peak:.3g} (steps {steps[best]} to {steps[best + window - 1]}) to "
        f"{now:.3g}"
    )
    for name, short in (("entropy", "entropy"), ("tokens", "tokens per episode")):
        moved = _ratio(history, name)
        if moved is not None and not moved.low <= 1 <= moved.high:
            said += f", {short} went from {moved.before:.3g} to {moved.now:.3g}"
            numbers[f"{name}_ratio"] = moved.value
    yield Alarm(
        name="collapse", step=history.now, seen=said,
        cause="training is off-policy: the episodes come from weights or numbers other than the "
        "trainer's" if off_policy else "the updates are too large for what the batches tell",
        change="fewer updates per rollout and fresher weights; then a lower learning rate"
        if off_policy else "the last good checkpoint with a third of the learning rate, or "
        "grpo.beta = 0.01",
        numbers=numbers,
    )  # fmt: skip


def entropy(history: RunHistory) -> Iterator[Alarm]:
    """The policy's entropy collapses or explodes, and the reward doesn't come along."""
    moved = _ratio(history, "entropy")
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
    moved = _ratio(history, "tokens")
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


def reward_without_correctness(history: RunHistory) -> Iterator[Alarm]:
    """Episodes finish and are paid for, and are wrong."""
    span = history.reward_range
    done, right = history.share("completed"), history.share("correct")
    paid = history.mean("reward") or history.mean("reward/mean")
    if span is None or done is None or right is None or paid is None:
        return
    level = (paid.low - span[0]) / (span[1] - span[0])
    if span[1] <= 0 or done.low < 0.8 or right.high > 0.25 or level < _PAID:
        return
    parts = {n: history.recent(f"components/{n}") or 0.0 for n in history.names("components/")}
    most = max(parts, key=lambda n: parts[n]) if parts else None
    yield Alarm(
        name="reward_without_correctness",
        step=history.now,
        seen=f"{done.mean:.0%} of episodes finish and {right.mean:.0%} are right, yet the reward "
        f"is {paid.mean:.3g}, at least {level:.0%} of the best episode's",
        cause="the reward pays for something else than the task"
        + (f", most of it for {most!r}" if most else ""),
        change="the reward: credit over the fields of the final outcome instead; read ten "
        "well-paid traces that are wrong",
        numbers={"completed": done.mean, "correct": right.mean, "reward": paid.mean,
                 "level": level},
    )  # fmt: skip


def unfinished(history: RunHistory) -> Iterator[Alarm]:
    """What is finished is right, but most is not finished."""
    done, right = history.share("completed"), history.mean("correct_if_completed")
    if done is None or right is None or done.high > 0.5 or right.low < 0.5:
        return
    yield Alarm(
        name="unfinished",
        step=history.now,
        seen=f"{right.mean:.0%} of finished episodes are right, but only {done.mean:.0%} finish "
        f"(at most {done.high:.0%})",
        cause="the policy can do the task and runs out of turns, tokens or context",
        change="max_turns, max_turn_tokens and max_context, whichever agentgym/truncated/… says",
        numbers={"completed": done.mean, "high": done.high, "correct_if_completed": right.mean},
    )


def held_out_gap(history: RunHistory) -> Iterator[Alarm]:
    """The training reward rises and success on held-out tasks does not."""
    if len(history.evaluations) < 2 or not history.steps:
        return
    first, last = history.evaluations[0], history.evaluations[-1]
    held_out = gain(first, last)
    span = history.reward_range
    if held_out.n == 0 or span is None or span[1] <= 0:
        return
    steps = history.thresholds.min_steps
    begin, end = (bisect_right(history.steps, e.step, key=_number) for e in (first, last))
    around = history.steps[begin : begin + steps]
    recent = history.steps[max(0, end - steps) : end]
    if min(len(around), len(recent)) < steps or recent[0].step <= around[-1].step:
        return
    paid = _moved(around, recent, ("agentgym/reward/mean", "reward"))
    right = _moved(around, recent, ("agentgym/correct",))
    if paid is None:
        return
    paid = paid.scaled(1 / (span[1] - span[0]))
    beyond = paid.minus(held_out)
    if paid.low < 0.05 or held_out.low > 0 or beyond.low < 0.05:
        return
    learned = right is not None and right.low > 0
    yield Alarm(
        name="held_out_gap",
        step=history.now,
        seen=f"from step {first.step} to {last.step} the training reward rose by {paid.mean:.0%} "
        f"of its range (at least {paid.low:.0%}), success on held-out tasks by "
        f"{held_out.mean:+.1%} ({held_out.low:+.1%} to {held_out.high:+.1%})",
        cause="the policy learns the training tasks by heart"
        if learned
        else "the reward is being hacked: it rises without the tasks being solved",
        change="more training tasks, fewer passes over them"
        if learned
        else f"ten well-paid recent traces{_risen_component(history, around, recent)}",
        numbers={"reward_rise": paid.mean, "held_out_rise": held_out.mean,
                 "held_out_high": held_out.high, "beyond": beyond.low},
    )  # fmt: skip


def _number(step: Step) -> int:
    return step.step


def _moved(before: Sequence[Step], after: Sequence[Step], names: Sequence[str]) -> Interval | None:
    for name in names:
        a = [s.values[name] for s in before if name in s.values]
        b = [s.values[name] for s in after if name in s.values]
        if len(a) > 1 and len(b) > 1:
            return change(a, b)
    return None


def _risen_component(history: RunHistory, before: Sequence[Step], after: Sequence[Step]) -> str:
    moved = {
        name: rise.mean
        for name in history.names("components/")
        if (rise := _moved(before, after, (f"agentgym/components/{name}",))) is not None
    }
    best = max(moved, key=lambda n: moved[n]) if moved else None
    return f", component {best!r} first, which rose most" if best and moved[best] > 0 else ""


def _ratio(history: RunHistory, name: str) -> _Ratio | None:
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
    return _Ratio(before, now, now / before, 1 + moved.low, 1 + moved.high)


def _has_learned(history: RunHistory) -> bool:
    """Whether the reward is above where it began, or near the top."""
    start = history.first("reward") or history.first("reward/mean")
    recent = history.last("reward") or history.last("reward/mean")
    success = history.recent("correct")
    if success is not None and success >= _RIGHT:
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
