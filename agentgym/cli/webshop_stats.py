"""Show what WebShop's splits hold and how high a score on each can be.

Scores on different splits, sizes and goal kinds are not comparable without these figures.

Examples:
  agentgym webshop-stats
  agentgym webshop-stats --env-kwargs goals=synthetic num_products=500
  agentgym webshop-stats --env-kwargs data=FOLDER goals=human --json
"""

from __future__ import annotations

import argparse

_SCORED_WITH = ("data", "goals", "data_seed", "num_products", "limit_goals", "nouns")
_EMBEDDED = ("difficulty", "catalogue_seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The env's parameters."""
    parser.add_argument(
        "--env-kwargs",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help=f"parameters of the env: {', '.join((*_SCORED_WITH, *_EMBEDDED))}",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print a line per split."""
    from agentgym.cli._inputs import key_values
    from agentgym.envs.webshop.statistics import stats
    from agentgym.errors import ConfigError
    from agentgym.rollout.source import EnvSource

    given = key_values(args.env_kwargs)
    known = (*_SCORED_WITH, *_EMBEDDED)
    for key in given:
        if key not in known:
            raise ConfigError(f"no parameter {key!r} here; there are {', '.join(known)}")
    EnvSource("agentgym/WebShop-v0", given).make().close()  # refuses wrong values
    found = stats(**given)
    if args.json:
        print(found.model_dump_json(indent=2))
        return 0
    print(f"{found.catalogue}: {found.n_products} products, {found.goals} goals")
    print("split       goals  with options  with price  oracle score  oracle success")
    for split in found.splits:
        print(
            f"{split.split or 'all':<10}{split.n_goals:>7}{split.option_rate:>14.1%}"
            f"{split.price_rate:>12.1%}{split.oracle_score:>14.4f}{split.oracle_success:>16.1%}"
        )
    return 0
