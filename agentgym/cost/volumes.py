"""From a workload to the tokens of each role, per episode.

Everything that depends on the number of turns is summed over its distribution and not taken at its
mean. Calls paid twice, episodes played again and the safety factor are in the volumes: what is
counted is what is paid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from agentgym.cost.bill import Volume
from agentgym.cost.reading import NOTHING, Read, during, prompts, several, transcript
from agentgym.cost.turns import ConstantTurns, expected
from agentgym.cost.workload import RoleLoad, Workload

Amounts: TypeAlias = tuple[float, float, float, float]
"""Calls, input tokens, those of them a cache could hold, and output tokens."""


def policy_volume(workload: Workload) -> Volume:
    """What the policy reads and samples per episode."""
    load, tokens = workload.policy, workload.tokens
    shared = tokens.setup * (1 - 1 / workload.group_size) if load.shared_setup else 0.0

    def at(turns: float) -> Amounts:
        read = prompts(tokens, turns)
        return turns, read.tokens, read.repeated + shared, turns * tokens.output

    return _paid(workload, _over_turns(workload, at), load.paid_twice, load.cache_hit)


def role_volume(workload: Workload, load: RoleLoad) -> Volume:
    """What another role reads and writes per episode.

    A role's own tokens count as the same in every call, so a cache could hold them all.
    """

    def at(turns: float) -> Amounts:
        replies = max(0.0, turns - 1)
        calls = load.calls_per_episode + load.calls_per_turn * turns
        calls += load.calls_per_reply * replies
        read = _reads(workload, load, turns)
        own = calls * load.input_tokens
        return calls, own + read.tokens, own + read.repeated, calls * load.output_tokens

    return _paid(workload, _over_turns(workload, at), load.paid_twice, load.cache_hit)


def volume_at_mean_turns(workload: Workload) -> Volume:
    """The policy's volume if every episode took the mean number of turns: what is too little."""
    mean = expected(workload.turns.outcomes, lambda turns: turns)
    return policy_volume(workload.model_copy(update={"turns": ConstantTurns(turns=mean)}))


def _reads(workload: Workload, load: RoleLoad, turns: float) -> Read:
    """What a role reads of the conversation in an episode of so many turns."""
    tokens = workload.tokens
    if load.reads == "own":
        return NOTHING
    if load.reads == "prompts":
        return several(prompts(tokens, turns), load.calls_per_episode)
    return (
        several(Read(transcript(tokens, turns), 0.0), load.calls_per_episode)
        + several(during(tokens, turns, last=True), load.calls_per_turn)
        + several(during(tokens, turns, last=False), load.calls_per_reply)
    )


def _over_turns(workload: Workload, at: Callable[[float], Amounts]) -> Volume:
    """The mean volume over the distribution of turns."""
    outcomes = workload.turns.outcomes
    parts = ([chance * one for one in at(turns)] for turns, chance in outcomes.items())
    calls, read, cacheable, written = map(math.fsum, zip(*parts, strict=True))
    return Volume(calls=calls, input_tokens=read, cacheable_tokens=cacheable, output_tokens=written)


def _paid(workload: Workload, volume: Volume, paid_twice: float, hit: float) -> Volume:
    """What is paid for. A repeated call counts as cacheable as the first: less than it is."""
    calls = (1 + paid_twice) * (1 + workload.rerun_share)
    tokens = calls * workload.safety_factor
    counted = volume.times(tokens).model_copy(update={"calls": volume.calls * calls})
    return counted.with_hits(hit)
