"""Many noisy steps as a line with a band: means over neighbouring steps, with their intervals.

One training step says little: a few groups, drawn anew each time. What a reader wants to know is
where the run is by now and how sure that is, so each value gets the mean of its neighbours and the
interval of that mean. The unit is the step, as for the monitors: episodes of one step share tasks
and weights. The interval takes a trend within the window for noise, so it errs on the wide side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentgym.report.plots.chart import Point
from agentgym.statistics import t_quantile, wilson_interval

LEVEL = 0.95
FEWEST = 3
"""Steps below which a mean gets no interval."""
MOST_POINTS = 150
"""Points of a series in a chart; beyond, several steps become one."""


def smoothed(
    steps: Sequence[int],
    values: Sequence[float],
    *,
    window: int,
    units: float | None = None,
) -> tuple[Point, ...]:
    """Values with the means of their neighbours and the means' 95 % intervals.

    Args:
        steps: Shape `(n,)`, rising.
        values: Shape `(n,)`.
        window: Steps that a mean is over, at most; centred, and cut at both ends of the run.
        units: For shares: independent things that each step's share is of, its groups. Where all
            steps agree, as at 0 % or 100 %, the interval is Wilson's of them.

    Returns:
        One point per step; in a long run one per few steps, whose value is their mean.
    """
    size = max(1, math.ceil(len(steps) / MOST_POINTS))
    half = max(window // 2, (size + 1) // 2)
    points = []
    for start in range(0, len(steps), size):
        chunk = values[start : start + size]
        middle = start + (len(chunk) - 1) // 2
        around = values[max(0, middle - half) : middle + half + 1]
        smooth, low, high = mean_interval(around, units=units)
        first, last = steps[start], steps[start + len(chunk) - 1]
        points.append(
            Point(
                x=steps[middle],
                y=math.fsum(chunk) / len(chunk),
                smooth=smooth,
                low=low,
                high=high,
                about=f"mean of steps {first} to {last}" if last > first else "",
            )
        )
    return tuple(points)


def mean_interval(
    values: Sequence[float], *, units: float | None = None
) -> tuple[float | None, float | None, float | None]:
    """Mean and 95 % t interval, mean ± t·s/√n; all None with fewer than three values.

    Args:
        values: Shape `(n,)`.
        units: See `smoothed`.
    """
    n = len(values)
    if n < FEWEST:
        return None, None, None
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = t_quantile(n - 1, 1 - LEVEL) * math.sqrt(variance / n)
    low, high = mean - half, mean + half
    if units is not None:
        total = max(1.0, units * n)
        share = min(max(mean, 0.0), 1.0)
        wide_low, wide_high = wilson_interval(share * total, total)
        low, high = max(0.0, min(low, wide_low)), min(1.0, max(high, wide_high))
    return mean, low, high
