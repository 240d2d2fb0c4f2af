r"""Say whether to train a policy, from episodes it played before training.

SOURCE is a file of traces, a folder of `agentgym rollout`, a result of `agentgym eval run`, or the
folder of a training run (its episodes before the first update). Play the tasks to be trained on,
each at least twice and best as often as a group is large: tasks played once can't show how many
groups will have something to learn from.

The answer is one of
  train       nothing measured speaks against it
  fix first   the prompt, parser, a budget, the reward, the environment or the judge is in the way
  simplify    too hard: easier tasks, or a mix with easier ones
  too easy    solved already: harder tasks
  undecided   too few episodes to tell, and how many more would

with the figures behind it, their 95 % intervals, and where each rule comes from. Where no limit has
been published, it says so. Exit code: 0 for train, 3 for any other answer, 1 for an error.

Examples:
  agentgym rollout --env agentgym/WebShop-v0 --split train --base-url URL --model NAME -n 50 \
      --samples 4 --out runs/base
  agentgym eval verdict runs/base
  agentgym eval verdict runs/base --reference runs/strong --group-size 16
  agentgym eval verdict runs/base --judge gold-report.json --replay 5
  agentgym eval verdict result.json --column base --reference-column strong --json
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("source", metavar="SOURCE", type=Path, help="episodes before training")
    parser.add_argument("--column", metavar="NAME", help="which system of a result")
    parser.add_argument(
        "--group-size", metavar="G", type=int, default=8, help="episodes per group in training (8)"
    )
    parser.add_argument(
        "--min-informative",
        metavar="SHARE",
        type=float,
        default=0.5,
        help="share of informative groups that is wanted (0.5, where training alarms; there is no "
        "published limit)",
    )
    parser.add_argument(
        "--reference", metavar="SOURCE", type=Path, help="a stronger model on the same tasks"
    )
    parser.add_argument(
        "--reference-column", metavar="NAME", help="which system of the reference's result"
    )
    parser.add_argument(
        "--judge", metavar="FILE.json", type=Path, help="report of `agentgym judge check --out`"
    )
    parser.add_argument(
        "--score",
        metavar="MODULE:FUNCTION",
        help="external score of the traces (default: the one that the environment ships)",
    )
    parser.add_argument(
        "--accept",
        metavar="FINDING",
        action="append",
        default=[],
        help="a finding that is known and taken as it is, such as reward_above_evaluation; it "
        "decides nothing; may be repeated",
    )
    parser.add_argument(
        "--replay",
        metavar="N",
        type=int,
        default=0,
        help="play the actions of N episodes again, twice in one environment and once in a fresh "
        "one; a hosted simulator is called for it",
    )
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Judge; returns 0 for train, 3 for any other answer."""
    from agentgym.cli._verdict import judged_source, verdict_text

    found = judged_source(args)
    print(found.model_dump_json(indent=2) if args.json else verdict_text(found))
    return 0 if found.conclusion == "train" else 3
