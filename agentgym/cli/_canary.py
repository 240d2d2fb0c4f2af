"""The canary that a command line asks for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from agentgym.errors import ConfigError

if TYPE_CHECKING:
    from agentgym.rollout import Canary


def add_canary_arguments(parser: argparse.ArgumentParser) -> None:
    """Options for asking the judge, beside the run, about episodes with known verdicts."""
    group = parser.add_argument_group("canary: notice a judge that changes")
    group.add_argument(
        "--canary", metavar="GOLD.jsonl", help="gold set to ask about; `shipped` is the package's"
    )
    group.add_argument("--canary-every", type=int, metavar="N", help="episodes (default: 500)")
    group.add_argument("--canary-stop", action="store_true", help="drift ends the run")


def read_canary(args: argparse.Namespace, judge: Any) -> Canary | None:
    """The canary, if there is to be one.

    Args:
        args: The command line.
        judge: The env's.

    Raises:
        ConfigError: If the judge has no rubric that the set's labels belong to.
        DataError: If the gold set can't be read, or labels none of the rubric's criteria.
    """
    if args.canary is None:
        if args.canary_every is not None or args.canary_stop:
            raise ConfigError("--canary-every and --canary-stop go with --canary")
        return None
    from agentgym.judges.gold import GoldSet
    from agentgym.judges.rubric_judge import RubricJudge
    from agentgym.rollout import Canary

    if not isinstance(judge, RubricJudge):
        raise ConfigError(
            f"--canary is for envs whose judge is a model with a rubric; {args.env} has "
            f"{type(judge).__name__}: give it one (--judge-url), or use rollout.Canary in Python"
        )
    gold = GoldSet.shipped() if args.canary == "shipped" else GoldSet.load(args.canary)
    every = {} if args.canary_every is None else {"every": args.canary_every}
    return Canary(gold.known(judge.rubric), stop=args.canary_stop, **every)
