"""Alarms about reward and success that part: paid and wrong, unfinished, learnt by heart."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from agentgym.train.monitors.alarm import Alarm
from agentgym.train.monitors.evidence import Interval, change
from agentgym.train.monitors.history import RunHistory, Step
from agentgym.train.monitors.scores import gain

_PAID = 0.4
"""Part of the best episode's reward that wrong episodes earn, for the reward to be at fault."""


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
