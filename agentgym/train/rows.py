"""From a trace to the row a trainer takes: sampled ids, mask and log-probabilities, side by side.

The ids are those the turns carry from the sampler. A row that can't be trusted (a prompt that does
not extend the one before, missing ids) becomes an empty, masked one: never a row of wrong tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentgym.errors import TrainingError
from agentgym.trace import Trace


@dataclass(frozen=True)
class TrainingRow:
    """One episode as a trainer takes it; `C` counts everything after the first prompt."""

    prompt_ids: list[int]
    """Shape `(P,)`: the opening."""
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
        return TrainingRow(
            self.prompt_ids, self.completion_ids, [0] * size, [0.0] * size, self.fault
        )


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
    turns = trace.turns
    if not turns:
        no_room = "the opening leaves no room in the context" if trace.scored else None
        return TrainingRow([filler_id], [filler_id], [0], [0.0], no_room)
    first = turns[0].prompt_ids
    completion: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    nonfinite = 0
    seen: tuple[int, ...] = first or ()
    fault: str | None = None
    for turn in turns:
        if not turn.prompt_ids or turn.completion_ids is None or turn.logprobs is None:
            fault = f"turn {turn.index} has no ids or log-probabilities"
        elif turn.prompt_ids[: len(seen)] != seen:
            fault = f"the prompt of turn {turn.index} does not extend the one before"
        elif len(turn.completion_ids) != len(turn.logprobs):
            fault = f"turn {turn.index} has more ids than log-probabilities, or fewer"
        if fault:
            return TrainingRow([filler_id], [filler_id], [0], [0.0], fault)
        assert turn.prompt_ids is not None
        assert turn.completion_ids is not None
        assert turn.logprobs is not None
        between = turn.prompt_ids[len(seen) :]
        usable = [math.isfinite(value) for value in turn.logprobs]
        nonfinite += usable.count(False)
        completion += [*between, *turn.completion_ids]
        mask += [0] * len(between) + [int(ok) for ok in usable]
        logprobs += [0.0] * len(between)
        logprobs += [v if ok else 0.0 for v, ok in zip(turn.logprobs, usable, strict=True)]
        seen = turn.prompt_ids + turn.completion_ids
    assert first
    if not completion:
        return TrainingRow([filler_id], [filler_id], [0], [0.0], "nothing was sampled")
    row = TrainingRow(list(first), completion, mask, logprobs, nonfinite_logprobs=nonfinite)
    return row if trace.scored else row.masked()
