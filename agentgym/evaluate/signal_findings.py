"""Whether there is something to learn from: success, informative groups, variety, the reward.

Rules marked AWS are of AWS SageMaker AI, "Best practices for multi-turn RL" (2 July 2026).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from agentgym.evaluate.base_episodes import BaseEpisode, by_task
from agentgym.evaluate.finding import (
    EPISODES,
    MOST,
    MOST_MORE,
    Finding,
    Status,
    counted,
    held_against,
    judged_of,
    numbers_of,
    percent,
    scored_of,
    share_of,
    tasks_for,
    tasks_to_leave,
)
from agentgym.statistics.groups import GroupForecast, forecast_groups, informative_groups_seen
from agentgym.statistics.means import Estimate, share_estimate

MIN_INFORMATIVE = 0.5
"""Share of informative groups below which training itself raises its alarm `no_signal`."""


def success(episodes: Sequence[BaseEpisode]) -> Finding:
    """How often the policy solves a task; a base at zero has nothing to train on."""
    judged = judged_of(episodes)
    rule = (
        "a base policy at zero: stop and simplify (AWS). The often quoted 20 to 80 % has no "
        "measured threshold behind it that we could find"
    )
    if not judged:
        return Finding(
            name="success",
            status="not_measured",
            said="nobody can tell whether these episodes solved their tasks (verdict.correct)",
            rule=rule,
            change="an external score that says what is solved (--score MODULE:FUNCTION)",
        )
    seen = share_of(judged, lambda episode: episode.correct is True)
    solved = sum(episode.correct is True for episode in judged)
    total = f"; {solved / len(episodes):.1%} of all {len(episodes)}"
    zero, missing = solved == 0, _tasks_missing(judged)
    enough = not missing
    return Finding(
        name="success",
        status=("alarm" if enough else "unclear") if zero else "ok",
        said=f"{solved} of {len(judged)} judged episodes on {counted(seen.n_clusters, 'task')} "
        f"solve their task: {percent(seen)}" + (total if len(episodes) > len(judged) else ""),
        rule=rule,
        change="easier tasks, or a mix with easier ones" if zero and enough else None,
        numbers=numbers_of(seen),
        more_tasks=missing if zero and not enough else None,
    )


def _tasks_missing(played: Sequence[BaseEpisode]) -> int:
    """Further tasks until something that never happened may be called rare.

    That takes a hundred episodes, and as many tasks that it can't be true of most others: a hundred
    episodes of a task or two say nothing of those.
    """
    never = share_of(played, lambda _: False)
    return max(
        tasks_for(EPISODES - len(played), played) if len(played) < EPISODES else 0,
        (tasks_to_leave(never, MOST) or 0) if never.high >= MOST else 0,
    )


def signal(
    episodes: Sequence[BaseEpisode], group_size: int, least: float = MIN_INFORMATIVE
) -> tuple[Finding, GroupForecast | None]:
    """The share of groups that will have something to learn from."""
    judged = judged_of(episodes)
    rule = (
        f"no least share has been published; below {least:.0%} the training run itself will alarm "
        "(`no_signal`, a setting of ours), which goes by rewards: where they are shown to differ "
        "often enough by partial credit or penalties, that does"
    )
    by_reward, reward_said = _by_reward(episodes, group_size)
    if not judged:
        return Finding(
            name="signal",
            status="not_measured",
            said="without success rates there is no forecast" + reward_said,
            rule=rule,
        ), None
    counts = [
        (len(each), sum(episode.correct is True for episode in each))
        for each in by_task(judged).values()
    ]
    found = forecast_groups(counts, group_size)
    status: Status = "alarm" if found.high < least else "ok" if found.low >= least else "unclear"
    p = sum(c for _, c in counts) / len(judged)
    said = (
        f"of groups of {group_size}, {found.share:.0%} ({found.low:.0%} to {found.high:.0%}) are "
        f"expected to be informative, task by task; all tasks at the mean p = {p:.2g} would give "
        f"1 - p^G - (1-p)^G = {found.at_mean:.0%}"
    )
    if not found.repeated:
        said += "; every task was played once, which can't show how tasks differ"
    said += reward_said
    if by_reward is not None and by_reward.low >= least and p <= 0.5:
        status = "ok"  # of solved tasks, penalties alone are left
    numbers = {
        "share": found.share, "low": found.low, "high": found.high, "limit": least,
        "at_mean": found.at_mean, "p": p, "group_size": float(group_size),
    }  # fmt: skip
    if by_reward is not None:
        numbers["by_reward"] = by_reward.mean
    return Finding(
        name="signal",
        status=status,
        said=said,
        rule=rule,
        change=_easier_or_harder(p, apart=found.at_mean >= least) if status == "alarm" else None,
        numbers=numbers,
        more_tasks=_tasks_to_tell(found, least) if status == "unclear" else None,
    ), found


def _by_reward(episodes: Sequence[BaseEpisode], group_size: int) -> tuple[Estimate | None, str]:
    """The share of groups whose rewards differ, of the largest size that half of the tasks have.

    Larger groups differ at least as often, so a smaller size gives a lower bound.
    """
    tasks = by_task(scored_of(episodes)).values()
    rewards = [[_rounded(e.reward) for e in each if e.reward is not None] for each in tasks]
    size = min(group_size, int(statistics.median_low([len(each) for each in rewards])))
    seen = informative_groups_seen(rewards, size) if size > 1 else None
    if seen is None:
        return None, ""
    said = (
        f"; by reward, {seen.mean:.0%} ({seen.low:.0%} to {seen.high:.0%}) of the groups of {size} "
        "that these episodes give are not all equal"
    )
    if seen.n < len(rewards):
        said += f" (the {counted(seen.n, 'task')} played so often)"
    return seen, said + (", and larger ones more often" if size < group_size else "")


def _rounded(reward: float) -> float:
    """Without the last bits, in which equal sums differ."""
    return round(reward, 9)


def variety(episodes: Sequence[BaseEpisode]) -> Finding:
    """Rollouts of a task that say the same, though it isn't solved: nothing is tried."""
    rule = (
        "none published; here: most pairs of a task's rollouts, since groups of copies are equal "
        "whatever the tasks are (the training run's alarm `identical_rollouts` is stricter)"
    )
    alike, tasks = [], []
    for task, each in by_task(scored_of(episodes)).items():
        told = [e for e in each if e.said is not None]
        if len(told) < 2 or all(e.correct for e in told):
            continue
        pairs = math.comb(len(told), 2)
        same = sum(math.comb(count, 2) for count in Counter(e.said for e in told).values())
        alike += [True] * same + [False] * (pairs - same)
        tasks += [task] * pairs
    if not alike:
        return Finding(
            name="variety",
            status="not_measured",
            said="no unsolved task was played twice",
            rule=rule,
        )
    seen = share_estimate(alike, tasks, exact=True)
    status = held_against(seen, MOST)
    return Finding(
        name="variety",
        status=status,
        said=f"{percent(seen)} of the pairs of rollouts of a task that isn't always solved say the "
        "very same",
        rule=rule,
        change="temperature = 1.0 and a seed of its own for every rollout, then this verdict again"
        if status == "alarm"
        else None,
        numbers={**numbers_of(seen), "limit": MOST},
        more_tasks=tasks_to_leave(seen, MOST) if status == "unclear" else None,
    )


