"""From a trace to rows of sampled ids, mask and log-probabilities."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from template_zoo import byte_tokenizer

from agentgym.errors import TrainingError
from agentgym.trace import Trace
from agentgym.train.rows import TrainingRow, training_row, training_rows
from agentgym.types import Turn, Verdict

VERDICT = Verdict(reward=1.0)
MASKED = Verdict(reward=None, masked=True, failure_class="judge")


def trace_of(*turns: tuple[list[int], list[int], list[float]], verdict: Verdict = VERDICT) -> Trace:
    return Trace(
        trace_id="t",
        env_spec="{}",
        started_at="2026-01-01T00:00:00+00:00",
        terminated=True,
        verdict=verdict,
        turns=tuple(
            Turn(
                index=i,
                message={"role": "assistant", "content": ""},
                prompt_ids=tuple(prompt),
                completion_ids=tuple(sampled),
                logprobs=tuple(logprobs),
            )
            for i, (prompt, sampled, logprobs) in enumerate(turns)
        ),
    )


def test_row_of_two_turns_by_hand() -> None:
    trace = trace_of(([1, 2], [3, 9], [-0.5, -0.1]), ([1, 2, 3, 9, 4, 5], [6, 9], [-1.0, -0.2]))
    row = training_row(trace, filler_id=9)
    assert row.prompt_ids == [1, 2]
    assert row.completion_ids == [3, 9, 4, 5, 6, 9]
    assert row.env_mask == [1, 1, 0, 0, 1, 1]
    assert row.logprobs == [-0.5, -0.1, 0.0, 0.0, -1.0, -0.2]


def test_sampled_ids_are_trained_on_even_where_another_spelling_is_canonical() -> None:
    tokenizer = byte_tokenizer("qwen2_5")
    halves = tokenizer.convert_tokens_to_ids(["he", "llo"])
    assert tokenizer.decode(halves) == "hello"
    assert tokenizer("hello")["input_ids"] == [tokenizer.convert_tokens_to_ids("hello")]
    row = training_row(trace_of(([1], halves, [-1.0, -1.0])), filler_id=9)
    assert row.completion_ids == halves


def test_masked_episode_keeps_its_ids_and_loses_its_mask() -> None:
    row = training_row(trace_of(([1], [2, 3], [-1.0, -1.0]), verdict=MASKED), filler_id=9)
    assert row.completion_ids == [2, 3]
    assert row.env_mask == [0, 0]
    assert row.logprobs == [0.0, 0.0]


def test_nonfinite_logprobs_are_masked_and_counted() -> None:
    row = training_row(trace_of(([1], [2, 3, 4], [-0.1, math.nan, -math.inf])), filler_id=9)
    assert row.env_mask == [1, 0, 0]
    assert row.logprobs == [-0.1, 0.0, 0.0]
    assert row.nonfinite_logprobs == 2


@pytest.mark.parametrize("lost", [1, 2])
def test_nonfinite_logprobs_are_counted_also_where_the_row_is_masked(lost: int) -> None:
    turn = ([1], [2, 3], [math.nan] * lost + [-0.1] * (2 - lost))
    row = training_row(trace_of(turn, verdict=MASKED), filler_id=9)
    assert not any(row.env_mask)
    assert row.nonfinite_logprobs == lost


@pytest.mark.parametrize(
    "turns",
    [
        [([1, 2], [3], [-1.0]), ([1, 2, 4], [5], [-1.0])],  # the second prompt forgot id 3
        [([1, 2], [3, 4], [-1.0])],  # one logprob for two ids
    ],
)
def test_row_that_would_be_wrong_becomes_an_empty_one_with_its_reason(turns: Any) -> None:
    """G11: counted in `masked/rows`."""
    row = training_row(trace_of(*turns), filler_id=9)
    assert row.fault is not None
    assert (row.completion_ids, row.env_mask) == ([9], [0])


def test_episode_without_turns_is_a_masked_filler() -> None:
    row = training_row(trace_of(verdict=MASKED), filler_id=9)
    assert (row.prompt_ids, row.completion_ids, row.env_mask) == ([9], [9], [0])


def test_episode_whose_opening_fills_the_context_has_no_vote() -> None:
    assert training_row(trace_of(), filler_id=9).fault is not None


def test_row_of_unequal_lengths_cannot_be_made() -> None:
    with pytest.raises(TrainingError, match="length"):
        TrainingRow([1], [2, 3], [1], [0.0, 0.0])


ids = st.lists(st.integers(0, 99), min_size=1, max_size=5)


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=5), ids)
def test_mask_covers_exactly_the_sampled_ids(turns: Any, opening: list[int]) -> None:
    prompt = list(opening)
    made = []
    wanted: list[tuple[int, int]] = []
    for position, (between, sampled) in enumerate(turns):
        if position:
            prompt = [*prompt, *between]
            wanted += [(i, 0) for i in between]
        made.append((prompt, sampled, [-0.5] * len(sampled)))
        wanted += [(i, 1) for i in sampled]
        prompt = [*prompt, *sampled]
    row = training_row(trace_of(*made), filler_id=9)
    assert row.prompt_ids == opening
    assert list(zip(row.completion_ids, row.env_mask, strict=True)) == wanted
    assert [p != 0.0 for p in row.logprobs] == [m == 1 for m in row.env_mask]


BROKEN = (
    ([1, 2], [3, 9], [-0.1, -0.2]),
    ([1, 2, 3, 9, 4], [5, 9], [-0.3, -0.4]),
    ([1, 2, 9, 4, 9, 6], [7], [-0.5]),  # the template left something out
    ([1, 2, 9, 4, 9, 6, 7, 8], [9], [-0.6]),
)


def test_episode_is_split_at_the_break_for_a_trainer_that_takes_several_rows() -> None:
    first, second = training_rows(trace_of(*BROKEN), filler_id=9, split=True)
    assert (first.prompt_ids, first.completion_ids) == ([1, 2], [3, 9, 4, 5, 9])
    assert first.env_mask == [1, 1, 0, 1, 1]
    assert (second.prompt_ids, second.completion_ids) == ([1, 2, 9, 4, 9, 6], [7, 8, 9])
    assert second.env_mask == [1, 0, 1]
    assert second.logprobs == [-0.5, 0.0, -0.6]


def test_episode_is_not_split_for_one_that_does_not() -> None:
    (row,) = training_rows(trace_of(*BROKEN), filler_id=9)
    assert row.fault == "the prompt of turn 2 does not extend the one before"
    assert row == training_row(trace_of(*BROKEN), filler_id=9)


def test_masked_episode_is_masked_in_every_row() -> None:
    rows = training_rows(trace_of(*BROKEN, verdict=MASKED), filler_id=9, split=True)
    assert [sum(row.env_mask) for row in rows] == [0, 0]


@pytest.mark.parametrize(
    ("turn", "why"),
    [(([1], [], []), "nothing was sampled"), (([1], [2], [math.nan]), "no log-probability")],
)
def test_scored_episode_with_nothing_to_train_on_is_counted_as_a_fault(turn: Any, why: str) -> None:
    row = training_row(trace_of(turn), filler_id=9)
    assert row.fault is not None
    assert why in row.fault


@given(st.lists(st.tuples(ids, ids, st.booleans()), min_size=1, max_size=6))
def test_every_sampled_id_is_in_one_row_behind_its_own_prompt(turns: Any) -> None:
    prompt: list[int] = []
    made = []
    for between, sampled, breaks in turns:
        prompt = [100, *between] if breaks else [*prompt, *between]  # 100 is nowhere else
        made.append((prompt, sampled, [-0.5] * len(sampled)))
        prompt = [*prompt, *sampled]
    rows = training_rows(trace_of(*made), filler_id=9, split=True)
    left = list(made)
    for row in rows:
        whole = [*row.prompt_ids, *row.completion_ids]
        position = len(row.prompt_ids)
        while left and left[0][0] == whole[: len(left[0][0])] and position < len(whole):
            before, sampled, _ = left.pop(0)
            end = len(before) + len(sampled)
            assert whole[len(before) : end] == sampled
            mask = row.env_mask[position - len(row.prompt_ids) : end - len(row.prompt_ids)]
            assert mask == [0] * (len(before) - position) + [1] * len(sampled)
            position = end
        assert position == len(whole)
    assert not left
