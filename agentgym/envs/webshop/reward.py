"""What a purchase is worth: the original's reward with its parts under their original names.

``reward = r_type · (attributes met + options met + price met) / (attributes + options + 1)``.
The loose and the odd comparisons of the original are kept (an "x-large" meets "large"; synthetic
options are compared as printed tuples), because published scores contain them. The one difference:
the result is held within 0 and 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agentgym.envs.webshop.colors import COLORS
from agentgym.envs.webshop.fuzzy import is_match
from agentgym.envs.webshop.goals import Goal
from agentgym.envs.webshop.nouns import NounFinder
from agentgym.envs.webshop.products import Product

CATEGORY_SEPARATOR = "›"


@dataclass(frozen=True, slots=True)
class Reward:
    """The worth of one purchase.

    Attributes:
        score: The original's reward, 0 to 1; 1 is success.
        attribute_matches: Goal attributes the purchase has.
        option_matches: Goal options that were chosen.
        details: The original's parts by its names; ``r_option`` and ``w_option`` only where the
            goal has options.
    """

    score: float
    attribute_matches: int
    option_matches: int
    details: dict[str, float | bool]


@lru_cache(maxsize=1 << 12)
def _categories(chain: str) -> frozenset[str]:
    return frozenset(entry.strip() for entry in chain.split(CATEGORY_SEPARATOR))


def _type_reward(bought: Product, goal: Goal, nouns: NounFinder) -> dict[str, float | bool]:
    """How close the kinds of the two products are: r_type and what it was made from."""
    wanted = goal.product
    query_match = bought.query == wanted.query
    shared = _categories(bought.product_category) & _categories(wanted.product_category)
    category_match = len(shared) >= 2
    wanted_nouns = nouns(wanted.title)
    if wanted_nouns:
        title_score = len(set(nouns(bought.title)) & set(wanted_nouns)) / len(wanted_nouns)
    else:
        title_score = 0.2
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        r_type = 0.1
    if title_score == 0.0:
        r_type = 0.0
    return {
        "r_type": r_type,
        "query_match": query_match,
        "category_match": category_match,
        "title_score": title_score,
    }


def _count_attributes(bought: Product, wanted: Sequence[str]) -> int:
    """Count the wanted attributes the product has, in its list or literally in its texts."""
    missing = [name for name in wanted if not any(is_match(own, name) for own in bought.attributes)]
    if not missing:
        return len(wanted)
    texts = (
        bought.title.lower(),
        " ".join(bought.bullets).lower(),
        bought.description.lower(),
    )
    return len(wanted) - sum(not any(name in text for text in texts) for name in missing)


@lru_cache(maxsize=1 << 12)
def normalize_color(value: str | tuple[str, str]) -> str | tuple[str, str]:
    """Replace a value by the first colour word it contains.

    A (group, value) pair contains a colour only if the group or the value equals it.
    """
    return next((color for color in COLORS if color in value), value)


def _count_options(chosen: Sequence[str], wanted: Sequence[str | tuple[str, str]]) -> int:
    """Count the wanted options that some chosen value meets; groups are not compared."""
    values = [str(normalize_color(value)) for value in chosen]
    return sum(
        any(is_match(value, str(normalize_color(option))) for value in values) for option in wanted
    )


def score_purchase(
    bought: Product, goal: Goal, *, price: float, options: Mapping[str, str], nouns: NounFinder
) -> Reward:
    """Score a purchase against a goal.

    Args:
        bought: The product bought.
        goal: What was wanted.
        price: Price of the bought product in dollars, as drawn for this data seed.
        options: Chosen values by group.
        nouns: Finds the nouns of a product name.

    Source: WebShop, arXiv:2207.01206, appendix A, as its code computes it.
    """
    kind = _type_reward(bought, goal, nouns)
    n_attributes, n_options = len(goal.attributes), len(goal.options)
    attributes = _count_attributes(bought, goal.attributes)
    chosen = _count_options(tuple(options.values()), goal.options)
    in_budget = price <= goal.price_upper
    total = n_attributes + n_options + 1
    score = (attributes + chosen + in_budget) / total * kind["r_type"]
    details: dict[str, float | bool] = {
        "r_type": kind["r_type"],
        "r_att": attributes / n_attributes if n_attributes else 0.0,
        "w_att": n_attributes / total,
        "query_match": kind["query_match"],
        "category_match": kind["category_match"],
        "title_score": kind["title_score"],
    }
    if n_options:
        details["r_option"] = chosen / n_options
        details["w_option"] = n_options / total
    details["r_price"] = in_budget
    details["w_price"] = 1 / total
    return Reward(min(max(score, 0.0), 1.0), attributes, chosen, details)
