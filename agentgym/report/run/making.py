"""Makes the charts of a training run from its metrics, one metric to a series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentgym.report.plots.chart import MOST_SERIES, Chart, Mark, Point, Series, Unit
from agentgym.report.run.record import TrainingRecord
from agentgym.report.run.windows import FEWEST, MOST_POINTS, smoothed

ALWAYS_ZERO = 4
"""Series of nothing but zeros that a chart's text names one by one."""


class ChartMaker:
    """Charts over the training steps of one run.

    Args:
        record: The run.
    """

    def __init__(self, record: TrainingRecord) -> None:
        self.record = record
        self.window = record.thresholds.window // 2 * 2 + 1
        self.marks = tuple(
            [Mark(a.step, f"A{n}", "alarm") for n, a in enumerate(record.alarms, start=1)]
            + [Mark(s.step, f"R{n}", "resume") for n, s in enumerate(record.resumes, start=1)]
        )

        steps = record.history.steps
        scores = record.history.evaluations
        first = min(steps[0].step, scores[0].step) if scores else steps[0].step
        self.x_range = (float(first), float(steps[-1].step))

    def series(self, name: str, metric: str, *, share: bool = False) -> Series | None:
        """A metric over the steps; None if no step has it."""
        steps, values = self.record.values(metric)
        if not values:
            return None
        groups = self.record.history.last("groups")
        units = (sum(groups) / len(groups) if groups else 1.0) if share else None
        return Series(name, smoothed(steps, values, window=self.window, units=units))

    def over_steps(
        self,
        key: str,
        title: str,
        metrics: Mapping[str, str],
        *,
        what: str,
        read: str = "",
        unit: Unit = "number",
        hide_zero: bool = False,
        of_groups: bool = True,
        **more: Any,
    ) -> Iterator[Chart]:
        """A chart of several metrics; none if no step has any of them.

        Args:
            key: The chart's anchor.
            title: Its heading.
            metrics: What each series is called, to the metric's name.
            what: What is shown.
            read: What to make of it.
            unit: Of the values.
            hide_zero: Whether series that are 0 throughout are only named.
            of_groups: Whether shares are of episodes or groups, whose number then says how sure
                they are at least.
            **more: Further fields of the chart.
        """
        share = unit == "share" and of_groups
        found = [self.series(n, m, share=share) for n, m in metrics.items()]
        series = [each for each in found if each is not None]
        if not series:
            return
        zero = [s.name for s in series if hide_zero and not any(p.y for p in s.points)]
        series = [each for each in series if each.name not in zero]
        counts = [len(self.record.values(metric)[1]) for metric in metrics.values()]
        fewest = min(count for count in counts if count)
        said = self.about(series, share=share, fewest=fewest)
        about = " ".join(filter(None, (what, said, _zeros(zero, series))))
        parts = [series[i : i + MOST_SERIES] for i in range(0, len(series), MOST_SERIES)] or [[]]
        for number, part in enumerate(parts, start=1):
            several = len(parts) > 1
            yield Chart(
                key=f"{key}-{number}" if several else key,
                title=f"{title} ({number} of {len(parts)})" if several else title,
                about=about,
                series=tuple(part),
                read=read if number == 1 else "",
                unit=unit,
                marks=self.marks,
                x_range=self.x_range,
                **more,
            )

    def about(
        self, series: Sequence[Series], *, share: bool = False, fewest: int | None = None
    ) -> str:
        """What points, line and band are, and on how many things they rest.

        Args:
            series: What is drawn.
            share: Whether they are shares.
            fewest: Steps that the rarest of the metrics is known of.
        """
        if not series:
            return ""
        steps = len(self.record.history.steps)
        rare = f"; some of it in only {fewest} steps" if fewest and fewest < steps else ""
        counted = f"n = {steps:,} steps{self._episodes()}{rare}."
        if not any(point.low is not None for each in series for point in each.points):
            return f"Points: steps; fewer than {FEWEST}, so there is no band. {counted}"
        points = "means of a few steps" if steps > MOST_POINTS else "steps"
        wider = ", or Wilson's over their groups where that is wider" if share else ""
        return (
            f"Points: {points}. Line: mean of up to {self.window} neighbouring steps, so what "
            "happens within fewer is seen in the points only. Band: its "
            f"95 % t interval over those steps{wider}. {counted}"
        )

    def _episodes(self) -> str:
        episodes = self.record.history.of("episodes")
        if not episodes:
            return ""
        groups = self.record.history.last("groups")
        each = sum(episodes) / len(episodes)
        grouped = f" in {sum(groups) / len(groups):.0f} groups" if groups else ""
        return f" of {each:.0f} episodes{grouped}"


def _zeros(names: Sequence[str], others: Sequence[Series]) -> str:
    if not names:
        return ""
    if not others:
        return f"Nothing to draw: 0 in every step ({', '.join(names)})."
    told = ", ".join(names) if len(names) <= ALWAYS_ZERO else f"{len(names)} others"
    return f"Always 0: {told}."


def single_points(
    name: str, points: Sequence[tuple[float, float, float | None, float | None, str]]
) -> Series:
    """A series of values that have intervals of their own.

    Args:
        name: Its name.
        points: `x`, value, lower and upper end of its interval, what it rests on.
    """
    return Series(
        name,
        tuple(
            Point(x=x, y=y, low=low, high=high, about=about) for x, y, low, high, about in points
        ),
    )
