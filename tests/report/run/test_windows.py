from __future__ import annotations

import pytest

from agentgym.report.run.windows import MOST_POINTS, mean_interval, smoothed
from agentgym.statistics import wilson_interval


def test_interval_is_students_worked_by_hand() -> None:
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    # s = 1, s/√3 = 0.57735, t(2; 97.5 %) = 4.302653
    assert mean == 2.0
    assert low == pytest.approx(2 - 2.484138, abs=1e-5)
    assert high == pytest.approx(2 + 2.484138, abs=1e-5)


def test_two_values_have_no_interval() -> None:
    assert mean_interval([1.0, 2.0]) == (None, None, None)


def test_a_share_that_all_steps_agree_on_has_wilsons_interval_of_its_groups() -> None:
    assert mean_interval([0.0] * 5, units=16) == (0.0, 0.0, wilson_interval(0, 80)[1])
    _, low, high = mean_interval([1.0] * 5, units=16)
    assert (low, high) == wilson_interval(80, 80)
    assert low < 1.0


def test_an_interval_of_a_share_stays_a_share() -> None:
    _, low, high = mean_interval([0.0, 0.0, 0.9], units=4)
    assert (low, high) == (0.0, 1.0)


def test_window_is_centred_and_cut_at_the_ends() -> None:
    points = smoothed([1, 2, 3, 4, 5], [0.0, 3.0, 6.0, 9.0, 12.0], window=3)
    assert [point.y for point in points] == [0.0, 3.0, 6.0, 9.0, 12.0]
    # at the ends two values are left, too few for an interval
    assert [point.smooth for point in points] == [None, 3.0, 6.0, 9.0, None]


def test_a_long_run_is_drawn_with_few_points_that_say_what_they_are() -> None:
    steps = list(range(1, 1001))
    points = smoothed(steps, [float(step) for step in steps], window=11)
    assert len(points) <= MOST_POINTS
    assert points[0].about == "mean of steps 1 to 7"
    assert points[0].y == 4.0
    assert points[0].x == 4
    assert points[-1].about == "mean of steps 995 to 1000"
