"""Batches for other trainers, against rows worked by hand."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import ConfigError, TrainingError
from agentgym.trace import Trace
from agentgym.train.batches import group_requests, packed, padded
from agentgym.train.objective import Objective
from agentgym.types import Turn, Verdict

PAD = 0
TWO_TURNS = (([1, 2], [3, 9], [-0.5, -0.1]), ([1, 2, 3, 9, 4, 5], [6, 9], [-1.0, -0.2]))
ONE_TURN = (([1, 2], [7], [-0.3]),)
BROKEN = (([1, 2], [3, 9], [-0.5, -0.1]), ([1, 8, 4], [6], [-1.0]))


def trace_of(
    *turns: tuple[list[int], list[int], list[float]],
    reward: float | None = 1.0,
    group: str | None = "g",
    **facts: Any,
) -> Trace:
    masked = reward is None
    return Trace(
        trace_id="t",
        env_spec="{}",
        started_at="2026-01-01T00:00:00+00:00",
        group=group,
        verdict=Verdict(reward=reward, masked=masked, failure_class="judge" if masked else None),
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
        **{"terminated": True, **facts},
    )


BATCH = [trace_of(*TWO_TURNS), trace_of(*ONE_TURN, reward=0.0)]


def test_padded_by_hand() -> None:
    batch = padded(BATCH, pad_id=PAD)
    assert batch.ids.tolist() == [[1, 2, 3, 9, 4, 5, 6, 9], [1, 2, 7, 0, 0, 0, 0, 0]]
    assert batch.attention_mask.sum(axis=1).tolist() == [8, 3]
    assert batch.mask.astype(int).tolist() == [[0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 1, 0, 0, 0, 0, 0]]
    assert batch.logprobs[0].tolist() == pytest.approx([0, 0, -0.5, -0.1, 0, 0, -1.0, -0.2])
    assert batch.rewards.tolist() == [1.0, 0.0]
    assert batch.groups.tolist() == [0, 0]


def test_packed_by_hand() -> None:
    batch = packed(BATCH, pad_id=PAD)
    assert batch.ids.tolist() == [1, 2, 3, 9, 4, 5, 6, 9, 1, 2, 7]
    assert batch.mask.astype(int).tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1]
    assert batch.rows.tolist() == [0] * 8 + [1] * 3
    assert batch.positions.tolist() == [*range(8), *range(3)]
    assert batch.starts.tolist() == [0, 8, 11]


def test_length_is_rounded_up() -> None:
    assert padded(BATCH, pad_id=PAD, multiple_of=16).ids.shape == (2, 16)


def test_masked_episode_is_nan_without_mask_and_votes_for_nothing() -> None:
    batch = padded([*BATCH, trace_of(*ONE_TURN, reward=None)], pad_id=PAD)
    assert np.isnan(batch.rewards[2])
    assert not batch.mask[2].any()
    assert not batch.logprobs[2].any()
    # mean 0.5, deviation sqrt(0.5) of the two that are scored
    assert batch.advantages().tolist() == pytest.approx([0.7070, -0.7070, 0.0], abs=1e-4)


def test_groups_are_apart_and_in_any_order() -> None:
    traces = [
        trace_of(*ONE_TURN, reward=reward, group=group)
        for group, reward in (("b", 1.0), ("a", 5.0), ("b", 0.0), ("a", 3.0))
    ]
    batch = padded(traces, pad_id=PAD)
    assert batch.groups.tolist() == [0, 1, 0, 1]
    assert batch.advantages(algorithm="dr_grpo").tolist() == [0.5, 1.0, -0.5, -1.0]


def test_episode_whose_siblings_are_masked_has_no_vote_where_groups_are_compared() -> None:
    traces = [trace_of(*ONE_TURN), trace_of(*ONE_TURN, reward=None)]
    assert np.isnan(padded(traces, pad_id=PAD).rewards).all()
    assert not padded(traces, pad_id=PAD).mask.any()
    alone = padded(traces, pad_id=PAD, grouped=False)
    assert alone.rewards[0] == 1.0
    assert alone.mask[0].any()


def test_broken_episode_is_masked_or_split_as_asked() -> None:
    traces = [trace_of(*BROKEN), trace_of(*ONE_TURN, reward=0.0), trace_of(*ONE_TURN, reward=0.5)]
    whole = padded(traces, pad_id=PAD)
    assert np.isnan(whole.rewards[0])
    assert not whole.mask[0].any()
    split = padded(traces, pad_id=PAD, split=True)
    assert split.episodes.tolist() == [0, 0, 1, 2]
    assert split.ids[:2].tolist() == [[1, 2, 3, 9], [1, 8, 4, 6]]
    assert split.rewards.tolist() == [1.0, 1.0, 0.0, 0.5]
    # one vote an episode: the mean is 0.5, not that of four rows
    assert split.advantages(algorithm="dr_grpo").tolist() == [0.5, 0.5, -0.5, 0.0]


def test_objective_says_what_truncated_episodes_are_worth() -> None:
    cut = {"terminated": False, "truncated": True, "truncation_reason": "turns"}
    traces = [trace_of(*ONE_TURN, **cut), *BATCH]
    assert padded(traces, pad_id=PAD).rewards[0] == 1.0
    masked = padded(traces, pad_id=PAD, objective=Objective(truncated={"turns": "mask"}))
    assert np.isnan(masked.rewards[0])


def test_episode_without_turns_is_a_masked_row() -> None:
    batch = packed([*BATCH, trace_of()], pad_id=PAD)
    assert batch.starts.tolist() == [0, 8, 11, 13]
    assert not batch.mask[11:].any()


def test_batch_that_can_not_be_is_refused_with_the_remedy() -> None:
    with pytest.raises(TrainingError, match="at least one trace"):
        padded([], pad_id=PAD)
    with pytest.raises(TrainingError, match="group_requests"):
        padded([trace_of(*ONE_TURN, group=None)], pad_id=PAD)
    with pytest.raises(TrainingError, match="eos_token_id"):
        padded(BATCH, pad_id=None)  # type: ignore[arg-type]  # as tokenizers have it
    with pytest.raises(TrainingError, match="multiple_of"):
        padded(BATCH, pad_id=PAD, multiple_of=0)
    with pytest.raises(TrainingError, match="grouped=False"):
        padded([trace_of(*ONE_TURN), trace_of(*ONE_TURN, group="h")], pad_id=PAD)
    asked_in_messages = trace_of(*ONE_TURN).model_copy(
        update={"turns": (Turn(index=0, message={"role": "assistant", "content": ""}),)}
    )
    with pytest.raises(TrainingError, match="TokenPath"):
        padded([asked_in_messages] * 2, pad_id=PAD)
    with pytest.raises(TrainingError, match="floor=-1"):
        padded(BATCH, pad_id=PAD, objective=Objective(truncated={"time": "floor"}))
    with pytest.raises(TrainingError, match="group_size=0"):
        group_requests(["x"], group_size=0, seed=0)


def test_choices_that_there_are_not_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'turns'"):
        Objective(truncated={"turn": "mask"})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="did you mean 'mask'"):
        Objective(truncated={"turns": "masked"})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="did you mean 'dr_grpo'"):
        padded(BATCH, pad_id=PAD).advantages(algorithm="dr-grpo")  # type: ignore[arg-type]


def test_choice_for_one_limit_leaves_the_others_as_they_are() -> None:
    late = trace_of(*ONE_TURN, terminated=False, truncated=True, truncation_reason="time")
    batch = padded([late, *BATCH], pad_id=PAD, objective=Objective(truncated={"turns": "mask"}))
    assert np.isnan(batch.rewards[0])


def test_requests_of_a_group_share_task_and_seed_and_differ_by_sample() -> None:
    requests = group_requests(["x", "y"], group_size=2, seed=3)
    assert [(r.task_id, r.sample) for r in requests] == [("x", 0), ("x", 1), ("y", 0), ("y", 1)]
    assert len({(r.group, r.seed) for r in requests}) == 2
    assert requests[:2] == group_requests("x", group_size=2, seed=3)
    again = group_requests(["x", "y"], group_size=2, seed=4)
    assert not {r.group for r in requests} & {r.group for r in again}


ids = st.lists(st.integers(1, 99), min_size=1, max_size=5)
episodes = st.lists(
    st.tuples(st.lists(st.tuples(ids, ids), min_size=1, max_size=3), st.none() | st.floats(-1, 1)),
    min_size=2,
    max_size=4,
)


@given(episodes, st.booleans())
def test_packed_rows_are_the_padded_ones_without_padding(played: Any, grouped: bool) -> None:
    traces = []
    for turns, reward in played:
        prompt: list[int] = []
        made = []
        for between, sampled in turns:
            prompt = [*prompt, *between]
            made.append((prompt, sampled, [-0.5] * len(sampled)))
            prompt = [*prompt, *sampled]
        traces.append(trace_of(*made, reward=reward))
    wide = padded(traces, pad_id=PAD, grouped=grouped)
    long = packed(traces, pad_id=PAD, grouped=grouped)
    for row, (start, end) in enumerate(zip(long.starts[:-1], long.starts[1:], strict=True)):
        there = wide.attention_mask[row]
        assert long.ids[start:end].tolist() == wide.ids[row, there].tolist()
        assert long.mask[start:end].tolist() == wide.mask[row, there].tolist()
        assert wide.mask[row].any() == (not np.isnan(wide.rewards[row]))
    assert ((wide.logprobs != 0) == wide.mask).all()


@pytest.mark.thorough
def test_import_loads_no_training_stack() -> None:
    code = (
        "import sys, agentgym.train.batches\n"
        "print([m for m in ('torch', 'transformers', 'trl', 'vllm') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "[]"