def reward_varies(episodes: Sequence[BaseEpisode]) -> Finding:
    """A reward that is the same for all teaches nothing."""
    scored = scored_of(episodes)
    rewards = [_rounded(episode.reward) for episode in scored if episode.reward is not None]
    values = len(set(rewards))
    mean = math.fsum(rewards) / len(rewards) if rewards else 0.0
    spread = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / max(1, len(rewards) - 1))
    missing = _tasks_missing(scored)
    status: Status = "ok" if values > 1 else "unclear" if missing else "alarm"
    range_ = f", {min(rewards):g} to {max(rewards):g}" if rewards else ""
    return Finding(
        name="reward_varies",
        status=status,
        said=f"{counted(values, 'different reward')} over {counted(len(rewards), 'episode')}"
        f"{range_}; mean {mean:.3g}, standard deviation {spread:.3g}",
        rule=f"over {EPISODES} baseline episodes the reward must vary (AWS)",
        change=_varied_by(judged_of(scored)) if status == "alarm" else None,
        numbers={"values": values, "mean": mean, "stdev": spread, "n": len(rewards)},
        more_tasks=missing if status == "unclear" else None,
    )


def _varied_by(judged: Sequence[BaseEpisode]) -> str | None:
    """What to change where all rewards are the same."""
    solved = {episode.correct for episode in judged}
    if solved == {True}:
        return None  # harder tasks, as other findings say
    if solved == {False}:
        return "partial credit over the fields of the outcome, in the reward; or easier tasks"
    return "the reward: it is the same whatever the policy does"


