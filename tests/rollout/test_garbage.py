"""Python's garbage collector during a rollout."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from agentgym.rollout import collecting_seldom


class Knot:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """As in a fresh process; the tests' own set-up freezes what they loaded."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_thresholds_are_given_back_whatever_happens() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), collecting_seldom():
        _fail_if(gc.get_threshold()[0] > before[0] and gc.get_freeze_count() > 0)
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("nothing_frozen")
def test_what_was_frozen_before_stays_frozen() -> None:
    gc.freeze()
    with collecting_seldom(), collecting_seldom():
        pass
    assert gc.get_freeze_count() > 0


def test_what_is_thrown_away_inside_is_still_collected() -> None:
    with collecting_seldom():
        gone = weakref.ref(Knot())
        assert gone() is not None
        gc.collect()
        assert gone() is None


def test_what_was_thrown_away_before_is_collected_rather_than_kept() -> None:
    gone = weakref.ref(Knot())
    with collecting_seldom():
        assert gone() is None


def _fail_if(condition: bool) -> None:
    if condition:
        raise ZeroDivisionError
