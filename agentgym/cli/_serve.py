"""What `agentgym serve` does: read the configuration, listen, say how to submit a job."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentgym.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from agentgym.serve.config import ServiceConfig
    from agentgym.serve.server import ServiceServer

DEFAULT_STORE = Path("runs") / "service.db"


def serve(args: argparse.Namespace) -> int:
    """Serve until a signal comes.

    Raises:
        AgentGymError: If the service can't start.
    """
    try:
        from agentgym.serve.server import serve as serve_until_stopped
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("agentgym"):
            raise
        raise MissingExtraError(
            f"the service needs {error.name}; install it with `pip install 'agentgym-envs[serve]'`"
        ) from error
    config = read_config_of(args)
    if config.backend == "ray":
        from agentgym.rollout.cluster_job import ray_module

        ray_module()  # now, rather than at the first job

    def tell(line: str) -> None:
        if not args.quiet:
            print(f"agentgym: {line}", file=sys.stderr, flush=True)

    def announce(server: ServiceServer) -> None:
        if not args.quiet:
            print(welcome(config, server.url), file=sys.stderr, flush=True)

    serve_until_stopped(config, announce=announce, tell=tell)
    return 0


def read_config_of(args: argparse.Namespace) -> ServiceConfig:
    """The configuration that flags and file make together.

    Raises:
        ConfigError: If something is unknown or not allowed.
    """
    from agentgym.serve.config import read_config

    allowed: dict[str, Any] = {}
    if args.env:
        allowed["envs"] = args.env
    if args.policy_host:
        allowed["policy_hosts"] = args.policy_host
    if args.allow_tokenizer:
        allowed["tokenizers"] = args.allow_tokenizer
    if args.key:
        allowed["keys"] = _keys(args.key)
    limits = {
        "concurrency": args.concurrency,
        "init_concurrency": args.init_concurrency,
        "eval_concurrency": args.eval_concurrency,
    }
    flags: dict[str, Any] = {
        "host": args.host,
        "port": args.port,
        "store": args.store,
        "token_file": args.token_file,
        "drain_s": args.drain,
        "backend": "ray" if args.ray else None,
        "allowed": allowed or None,
        "limits": {name: value for name, value in limits.items() if value is not None} or None,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    return read_config(args.config, given, store=DEFAULT_STORE)


def _keys(pairs: list[str]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for pair in pairs:
        variable, equals, host = pair.partition("=")
        if not equals or not host or not variable.isidentifier():
            raise ConfigError(
                "--key takes VAR=HOST, the name of a variable and a host that may get its value"
            )
        keys.setdefault(variable, []).append(host)
    return keys


def _from_elsewhere(host: str, url: str) -> list[str]:
    """How other machines name a service that listens on all interfaces."""
    if urlsplit(url).hostname == host.strip("[]"):
        return []
    port = urlsplit(url).port
    return [f"  on all interfaces ({host}); from other machines: http://{gethostname()}:{port}"]


def welcome(config: ServiceConfig, url: str) -> str:
    """What is printed once the service listens."""
    limits = config.limits
    slots = f"{limits.init_concurrency} INIT, {limits.concurrency} RUN"
    slots += f", {limits.eval_concurrency} EVAL"
    lines = [
        f"agentgym serves at {url} ({url}/v1/docs lists the requests)",
        *_from_elsewhere(config.host, url),
        f"  store {config.store}, {config.tokens!r}",
        f"  episodes at once: {slots}; played on {config.backend}",
        f"  environments: {', '.join(config.allowed.envs)}",
        f"  model requests to: {', '.join(config.allowed.policy_hosts)}",
        "  in Python: RemoteEngine(" + repr(url) + ", env_id, client=Endpoint(…)); docs/service.md",
    ]
    return "\n".join(lines)
