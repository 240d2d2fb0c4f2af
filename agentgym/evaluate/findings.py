"""What base-model episodes say about a training run, one finding at a time.

Each finding has the figures with their intervals, and says where its rule comes from; where no rule
has been published it says that, too, instead of making one up. A limit is passed when the whole
interval lies beyond it; an interval that holds the limit is `unclear`, with the number of further
tasks that would tell.

Rules marked AWS are of AWS SageMaker AI, "Best practices for multi-turn RL" (2 July 2026).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

from pydantic import Field

from agentgym.evaluate.base_episodes import BaseEpisode, by_task
from agentgym.statistics.groups import (
    GroupForecast,
    forecast_groups,
    informative_groups_seen,
)
from agentgym.statistics.means import Estimate, share_estimate, wilson_interval
from agentgym.types import Finite, Record

Status: TypeAlias = Literal["ok", "alarm", "unclear", "note", "not_measured"]

TURN_CAP, TOKEN_LIMIT = 0.10, 0.05
EPISODES = 100
"""Baseline episodes over which the reward must vary."""
MIN_INFORMATIVE = 0.5
"""Share of informative groups below which training itself raises its alarm `no_signal`."""
_MOST = 0.5
_MOST_MORE = 100_000  # tasks; a limit that needs more than that can't be told from the share


class Finding(Record):
    """One thing that was looked at."""

    name: str
    status: Status
    """`alarm`: evidence against training now. `unclear`: the interval holds the limit. `note`: for
    the reader, without a rule. `not_measured`: nothing given that shows it."""
    said: str
    """The figures, in a sentence."""
    rule: str
    """Where the limit comes from, or that none has been published."""
    change: str | None = None
    """The first thing to change, for an alarm."""
    numbers: dict[str, Finite] = Field(default_factory=dict)
    more_tasks: int | None = None
    """Further tasks, each played as often as these, that would make an unclear one clear."""

    @property
    def leans_to_alarm(self) -> bool:
        """Whether it is unclear, and what was seen is beyond the limit all the same."""
        limit = self.numbers.get("limit")
        return self.status == "unclear" and limit is not None and self.numbers["share"] >= limit


def scored_of(episodes: Sequence[BaseEpisode]) -> list[BaseEpisode]:
    """The episodes that count."""
    return [episode for episode in episodes if episode.scored]


def unscored(episodes: Sequence[BaseEpisode]) -> Finding:
    """Episodes without a score, which are in no other figure."""
    missing = [episode for episode in episodes if not episode.scored]
    classes = Counter(episode.failure_class or "unknown" for episode in missing)
    named = ", ".join(f"{name} {count}" for name, count in classes.most_common())
    said = f"{len(missing)} of {len(episodes)} episodes have no score"
    return Finding(
        name="unscored",
        status="note" if missing else "ok",
        said=f"{said} ({named}); no other figure has them" if missing else said,
        rule="no limit has been published; what can't be scored is seldom a random part of the "
        "tasks",
        numbers={"count": len(missing), "n": len(episodes)},
    )


def success(episodes: Sequence[BaseEpisode]) -> Finding:
    """How often the policy solves a task; a base at zero has nothing to train on."""
    judged = _judged(episodes)
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
    seen = _share(judged, lambda episode: episode.correct is True)
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
        numbers=_numbers(seen),
        more_tasks=tasks_for(EPISODES - len(judged), judged) if zero and not enough else None,
    )


def signal(
    episodes: Sequence[BaseEpisode], group_size: int, least: float = MIN_INFORMATIVE
) -> tuple[Finding, GroupForecast | None]:
    """The share of groups that will have something to learn from."""
    judged = _judged(episodes)
    rule = (
        f"no least share has been published; below {least:.0%} the training run itself will alarm "
        "(`no_signal`, a setting of ours). Success alone is counted: penalties and partial credit "
        "can tell rollouts apart in groups that all fail"
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
    by_reward = informative_groups_seen(
        [[e.reward for e in each] for each in by_task(scored_of(episodes)).values()], group_size
    )
    if by_reward is not None:
        said += (
            f"; by reward, {by_reward.mean:.0%} of the groups that can be drawn from these "
            "episodes are not all equal"
        )
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
    status: Status = "alarm" if seen.low >= _MOST else "ok" if seen.high < _MOST else "unclear"
    return Finding(
        name="variety",
        status=status,
        said=f"{percent(seen)} of the pairs of rollouts of a task that isn't always solved say the "
        "very same",
        rule=rule,
        change="temperature = 1.0 and a seed of its own for every rollout, then this verdict again"
        if status == "alarm"
        else None,
        numbers={**_numbers(seen), "limit": _MOST},
        more_tasks=_tasks_to_leave(seen, _MOST) if status == "unclear" else None,
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


def reward_above_evaluation(episodes: Sequence[BaseEpisode]) -> Finding:
    """Episodes that the reward likes better than an independent evaluation does.

    A reward may go beyond 1 by bonuses for what is solved; 1 is the top of the rule's scale.
    """
    pairs = [(e.reward, e.score) for e in episodes if e.reward is not None and e.score is not None]
    rule = "no episode may score higher on the reward than on the evaluation (AWS)"
    if not pairs:
        return Finding(
            name="reward_above_evaluation",
            status="not_measured",
            said="no external score to hold the reward against",
            rule=rule,
        )
    above = [(r, s) for r, s in pairs if min(r, 1.0) > s + 1e-9]
    worst = max(above, key=lambda pair: pair[0] - pair[1], default=None)
    said = f"{len(above)} of {len(pairs)} episodes have a reward above their external score"
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


def turn_cap(episodes: Sequence[BaseEpisode]) -> Finding:
    """Episodes that run out of turns without a final answer."""
    return _limit(
        "turn_cap",
        scored_of(episodes),
        lambda episode: episode.unanswered_at_cap,
        TURN_CAP,
        what="hit max_turns without a final answer",
        rule=f"alarm at {TURN_CAP:.0%} of episodes (AWS)",
        change="max_turns = ceil(1.5 × turns a human needs); then a prompt that says how to finish",
    )


def token_limit(episodes: Sequence[BaseEpisode]) -> Finding:
    """Episodes with a message that the per-turn token limit ends."""
    rule = f"alarm at {TOKEN_LIMIT:.0%} of episodes (AWS)"
    known = [episode for episode in scored_of(episodes) if episode.cut_off is not None]
    if not known:
        return Finding(
            name="token_limit",
            status="not_measured",
            said="a result without its traces doesn't say which messages were cut off",
            rule=rule,
        )
    return _limit(
        "token_limit",
        known,
        lambda episode: episode.cut_off is True,
        TOKEN_LIMIT,
        what="have a message cut off by the per-turn token limit",
        rule=rule,
        change="a higher limit of tokens per turn; or shorter reasoning, by the prompt",
    )


def context_limit(episodes: Sequence[BaseEpisode]) -> Finding:
    """Episodes that don't fit in the context."""
    return _limit(
        "context_limit",
        scored_of(episodes),
        lambda episode: episode.context_full,
        TOKEN_LIMIT,
        what="end because the context is full",
        rule=f"none published; {TOKEN_LIMIT:.0%} as for the token limit",
        change="a longer context; or shorter tool results",
    )


