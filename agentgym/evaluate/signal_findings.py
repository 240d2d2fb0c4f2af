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
        )
    seen = share_of(judged, lambda episode: episode.correct is True)
    solved = sum(episode.correct is True for episode in judged)
    total = f"; {solved / len(episodes):.1%} of all {len(episodes)}"
    zero, enough = solved == 0, len(judged) >= EPISODES
    return Finding(
        name="success",
        status=("alarm" if enough else "unclear") if zero else "ok",
        said=f"{solved} of {len(judged)} scored episodes on {seen.n_clusters} tasks solve their "
        f"task: {percent(seen)}" + (total if len(episodes) > len(judged) else ""),
        rule=rule,
        change="easier tasks, or a mix with easier ones" if zero and enough else None,
        numbers=numbers_of(seen),
        more_tasks=tasks_for(EPISODES - len(judged), judged) if zero and not enough else None,
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
    if not judged:
        return Finding(
            name="signal",
            status="not_measured",
            said="without success rates there is no forecast",
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
    size, by_reward = _by_reward(episodes, group_size)
    if by_reward is not None:
        said += (
            f"; by reward, {by_reward.mean:.0%} ({by_reward.low:.0%} to {by_reward.high:.0%}) of "
            f"the groups of {size} that these episodes give are not all equal"
        )
        said += ", and larger ones more often" if size < group_size else ""
        if by_reward.low >= least and p <= 0.5:  # of solved tasks, penalties alone are left
            status = "ok"
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


def _by_reward(episodes: Sequence[BaseEpisode], group_size: int) -> tuple[int, Estimate | None]:
    """The share of groups whose rewards differ, of the largest size that half of the tasks have.

    Larger groups differ at least as often, so a smaller size gives a lower bound.
    """
    rewards = [[e.reward for e in each] for each in by_task(scored_of(episodes)).values()]
    size = min(group_size, int(statistics.median_low([len(each) for each in rewards])))
    return size, informative_groups_seen(rewards, size) if size > 1 else None


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
    seen = share_estimate(alike, tasks)
    status: Status = "alarm" if seen.low >= MOST else "ok" if seen.high < MOST else "unclear"
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
    rewards = [episode.reward for episode in scored if episode.reward is not None]
    values = len(set(rewards))
    mean = math.fsum(rewards) / len(rewards) if rewards else 0.0
    spread = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / max(1, len(rewards) - 1))
    status: Status = "ok" if values > 1 else "alarm" if len(rewards) >= EPISODES else "unclear"
    range_ = f", {min(rewards):g} to {max(rewards):g}" if rewards else ""
    return Finding(
        name="reward_varies",
        status=status,
        said=f"{values} different reward(s) over {len(rewards)} episodes{range_}; mean {mean:.3g}, "
        f"standard deviation {spread:.3g}",
        rule=f"over {EPISODES} baseline episodes the reward must vary (AWS)",
        change="the reward: partial credit over the fields of the outcome; or easier tasks"
        if status == "alarm"
        else None,
        numbers={"values": values, "mean": mean, "stdev": spread, "n": len(rewards)},
        more_tasks=tasks_for(EPISODES - len(rewards), scored) if status == "unclear" else None,
    )


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
    said = f"{len(above)} of {len(pairs)} episodes have a reward above their external score"
    if {s for _, s in pairs} <= {0.0, 1.0}:
        solved = [min(r, 1.0) for r, s in pairs if s == 1.0]
        typical = statistics.median(solved) if solved else 1.0
        partial, above = len(above), [(r, s) for r, s in above if r >= typical]
        rule += (
            "; this evaluation says 0 or 1, so here: no failed episode is paid as much as the "
            "typical solved one"
        )
        said = (
            f"{len(above)} of {len(pairs) - len(solved)} episodes that fail the external "
            f"evaluation have a reward of {typical:.3g} or more, "
            + ("as the typical solved one" if solved else "the top of the scale")
            + f"; {partial - len(above)} have partial credit"
        )
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
