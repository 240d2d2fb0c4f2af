"""Alarms about what links sampler and trainer: log-probabilities, weights, gradients."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.train.monitors.alarm import Alarm
from agentgym.train.monitors.history import RunHistory

_NO_GRADIENT = 1e-9
_ALL = 0.99


def logprob_gap(history: RunHistory) -> Iterator[Alarm]:
    """Sampler and trainer disagree on the sampled tokens."""
    seen = history.mean("sampling/sampling_logp_difference/mean")
    if seen is not None and seen.low > history.thresholds.logprob_gap:
        lag = history.recent("weights/lag")
        yield Alarm(
            name="logprob_gap",
            step=history.now,
            seen=f"log-probabilities of sampled tokens differ by {seen.mean:.2g} nats on average "
            f"between sampler and trainer ({seen.low:.2g} to {seen.high:.2g}; alarm at "
            f"{history.thresholds.logprob_gap:g})",
            cause="the sampler has other weights, another dtype or another temperature than the "
            "trainer" + (f"; its weights are {lag:.1f} steps old" if lag else ""),
            change="policy.check_every = 1, which stops at the step where they part; the same "
            "dtype on both sides; --logprobs-mode processed_logprobs on servers",
            numbers={"gap": seen.mean, "low": seen.low, "high": seen.high},
        )


def importance_ratio(history: RunHistory) -> Iterator[Alarm]:
    """The importance-sampling ratios are not around 1."""
    seen = history.mean("sampling/importance_sampling_ratio/mean")
    if seen is None:
        return
    limit = history.thresholds.importance
    if seen.low > 1 + limit or seen.high < 1 - limit:
        yield Alarm(
            name="importance_ratio",
            step=history.now,
            seen=f"the mean importance-sampling ratio is {seen.mean:.2f} ({seen.low:.2f} to "
            f"{seen.high:.2f}; 1 is on-policy)",
            cause="episodes come from another policy than the one that is trained, so the "
            "correction throws much of them away",
            change="fewer updates per rollout (grpo.num_iterations = 1), fresher weights, the same "
            "dtype on both sides",
            numbers={"ratio": seen.mean, "low": seen.low, "high": seen.high},
        )


def stale_weights(history: RunHistory) -> Iterator[Alarm]:
    """Turns are sampled with old weights."""
    seen = history.mean("weights/lag")
    if seen is not None and seen.low > history.thresholds.lag:
        yield Alarm(
            name="stale_weights",
            step=history.now,
            seen=f"turns are sampled with weights that are {seen.mean:.1f} steps old on average "
            f"({seen.low:.1f} to {seen.high:.1f}; alarm at {history.thresholds.lag:g})",
            cause="replicas miss syncs, or episodes are kept for too long before they are trained "
            "on; runs collapse after 40 to 80 such steps",
            change="the sync of every replica (`weight_version` and `replica` of the turns say "
            "which lags); a lower bound on staleness",
            numbers={"lag": seen.mean, "low": seen.low, "high": seen.high},
        )


def nonfinite(history: RunHistory) -> Iterator[Alarm]:
    """Tokens without a finite log-probability, in step after step."""
    values = history.last("nonfinite_logprobs")
    hit = [value for value in values if value > 0]
    if len(hit) >= history.thresholds.min_steps:
        yield Alarm(
            name="nonfinite_logprobs",
            step=history.now,
            seen=f"{len(hit)} of the last {len(values)} steps have tokens whose log-probability is "
            f"NaN or infinite, {sum(hit):.0f} in all; they are masked",
            cause="numbers overflow in the sampler",
            change="bfloat16 instead of float16, or float32; another attention backend in vLLM",
            numbers={"tokens": sum(hit), "steps": float(len(hit))},
        )


def nonfinite_loss(history: RunHistory) -> Iterator[Alarm]:
    """A loss or a gradient that is no number; once is enough, since nothing brings weights back."""
    names = {"loss": "the loss", "grad_norm": "the norm of the gradient"}
    hit = {
        name: steps
        for name in names
        if (steps := [s.step for s in history.steps if s.values.get(f"nonfinite/{name}")])
    }
    if not hit:
        return
    first = min(steps[0] for steps in hit.values())
    told = " and ".join(f"{names[name]} in {len(steps)}" for name, steps in hit.items())
    yield Alarm(
        name="nonfinite_loss",
        step=history.now,
        seen=f"of {len(history.steps)} steps, {told} is NaN or infinite, first at step {first}",
        cause="the update overflows, and from that step on the weights may be NaN, which no later "
        "step mends",
        change="a checkpoint from before that step, with a lower learning_rate, a smaller "
        "grpo.max_grad_norm, and bfloat16 or float32 instead of float16",
        numbers={**{name: float(len(s)) for name, s in hit.items()}, "first_step": float(first)},
    )


def no_gradient(history: RunHistory) -> Iterator[Alarm]:
    """Every step's gradient is zero, while the run looks alive."""
    values = history.last("grad_norm")
    if len(values) < history.thresholds.min_steps or max(values) > _NO_GRADIENT:
        return
    equal = history.recent("groups_without_signal")
    if equal is None:
        equal = history.recent("frac_reward_zero_std")
    no_signal = equal is None or equal > _ALL
    if no_signal and history.has_learned:
        return  # all groups are solved by all, and there is nothing to improve
    loss = history.recent("loss")
    numbers = {"steps": float(len(values)), "grad_norm": max(values)}
    beside = ""
    if equal is not None:
        numbers["groups_without_signal"] = equal
        beside = f"; {equal:.0%} of groups without signal"
    yield Alarm(
        name="no_gradient",
        step=history.now,
        seen=f"the gradient has been 0 for {len(values)} steps"
        + (f", the loss {loss:.2g}" if loss is not None else "")
        + beside,
        cause="no group tells good from bad"
        if no_signal
        else "groups differ and still nothing reaches the weights: masks that are all 0, frozen "
        "parameters, or a learning rate of 0",
        change="the alarms beside this one"
        if no_signal
        else "the rows of one step (agentgym.train.rows.training_row): does env_mask have ones? "
        "Which parameters have requires_grad?",
        numbers=numbers,
    )
