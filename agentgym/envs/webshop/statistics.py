"""What a split holds and how high a score on it can be.

Scores of different splits, sizes and goal kinds are not comparable without these figures: in the
original, options occur in most training goals and in few of the validation ones.
"""

from pathlib import Path

from agentgym.envs.webshop.goals import SPLITS, GoalKind, Split, split_range
from agentgym.envs.webshop.nouns import noun_finder
from agentgym.envs.webshop.policies import wanted_options
from agentgym.envs.webshop.reward import score_purchase
from agentgym.envs.webshop.shop import shared_world
from agentgym.types import Record


class SplitStatistics(Record):
    """The goals of one split."""

    split: Split | None
    """Name of the split; `None` is all goals."""
    n_goals: int
    """Number of goals."""
    option_rate: float
    """Share of goals that want an option, 0 to 1."""
    mean_options: float
    """Options wanted per goal."""
    mean_attributes: float
    """Attributes wanted per goal."""
    price_rate: float
    """Share of goals with a price limit, 0 to 1."""
    oracle_score: float
    """Mean score of buying each goal's product with the wanted options, 0 to 1."""
    oracle_success: float
    """Share of goals where that earns exactly 1."""


class ShopStatistics(Record):
    """A catalogue, its goals and its splits."""

    catalogue: str
    """Name of the catalogue."""
    n_products: int
    """Number of products."""
    digest: str
    """SHA-256 of the catalogue."""
    goals: GoalKind
    """Kind of goals."""
    goals_digest: str
    """SHA-256 of the goal table."""
    splits: tuple[SplitStatistics, ...]
    """Train, validation and test, then all goals; empty splits are left out."""


def stats(
    *,
    data: str | Path | None = None,
    goals: GoalKind = "human",
    data_seed: int = 0,
    num_products: int | None = None,
    limit_goals: int | None = None,
    nouns: str = "rule",
    difficulty: str = "standard",
    catalogue_seed: int = 0,
) -> ShopStatistics:
    """Count the goals of each split and score the oracle on them.

    The parameters are those of ``WebShopEnv``. Goals are counted once each, not by weight.
    """
    world = shared_world(
        data=data,
        goals=goals,
        data_seed=data_seed,
        num_products=num_products,
        limit_goals=limit_goals,
        difficulty=difficulty,
        catalogue_seed=catalogue_seed,
    )
    table = world.table
    find_nouns = noun_finder(nouns)
    scores = [
        score_purchase(
            goal.product,
            goal,
            price=table.prices[goal.product.asin],
            options=wanted_options(goal),
            nouns=find_nouns,
        ).score
        for goal in table.goals
    ]

    def of(split: Split | None) -> SplitStatistics | None:
        numbers = split_range(len(table), split)
        count = len(numbers)
        if not count:
            return None
        chosen = [table.goals[number] for number in numbers]
        return SplitStatistics(
            split=split,
            n_goals=count,
            option_rate=sum(bool(goal.options) for goal in chosen) / count,
            mean_options=sum(len(goal.options) for goal in chosen) / count,
            mean_attributes=sum(len(goal.attributes) for goal in chosen) / count,
            price_rate=sum(goal.has_price_bound for goal in chosen) / count,
            oracle_score=sum(scores[number] for number in numbers) / count,
            oracle_success=sum(scores[number] == 1.0 for number in numbers) / count,
        )

    return ShopStatistics(
        catalogue=world.shop.catalogue.name,
        n_products=len(world.shop.catalogue),
        digest=world.shop.catalogue.digest,
        goals=goals,
        goals_digest=table.digest,
        splits=tuple(found for split in (*SPLITS, None) if (found := of(split)) is not None),
    )