def reward_above_evaluation(
    episodes: Sequence[BaseEpisode], *, unscored_because: str | None = None
) -> Finding:
    """Episodes that the reward likes better than an independent evaluation does.

    A reward may go beyond 1 by bonuses for what is solved; 1 is the top of the rule's scale. An
    evaluation that only says solved or not is below every partial credit, which is no fault of the
    reward; there, a failed episode is above it that is paid as much as the typical solved one.
    """
    pairs = [(e.reward, e.score) for e in episodes if e.reward is not None and e.score is not None]
    rule = "no episode may score higher on the reward than on the evaluation (AWS)"
    if not pairs:
        return Finding(
            name="reward_above_evaluation",
            status="not_measured",
            said="no external score to hold the reward against"
            + (f": {unscored_because}" if unscored_because else ""),
            rule=rule,
        )
    above = [(r, s) for r, s in pairs if min(r, 1.0) > s + 1e-9]
    played = counted(len(pairs), "episode")
    said = f"{len(above)} of {played} have a reward above their external score"
    if {s for _, s in pairs} <= {0.0, 1.0}:
        solved = [min(r, 1.0) for r, s in pairs if s == 1.0]
        failed = [(r, s) for r, s in pairs if s == 0.0]
        typical = statistics.median(solved) if solved else 1.0
        above = [(r, s) for r, s in failed if r >= typical - 1e-9]
        partial = sum(0 < r < typical - 1e-9 for r, _ in failed)
        rule += (
            "; this evaluation says 0 or 1, so here: no failed episode is paid as much as the "
            "typical solved one"
        )
        said = (
            f"{len(above)} of {counted(len(failed), 'episode')} that fail the external evaluation "
            f"are paid {typical:.3g} or more, "
            + ("as much as the median solved one" if solved else "the top of the scale")
            + f"; {partial} get partial credit"
        )
        if not failed:
            said = f"none of {played} fails the external evaluation"
    worst = max(above, key=lambda pair: pair[0] - pair[1], default=None)
    if worst is not None:
        said += f" (the worst: {worst[0]:.3g} against {worst[1]:.3g})"
    return Finding(
        name="reward_above_evaluation",
        status="alarm" if above else "ok",
        said=said,
        rule=rule,
        change="what the reward pays for in those episodes; a policy will find it"
        if above
        else None,
        numbers={"count": len(above), "n": len(pairs)},
    )


def _easier_or_harder(p: float, *, apart: bool) -> str:
    """What to change about tasks whose groups are equal.

    Args:
        p: Mean success rate.
        apart: Whether the mean alone would do, so that some tasks are always solved and some never.
    """
    if apart:
        return (
            "tasks in between: leave out what is always solved, ease what never is; or partial "
            "credit over the fields of the outcome"
        )
    return "harder tasks" if p > 0.5 else "easier tasks, or a mix with easier ones"


def _tasks_to_tell(found: GroupForecast, limit: float) -> int | None:
    """Further tasks after which a half width that shrinks as 1/√tasks leaves the limit out."""
    distance = abs(found.share - limit)
    half = found.high - found.share if found.share < limit else found.share - found.low
    if not found.repeated or distance == 0:
        return None
    tasks = math.ceil(found.n_tasks * (half / distance) ** 2)
    return tasks - found.n_tasks if found.n_tasks < tasks <= MOST_MORE else None
