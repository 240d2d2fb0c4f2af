r"""What a run will cost before it starts: per role, per training step and in all.

A run is described by a workload: how many episodes, how many turns they take, how many tokens each
part of the conversation has, which other models are called how often and what they read. Without a
file, the reference run is planned (128 tasks × 8 rollouts × 500 training steps of 5 turns), and
flags change it; --write keeps what they made, with --workload it is read again.

Three things that bills are often wrong about, and this one shows:
  the policy   reads the whole conversation again in every turn, so its tokens grow with turns²; a
               prefix cache takes most of that off. The judge reads the transcript once.
  the turns    are a distribution. Long episodes cost more than short ones save, so the same mean
               with a wider spread is a larger bill: see --turns.
  the prices   come from a dated book (see docs/cost.md); a model that isn't in it is an error with
               the line to add, never free.

Everything printed is an estimate. GPU-hours and wall-clock need speeds, measured or guessed:
--prefill-tps and --decode-tps for GPUs of your own, --seconds-per-call for models you wait for.

Examples:
  agentgym cost plan
  agentgym cost plan --judge-reads prompts                 # the popular way to count, and why not
  agentgym cost plan --turns geometric:mean=5,max=20 --cache simulator=0.8
  agentgym cost plan --groups 64 --steps 200 --without simulator --judge-model GLM-5.1 \
      --prefill-tps 20000 --decode-tps 2500 --gpus 8 --gpu-hour-usd 2 --seconds-per-call policy=4
  agentgym cost plan --policy-model GLM-5.1 --cache policy=0.6     # hosted: how much is cached?
  agentgym cost plan --turns-from runs/pilot --write workload.toml
  agentgym cost plan --workload workload.toml --set roles.judge.output_tokens=300 --json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `agentgym cost plan`."""
    from agentgym.cli._plan_flags import add_workload_arguments

    add_workload_arguments(parser)
    parser.add_argument(
        "--prices",
        action="append",
        type=Path,
        metavar="FILE",
        help="a price book over the user's and the shipped one",
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the workload as TOML")
    parser.add_argument(
        "--sensitivity", action="store_true", help="all inputs that move the bill, not the first 8"
    )
    parser.add_argument("--json", action="store_true", help="every figure as JSON")


def run(args: argparse.Namespace) -> int:
    """Plan, and print the plan."""
    from agentgym.cli._inputs import write_json
    from agentgym.cli._plan_flags import workload_from
    from agentgym.cli._plan_tables import print_plan
    from agentgym.cost.caching import policy_cache
    from agentgym.cost.figures import plan_figures
    from agentgym.cost.plan import make_plan
    from agentgym.cost.sensitivity import sensitivity
    from agentgym.cost.workload_file import workload_text
    from agentgym.price_book import PriceBook

    book = PriceBook.load(*(args.prices or ()))
    workload, cache_assumed = workload_from(args, book)
    plan = make_plan(workload, book)
    cache = policy_cache(plan, assumed=cache_assumed)
    if args.write:
        write_json(args.write, workload_text(workload).rstrip())
    found = sensitivity(plan)
    if args.json:
        print(json.dumps(plan_figures(plan, found, cache), indent=2, ensure_ascii=False))
    else:
        print_plan(plan, found, book, cache, every_input=args.sensitivity)
    return 0
