r"""Evaluate policies on held-out tasks, compare what came of it, decide whether to train.

Examples:
  agentgym eval run --env agentgym/WebShop-v0 --split validation --policy rule --samples 4
  agentgym eval show runs/x/result.json
  agentgym eval compare runs/before/result.json runs/after/result.json

`agentgym eval ACTION --help` explains an action and gives examples.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One action per module `_eval_<name>`."""
    from agentgym.cli._actions import add_actions

    add_actions(parser, "eval")


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    code: int = args.run_action(args)
    return code
