"""How long a run takes, and how many GPU-hours its policy needs.

Three things bound a training step's rollouts from below, and the largest is the estimate: the GPUs
(tokens by tokens/s), the answers waited for (seconds per call, so many episodes at once), and the
slowest episode, which a synchronous trainer waits for. Judging overlaps with the rollouts that
still run, so only its last answers are added.
"""

from __future__ import annotations

from typing import Literal

from agentgym.cost.bill import Volume
from agentgym.cost.turns import expected, expected_longest
from agentgym.cost.workload import Workload
from agentgym.types import Finite, Record


class StepTime(Record):
    """Seconds of one training step, and what they are spent on."""

    sampling_s: Finite | None
    """The GPUs' time for the policy's tokens; None: no throughput given."""
    prefill_share: Finite | None
    """Of it, for prompt tokens no cache held."""
    waiting_s: Finite | None
    """For answers, with so many episodes at once; None: no seconds per call given."""
    slowest_s: Finite | None
    """For the slowest of the step's episodes, played alone."""
    judging_s: Finite
    """For the last judgements, after the last episode."""
    update_s: Finite
    """Without rollouts: update and weight sync."""
    unknown: tuple[str, ...] = ()
    """Roles called during episodes whose seconds per call are not given: at least so long, then."""

    @property
    def rollouts_s(self) -> float:
        """The largest of the bounds."""
        return max(self.sampling_s or 0.0, self.waiting_s or 0.0, self.slowest_s or 0.0)

    @property
    def bound_by(self) -> Literal["GPUs", "answers", "slowest episode"]:
        """Which bound is the largest."""
        if (self.sampling_s or 0.0) >= max(self.waiting_s or 0.0, self.slowest_s or 0.0):
            return "GPUs"
        return (
            "answers" if (self.waiting_s or 0.0) >= (self.slowest_s or 0.0) else "slowest episode"
        )

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.rollouts_s + self.judging_s + self.update_s


def step_time(workload: Workload, policy: Volume) -> StepTime | None:
    """How long a training step takes.

    Args:
        workload: The run.
        policy: The policy's volume per episode.

    Returns:
        None where nothing is given to tell by: neither throughput nor seconds per call.
    """
    serving, per_call = workload.policy.serving, workload.policy.seconds_per_call
    if serving is None and per_call is None:
        return None
    episodes = workload.episodes_per_step
    sampling, prefill_share = _sampling(workload, policy)
    waiting = slowest = None
    if per_call is not None and episodes:
        played = episodes * (1 + workload.rerun_share)
        outcomes = workload.turns.outcomes
        at_once = min(workload.concurrency or episodes, episodes)
        mean = expected(outcomes, lambda turns: _seconds(workload, turns, per_call))
        waiting = played * mean / at_once
        slowest = _seconds(workload, expected_longest(outcomes, episodes), per_call)
    judging = (
        load.seconds_per_call or 0.0 for load in workload.roles.values() if load.calls_per_episode
    )
    return StepTime(
        sampling_s=sampling,
        prefill_share=prefill_share,
        waiting_s=waiting,
        slowest_s=slowest,
        judging_s=max(judging, default=0.0) if episodes else 0.0,
        update_s=serving.update_s if serving and episodes else 0.0,
        unknown=tuple(
            role
            for role, load in workload.roles.items()
            if (load.calls_per_turn or load.calls_per_reply) and load.seconds_per_call is None
        ),
    )


def _sampling(workload: Workload, policy: Volume) -> tuple[float | None, float | None]:
    """Seconds of the GPUs per step, and the share of prefill in them."""
    serving = workload.policy.serving
    if serving is None:
        return None, None
    prefill = (policy.input_tokens - policy.cached_tokens) / serving.prefill_tokens_per_s
    decode = policy.output_tokens / serving.decode_tokens_per_s
    both = prefill + decode
    per_step = both * workload.episodes_per_step / serving.gpus
    return per_step, prefill / both if both else None


def _seconds(workload: Workload, turns: float, per_call: float) -> float:
    """How long an episode of so many turns waits for answers, calls paid twice included."""
    total = turns * per_call * (1 + workload.policy.paid_twice)
    for load in workload.roles.values():
        calls = load.calls_per_turn * turns + load.calls_per_reply * max(0.0, turns - 1)
        total += calls * (load.seconds_per_call or 0.0) * (1 + load.paid_twice)
    return total
