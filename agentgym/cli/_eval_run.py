r"""Play policies and models side by side on held-out tasks, and write a result file.

Every column plays the same tasks with the same seeds. Episodes are scored by an external score,
which is never the training reward. Traces go to OUT/traces as they finish, the result to
OUT/result.json. The same command with the same --out plays exactly what is missing, however the run
before it ended; episodes of another configuration (another temperature, say) are never reused.

Examples:
  agentgym eval run --env agentgym/WebShop-v0 --policy random --policy rule --policy oracle
  agentgym eval run --env agentgym/SupportDesk-v0 -n 24 --samples 4 --out runs/before \
      --policy expert --model before=my-policy@http://localhost:8000/v1
  agentgym eval run --env agentgym/ToolWorld-v0 --columns columns.toml --at-once --out runs/x
  agentgym eval run --env agentgym/ToolWorld-v0 --columns columns.toml --out runs/x --record calls
  agentgym eval run --env agentgym/ToolWorld-v0 --columns columns.toml --out runs/y --replay calls
  agentgym eval run --env my_envs:mine/Shop-v0 --policy random --score my_scores:strict

A columns file has one table per column, with the fields of an endpoint (docs/evaluation.md):
  [columns.large]
  kind = "baseline"
  base_url = "https://api.deepinfra.com/v1/openai"
  model = "zai-org/GLM-5.1"
  api_key_env = "DEEPINFRA_API_KEY"
  prices = {input = 1.05, cached = 0.205, output = 3.50}
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options, by what they are about."""
    from agentgym.cli._limits import add_limit_arguments
    from agentgym.cli._tasks import add_env_argument, add_episode_arguments

    tasks = parser.add_argument_group("tasks")
    add_env_argument(tasks)
    tasks.add_argument(
        "--split", help="which of the env's splits (default: validation, where it has splits)"
    )
    tasks.add_argument(
        "-n", type=int, metavar="N", help="so many tasks, spread over the split (default: all)"
    )
    tasks.add_argument(
        "--samples", type=int, default=1, metavar="K", help="episodes per task and column"
    )
    add_episode_arguments(tasks)
    tasks.add_argument(
        "--score",
        metavar="MODULE:FUNCTION",
        help="external score, called with an env and a trace (default: the env's own)",
    )
    columns = parser.add_argument_group("columns: who plays; each may be repeated and mixed")
    columns.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help="one of the env's own policies, such as random, rule, oracle or expert",
    )
    columns.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="[NAME=]MODEL@URL",
        help="a model on an OpenAI-compatible server; several URLs, with commas, serve one model",
    )
    columns.add_argument(
        "--columns", type=Path, metavar="FILE.toml", help="tables [columns.NAME], [simulator], …"
    )
    columns.add_argument(
        "--roles", type=Path, metavar="FILE.toml", help="the env's own models: [simulator], [judge]"
    )
    columns.add_argument(
        "--api-key-env", metavar="VAR", help="variable with the key of every --model"
    )
    columns.add_argument(
        "--tool-calls",
        choices=("native", "text"),
        help="of every --model; text sends no tool list, for envs with a text grammar",
    )
    columns.add_argument("--temperature", type=float, help="of models (default: 1)")
    columns.add_argument("--top-p", type=float, help="of models (default: 1)")
    columns.add_argument("--max-tokens", type=int, help="of models, per turn (default: 512)")
    columns.add_argument(
        "--at-once", action="store_true", help="columns share the slots; else one after the other"
    )
    add_limit_arguments(parser)
    where = parser.add_argument_group(
        "where episodes are played, and where models answer from"
    ).add_mutually_exclusive_group()
    where.add_argument(
        "--record",
        type=Path,
        metavar="FOLDER",
        help="keep every model call, in a file per column, to replay the evaluation or go on with "
        "it: calls that are in it aren't paid again",
    )
    where.add_argument(
        "--replay", type=Path, metavar="FOLDER", help="answer from such files; asks no server"
    )
    where.add_argument(
        "--service",
        metavar="URL",
        help="models' columns are played by the rollout service there (`agentgym serve`), with the "
        "keys that it has; its token is read from AGENTGYM_SERVICE_TOKEN. The env's own policies "
        "play in this process only: run them first, with the same --out and without --service",
    )
    output = parser.add_argument_group("output, and going on with a run")
    output.add_argument(
        "--out", type=Path, help="folder, new or of an earlier run (default: a new one under runs/)"
    )
    output.add_argument(
        "--retry-masked", action="store_true", help="also play again what has no score"
    )
    output.add_argument(
        "--on-interrupt",
        choices=("drain", "stop"),
        default="drain",
        help="Ctrl-C: let episodes finish that have begun, and stop at the second one (default), "
        "or stop at once",
    )
    output.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Play and score."""
    from agentgym.cli._evaluating import EvaluationCommand

    return EvaluationCommand(args).run()
