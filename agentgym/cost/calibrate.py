"""A workload measured from a handful of episodes, to plan a run with.

What is measured is what the planner takes: how often an episode takes how many turns, how its
prompts grow, how much of them a cache held, how often the other models are called and what they
read. The fit keeps the sums: planned for as many episodes as were measured, a workload reads and
writes as many tokens as they did. How far a run may be from that is `agentgym.cost.predict`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from agentgym.client import Prices
from agentgym.cost.reading import during, prompts, transcript
from agentgym.cost.sample import Episode, Sample, tokens_of
from agentgym.cost.turns import HistogramTurns
from agentgym.cost.workload import EpisodeTokens, PolicyLoad, Reads, RoleLoad, Workload
from agentgym.errors import ConfigError
from agentgym.types import Usage

_NONE = Usage(calls=0)


def calibrate(
    sample: Sample,
    *,
    groups: int,
    group_size: int,
    steps: int,
    prices: Mapping[str, Prices] | None = None,
    name: str = "calibrated",
    basis: str = "",
) -> Workload:
    """A workload as the sample's episodes were.

    Args:
        sample: See `sample_of`.
        groups: Tasks per training step of the run to plan.
        group_size: Rollouts per task.
        steps: Training steps.
        prices: By role, those of the run to plan; default: what the traces name.
        name: What to call it.
        basis: Where it is from.

    Raises:
        ConfigError: If no episode got to a turn, or none has counts of its tokens.
    """
    measured = [one for one in sample.episodes if one.usage]
    if not measured:
        raise ConfigError(
            "no episode got to a turn at the first attempt, so there is nothing to fit"
        )
    counts: dict[float, float] = defaultdict(float)
    for one in sample.episodes:
        counts[float(one.turns)] += 1
    turns = HistogramTurns(counts=dict(counts))
    tokens = _fit_tokens([one for one in measured if one.prompts])
    again = _rerun_share(sample, measured)
    roles = {role for one in measured for role in one.usage} | sample.others.keys()
    given = dict(prices or {})
    policy = _policy(sample, measured, tokens, group_size, given.get("policy"))
    return Workload(
        name=name,
        basis=basis or f"{sample.counted} episodes",
        groups=groups,
        group_size=group_size,
        steps=steps,
        turns=turns,
        tokens=tokens,
        policy=policy,
        roles={
            role: _role(role, sample, measured, tokens, given.get(role))
            for role in sorted(roles - {"policy"})
        },
        rerun_share=again,
    )


# --- the conversation -------------------------------------------------------------------------


def _fit_tokens(measured: Sequence[Episode]) -> EpisodeTokens:
    """Setup, output and reply: the line through the prompts by turn that keeps their sum.

    With prompts p of turns t over all episodes, growth = Σ(t-t̄)(p-p̄)/Σ(t-t̄)² (least squares),
    output = their mean, reply = growth - output but not below 0, and setup follows from the sums:
    setup = p̄ - (output + reply)·t̄. Where outputs don't go back whole into the prompt (reasoning
    that is not replayed), growth is less than output and the prompts' growth is a little too steep.
    """
    if not measured:
        raise ConfigError(
            "no episode has the tokens of its turns (Turn.usage), so prompts can't be fitted; "
            "a policy that is no model has none"
        )
    points = [(t, p) for one in measured for t, p in enumerate(one.prompts)]
    outputs = [tokens for one in measured for tokens in one.outputs]
    mean_t = math.fsum(t for t, _ in points) / len(points)
    mean_p = math.fsum(p for _, p in points) / len(points)
    spread = math.fsum((t - mean_t) ** 2 for t, _ in points)
    slope = math.fsum((t - mean_t) * (p - mean_p) for t, p in points) / spread if spread else 0.0
    output = math.fsum(outputs) / len(outputs)
    reply = max(0.0, slope - output)
    setup = max(0.0, mean_p - (output + reply) * mean_t)
    return EpisodeTokens(setup=setup, output=output, reply=reply)


def _policy(
    sample: Sample,
    measured: Sequence[Episode],
    tokens: EpisodeTokens,
    group_size: int,
    prices: Prices | None,
) -> PolicyLoad:
    counted = [one for one in measured if one.prompts]
    cached = math.fsum(one.usage.get("policy", _NONE).cached_tokens for one in counted)
    own = math.fsum(prompts(tokens, one.turns).repeated for one in counted)
    shared = tokens.setup * (1 - 1 / group_size) * len(counted)
    is_shared = cached > own and shared > 0
    best = own + (shared if is_shared else 0.0)
    calls = math.fsum(one.calls for one in counted)
    facts = sample.models.get("policy")
    return PolicyLoad(
        model=None,
        prices=prices or (facts.prices if facts else None),
        cache_hit=min(1.0, cached / best) if best else 0.0,
        shared_setup=is_shared,
        paid_twice=max(0.0, calls / math.fsum(one.turns for one in counted) - 1),
    )


def _rerun_share(sample: Sample, measured: Sequence[Episode]) -> float:
    """What attempts cost that were repeated or broken, in episodes per episode."""
    wasted = math.fsum(role.tokens for role in sample.others.values())
    used = math.fsum(tokens_of(usage) for one in measured for usage in one.usage.values())
    if not used or not sample.counted:
        return 0.0
    # Broken episodes are of those that were asked for; their place was not paid for in full.
    per_episode = used / len(measured)
    paid = wasted + used
    return max(0.0, paid / (per_episode * sample.counted) - 1)


# --- the other roles --------------------------------------------------------------------------


def _role(
    role: str,
    sample: Sample,
    measured: Sequence[Episode],
    tokens: EpisodeTokens,
    prices: Prices | None,
) -> RoleLoad:
    """How often a role is called, and what it reads: whichever form fits its calls best."""
    usages = [one.usage.get(role, _NONE) for one in measured]
    calls = math.fsum(used.calls for used in usages)
    facts = sample.models.get(role)
    load = RoleLoad(prices=prices or (facts.prices if facts else None))
    if not calls:
        return load
    when = _when(usages, measured, role)
    load = load.model_copy(update=when)
    read = math.fsum(used.prompt_tokens for used in usages)
    reads, seen = _reads(load, usages, measured, tokens, read)
    own = (read - math.fsum(seen)) / calls
    cached = math.fsum(used.cached_tokens for used in usages)
    load = load.model_copy(
        update={
            "reads": reads,
            "input_tokens": max(0.0, own),
            "output_tokens": math.fsum(used.completion_tokens for used in usages) / calls,
        }
    )
    best = _cacheable(load, measured, tokens)
    return load.model_copy(update={"cache_hit": min(1.0, cached / best) if best else 0.0})


def _when(usages: Sequence[Usage], measured: Sequence[Episode], role: str) -> dict[str, float]:
    """Calls per episode, turn or reply: the one whose counts lie closest to the episodes'."""
    units = {
        "calls_per_episode": [1.0 for _ in measured],
        "calls_per_turn": [float(one.turns) for one in measured],
        "calls_per_reply": [one.turns - 1.0 for one in measured],
    }
    total = math.fsum(used.calls for used in usages)

    def misfit(name: str) -> float:
        rate = total / math.fsum(units[name])
        return math.fsum(
            (u.calls - rate * n) ** 2 for u, n in zip(usages, units[name], strict=True)
        )

    fitting = [name for name in units if math.fsum(units[name]) > 0]
    # Where turns don't differ all fit alike; a user is asked per reply, a judge at the end.
    likely = "calls_per_reply" if role == "simulator" else "calls_per_episode"
    best = min(fitting, key=lambda name: (round(misfit(name), 6), name != likely))
    return {best: total / math.fsum(units[best])}


