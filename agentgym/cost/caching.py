"""How much of a plan hangs on a hosted policy's prefix cache.

On servers of one's own, vLLM's cache holds what it can. A provider may have no cache, or hit less:
a request goes to another machine, or comes too late. The price book says whether cached input has a
price of its own; how often there is some, only a pilot says.
"""

from __future__ import annotations

from agentgym.client import Prices
from agentgym.cost.plan import Plan
from agentgym.types import Finite, Record

NOTABLE = 0.03
"""Share of the sum from which on the cache is worth a warning."""


class PolicyCache(Record):
    """What is taken to be cached of a policy that is paid by the token, and what it makes."""

    hit: Finite
    """Share of what a prefix cache could hold that hits, as planned."""
    assumed: bool
    """Whether nobody said so for this model: it is what the price book and the workload suggest."""
    has_price: bool
    """Whether cached input costs less than other input."""
    usd_without: Finite
    """The run's bill without a hit, dollars."""
    usd_at_best: Finite
    """The run's bill if all hit that could."""
    swing: Finite
    """Their distance as a share of the bill as planned."""

    @property
    def is_notable(self) -> bool:
        """Whether it should be warned of."""
        return self.assumed and self.swing > NOTABLE


def caches(prices: Prices) -> bool:
    """Whether a provider asks less for cached input: one that doesn't may as well have no cache."""
    return prices.cached is not None and prices.cached < prices.input


def policy_cache(plan: Plan, *, assumed: bool) -> PolicyCache | None:
    """What hangs on the policy's cache; None where it isn't paid by the token.

    Args:
        plan: With its prices.
        assumed: Whether the share was not given for this model.
    """
    policy, episodes = plan.role("policy"), plan.workload.episodes
    planned = policy.usd(episodes)
    if policy.prices is None or planned is None:
        return None
    others = plan.total_usd - planned.total
    ends = [others + (policy.usd_with_hits(hit, episodes) or 0.0) for hit in (0.0, 1.0)]
    return PolicyCache(
        hit=plan.workload.policy.cache_hit,
        assumed=assumed,
        has_price=caches(policy.prices),
        usd_without=ends[0],
        usd_at_best=ends[1],
        swing=(ends[0] - ends[1]) / plan.total_usd if plan.total_usd else 0.0,
    )
