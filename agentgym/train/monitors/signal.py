"""Alarms about what there is to learn from: the differences within the groups.

A group whose rewards are all equal has no gradient. If each of G rollouts succeeds with chance p,
1 - p^G - (1-p)^G of the groups are informative; at G = 8 that is 8 % for p = 0.01, 83 % for 0.2 and
99 % for 0.5. So a share of equal groups is held against what p predicts: as many as predicted means
tasks of the wrong difficulty, more than predicted means that something makes rollouts alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.train.metrics import expected_without_signal
from agentgym.train.monitors.alarm import Alarm
from agentgym.train.monitors.evidence import Interval
from agentgym.train.monitors.history import RunHistory
from agentgym.train.monitors.limits import percent

_NEARLY_ALL = 0.9
_HARD, _EASY = 0.1, 0.9
_SAME = 0.82
"""Chance that two rollouts of a group say the same, from which sampling has lost its variety."""
_NO_SUCCESS = 0.005
_FEW = 0.2
"""What the success rate must be below, for none seen to mean something."""


def no_signal(history: RunHistory) -> Iterator[Alarm]:
    """Groups whose rewards are all equal."""
    seen = history.share("groups_equal")
    if seen is None and not history.last("groups_without_signal"):
        seen = history.share("frac_reward_zero_std")  # which counts unscored groups, too
    if seen is None or seen.low < history.thresholds.no_signal:
        return
    p = history.recent("correct")
    if history.has_learned:
        return
    size = _group_size(history)
    expected = None if p is None or size is None else expected_without_signal(p, size)
    numbers = {"share": seen.mean, "low": seen.low, "high": seen.high}
    said = f"{percent(seen)} of groups have all rewards equal"
    for name, short in (("groups_all_failed", "all failed"), ("groups_all_solved", "all solved")):
        share = history.recent(name)
        if share:
            said += f", {share:.0%} {short}"
            numbers[name] = share
    if p is not None and expected is not None and size is not None:
        said += f"; success p≈{p:.2g} at group size {size:.0f} predicts {expected:.0%}"
        numbers |= {"p": p, "group_size": size, "expected": expected}
    by_task = history.recent("groups_equal_expected_by_task")
    if by_task is not None:
        said += f", task by task {by_task:.0%}"
        numbers["expected_by_task"] = by_task
    cause, change = _why(history, seen, p, expected)
    yield Alarm(
        name="no_signal", step=history.now, seen=said, cause=cause, change=change, numbers=numbers
    )


def _why(
    history: RunHistory, seen: Interval, p: float | None, expected: float | None
) -> tuple[str, str]:
    """The likeliest cause of equal groups, and the first change."""
    clipped = history.recent("completions/clipped_ratio")
    cut_off = history.recent("cut_off")
    if ((clipped if cut_off is None else cut_off) or 0.0) > _NEARLY_ALL:
        beside = "" if clipped is None else f" (completions/clipped_ratio {clipped:.2f})"
        return f"nearly all completions are cut off{beside}", "a higher max_turn_tokens"
    if (history.recent("truncated/context") or 0.0) > _NEARLY_ALL:
        return "the context ends nearly all episodes", "a higher max_context"
    failing = [n for n in history.names("gates/") if (history.recent(f"gates/{n}") or 0) > 0.9]
    if failing:
        return (
            f"gate {failing[0]!r} fails for nearly all episodes",
            f"three traces with {failing[0]!r} in verdict.gates, before anything else",
        )
    alike = history.recent("groups_identical") or 0.0
    if alike > _identical_at(history):
        return (
            f"the rollouts of a group are alike (agentgym/groups_identical {alike:.2f})",
            "temperature = 1.0, and a seed of its own for every rollout",
        )
    if p is not None and p < _HARD:
        return (
            "the tasks are too hard for this policy",
            "easier tasks (env_kwargs.difficulty where there is one), or a mix with easier ones",
        )
    if p is not None and p > _EASY:
        return (
            "the tasks are too easy for this policy",
            "harder tasks (env_kwargs.difficulty where the environment has it)",
        )
    if p is not None and expected is not None and seen.low <= expected:
        size = _group_size(history) or 2.0
        larger = next((n for n in (4, 8) if n > size and expected_without_signal(p, n) < 0.5), None)
        if larger is not None:
            rest = expected_without_signal(p, larger)
            return (
                f"groups of {size:.0f} are that often equal by chance, at this success rate",
                f"group_size = {larger}, of which {rest:.0%} would be equal",
            )
    if expected is not None and seen.low > expected:
        return (
            "more groups are equal than p explains: tasks are always solved or never",
            "tasks in between, or partial credit over the fields of the outcome",
        )
    return (
        "the reward hardly tells the rollouts of a group apart",
        "more tasks per step with smaller groups; partial credit over the fields of the outcome",
    )


def no_success(history: RunHistory) -> Iterator[Alarm]:
    """No task is solved, although groups differ: by penalties alone."""
    seen, equal = history.share("correct"), history.share("groups_equal")
    if seen is None or seen.n < history.thresholds.window:
        return
    if seen.mean > _NO_SUCCESS or seen.high > _FEW:
        return
    if equal is not None and equal.low >= history.thresholds.no_signal:
        return  # no_signal says it
    yield Alarm(
        name="no_success",
        step=history.now,
        seen=f"{seen.mean:.1%} of episodes solve their task (at most {seen.high:.1%})"
        + ("" if equal is None else f", and yet only {equal.mean:.0%} of groups are equal"),
        cause="the tasks are too hard for this policy, and what differs within the groups are "
        "penalties and partial credit",
        change="easier tasks (env_kwargs.difficulty where the environment has it) or a mix with "
        "easier ones; a base policy at zero has nothing to train on",
        numbers={"p": seen.mean, "high": seen.high},
    )


def identical_rollouts(history: RunHistory) -> Iterator[Alarm]:
    """Groups in which every rollout says the same, although the task isn't solved."""
    seen = history.share("groups_identical")
    if seen is not None and seen.low >= _identical_at(history):
        entropy = history.recent("entropy")
        beside = f" (entropy {entropy:.2g} nats)" if entropy is not None else ""
        yield Alarm(
            name="identical_rollouts",
            step=history.now,
            seen=f"in {percent(seen)} of groups all rollouts say the same without solving the "
            f"task{beside}",
            cause="sampling has lost its variety: a temperature near 0, one seed for a whole "
            "group, or a policy that has become deterministic",
            change="temperature = 1.0; if it is that, a lower learning rate, or a KL term "
            "(grpo.beta = 0.01)",
            numbers={"share": seen.mean, "low": seen.low, "high": seen.high},
        )


def _identical_at(history: RunHistory) -> float:
    """Share of identical groups that shows a lack of variety: less, the larger they are.

    All of a group are alike with a chance of about q^(G-1), if two are with q. It is a share of all
    groups, and those that solved their task alike are not in it.
    """
    size = _group_size(history) or 8.0
    unsolved = 1 - (history.recent("groups_all_solved") or 0.0)
    return max(0.2, float(_SAME ** (size - 1)) * unsolved)


def _group_size(history: RunHistory) -> float | None:
    size = history.recent("group_size")
    return None if size is None else max(2.0, size)