def _reads(
    load: RoleLoad,
    usages: Sequence[Usage],
    measured: Sequence[Episode],
    tokens: EpisodeTokens,
    read: float,
) -> tuple[Reads, list[float]]:
    """Whether a role reads the conversation; and so, how many of its tokens are that."""
    seen = [_transcripts(load, one.turns, tokens) for one in measured]
    nothing = [0.0] * len(seen)
    if math.fsum(seen) > read:  # it reads less than that
        return "own", nothing

    def misfit(seen: Sequence[float]) -> float:
        calls = math.fsum(used.calls for used in usages)
        own = (read - math.fsum(seen)) / calls
        return math.fsum(
            (used.prompt_tokens - own * used.calls - known) ** 2
            for used, known in zip(usages, seen, strict=True)
        )

    return ("transcript", seen) if misfit(seen) < misfit(nothing) else ("own", nothing)


def _transcripts(load: RoleLoad, turns: float, tokens: EpisodeTokens) -> float:
    """Tokens of conversation in a role's prompts of an episode, if it reads that."""
    return (
        load.calls_per_episode * transcript(tokens, turns)
        + load.calls_per_turn * during(tokens, turns, last=True).tokens
        + load.calls_per_reply * during(tokens, turns, last=False).tokens
    )


def _cacheable(load: RoleLoad, measured: Sequence[Episode], tokens: EpisodeTokens) -> float:
    """What a prefix cache could hold of a role's input at best, as `role_volume` counts it."""
    from agentgym.cost.volumes import role_volume

    counts: dict[float, float] = defaultdict(float)
    for one in measured:
        counts[float(one.turns)] += 1
    sketch = Workload(
        groups=1, group_size=1, steps=1, turns=HistogramTurns(counts=dict(counts)), tokens=tokens
    )
    return role_volume(sketch, load).cacheable_tokens * len(measured)
