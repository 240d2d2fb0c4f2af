"""From a trace to the row a trainer takes: sampled ids, mask and log-probabilities, side by side.

The ids are those the turns carry from the sampler. An episode is one row as long as each prompt
extends the one before. Where one doesn't, it is split for a trainer that takes several rows per
episode; for one that doesn't, and where ids are missing, it becomes an empty, masked row: never a
row of wrong tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentgym.errors import TrainingError
from agentgym.trace import Trace
from agentgym.types import Turn


@dataclass(frozen=True)
class TrainingRow:
    """An episode, or a stretch of one, as a trainer takes it; `C` counts all after the prompt."""

    prompt_ids: list[int]
    """Shape `(P,)`: the opening, or what came before the stretch."""
    completion_ids: list[int]
    """Shape `(C,)`: sampled ids and, between them, what the environment said."""
    env_mask: list[int]
    """Shape `(C,)`: 1 on ids to train on, 0 on the environment's."""
    logprobs: list[float]
    """Shape `(C,)`: the sampler's log-probability, 0.0 where the mask is 0."""
    fault: str | None = None
    """Why the row carries nothing, if it has no trainable ids although it should."""
    nonfinite_logprobs: int = 0
    """Sampled ids whose log-probability was NaN or infinite; masked."""

    def __post_init__(self) -> None:
        lengths = {len(self.completion_ids), len(self.env_mask), len(self.logprobs)}
        if len(lengths) != 1:
            raise TrainingError(f"ids, mask and logprobs differ in length: {sorted(lengths)}")

    def masked(self) -> TrainingRow:
        """The same row without anything to train on."""
        size = len(self.completion_ids)
        return replace(self, env_mask=[0] * size, logprobs=[0.0] * size)


def training_row(trace: Trace, *, filler_id: int) -> TrainingRow:
    """The training row of one episode.

    A masked episode keeps its ids and loses its mask, so that it has no gradient, also not through
    a KL term. An episode that ended before anything was sampled becomes a masked row of one filler.
    So does one whose prompts do not extend each other: never a row of wrong tokens.

    Args:
        trace: With ids and log-probabilities on its turns.
        filler_id: The id that stands in for an empty episode; a stop token, so that trainers
            don't count it as cut off.
    """
    (row,) = training_rows(trace, filler_id=filler_id)
    return row


def training_rows(trace: Trace, *, filler_id: int, split: bool = False) -> list[TrainingRow]:
    """The training rows of one episode: one, or one per stretch of prompts that extend each other.

    Every sampled id is in exactly one row, behind the very prompt that it was sampled from. The
    rows of an episode share its reward; a trainer that averages over rows counts an episode with
    two of them twice, unless it weighs them.

    Args:
        trace: With ids and log-probabilities on its turns.
        filler_id: As in `training_row`.
        split: Whether the trainer takes several rows per episode. If not, an episode whose prompts
            don't extend each other is one row with a fault.

    Returns:
        At least one row.
    """
    turns = trace.turns
    if not turns:
        no_room = "the opening leaves no room in the context" if trace.scored else None
        return [_filler(filler_id, no_room)]
    rows = [_Row(turns[0].prompt_ids or ())]
    for turn in turns:
        fault = _unusable(turn)
        if fault is None and not rows[-1].is_extended_by(turn):
            if split:
                rows.append(_Row(turn.prompt_ids or ()))
            else:
                fault = f"the prompt of turn {turn.index} does not extend the one before"
        if fault is not None:
            return [_filler(filler_id, fault)]
        rows[-1].add(turn)
    made = [row.made() for row in rows if row.is_trainable]
    if not made:
        sampled = any(turn.completion_ids for turn in turns)
        why = "no log-probability is finite" if sampled else "nothing was sampled"
        lost = sum(row.nonfinite for row in rows)
        return [replace(_filler(filler_id, why), nonfinite_logprobs=lost)]
    return made if trace.scored else [row.masked() for row in made]


def _filler(filler_id: int, fault: str | None) -> TrainingRow:
    return TrainingRow([filler_id], [filler_id], [0], [0.0], fault)


def _unusable(turn: Turn) -> str | None:
    """Why a turn can't be trained on, if so."""
    if not turn.prompt_ids or turn.completion_ids is None or turn.logprobs is None:
        return f"turn {turn.index} has no ids or log-probabilities"
    if len(turn.completion_ids) != len(turn.logprobs):
        return f"turn {turn.index} has more ids than log-probabilities, or fewer"
    return None


class _Row:
    """A row in the making."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._prompt_ids = prompt_ids
        self._seen: Sequence[int] = prompt_ids
        self._completion_ids: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self.nonfinite = 0
        """Sampled ids without a usable log-probability."""

    @property
    def is_trainable(self) -> bool:
        """Whether the mask covers anything."""
        return 1 in self._mask

    def is_extended_by(self, turn: Turn) -> bool:
        """Whether the turn's prompt starts with everything so far."""
        return tuple((turn.prompt_ids or ())[: len(self._seen)]) == tuple(self._seen)

    def add(self, turn: Turn) -> None:
        """Add what the environment said since, and what was sampled."""
        assert turn.prompt_ids is not None
        assert turn.completion_ids is not None
        assert turn.logprobs is not None
        between = turn.prompt_ids[len(self._seen) :]
        usable = [math.isfinite(value) for value in turn.logprobs]
        self.nonfinite += usable.count(False)
        self._completion_ids += [*between, *turn.completion_ids]
        self._mask += [0] * len(between) + [int(ok) for ok in usable]
        self._logprobs += [0.0] * len(between)
        self._logprobs += [v if ok else 0.0 for v, ok in zip(turn.logprobs, usable, strict=True)]
        self._seen = turn.prompt_ids + turn.completion_ids

    def made(self) -> TrainingRow:
        """The row."""
        return TrainingRow(
            list(self._prompt_ids),
            self._completion_ids,
            self._mask,
            self._logprobs,
            nonfinite_logprobs=self.nonfinite,
        )
