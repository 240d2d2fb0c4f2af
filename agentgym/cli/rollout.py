r"""Play episodes of an environment and write their traces.

The policy is a model behind any OpenAI-compatible server, or one of the environment's own policies
without a model. Traces go to OUT/traces.jsonl as they finish, the figures to OUT/summary.json and
to the screen. A run that was stopped or killed continues with --resume.

Examples:
  no model, a first look:
    agentgym rollout --env agentgym/WebShop-v0 --policy rule -n 100

  a server of your own (vllm serve NAME --enable-auto-tool-choice --tool-call-parser hermes;
  on a CPU also --no-enable-chunked-prefill):
    agentgym rollout --env agentgym/WebShop-v0 --split validation \
        --base-url http://localhost:8000/v1 --model NAME -n 200 --out runs/x

  a hosted model; the key is read from the variable, never from the command line:
    agentgym rollout --env agentgym/WebShop-v0 --base-url https://api.deepinfra.com/v1/openai \
        --model NAME --api-key-env DEEPINFRA_API_KEY --concurrency 32 -n 200

  an env with a simulated user and a judge: one file says which models (docs/endpoints.md):
    agentgym rollout --env agentgym/SupportDesk-v0 --roles roles.toml -n 50 --record calls.jsonl

  8 rollouts of each of 50 tasks, with the env's own parameters:
    agentgym rollout --env agentgym/WebShop-v0 --policy random -n 50 --samples 8 \
        --env-kwargs difficulty=easy max_turns=12

  two servers of one policy, 256 episodes at once, metrics for Prometheus:
    agentgym rollout --env agentgym/WebShop-v0 --base-url http://a:8000/v1,http://b:8000/v1 \
        --model NAME -n 1000 --concurrency 256 --metrics-port 9464 --out runs/x

  go on after an interruption, and also play what a fault left without a score:
    agentgym rollout … --out runs/x --resume --retry-masked
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options, by what they are about."""
    from agentgym.cli._canary import add_canary_arguments
    from agentgym.cli._endpoints import add_role_arguments
    from agentgym.cli._limits import add_limit_arguments
    from agentgym.cli._tasks import add_env_argument, add_episode_arguments
    from agentgym.cli._watching import add_watching_arguments

    tasks = parser.add_argument_group("tasks")
    add_env_argument(tasks)
    tasks.add_argument("--split", help="which of the env's splits, such as train or validation")
    tasks.add_argument(
        "-n", type=int, metavar="N", help="the first N tasks (default: 100, or all if fewer)"
    )
    tasks.add_argument("--samples", type=int, default=1, metavar="G", help="episodes per task")
    add_episode_arguments(tasks)
    policy = parser.add_argument_group("policy: a model (here or in --roles), or --policy")
    policy.add_argument(
        "--base-url",
        action="append",
        metavar="URL",
        help="OpenAI-compatible root, often ending in /v1; several, repeated or with commas, are "
        "servers of one policy, among which episodes are balanced",
    )
    policy.add_argument("--model", help="the model's name on that server")
    policy.add_argument("--policy", help="one of the env's own, such as random, rule or oracle")
    policy.add_argument(
        "--api-key-env", metavar="VAR", help="variable with the key (default: OPENAI_API_KEY)"
    )
    policy.add_argument("--temperature", type=float, help="0 is greedy (default: 1)")
    policy.add_argument("--top-p", type=float, help="nucleus mass (default: 1)")
    policy.add_argument("--max-tokens", type=int, help="output tokens per turn (default: 512)")
    policy.add_argument(
        "--tool-calls",
        choices=("native", "text"),
        help="text sends no tool list: for servers without a tool parser, envs with a text grammar",
    )
    policy.add_argument(
        "--tokenizer",
        metavar="FOLDER",
        help="ask a vLLM server in token ids, with the tokenizer in this folder or of this hub id: "
        "traces then hold ids and log-probabilities, and the server needs no tool parser",
    )
    policy.add_argument(
        "--template-kwargs",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="with --tokenizer: for the chat template, such as enable_thinking=false",
    )
    policy.add_argument(
        "--no-request-seed",
        action="store_true",
        help="send no seeds, for servers that can't take them; samples can't be had again",
    )
    policy.add_argument(
        "--extra-body",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="further request fields for this server, such as tool_choice=required",
    )
    add_role_arguments(parser)
    add_canary_arguments(parser)
    add_limit_arguments(parser)
    where = parser.add_argument_group("where episodes are played")
    where.add_argument(
        "--backend",
        choices=("local", "ray"),
        default="local",
        help="in this process (default), or spread over the Ray cluster that this machine is in",
    )
    where.add_argument(
        "--service",
        metavar="URL",
        help="by the rollout service there (`agentgym serve`), with the keys that it has; its "
        "token is read from AGENTGYM_SERVICE_TOKEN",
    )
    output = parser.add_argument_group("output, and going on with a run")
    output.add_argument("--out", type=Path, help="folder (default: a new one under runs/)")
    output.add_argument(
        "--resume",
        action="store_true",
        help="run what OUT lacks; with the same --record, calls that are in it aren't paid again",
    )
    output.add_argument(
        "--retry-masked", action="store_true", help="with --resume, also run what has no score"
    )
    output.add_argument(
        "--on-interrupt",
        choices=("drain", "stop"),
        default="drain",
        help="Ctrl-C: let episodes finish that have begun, and stop at the second one (default), "
        "or stop at once; SIGTERM always stops",
    )
    add_watching_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Play the episodes."""
    from agentgym.cli._rollout import RolloutCommand

    return RolloutCommand(args).run()
