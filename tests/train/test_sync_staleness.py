"""The bound on staleness, whatever the order in which episodes end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.errors import TrainingError
from agentgym.trace import Trace
from agentgym.train.sync import Admission, Staleness, oldest_version
from agentgym.types import Turn

bounds = st.integers(0, 4)
batches = st.integers(1, 6)


def admission(max_versions: int, batch: int) -> Admission[int]:
    return Admission(Staleness(max_versions=max_versions), batch=batch)


def test_by_hand():
    control = Admission(Staleness(max_versions=1), batch=2)
    assert control.room == 4
    assert [control.begin(name) for name in "abcd"] == [0, 0, 0, 0]
    with pytest.raises(TrainingError, match="no further episode may begin: 4 are playing"):
        control.begin("e")
    for name in "dca":
        control.finish(name)
    assert control.take().fresh == ("d", "c")
    control.synced()
    assert control.room == 2  # a waits, b is playing
    assert control.begin("e") == 1
    for name in "eb":
        control.finish(name)
    assert control.take().fresh == ("a", "b")  # the oldest first, then as they finished
    control.synced()
    assert (control.version, control.trained, control.dropped) == (2, 4, 0)


def test_what_took_too_long_is_dropped_and_makes_room():
    control = admission(0, 2)
    control.begin(1)
    control.begin(2)
    control.synced()
    control.finish(1)
    assert (control.ready, control.room) == (0, 1)  # 2 plays on
    control.finish(2)
    assert control.take().stale == (1, 2)
    assert control.dropped == 2
    assert control.take().stale == ()  # counted once


def test_what_is_abandoned_makes_room_wherever_it_is():
    control = admission(0, 2)
    control.begin(1)
    control.begin(2)
    control.finish(2)
    control.abandon(1)
    control.abandon(2)
    control.abandon(3)
    assert control.room == 2
    assert control.take().fresh == ()
    control.begin(1)  # under its old name


def test_an_episode_begins_once():
    control = admission(1, 2)
    control.begin(1)
    with pytest.raises(TrainingError, match="begun already"):
        control.begin(1)
    control.finish(1)
    with pytest.raises(TrainingError, match="begun already"):
        control.begin(1)
    with pytest.raises(KeyError):
        control.finish(2)


def test_a_batch_has_an_episode():
    with pytest.raises(TrainingError, match="at least 1"):
        admission(1, 0)


@settings(deadline=None, max_examples=200)
@given(bounds, batches, st.data())
def test_nothing_older_than_the_bound_is_ever_trained_on(max_versions, batch, data):
    control = admission(max_versions, batch)
    begun: dict[int, int] = {}
    playing: set[int] = set()
    seen: set[int] = set()
    for number in range(data.draw(st.integers(0, 60))):
        move = data.draw(st.sampled_from(["begin", "finish", "abandon", "step"]))
        if move == "begin" and control.room:
            begun[number] = control.begin(number)
            playing.add(number)
        elif move in ("finish", "abandon") and playing:
            key = data.draw(st.sampled_from(sorted(playing)))
            playing.discard(key)
            (control.finish if move == "finish" else control.abandon)(key)
        elif move == "step":
            taken = control.take()
            assert len(taken.fresh) <= batch
            assert all(control.version - begun[key] <= max_versions for key in taken.fresh)
            assert all(control.version - begun[key] > max_versions for key in taken.stale)
            assert not seen & {*taken.fresh, *taken.stale}
            seen |= {*taken.fresh, *taken.stale}
            control.synced()
        # A whole batch can always come together: nobody waits for what may not begin.
        assert len(playing) + control.ready + control.room >= batch
    assert control.trained + control.dropped == len(seen)


@settings(deadline=None, max_examples=200)
@given(bounds, batches, st.data())
def test_nothing_is_dropped_where_whole_batches_are_trained_in_order(max_versions, batch, data):
    control = admission(max_versions, batch)
    number = oldest = 0
    for _ in range(data.draw(st.integers(1, 12))):
        for _ in range(data.draw(st.integers(0, control.room))):
            control.begin(number)
            number += 1
        while number - oldest < batch:
            control.begin(number)
            number += 1
        for key in range(oldest, oldest + batch):
            control.finish(key)
        oldest += batch
        assert control.take().stale == ()
        control.synced()
    assert control.dropped == 0


@settings(deadline=None)
@given(bounds, batches)
def test_the_room_is_as_large_as_it_can_be(max_versions, batch):
    # With everything begun at once and trained in order, the last is just fresh enough; one more
    # would not be.
    control = admission(max_versions, batch)
    most = control.room
    for key in range(most):
        control.begin(key)
        control.finish(key)
    while control.ready:
        last = control.take()
        control.synced()
    assert control.dropped == 0
    assert (control.trained, control.version - 1) == (most, max_versions)
    assert last.fresh[-1] == most - 1


@pytest.mark.parametrize(
    ("versions", "oldest"),
    [
        (["7", "7"], 7),
        (["7", "7->8", "8"], 7),
        (["6->8", "8"], 6),
        (["10", "9"], 9),
        (["7", None], None),
        (["?->7"], None),
        (["step-7"], None),
        ([], None),
    ],
)
def test_the_oldest_weights_of_an_episode(versions, oldest):
    turns = [
        Turn.model_construct(weight_version=version)  # the rest doesn't matter
        for version in versions
    ]
    assert oldest_version(Trace.model_construct(turns=turns)) == oldest
