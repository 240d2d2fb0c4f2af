"""Batches for other trainers: what the rollout engine played, as plain numpy arrays.

A trainer of one's own needs no TRL: it asks the engine for groups of episodes, takes ids, mask,
log-probabilities, rewards and groups from here, and does its step in whatever library it likes.
Importing this loads neither torch nor TRL. `docs/other_trainers.md` shows the loop.

The rules are those of the trainer next door: what was sampled is what is trained on, an episode
without a score has no vote, and a row that can't be trusted has no mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from agentgym.errors import TrainingError
from agentgym.rollout.request import EpisodeRequest, derived_seed
from agentgym.trace import Trace
from agentgym.train.advantages import Baseline, FloatArray, group_advantages
from agentgym.train.objective import Objective, Settled, rewards_by_group, without_lone
from agentgym.train.rows import training_rows

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Float32Array: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Rows:
    """What both layouts have: `R` rows, one per episode unless episodes are split."""

    rewards: FloatArray
    """Shape `(R,)`; NaN where masked."""
    groups: IntArray
    """Shape `(R,)`: which group each row is of, numbered from 0 in the order of the traces."""
    episodes: IntArray
    """Shape `(R,)`: which of the given traces each row is of."""

    def advantages(self, *, algorithm: Baseline = "grpo") -> FloatArray:
        """The rows' rewards against those of their groups; each episode has one vote.

        Args:
            algorithm: See `agentgym.train.advantages.group_advantages`.

        Returns:
            Shape `(R,)`; 0 where masked.
        """
        found = np.zeros(len(self.rewards))
        _, first = np.unique(self.episodes, return_index=True)
        for group in np.unique(self.groups):
            votes = first[self.groups[first] == group]
            worth = group_advantages(self.rewards[votes], algorithm=algorithm)
            by_episode = dict(zip(self.episodes[votes].tolist(), worth, strict=True))
            for row in np.flatnonzero(self.groups == group):
                found[row] = by_episode[int(self.episodes[row])]
        return found


@dataclass(frozen=True)
class PaddedBatch(_Rows):
    """Rows side by side, padded on the right to the length `T` of the longest."""

    ids: IntArray
    """Shape `(R, T)`: prompt, sampled ids and what the environment said between them."""
    attention_mask: BoolArray
    """Shape `(R, T)`: where there is an id."""
    mask: BoolArray
    """Shape `(R, T)`: the sampled ids, to train on. Nothing in a masked row."""
    logprobs: Float32Array
    """Shape `(R, T)`: the sampler's log-probability of each id, 0 where `mask` is not set."""


@dataclass(frozen=True)
class PackedBatch(_Rows):
    """Rows one behind the other, `N` ids in all, for attention over sequences of unequal length."""

    ids: IntArray
    """Shape `(N,)`."""
    mask: BoolArray
    """Shape `(N,)`, as in `PaddedBatch`."""
    logprobs: Float32Array
    """Shape `(N,)`, as in `PaddedBatch`."""
    rows: IntArray
    """Shape `(N,)`: the row of each id."""
    positions: IntArray
    """Shape `(N,)`: its place in the row, from 0."""
    starts: IntArray
    """Shape `(R + 1,)`: where each row starts, and `N`; what flash attention calls `cu_seqlens`."""


def group_requests(tasks: Iterable[str], *, group_size: int, seed: int) -> list[EpisodeRequest]:
    """Requests for one batch: each task played by a group of rollouts that are compared.

    Args:
        tasks: Task ids; one that comes twice is two groups.
        group_size: Rollouts per task, at least 1; a single one has no baseline.
        seed: Fixes every draw of the batch, so it should differ from step to step.

    Raises:
        TrainingError: If a group would have no rollouts.
    """
    if isinstance(tasks, str):
        tasks = [tasks]
    if group_size < 1:
        raise TrainingError(f"a group has at least 1 rollout, got group_size={group_size}")
    return [
        EpisodeRequest(
            task_id=task,
            seed=derived_seed(seed, number),
            group=f"{seed}.{number}",
            group_size=group_size,
            sample=sample,
        )
        for number, task in enumerate(tasks)
        for sample in range(group_size)
    ]


