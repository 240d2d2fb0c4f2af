"""Rows that wait for the asynchronous trainer are trained on in time, whatever its pace."""

from __future__ import annotations

import random
from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.train.async_admission import QueueAdmission
from agentgym.train.sync import Staleness


class Told(NamedTuple):
    """What a simulated run came to."""

    trained: int
    dropped: int
    waits: int
    """Moments at which the trainer had nothing to take."""


def simulate(
    *,
    batch: int,
    max_versions: int,
    group: int,
    concurrency: int,
    speed: float,
    bound: bool = True,
    versions: int = 40,
    masked: float = 0.0,
    seed: int = 0,
) -> Told:
    """Groups end in the order in which they began; `speed` rows are played per row trained."""
    rng = random.Random(seed)
    admission = QueueAdmission(Staleness(max_versions=max_versions), at_first=concurrency)
    queue: deque[int] = deque()
    playing: deque[int] = deque()
    version = taken = dropped = trained = waits = 0
    played = 0.0
    while version < versions:
        while len(playing) * group + group <= concurrency:
            admission.see(version=version, waiting=len(queue))
            starved = not queue and not playing
            if bound and not starved and admission.room(len(playing) * group) < group:
                break
            playing.append(version)
        played += speed
        while playing and played >= group:
            played -= group
            begun = playing.popleft()
            for _ in range(group):
                if rng.random() >= masked:
                    queue.append(begun)
                    admission.put(begun)
        if not playing:
            played = 0.0
        admission.see(version=version, waiting=len(queue))
        while queue and version - queue[0] > max_versions:
            queue.popleft()
            dropped += 1
        if queue:
            queue.popleft()
            taken += 1
            trained += 1
        else:
            waits += 1
        if taken == batch:
            version, taken = version + 1, 0
            admission.see(version=version, waiting=len(queue))
    return Told(trained, dropped, waits)


def test_nothing_is_dropped_where_playing_is_faster_than_training():
    told = simulate(batch=32, max_versions=2, group=8, concurrency=64, speed=4.0)
    assert told.dropped == 0
    without = simulate(batch=32, max_versions=2, group=8, concurrency=64, speed=4.0, bound=False)
    assert without.dropped > without.trained  # more than half of what is played, for nothing


def test_holding_back_costs_the_trainer_nothing_once_it_runs():
    held = simulate(batch=32, max_versions=2, group=8, concurrency=64, speed=4.0)
    free = simulate(batch=32, max_versions=2, group=8, concurrency=64, speed=4.0, bound=False)
    assert held.waits <= free.waits


def test_a_guess_far_above_the_pace_is_corrected_after_the_first_versions():
    told = simulate(batch=8, max_versions=2, group=8, concurrency=256, speed=4.0, versions=100)
    assert told.dropped <= 256  # those that began before the pace was known


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 40),
    max_versions=st.integers(0, 4),
    group=st.integers(2, 8),
    concurrency=st.integers(8, 128),
    speed=st.floats(0.2, 8),
    masked=st.floats(0, 0.9),
    seed=st.integers(0, 99),
)
def test_the_trainer_always_gets_its_batches(
    batch, max_versions, group, concurrency, speed, masked, seed
):
    told = simulate(
        batch=batch,
        max_versions=max_versions,
        group=group,
        concurrency=concurrency,
        speed=speed,
        masked=masked,
        seed=seed,
        versions=15,
    )
    assert told.trained == 15 * batch


def test_by_hand():
    admission = QueueAdmission(Staleness(max_versions=1), at_first=6)
    assert admission.room(4) == 2
    admission.see(version=1, waiting=0)  # the weights are sent before any training
    assert admission.rows_per_version is None
    for _ in range(6):
        admission.put(1)
    admission.see(version=1, waiting=2)  # the trainer took 4 for its first step
    admission.see(version=2, waiting=2)
    assert admission.rows_per_version == 4.0
    assert admission.room(0) == 2 * 4 - 2
    assert admission.room(5) == 1
    admission.see(version=2, waiting=1)  # one less that this version will take
    assert admission.room(0) == 2 * 4 - 1 - 1
    admission.see(version=4, waiting=0)  # the last was too old then, and is no part of the pace
    assert admission.rows_per_version == pytest.approx((4 + 1) / 3)