def malformed(episodes: Sequence[BaseEpisode]) -> Finding:
    """Episodes with calls that can't be read."""
    return _limit(
        "malformed",
        scored_of(episodes),
        lambda episode: episode.malformed,
        _MOST,
        what="have a call or action that can't be read",
        rule="no limit has been published; here: most episodes, since output format against parser "
        "is the first suspect of a run that is flat from step 0 (AWS)",
        change="one episode's first message, read against the tools or the text grammar; then the "
        "model's own tool format, or an example in the prompt",
    )


def completion(episodes: Sequence[BaseEpisode]) -> Finding:
    """Whether a final answer comes, and whether it is right: two different things."""
    judged = _judged(episodes)
    rule = (
        "right but seldom finished: the turn budget; finished but seldom right: the reward, or the "
        "task's difficulty (AWS; what counts as seldom is not said)"
    )
    if not judged:
        return Finding(
            name="completion", status="not_measured", said="no episode is judged", rule=rule
        )
    finished = _share(judged, lambda episode: episode.completed)
    said = f"a final answer comes in {percent(finished)} of episodes"
    numbers = {"completed": finished.mean}
    answered = [episode for episode in judged if episode.completed]
    if answered:
        right = _share(answered, lambda episode: episode.correct is True)
        said += f", and {percent(right)} of those are right"
        numbers["correct_if_completed"] = right.mean
    return Finding(name="completion", status="note", said=said, rule=rule, numbers=numbers)


