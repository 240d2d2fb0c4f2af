"""See a small policy learn to shop: evaluate, train with GRPO on vLLM, evaluate again.

A language model of half a million parameters comes with the package. It knows how to shop, but errs
often. It is evaluated on held-out tasks of agentgym/WebShop-v0, trained on other tasks with TRL's
GRPO on colocated vLLM, and evaluated on the same held-out tasks again. Both times it samples at
temperature 1, so what changes is the policy and nothing else.

No key, no network, no model download. On 2 CPU cores it takes some 3 minutes; a GPU is used if
there is one. Everything goes to a new folder under runs/: traces of every episode (before.jsonl,
after.jsonl, train/traces-*.jsonl), metrics (train/metrics.jsonl), checkpoints, the trained model.
Ctrl-C keeps what is there.

Examples:
  agentgym demo
  agentgym demo --quick               under a minute, to see that everything works
  agentgym demo --steps 80 --seed 1   longer, with other tasks and draws
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--steps", type=int, metavar="N", help="training steps (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="task order and sampling (default: 0)")
    parser.add_argument("--quick", action="store_true", help="2 steps, 16 held-out tasks")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: a new folder under runs/")
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="a policy made by agentgym.train.tiny.build"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo."""
    from agentgym.cli._demo import Demo

    return Demo(
        steps=args.steps, seed=args.seed, quick=args.quick, out=args.out, model=args.model
    ).run()
