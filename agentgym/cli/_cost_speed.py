r"""Measure a server's tokens per second, reading and writing apart, to plan GPU-hours with.

Loads a vLLM server of your own for a short while: prompts of --prompt-words without a common prefix
and one token of answer, then short prompts with --output-tokens of answer each. Use the concurrency
that your rollouts will have, on an otherwise idle server. Answers are kept from ending early with
vLLM's `ignore_eos`; a server without it writes less than it was asked for.

Examples:
  agentgym cost speed --base-url http://localhost:8000/v1 --model my-policy --concurrency 256
  agentgym cost speed --roles roles.toml --gpus 8 --prompt-words 3000 --requests 1024
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `agentgym cost speed`."""
    parser.add_argument("--base-url", help="OpenAI-compatible root, often ending in /v1")
    parser.add_argument("--model", help="the model's name on that server")
    parser.add_argument("--api-key-env", metavar="VAR", help="variable with the key")
    parser.add_argument("--roles", type=Path, metavar="FILE", help="TOML file with a [policy]")
    parser.add_argument("--concurrency", type=int, default=32, metavar="N", help="requests at once")
    parser.add_argument(
        "--requests", type=int, metavar="N", help="in each phase (default: 4 times the concurrency)"
    )
    parser.add_argument("--prompt-words", type=int, default=1000, metavar="N")
    parser.add_argument("--output-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="the server's")
    parser.add_argument("--seed", type=int, help="of the prompts (default: new ones each time)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Measure, and print the lines for a workload file."""
    from agentgym.cli._bill_tables import amount
    from agentgym.cli._inputs import one_endpoint
    from agentgym.clients.chat import ChatClient
    from agentgym.cost.speed import Speed, measure_speed
    from agentgym.errors import ConfigError
    from agentgym.roles import Roles

    requests = args.concurrency * 4 if args.requests is None else args.requests
    for flag in ("concurrency", "prompt_words", "output_tokens", "gpus"):
        if getattr(args, flag) < 1:
            raise ConfigError(f"--{flag.replace('_', '-')} must be at least 1")
    if requests < args.concurrency:
        raise ConfigError("--requests must be at least --concurrency, or it isn't reached")
    endpoint = one_endpoint(args, "policy", who="is measured")
    Roles(policy=endpoint).check_keys()
    changes = {
        "max_concurrency": args.concurrency,
        "extra_body": {**endpoint.extra_body, "ignore_eos": True},
        "tokens": None,
    }

    async def measure() -> Speed:
        client = ChatClient(endpoint.model_copy(update=changes))
        try:
            return await measure_speed(
                client,
                concurrency=args.concurrency,
                requests=requests,
                prompt_words=args.prompt_words,
                output_tokens=args.output_tokens,
                seed=secrets.randbits(32) if args.seed is None else args.seed,
            )
        finally:
            await client.aclose()

    speed = asyncio.run(measure())
    if args.json:
        print(speed.model_dump_json(indent=2))
        return 0
    prefill, decode = (
        rate / args.gpus for rate in (speed.prefill_tokens_per_s, speed.decode_tokens_per_s)
    )
    print(
        f"read    {amount(speed.prefill_tokens_per_s)} tokens/s, prompts of "
        f"{speed.prompt_tokens:,.0f}, {args.concurrency} at once"
    )
    print(
        f"wrote   {amount(speed.decode_tokens_per_s)} tokens/s, answers of "
        f"{speed.output_tokens:,.0f} ({args.output_tokens} asked for)"
    )
    print(
        f"plan    agentgym cost plan --prefill-tps {_rate(prefill)} --decode-tps {_rate(decode)} "
        f"--gpus {args.gpus}"
    )
    return 0


def _rate(value: float) -> str:
    """A number for a flag: whole where that says enough, and never rounded to zero."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
