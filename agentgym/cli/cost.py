r"""What a run will cost, and what it did cost: tokens, dollars, GPU-hours, time.

Examples:
  agentgym cost plan
  agentgym cost plan --groups 64 --steps 200 --turns geometric:mean=6,max=20
  agentgym cost plan --workload workload.toml --judge-model GLM-5.1
  agentgym cost actual runs/x --plan workload.toml
  agentgym cost calibrate runs/pilot --episodes 1000
  agentgym cost prices
  agentgym cost speed --base-url http://localhost:8000/v1 --model my-policy --concurrency 256

`agentgym cost ACTION --help` explains an action and gives examples.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One action per module `_cost_<name>`."""
    from agentgym.cli._actions import add_actions

    add_actions(parser, "cost")


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    code: int = args.run_action(args)
    return code
