"""Whether the numbers can be trusted at all: the environment, the judge, and the tasks."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.evaluate.base_episodes import BaseEpisode, by_task
from agentgym.evaluate.determinism import Determinism
from agentgym.evaluate.finding import EPISODES, Finding, counted, percent
from agentgym.judges.health import HealthReport
from agentgym.statistics.agreement import cohen_kappa
from agentgym.statistics.means import share_estimate
from agentgym.statistics.paired import paired_difference


def determinism(found: Determinism | None) -> Finding:
    """Same task, same actions: the same replies?"""
    rule = "same tool and arguments in the same state give the same result (AWS)"
    if found is None or not found.compared:
        return Finding(
            name="determinism",
            status="not_measured",
            said="no state was reached twice; play each task several times, or replay episodes "
            "(--replay)",
            rule=rule,
        )
    said = f"{found.differing} of {found.compared} replies differ from an earlier one to the same "
    said += "call in the same state"
    if found.examples:
        first = found.examples[0]
        said += (
            f", for one {first.task_id} after {first.after!r}: {first.first!r} and {first.second!r}"
        )
    if found.by_seed:
        said += f"; {found.by_seed} more differ with the episode's seed, as a simulated user does"
    return Finding(
        name="determinism",
        status="alarm" if found.differing else "ok",
        said=said,
        rule=rule,
        change="the environment: state that outlives an episode, clocks, sampling without the "
        "episode's seed"
        if found.differing
        else None,
        numbers={"differing": found.differing, "compared": found.compared},
    )


def judge(
    episodes: Sequence[BaseEpisode],
    health: HealthReport | None = None,
    faults: Sequence[str] = (),
) -> Finding:
    """How far the judge can be believed.

    Args:
        episodes: Those judged twice (`agentgym judge rescore`) say how two judgements agree.
        health: What `agentgym judge check` found on a gold set.
        faults: What of that was not good enough, by the limits that the check was given.
    """
    rule = "no least agreement has been published; `agentgym judge check` takes limits of your own"
    said: list[str] = []
    numbers: dict[str, float] = {}
    bad = list(faults)
    if health is not None:
        for name, criterion in health.criteria.items():
            accuracy = criterion.accuracy
            if accuracy.share is None:
                continue
            low, high = accuracy.interval
            kappa = "" if criterion.kappa is None else f", kappa {criterion.kappa:.2f}"
            said.append(
                f"{name} is right in {accuracy.share:.0%} ({low:.0%} to {high:.0%}) of "
                f"{accuracy.n} gold cases{kappa}"
            )
            numbers[f"accuracy/{name}"] = accuracy.share
            if criterion.constant and not any(fault.startswith(f"{name}:") for fault in bad):
                bad.append(f"{name}: every judgement is the same")
    twice = [e for e in episodes if e.correct is not None and e.correct_before is not None]
    if twice:
        same = share_estimate([e.correct == e.correct_before for e in twice], _tasks(twice))
        kappa_of = cohen_kappa(
            [float(bool(e.correct)) for e in twice],
            [float(bool(e.correct_before)) for e in twice],
        )
        beyond = "" if kappa_of is None else f", kappa {kappa_of:.2f}"
        said.append(
            f"judged again, {percent(same)} of {same.n} episodes are called solved, or not, as "
            f"before{beyond}"
        )
        numbers["agreement"] = same.mean
    if not said and not bad:
        return Finding(
            name="judge",
            status="not_measured",
            said="no gold set (`agentgym judge check --out`) and nothing judged again",
            rule=rule,
        )
    said += [f"not good enough: {fault}" for fault in bad]
    return Finding(
        name="judge",
        status="alarm" if bad else "note",
        said="; ".join(said),
        rule=rule,
        change="the judge: its model, rubric or limits, before anything is trained on it"
        if bad
        else None,
        numbers=numbers,
    )


def ceiling(
    episodes: Sequence[BaseEpisode],
    reference: Sequence[BaseEpisode] | None,
    *,
    differs: str | None = None,
) -> Finding:
    """What a stronger model reaches on the same tasks: how much there is to gain."""
    rule = "evaluate base model and a frontier reference with the same external score (AWS)"
    if reference is None:
        return Finding(
            name="ceiling",
            status="not_measured",
            said="no episodes of a stronger model on the same tasks (--reference)",
            rule=rule,
        )
    ours, theirs = _success_by_task(episodes), _success_by_task(reference)
    shared = sorted(ours.keys() & theirs.keys())
    if len(shared) < 2:
        return Finding(
            name="ceiling",
            status="not_measured",
            said=f"the reference shares {counted(len(shared), 'judged task')} with these episodes; "
            "play it on the same tasks",
            rule=rule,
        )
    flat = [(task, hit) for task in shared for hit in theirs[task]]
    reached = share_estimate([hit > 0 for _, hit in flat], [task for task, _ in flat])
    gap = paired_difference({t: ours[t] for t in shared}, {t: theirs[t] for t in shared})
    unsolved = [t for t in shared if not any(ours[t])]
    by_them = sum(any(theirs[t]) for t in unsolved)
    nobody = reached.mean == 0 and not any(any(ours[task]) for task in shared)
    hopeless = nobody and len(flat) >= EPISODES and differs is None
    said = (
        f"the reference solves {percent(reached)} on the {counted(len(shared), 'shared task')}, "
        f"{gap.mean:+.1%} ({gap.low:+.1%} to {gap.high:+.1%}) against this policy"
    )
    if unsolved:
        never = counted(len(unsolved), "task")
        said += f"; of {never} this policy never solved, it solved {by_them}"
    if nobody:
        said += "; if nobody can solve them, look at the tasks and their scoring first"
    elif gap.high < 0:
        said += "; it is no ceiling, since this policy is better"
    if differs is not None:
        said += f"; its environment was made with other parameters, {differs}"
    return Finding(
        name="ceiling",
        status="alarm" if hopeless else "ok" if gap.low > 0 and differs is None else "note",
        said=said,
        rule=rule,
        change="the prompt, the tools or the scoring: no model has been seen to solve these tasks"
        if hopeless
        else None,
        numbers={
            "reference": reached.mean, "gap": gap.mean, "low": gap.low, "high": gap.high,
            "n_tasks": len(shared),
        },
    )  # fmt: skip


def _tasks(episodes: Sequence[BaseEpisode]) -> list[str]:
    return [episode.task_id for episode in episodes]


def _success_by_task(episodes: Sequence[BaseEpisode]) -> dict[str, list[float]]:
    judged = [e for e in episodes if e.scored and e.correct is not None]
    return {task: [float(bool(e.correct)) for e in each] for task, each in by_task(judged).items()}
