"""Should you train? What episodes of the untrained policy say, before a run is paid for.

Four answers and a fifth. `fix_first`: something is broken or in the way (the prompt, the parser, a
budget, the reward, the environment, the judge), and training would learn around it. `simplify`: the
tasks are too hard for groups to tell good from bad. `too_easy`: they are solved already. `train`:
none of that. And `undecided`: these episodes are too few to tell, with how many more would be.

What is in the way comes first, since it also makes tasks look harder than they are; and evidence
against training needs fewer episodes than evidence for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias

from pydantic import Field

from agentgym.errors import ConfigError, DataError, unknown_name
from agentgym.evaluate import limit_findings, scoring_findings, signal_findings
from agentgym.evaluate.base_episodes import BaseEpisode, by_task, sorted_by_kind
from agentgym.evaluate.determinism import Determinism
from agentgym.evaluate.difficulty import difficulty_parameters
from agentgym.evaluate.finding import EPISODES, Finding, counted, scored_of, tasks_for
from agentgym.evaluate.signal_findings import MIN_INFORMATIVE
from agentgym.judges.health import HealthReport
from agentgym.statistics.groups import GroupForecast, forecast_groups
from agentgym.statistics.means import MAX_UNSCORED, Estimate, share_estimate
from agentgym.types import Finite, Record

Conclusion: TypeAlias = Literal["train", "fix_first", "simplify", "too_easy", "undecided"]

_IN_THE_WAY = (
    "determinism", "judge", "reward_above_evaluation", "malformed", "token_limit", "context_limit",
    "turn_cap", "variety", "ceiling",
)  # fmt: skip
"""Findings whose alarm means: fix that first. Causes before what they lead to: calls that can't be
read use up the turns."""
_TOO_FEW = "episodes"


class KindRow(Record):
    """How a sort of task went."""

    sorted_by: str
    """What sorts the tasks: `family`, …"""
    value: str
    n_tasks: int
    success: Estimate
    informative: Finite
    """Share of informative groups expected."""
    informative_low: Finite
    informative_high: Finite
    """Ends of its interval; of few tasks nearly all is possible."""


class TrainingVerdict(Record):
    """Whether to train this policy on these tasks, and why."""

    conclusion: Conclusion
    because: tuple[str, ...]
    """Sentences with the figures behind the conclusion."""
    changes: tuple[str, ...]
    """What to change first, most pressing first."""
    findings: tuple[Finding, ...]
    """All that was looked at."""
    forecast: GroupForecast | None
    kinds: tuple[KindRow, ...]
    """Sorts of tasks, where the environment names them."""
    group_size: int
    n_episodes: int
    n_scored: int
    n_tasks: int
    more_tasks: int | None = None
    """Further tasks, each played as often as these, that would tell where it is undecided; None
    where it is decided, or where more of the same would not tell."""
    caveats: tuple[str, ...] = Field(default=())


def training_verdict(
    episodes: Sequence[BaseEpisode],
    *,
    group_size: int = 8,
    min_informative: float = MIN_INFORMATIVE,
    reference: Sequence[BaseEpisode] | None = None,
    reference_differs: str | None = None,
    repeats: Determinism | None = None,
    health: HealthReport | None = None,
    faults: Sequence[str] = (),
    env_spec: str | None = None,
    unscored_because: str | None = None,
    accept: Collection[str] = (),
) -> TrainingVerdict:
    """Say whether to train.

    Args:
        episodes: Of the policy to be trained, before training, on the tasks to train on.
        group_size: G, episodes per group in training.
        min_informative: Share of informative groups that is wanted.
        reference: Episodes of a stronger model on the same tasks.
        reference_differs: How its environment was made otherwise, where it was.
        repeats: Whether the environment repeats itself; see `agentgym.evaluate.determinism`.
        health: The judge on a gold set; see `agentgym judge check`.
        faults: What of that was not good enough.
        env_spec: The environment, as JSON, to name what makes its tasks easier.
        unscored_because: Why the episodes have no external score, where they have none.
        accept: Findings that are known and taken as they are; they decide nothing.

    Raises:
        ConfigError: If `accept` names no finding that can be in the way.
        DataError: If no episode has a score.
    """
    for name in accept:
        if name not in _IN_THE_WAY:
            raise ConfigError(unknown_name("finding to accept", name, _IN_THE_WAY))
    scored = scored_of(episodes)
    if not scored:
        raise DataError(
            f"none of {len(episodes)} episodes has a score, so nothing is known of the policy; the "
            "traces' `error` says what broke"
        )
    signal, forecast = signal_findings.signal(episodes, group_size, min_informative)
    found = (
        limit_findings.unscored(episodes),
        scoring_findings.determinism(repeats),
        scoring_findings.judge(episodes, health, faults),
        signal_findings.reward_above_evaluation(episodes, unscored_because=unscored_because),
        limit_findings.turn_cap(episodes),
        limit_findings.token_limit(episodes),
        limit_findings.context_limit(episodes),
        limit_findings.malformed(episodes),
        signal_findings.variety(episodes),
        limit_findings.completion(episodes),
        signal_findings.success(episodes),
        signal_findings.reward_varies(episodes),
        signal,
        scoring_findings.ceiling(episodes, reference, differs=reference_differs),
    )
    kinds = tuple(_kinds(episodes, group_size))
    conclusion, reasons = _conclude(
        {each.name: each for each in found}, scored, accepted=frozenset(accept)
    )
    changes = [each.change for each in reasons if each.change is not None]
    if conclusion in ("simplify", "too_easy"):
        changes += _levers(conclusion, env_spec, kinds)
    more = [each.more_tasks for each in reasons]
    known = [each for each in more if each is not None]
    tasks = len(by_task(scored))
    because = [each.said for each in reasons]
    if conclusion == "undecided":
        because = [each.said + _undecided_by(each) for each in reasons]
    return TrainingVerdict(
        conclusion=conclusion,
        because=tuple(because),
        changes=tuple(dict.fromkeys(changes)),
        findings=found,
        forecast=forecast,
        kinds=kinds,
        group_size=group_size,
        n_episodes=len(episodes),
        n_scored=len(scored),
        n_tasks=tasks,
        more_tasks=max(known) if conclusion == "undecided" and len(known) == len(more) else None,
        caveats=tuple(_caveats(found, forecast, accept)),
    )


def _conclude(
    found: dict[str, Finding], scored: Sequence[BaseEpisode], *, accepted: frozenset[str]
) -> tuple[Conclusion, list[Finding]]:
    """The conclusion, and the findings that it rests on."""
    asked = [found[name] for name in _IN_THE_WAY if name not in accepted]
    in_the_way = [each for each in asked if each.status == "alarm"]
    if in_the_way:
        return "fix_first", in_the_way
    success, signal, reward = found["success"], found["signal"], found["reward_varies"]
    p = signal.numbers.get("p")
    if reward.status == "alarm" and p not in (0.0, 1.0):
        return "fix_first", [reward, success]  # what was solved is not what is paid
    p = p or 0.0
    dull = [each for each in (success, reward, signal) if each.status == "alarm"]
    if dull:
        # Tasks always solved beside tasks never solved have a mean that says neither.
        apart = signal.numbers.get("at_mean", 0.0) >= signal.numbers.get("limit", 1.0)
        return ("too_easy" if p > 0.5 and not apart else "simplify"), [
            *dull,
            *([] if success in dull else [success]),
        ]
    unclear = [each for each in asked if each.leans_to_alarm]
    unclear += [each for each in (success, reward, signal) if each.status == "unclear"]
    if success.status == "not_measured":
        unclear += [success, signal]
    if len(scored) < EPISODES:
        unclear.append(_too_few(scored))
    if unclear:
        return "undecided", unclear
    return "train", [success, signal, reward]


def _undecided_by(reason: Finding) -> str:
    """What to add to what was said, where it decides nothing."""
    if reason.name == _TOO_FEW or reason.status == "not_measured":
        return ""
    return ": too few to tell" if reason.more_tasks is not None else ": these can't tell"


def _too_few(scored: Sequence[BaseEpisode]) -> Finding:
    """Fewer episodes than the published rule looks at."""
    return Finding(
        name=_TOO_FEW,
        status="unclear",
        said=f"{counted(len(scored), 'scored episode')} of the {EPISODES} that the rules look at",
        rule=f"over {EPISODES} baseline episodes (AWS)",
        more_tasks=tasks_for(EPISODES - len(scored), scored),
    )


def _kinds(episodes: Sequence[BaseEpisode], group_size: int) -> list[KindRow]:
    judged = [e for e in episodes if e.scored and e.correct is not None]
    rows = []
    for name, value, members in sorted_by_kind(judged):
        tasks = by_task(members)
        counts = [(len(each), sum(bool(e.correct) for e in each)) for each in tasks.values()]
        success = share_estimate([bool(e.correct) for e in members], [e.task_id for e in members])
        forecast = forecast_groups(counts, group_size)
        rows.append(
            KindRow(
                sorted_by=name,
                value=value,
                n_tasks=len(tasks),
                success=success,
                informative=forecast.share,
                informative_low=forecast.low,
                informative_high=forecast.high,
            )
        )
    return rows


def _levers(conclusion: Conclusion, env_spec: str | None, kinds: Sequence[KindRow]) -> list[str]:
    """What this environment offers to make its tasks easier or harder."""
    harder = conclusion == "too_easy"
    found = []
    for name, value in difficulty_parameters(env_spec or "").items():
        found.append(f"env_kwargs.{name}, which is {value} now ({'up' if harder else 'down'})")
    useful = [row for row in kinds if 0 < row.success.mean < 1]
    if useful and len(useful) < len(kinds):
        best = sorted(useful, key=lambda row: -row.informative)[:4]
        named = ", ".join(f"{row.value} ({row.success.mean:.0%})" for row in best)
        found.append(f"tasks of the {best[0].sorted_by} that are solved at times: {named}")
    return found


def _caveats(
    found: Sequence[Finding], forecast: GroupForecast | None, accepted: Collection[str]
) -> list[str]:
    missing = [each.name for each in found if each.status == "not_measured"]
    said = [f"not measured: {', '.join(missing)}"] if missing else []
    said += [f"accepted: {each.said}" for each in found if each.name in accepted]
    said += [each.said for each in found if each.name == "unscored" and _many_unscored(each)]
    said += [_unclear(each) for each in found if each.status == "unclear"]
    # Of tasks that were played once nobody knows whether they differ.
    if (
        forecast is not None
        and forecast.high < forecast.at_mean
        and forecast.share < forecast.at_mean - 0.1
    ):
        said.append(
            f"tasks differ: at the mean success alone {forecast.at_mean:.0%} of groups would be "
            f"informative, task by task it is {forecast.share:.0%}"
        )
    return said


def _many_unscored(found: Finding) -> bool:
    return found.numbers["count"] > MAX_UNSCORED * found.numbers["n"]


def _unclear(found: Finding) -> str:
    why = "the interval holds its limit" if "limit" in found.numbers else "too few for its rule"
    if found.more_tasks is None:
        return f"{found.name}: {why}"
    return f"{found.name}: {why}; {counted(found.more_tasks, 'more task')} would tell"
