"""What is kept of a handful of episodes, to plan and to predict with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agentgym.cost.actual import Pricing, RoleActual
from agentgym.cost.bills import EpisodeBill, ModelFacts
from agentgym.types import Usage


@dataclass(frozen=True)
class Episode:
    """One episode, as far as the planner minds."""

    task: str
    turns: int
    usage: Mapping[str, Usage]
    prompts: tuple[float, ...] = ()
    """Tokens of each turn's prompt, shape `(T,)`; empty where a turn has no count."""
    outputs: tuple[float, ...] = ()
    """Tokens of each turn's output, shape `(T,)`."""
    calls: int = 0
    """Billed calls of the policy, repeated ones included."""


@dataclass
class Sample:
    """What is kept of the episodes that a workload is measured from."""

    episodes: list[Episode] = field(default_factory=list)
    """Those that got to a turn; one that something broke after two is one of two turns."""
    others: dict[str, RoleActual] = field(default_factory=dict)
    """What everything else cost: attempts that were repeated, episodes that began with a fault."""
    counted: int = 0
    """Episodes, broken ones included."""
    models: dict[str, ModelFacts] = field(default_factory=dict)


def sample_of(bills: Iterable[EpisodeBill], *, pricing: Pricing | None = None) -> Sample:
    """Keep what calibration needs of bills.

    Args:
        bills: Of the episodes to measure.
        pricing: Prices their tokens anew; see `agentgym.cost.actual`.
    """
    sample = Sample()
    for bill in bills:
        usage = {role: _priced(role, used, bill, pricing) for role, used in bill.usage.items()}
        sample.models |= bill.models
        sample.counted += bill.counts
        if bill.counts and bill.turns and not bill.earlier:
            sample.episodes.append(_episode(bill, usage))
            continue
        for role, used in usage.items():
            before = sample.others.get(role, RoleActual())
            sample.others[role] = before.plus(used, is_rerun=True, model=None)
        if bill.counts and bill.played:  # its last attempt can't be told from those before
            sample.episodes.append(Episode(bill.task, len(bill.turns), {}))
    return sample


def tokens_of(usage: Usage) -> float:
    """Input and output together."""
    return float(usage.prompt_tokens + usage.completion_tokens)


def _priced(role: str, usage: Usage, bill: EpisodeBill, pricing: Pricing | None) -> Usage:
    prices = pricing(role, bill.models) if pricing is not None else None
    return (
        usage if prices is None else usage.model_copy(update={"cost_usd": prices.cost_usd(usage)})
    )


def _episode(bill: EpisodeBill, usage: Mapping[str, Usage]) -> Episode:
    calls = [used for used in bill.turns if used is not None and used.calls]
    whole = len(calls) == len(bill.turns) and sum(used.calls for used in calls) > 0
    return Episode(
        task=bill.task,
        turns=len(bill.turns),
        usage=usage,
        prompts=tuple(used.prompt_tokens / used.calls for used in calls) if whole else (),
        outputs=tuple(used.completion_tokens / used.calls for used in calls) if whole else (),
        calls=sum(used.calls for used in calls),
    )


def first(bills: Iterable[EpisodeBill], episodes: int) -> Iterator[EpisodeBill]:
    """The bills up to the so-many-th episode that counts."""
    left = episodes
    for bill in bills:
        yield bill
        left -= bill.counts
        if not left:
            return
