"""A run's figures as text.

Where more than a few episodes have no score, no share stands alone: what fails is seldom a random
part of the tasks, so the share of all comes first and the share of the scored ones beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentgym.statistics import MAX_UNSCORED
from agentgym.types import Usage

if TYPE_CHECKING:
    from agentgym.rollout.summary import Mean, Rate, Summary


def summary_table(summary: Summary) -> str:
    """The figures of a run, one per line."""
    rows: list[tuple[str, str]] = [
        ("episodes", _episodes(summary)),
        ("reward", _mean(summary.reward) + _over(summary)),
        ("success", _rate(summary.success)),
        ("completion", _rate(summary.completion)),
        ("truncation", _rate(summary.truncation) + _reasons(summary.truncation_reasons)),
        ("malformed", _rate(summary.malformed) + _calls(summary)),
        ("cut off", _rate(summary.cut_off)),
        ("masked", _masked(summary)),
        ("turns", _mean(summary.turns, digits=2)),
    ]
    if summary.reruns:
        rows.append(("repeated", _reruns(summary)))
    rows += [(f"gate {name}", _rate(rate)) for name, rate in summary.gates.items()]
    for name, mean in summary.components.items():
        where = f" (in {mean.n} episodes)" if mean.n != summary.n_scored else ""
        rows.append((name, _mean(mean) + where))
    if summary.simulator_faults or "simulator" in summary.usage:
        rows.append(("simulator", f"{summary.simulator_faults:,} replies refused"))
    if summary.drifted is not None:
        rows.append(("judge drift", f"known in {summary.drifted} of {summary.n_total} episodes"))
    if summary.stage_s:
        rows.append(("stages", _stages(summary)))
    rows += [(f"tokens {role}", _usage(usage)) for role, usage in summary.usage.items()]
    if len(summary.usage) > 1:
        rows.append(("cost", _cost(sum(summary.usage.values(), Usage(calls=0)))))
    if (stop := summary.budget_stop) is not None:
        rows += [("budget", str(cap)) for cap in stop.caps]
        unknown = " or more" if stop.not_run_unknown else ""
        rows.append(("not run", f"{len(stop.not_run)}{unknown} episodes, for the budget"))
    for reason, count in summary.failure_reasons.items():
        rows.append(("masked by", f"{count} × {reason}"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _episodes(summary: Summary) -> str:
    return f"{summary.n_total} ({summary.n_scored} scored, {summary.n_tasks} tasks)"


def _usage(usage: Usage) -> str:
    troubles = [
        f"{count:,} {what}"
        for count, what in ((usage.retries, "retries"), (usage.failed_calls, "failed"))
        if count
    ]
    trouble = f" ({', '.join(troubles)})" if troubles else ""
    return (
        f"{usage.prompt_tokens:,} in ({usage.cached_tokens:,} cached), "
        f"{usage.completion_tokens:,} out ({usage.reasoning_tokens:,} reasoning), "
        f"{usage.calls:,} calls{trouble}, {_cost(usage)}"
    )


def _cost(usage: Usage) -> str:
    """Dollars; a figure that rests on an estimate says so, and an unknown one is no zero."""
    mark = " (tokens estimated)" if usage.estimated else ""
    if usage.cost_usd is None:
        return f"cost unknown{mark}"
    return f"${usage.cost_usd:,.4f}{mark}"


def _mean(mean: Mean, *, digits: int = 4) -> str:
    if mean.mean is None:
        return "- (nothing scored)"
    error = f" ± {mean.stderr:.{digits}f}" if mean.stderr is not None else ""
    return f"{mean.mean:.{digits}f}{error}"


def _over(summary: Summary) -> str:
    """What a mean leaves out, where that is much."""
    if summary.reward.mean is None or summary.failed_share <= MAX_UNSCORED:
        return ""
    return (
        f" over {summary.n_scored} of {summary.n_total} only: {summary.n_failed} have no score; "
        "--resume --retry-masked plays those again"
    )


def _reruns(summary: Summary) -> str:
    cost = _cost(sum(summary.rerun_usage.values(), Usage(calls=0)))
    tokens = sum(u.prompt_tokens + u.completion_tokens for u in summary.rerun_usage.values())
    return f"{summary.reruns} attempts that count no more ({tokens:,} tokens, {cost})"


def _stages(summary: Summary) -> str:
    return ", ".join(
        f"{stage} {took.mean_s:.3g} s (95 %: {took.p95_s:.3g} s)"
        for stage, took in summary.stage_s.items()
    )


def _rate(rate: Rate) -> str:
    if rate.of_scored is None or rate.of_total is None:
        return "- (nothing scored)"
    if rate.n_total - rate.n_scored > MAX_UNSCORED * rate.n_total:
        return (
            f"{rate.of_total:.1%} of all {rate.n_total}, {rate.of_scored:.1%} of the "
            f"{rate.n_scored} scored ({rate.count})"
        )
    text = f"{rate.of_scored:.1%} ({rate.count}/{rate.n_scored}"
    if rate.n_total != rate.n_scored:
        text += f"; {rate.of_total:.1%} of all {rate.n_total}"
    return text + ")"


def _reasons(reasons: dict[str, int]) -> str:
    return "".join(f", {name} {count}" for name, count in sorted(reasons.items()))


def _calls(summary: Summary) -> str:
    # Not "of": a text that matches no action is malformed, too, and is no call.
    told = summary.calls or summary.malformed_calls
    return f", {summary.malformed_calls} times; {summary.calls} calls in all" if told else ""


def _masked(summary: Summary) -> str:
    share = summary.n_failed / summary.n_total if summary.n_total else 0.0
    return f"{share:.1%} ({summary.n_failed}/{summary.n_total}){_reasons(summary.failures)}"
