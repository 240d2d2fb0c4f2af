"""What the run costs: seconds, tokens and dollars, by what and by whom."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from agentgym.report.plots.chart import MOST_SERIES, Chart, Point, Series
from agentgym.report.run.making import ChartMaker
from agentgym.report.run.windows import MOST_POINTS

PARTS = ("rollout", "judge", "sync", "update")


def spending_charts(make: ChartMaker) -> Iterator[Chart]:
    """Time, tokens and dollars."""
    yield from _time(make)
    yield from make.over_steps(
        "speed",
        "Sampled tokens per second",
        {"tokens per second of rollout": "tokens_per_s"},
        what="Tokens that the policy sampled in a step, by the seconds of its rollout.",
        read="Falling: episodes get longer, or a slow tool or judge holds them up.",
    )
    yield from make.over_steps(
        "prefix-cache",
        "Prompt tokens from the prefix cache",
        {"cached": "prefix_cache_share"},
        what="Share of prompt tokens that the policy's engine had computed before.",
        read="With T turns that extend each other, up to 1 - last prompt / sum of prompts. Near 0: "
        "prefix caching is off, or replicas are changed within episodes.",
        unit="share",
        of_groups=False,  # it is a share of tokens
        y_range=(0.0, 1.0),
    )
    yield from _tokens(make)
    yield from _dollars(make)


def _binned(steps: list[int], columns: list[list[float]]) -> tuple[list[int], list[list[float]]]:
    """Means over a few steps each, in a long run."""
    size = -(-len(steps) // MOST_POINTS)
    if size < 2:
        return steps, columns
    starts = range(0, len(steps), size)
    means = [
        [sum(column[i : i + size]) / len(column[i : i + size]) for i in starts]
        for column in columns
    ]
    return [steps[min(i + size // 2, len(steps) - 1)] for i in starts], means


def _time(make: ChartMaker) -> Iterator[Chart]:
    history = make.record.history
    names = [name for name in PARTS if history.of(f"time_s/{name}")]
    steps = [s for s in make.record.history.steps if "agentgym/time_s/step" in s.values]
    if not names or not steps:
        return
    numbers = [step.step for step in steps]
    columns = [
        [step.values.get(f"agentgym/time_s/{name}", 0.0) for step in steps] for name in names
    ]
    whole = sum(sum(column) for column in columns) or 1.0
    shares = ", ".join(
        f"{name} {sum(column) / whole:.1%}" for name, column in zip(names, columns, strict=True)
    )
    at, means = _binned(numbers, columns)
    yield Chart(
        key="time",
        title="Where a step's time goes",
        about="Seconds of each step, stacked; they add up to the step, held-out evaluations not "
        f"included. `judge` is the rollout's time by the share of judging. Over the run: {shares}. "
        f"n = {len(numbers)} steps; single measurements, so there is no band.",
        series=tuple(
            Series(name, tuple(Point(x=x, y=y) for x, y in zip(at, column, strict=True)))
            for name, column in zip(names, means, strict=True)
        ),
        read="Rollout on top: more concurrency, more replicas, or a tool that blocks. Judge: a "
        "faster one, or more judgements at once. Update: a larger micro batch.",
        unit="seconds",
        kind="stack",
        marks=make.marks,
        x_range=make.x_range,
    )


def _tokens(make: ChartMaker) -> Iterator[Chart]:
    usage = make.record.diagnosis.usage
    for way, key, title in (
        ("tokens_in", "tokens-in", "Prompt tokens per step, by role"),
        ("tokens_out", "tokens-out", "Sampled tokens per step, by role"),
    ):
        total = {role: each.get(way, 0.0) for role, each in usage.items()}
        sums = ", ".join(f"{role} {count:,.0f}" for role, count in total.items())
        yield from make.over_steps(
            key,
            title,
            {role: f"usage/{role}/{way}" for role in usage},
            what="Retries, failed calls and earlier attempts included. Prompt tokens are those of "
            f"every call, so a conversation's beginning counts once per turn. Whole run: {sums}."
            if way == "tokens_in"
            else f"Reasoning included. Whole run: {sums}.",
            read="Growing prompts come from more or longer turns.",
        )


def _dollars(make: ChartMaker) -> Iterator[Chart]:
    """What was spent so far, per role; no price is not no cost."""
    usage = make.record.diagnosis.usage
    if not usage:
        return
    priced = [role for role, each in usage.items() if "usd" in each]
    unpriced = sorted(set(usage) - set(priced))
    series = []
    for role in priced[:MOST_SERIES]:
        steps, values = make.record.values(f"usage/{role}/usd")
        sums = list(itertools.accumulate(values))
        size = max(1, -(-len(steps) // MOST_POINTS))
        kept = [*range(size - 1, len(steps) - 1, size), len(steps) - 1]
        series.append(Series(role, tuple(Point(x=steps[i], y=sums[i]) for i in kept)))
    told = [f"{role} ${usage[role]['usd']:,.4f}" for role in priced]
    about = [f"Dollars spent up to each step. Whole run: {', '.join(told)}."] if told else []
    if unpriced:
        about.append(
            f"Tokens without a known price, in no sum: {', '.join(unpriced)}. Prices stand in a "
            "roles file; `agentgym cost actual` prices traces afterwards."
        )
    if series:
        about.append(f"n = {len(make.record.history.steps)} steps; sums, so there is no band.")
    yield Chart(
        key="dollars",
        title="Dollars, by role",
        about=" ".join(about),
        series=tuple(series),
        read="A role that dominates is where a cheaper model or a shorter prompt pays.",
        unit="dollars",
        marks=make.marks,
        x_range=make.x_range,
    )
