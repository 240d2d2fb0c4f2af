r"""Serve rollouts over HTTP: jobs, single environments, policy pools.

A training loop in any process or language submits jobs (an environment, its tasks, the policy's
servers) and collects traces with rewards. Accepted jobs are kept in --store: a service that is
killed and started again on the same store goes on with them, and plays no finished episode again.
The page docs/service.md walks through the requests; HOST:PORT/v1/docs lists them.

Examples:
  on this machine, for this machine; no token needed:
    agentgym serve

  submit 4 rollouts of each of 8 tasks, and wait for the traces:
    curl -s localhost:8800/v1/jobs -H 'Content-Type: application/json' -d '{
      "env": "agentgym/WebShop-v0", "episodes": {"first": 8, "samples": 4},
      "policy": {"endpoints": [{"base_url": "http://localhost:8000/v1", "model": "NAME"}]}}'
    curl -s 'localhost:8800/v1/jobs/JOB_ID/traces?wait_s=30'

  for other machines; off the loopback interface a token is required:
    export AGENTGYM_SERVICE_TOKEN=$(openssl rand -hex 32)
    agentgym serve --host 0.0.0.0 --policy-host 10.0.0.0/8 --concurrency 512

  several clients, each with a token and a quota of its own; a key that only one host may get:
    agentgym serve --token-file tokens.toml --policy-host api.deepinfra.com \
        --key DEEPINFRA_API_KEY=api.deepinfra.com

  everything in a file, episodes on a Ray cluster:
    agentgym serve --config service.toml --ray

Ctrl-C and SIGTERM let the episodes in flight finish (--drain), a second one doesn't wait.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options, by what they are about; what isn't given is left to --config."""
    where = parser.add_argument_group("where")
    where.add_argument("--host", help="interface to listen on (default: 127.0.0.1)")
    where.add_argument("--port", type=int, help="port; 0 takes a free one (default: 8800)")
    where.add_argument(
        "--store",
        type=Path,
        help="SQLite file that keeps jobs and traces (default: runs/service.db)",
    )
    where.add_argument(
        "--config", type=Path, metavar="FILE.toml", help="all of this in a file; flags go before it"
    )
    who = parser.add_argument_group("who may ask, and for what")
    who.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE.toml",
        help="a table per client with its token and quota; beside AGENTGYM_SERVICE_TOKEN",
    )
    who.add_argument(
        "--env",
        action="append",
        metavar="ID",
        help="allow this environment, MODULE:ID to import MODULE; repeatable (default: agentgym's)",
    )
    who.add_argument(
        "--policy-host",
        action="append",
        metavar="HOST",
        help="allow model requests to HOST, HOST:PORT, *.DOMAIN, a range such as 10.0.0.0/8, "
        "loopback or * (default: loopback); repeatable",
    )
    who.add_argument(
        "--allow-tokenizer",
        action="append",
        metavar="FOLDER",
        help="allow policies to be asked in token ids, with the tokenizer in this folder or of "
        "this hub id; repeatable (default: none)",
    )
    who.add_argument(
        "--key",
        action="append",
        metavar="VAR=HOST",
        help="allow the value of this environment variable to be sent to HOST; repeatable",
    )
    size = parser.add_argument_group("how much")
    size.add_argument(
        "--concurrency",
        type=int,
        help="episodes taking turns at once, all clients together (default: 64)",
    )
    size.add_argument(
        "--init-concurrency", type=int, help="environments made at once (default: 16)"
    )
    size.add_argument("--eval-concurrency", type=int, help="episodes judged at once (default: 64)")
    size.add_argument(
        "--drain", type=float, metavar="S", help="wait for episodes in flight at the end"
    )
    size.add_argument("--ray", action="store_true", help="play the episodes on a Ray cluster")
    size.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from agentgym.cli._serve import serve

    return serve(args)