# --- shared ---------------------------------------------------------------------------------------


def percent(seen: Estimate) -> str:
    """A share with its interval."""
    return f"{seen.mean:.1%} ({seen.low:.1%} to {seen.high:.1%})"


def _judged(episodes: Sequence[BaseEpisode]) -> list[BaseEpisode]:
    return [e for e in episodes if e.scored and e.correct is not None]


def _share(episodes: Sequence[BaseEpisode], hit: Callable[[BaseEpisode], bool]) -> Estimate:
    return share_estimate([hit(e) for e in episodes], [e.task_id for e in episodes])


def _numbers(seen: Estimate) -> dict[str, float]:
    return {"share": seen.mean, "low": seen.low, "high": seen.high, "n": float(seen.n)}


def _limit(
    name: str,
    scored: Sequence[BaseEpisode],
    hit: Callable[[BaseEpisode], bool],
    limit: float,
    *,
    what: str,
    rule: str,
    change: str,
) -> Finding:
    """A share of episodes against a limit."""
    seen = _share(scored, hit)
    status: Status = "alarm" if seen.low >= limit else "ok" if seen.high < limit else "unclear"
    return Finding(
        name=name,
        status=status,
        said=f"{percent(seen)} of episodes {what}",
        rule=rule,
        change=change if status == "alarm" else None,
        numbers={**_numbers(seen), "limit": limit},
        more_tasks=_tasks_to_leave(seen, limit) if status == "unclear" else None,
    )


def _tasks_to_leave(seen: Estimate, limit: float) -> int | None:
    """Further tasks after which Wilson's interval of the same share leaves the limit out."""
    p = seen.mean
    effective = p * (1 - p) / seen.stderr**2 if 0 < seen.stderr < math.inf else seen.n_clusters
    for tasks in _growing(seen.n_clusters):
        n = effective * tasks / seen.n_clusters
        low, high = wilson_interval(p * n, n)
        if high < limit or low >= limit:
            return tasks - seen.n_clusters
    return None


def _tasks_to_tell(found: GroupForecast, limit: float) -> int | None:
    """Further tasks after which a half width that shrinks as 1/√tasks leaves the limit out."""
    distance = abs(found.share - limit)
    half = found.high - found.share if found.share < limit else found.share - found.low
    if not found.repeated or distance == 0:
        return None
    tasks = math.ceil(found.n_tasks * (half / distance) ** 2)
    return tasks - found.n_tasks if found.n_tasks < tasks <= _MOST_MORE else None


def _growing(tasks: int) -> Iterator[int]:
    """Numbers of tasks to try, each 5 % more than the one before."""
    while tasks < _MOST_MORE:
        tasks = max(tasks + 1, math.ceil(tasks * 1.05))
        yield tasks


def tasks_for(episodes: int, played: Sequence[BaseEpisode]) -> int:
    """Further tasks that give so many episodes, each played as often as those before."""
    per_task = len(played) / len({e.task_id for e in played}) if played else 1.0
    return max(1, math.ceil(episodes / per_task))
