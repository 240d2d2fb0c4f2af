r"""Compare a tool simulator with an environment's real tools.

The simulator is a model: named by --base-url and --model, or the [simulator] of a roles file.

Examples:
  agentgym simulator audit --env agentgym/SupportDesk-v0 --roles roles.toml -n 100
  agentgym simulator audit --env agentgym/ToolWorld-v0 --policy expert \
      --base-url https://api.deepinfra.com/v1/openai --model NAME \
      --api-key-env DEEPINFRA_API_KEY --out audit.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

_AUDIT = """\
Play the environment, put the calls its tools answered to the simulator as well, and report per tool
how often both give a result or both an error (status), how often a result fits the result schema
(valid), and how far fields (shape) and their values agree. Every call is put with the real answers
to all earlier ones as memory. An environment with declared tools and records of its own
(ToolWorld) is audited with those; for others the schemas are inferred from the real results.

Examples:
  agentgym simulator audit --env agentgym/WebShop-v0 --policy rule --roles roles.toml
  agentgym simulator audit --env agentgym/ToolWorld-v0 --policy expert -n 200 \\
      --base-url http://localhost:8000/v1 --model NAME --min-status 0.95
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each thing to do."""
    from agentgym.cli._tasks import add_env_kwargs_argument

    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, title="what to do"
    )
    audit = actions.add_parser(
        "audit",
        help="put the same calls to real and simulated tools",
        description=_AUDIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    calls = audit.add_argument_group("calls")
    calls.add_argument(
        "--env",
        required=True,
        help="environment with real tools (`agentgym envs` lists ids), or MODULE:ID",
    )
    add_env_kwargs_argument(calls)
    calls.add_argument(
        "--policy", help="who makes the calls: one of the env's own (default: random valid calls)"
    )
    calls.add_argument("-n", type=int, default=50, metavar="N", help="calls to compare")
    calls.add_argument("--seed", type=int, default=0, help="fixes episodes and random calls")
    model = audit.add_argument_group("simulator: a model")
    model.add_argument("--base-url", help="OpenAI-compatible root, often ending in /v1")
    model.add_argument("--model", help="the model's name on that server")
    model.add_argument(
        "--api-key-env", metavar="VAR", help="variable with the key (default: OPENAI_API_KEY)"
    )
    model.add_argument(
        "--roles", type=Path, metavar="FILE", help="TOML file with a [simulator] table"
    )
    model.add_argument("--max-tokens", type=int, help="output tokens per answer (default: 2048)")
    model.add_argument("--concurrency", type=int, default=8, help="episodes compared at once")
    output = audit.add_argument_group("output")
    output.add_argument("--out", type=Path, metavar="FILE", help="write everything as JSON")
    output.add_argument("--json", action="store_true", help="print JSON instead of the table")
    output.add_argument("--examples", type=int, default=1, help="disagreements shown per tool")
    output.add_argument(
        "--min-status", type=float, metavar="SHARE", help="exit with 1 if fewer agree in status"
    )
    output.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    from agentgym.cli._simulator_audit import audit

    return audit(args)
