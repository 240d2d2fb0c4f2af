"""The batch of all processes, as far as its metrics need it.

TRL takes the mean of what the processes log, which is wrong for counts, for the largest of
anything, and for groups that are spread over processes. So each process counts the whole batch, and
all log the same. What makes a trace large, prompts and the environment's words, stays where it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentgym.trace import Trace
from agentgym.train.batch import PlayedBatch
from agentgym.train.gathering import Gather
from agentgym.train.rows import TrainingRow


def whole_batch(batch: PlayedBatch, gather: Gather) -> PlayedBatch:
    """What all processes played, without the large parts; the seconds are this process's.

    Args:
        batch: What this process played.
        gather: Joins the processes; every one of them must call.
    """
    here = list(zip(map(_light, batch.traces), map(_empty, batch.rows), batch.rewards, strict=True))
    traces, rows, rewards = zip(*gather(here), strict=True)
    return replace(batch, traces=traces, rows=rows, rewards=rewards)


def _light(trace: Trace) -> Trace:
    large: dict[str, Any] = {"prompt_ids": None, "logprobs": None, "replies": ()}
    turns = tuple(turn.model_copy(update=large) for turn in trace.turns)
    return trace.model_copy(
        update={"turns": turns, "messages": (), "tools": (), "outcome": {}, "env_spec": "{}"}
    )


def _empty(row: TrainingRow) -> TrainingRow:
    return TrainingRow([], [], [], [], row.fault, row.nonfinite_logprobs)