def padded(
    traces: Sequence[Trace],
    *,
    pad_id: int,
    multiple_of: int = 1,
    split: bool = False,
    grouped: bool = True,
    objective: Objective | None = None,
) -> PaddedBatch:
    """Lay episodes side by side.

    Args:
        traces: From an engine whose policy has ids and log-probabilities, in any order.
        pad_id: What fills up the rows, and stands for an episode in which nothing was sampled.
        multiple_of: What the length is rounded up to, at least 1.
        split: Whether an episode whose prompts don't extend each other becomes several rows,
            rather than a masked one.
        grouped: Whether rewards are compared within groups, so that an episode whose siblings are
            all masked has no vote. False for trainers with a baseline of their own.
        objective: What truncated episodes are worth; default: what their verdict says.

    Raises:
        TrainingError: If there are no traces, one has no group, or nothing could be trained on
            whatever was played: no ids, or groups of one that are to be compared.
    """
    if multiple_of < 1:
        raise TrainingError(f"multiple_of is at least 1, got {multiple_of}")
    common, settled = _settled(traces, pad_id, split, grouped, objective or Objective())
    rows = [s.row for s in settled]
    longest = max(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    shape = len(rows), -(-longest // multiple_of) * multiple_of
    ids = np.full(shape, pad_id, dtype=np.int64)
    attention_mask, mask = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    logprobs = np.zeros(shape, dtype=np.float32)
    for number, row in enumerate(rows):
        start, end = len(row.prompt_ids), len(row.prompt_ids) + len(row.completion_ids)
        ids[number, :end] = [*row.prompt_ids, *row.completion_ids]
        attention_mask[number, :end] = True
        mask[number, start:end] = row.env_mask
        logprobs[number, start:end] = row.logprobs
    return PaddedBatch(
        **common, ids=ids, attention_mask=attention_mask, mask=mask, logprobs=logprobs
    )


def packed(
    traces: Sequence[Trace],
    *,
    pad_id: int,
    split: bool = False,
    grouped: bool = True,
    objective: Objective | None = None,
) -> PackedBatch:
    """Lay episodes one behind the other; parameters and errors as for `padded`."""
    batch = padded(traces, pad_id=pad_id, split=split, grouped=grouped, objective=objective)
    there = batch.attention_mask
    lengths = there.sum(axis=1)
    rows, positions = np.nonzero(there)
    return PackedBatch(
        rewards=batch.rewards,
        groups=batch.groups,
        episodes=batch.episodes,
        ids=batch.ids[there],
        mask=batch.mask[there],
        logprobs=batch.logprobs[there],
        rows=rows.astype(np.int64),
        positions=positions.astype(np.int64),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )


def _settled(
    traces: Sequence[Trace], pad_id: int, split: bool, grouped: bool, objective: Objective
) -> tuple[dict[str, Any], list[Settled]]:
    """Every row as the optimiser is to see it, and what is known of it beside its ids."""
    _check(traces, pad_id, grouped, objective)
    numbers: dict[str, int] = {}
    settled: list[Settled] = []
    episodes: list[int] = []
    for episode, trace in enumerate(traces):
        assert trace.group is not None
        numbers.setdefault(trace.group, len(numbers))
        for row in training_rows(trace, filler_id=pad_id, split=split):
            settled.append(objective.settle(trace, filler_id=pad_id, row=row))
            episodes.append(episode)
    if grouped:
        votes = {e: (s.trace.group, s.reward) for e, s in zip(episodes, settled, strict=True)}
        settled = without_lone(settled, rewards_by_group(votes.values()))
    rewards = [np.nan if s.reward is None else s.reward for s in settled]
    common = {
        "rewards": np.array(rewards, dtype=np.float64),
        "groups": np.array([numbers[str(s.trace.group)] for s in settled], dtype=np.int64),
        "episodes": np.array(episodes, dtype=np.int64),
    }
    return common, settled


def _check(
    traces: Sequence[Trace], pad_id: int | None, grouped: bool, objective: Objective
) -> None:
    """Find what would leave nothing to train on, whatever was played."""
    if not traces:
        raise TrainingError("a batch needs at least one trace; the engine played none")
    if pad_id is None:
        raise TrainingError(
            "pad_id is None: the tokenizer has no padding token; pass its eos_token_id"
        )
    if "floor" in objective.truncated.values() and objective.floor is None:
        raise TrainingError(
            "truncated episodes are worth the floor, and the objective has none; give it the lower "
            "end of the environment's reward range: Objective(…, floor=-1.0)"
        )
    for trace in traces:
        if trace.group is None:
            raise TrainingError(
                f"trace {trace.trace_id} is of no group, so there is nothing to compare it with; "
                "ask for the rollouts of a task with one group, as group_requests does"
            )
    if grouped and len({trace.group for trace in traces}) == len(traces):
        raise TrainingError(
            "every episode is alone in its group, so there is nothing to compare it with; play "
            "groups of at least 2, or pass grouped=False and use a baseline of your own"
        )
    turns = [turn for trace in traces for turn in trace.turns]
    if turns and all(turn.prompt_ids is None for turn in turns):
        raise TrainingError(
            "no turn has token ids: the policy was asked in messages; give its endpoint "
            "tokens=TokenPath(tokenizer=…)"
        )
