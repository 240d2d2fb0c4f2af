"""What the episodes are like: their length, the limits they hit, and those without a score."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.report.plots.chart import Chart
from agentgym.report.run.making import ChartMaker

_WHO = {"simulator": "simulator", "judge": "judge", "env": "environment", "infra": "infrastructure"}
_WHY = {
    "rows": "no row to train on",
    "stale": "old weights",
    "nonfinite": "log-probabilities not finite",
    "alone": "alone in its group",
    "truncated": "cut by a limit, by choice",
}


def episode_charts(make: ChartMaker) -> Iterator[Chart]:
    """Turns, tokens and limits."""
    thresholds = make.record.thresholds
    yield from make.over_steps(
        "turns",
        "Turns per episode",
        {"turns": "turns"},
        what="Mean number of turns, over all episodes.",
        read="To be read with the share that hits the cap (Limits hit). max_turns = ceil(1.5 × the "
        "turns a human needs).",
    )
    yield from make.over_steps(
        "caps",
        "Limits hit",
        {
            "max_turns, without an answer": "turn_cap_unanswered",
            "max_turns": "truncated/turns",
            "tokens of the episode": "truncated/tokens",
            "context": "truncated/context",
            "time": "truncated/time",
            "a message cut off by max_turn_tokens": "cut_off",
        },
        what="Share of scored episodes that hit each limit.",
        read="From 10 % at the turn cap without an answer, or 5 % with a message cut off, raise "
        "the limit before anything else: such episodes teach little.",
        unit="share",
        hide_zero=True,
        levels=(
            (thresholds.turn_cap, "alarm turn_cap"),
            (thresholds.token_limit, "alarm token_limit"),
        ),
    )
    yield from make.over_steps(
        "malformed",
        "Unreadable actions",
        {"episodes with an unreadable call": "malformed"},
        what="Share of scored episodes with at least one.",
        read="High and not falling: hold one trace's first message against the parser.",
        unit="share",
        levels=((thresholds.malformed, "alarm malformed"),),
    )
    classes = {who: f"masked/{name}" for name, who in _WHO.items()}
    others = {why: f"masked/{name}" for name, why in _WHY.items()}
    shown = "Share of all episodes; they have no reward, no vote in their group and no gradient."
    yield from make.over_steps(
        "masked",
        "Episodes without a score, by who failed",
        {"all": "masked", **classes},
        what=f"Masked episodes by failure class. {shown}",
        read="Never a zero in any mean. Above 5 % find out who fails, by verdict.failure_class: "
        "what fails is seldom a random part of the tasks.",
        unit="share",
        hide_zero=True,
        levels=((thresholds.masked, "alarm masked"),),
    )
    yield from make.over_steps(
        "masked-other",
        "Episodes left out of training for other reasons",
        others,
        what=f"They were scored, and still train nothing. {shown}",
        unit="share",
        hide_zero=True,
    )


def policy_charts(make: ChartMaker) -> Iterator[Chart]:
    """The policy and its optimiser."""
    thresholds = make.record.thresholds
    yield from make.over_steps(
        "entropy",
        "Entropy",
        {"entropy": "entropy"},
        what="Mean entropy of the policy's next token, nats (TRL).",
        read="A policy that learns gets surer; entropy that falls to a fifth while the reward "
        "stands still has collapsed: a lower learning rate, grpo.beta = 0.01.",
    )
    length = "tokens" if make.record.history.of("tokens") else "completions/mean_length"
    yield from make.over_steps(
        "length",
        "Length",
        {"sampled tokens per episode": length},
        what="Mean number of tokens the policy sampled per episode.",
        read="Shrinking without more reward: doing nothing pays. Growing without: loss_type = "
        "dr_grpo.",
    )
    yield from make.over_steps(
        "logprob-gap",
        "Sampler against trainer",
        {"mean difference": "sampling/sampling_logp_difference/mean"},
        what="Mean absolute difference of sampler's and trainer's log-probabilities of the trained "
        "tokens, nats (TRL).",
        read="About 1e-6 in float32, 1e-3 in bfloat16. More: check_every = 1, the same dtype on "
        "both sides.",
        levels=_near(make, "sampling/sampling_logp_difference/mean",
                     ((thresholds.logprob_gap, "alarm logprob_gap"),)),
    )  # fmt: skip
    yield from make.over_steps(
        "ratio",
        "Importance-sampling ratio",
        {
            "mean": "sampling/importance_sampling_ratio/mean",
            "smallest": "sampling/importance_sampling_ratio/min",
            "largest": "sampling/importance_sampling_ratio/max",
        },
        what="Trainer's over sampler's probability of the trained tokens (TRL).",
        read="1 where sampler and trainer agree and weights are fresh. Away from it: fewer updates "
        "per rollout, fresher weights.",
    )
    yield from make.over_steps(
        "staleness",
        "Age of the weights sampled with",
        {"mean": "weights/lag", "oldest": "weights/lag_max"},
        what="Training steps between the weights that a turn was sampled with and the trainer's.",
        read="0 in a synchronous run. More than 4: the sync of every replica.",
        levels=_near(make, "weights/lag", ((thresholds.lag, "alarm stale_weights"),)),
    )
    yield from make.over_steps(
        "gradient",
        "Gradient norm",
        {"gradient norm": "grad_norm"},
        what="Norm of the gradient before clipping (TRL).",
        read="0 in step after step: nothing to learn from, or masks and frozen parameters.",
    )
    yield from make.over_steps(
        "kl", "KL to the reference", {"KL": "kl"}, what="Mean KL divergence, nats (TRL).",
        read="Only where grpo.beta is above 0.",
    )  # fmt: skip
    yield from make.over_steps(
        "loss",
        "Loss",
        {"loss": "loss"},
        what="Of the optimiser (TRL).",
        read="Says little in GRPO: it is near 0 by construction. Look at reward and success.",
    )


def _near(
    make: ChartMaker, metric: str, levels: tuple[tuple[float, str], ...]
) -> tuple[tuple[float, str], ...]:
    """Levels that the values come near to; one far away would flatten everything else."""
    largest = max(make.record.history.of(metric), default=0.0)
    return tuple(level for level in levels if level[0] <= 4 * largest)
