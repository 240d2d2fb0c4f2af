"""The models of a run: from a file and from flags, checked before the first paid call."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentgym.cli._inputs import key_values
from agentgym.client import Endpoint, Role, public_url
from agentgym.errors import ConfigError, EndpointError
from agentgym.roles import Roles, read_endpoint
from agentgym.types import ToolSpec

if TYPE_CHECKING:
    from agentgym.rollout import Limits


def add_role_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that say which models an environment asks, and whether calls are recorded."""
    models = parser.add_argument_group("the env's own models, where it takes them")
    models.add_argument(
        "--roles", metavar="FILE.toml", help="tables [policy], [simulator], [judge]; flags win"
    )
    for role in ("simulator", "judge"):
        models.add_argument(f"--{role}-url", metavar="URL", help=f"the {role}'s server")
        models.add_argument(f"--{role}-model", metavar="NAME", help="its model on that server")
        models.add_argument(f"--{role}-key-env", metavar="VAR", help="variable with its key")
    calls = models.add_mutually_exclusive_group()
    calls.add_argument("--record", metavar="FILE", help="keep every model call, to replay the run")
    calls.add_argument("--replay", metavar="FILE", help="answer from such a file; asks no server")


class RunEndpoints:
    """The endpoints that a command line names.

    Args:
        args: With the options of `add_role_arguments`, and the policy's.

    Raises:
        ConfigError: If a file or a field is wrong, or something is missing.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._file = Roles.from_toml(args.roles) if args.roles else Roles()
        self.by_flag: frozenset[Role] = frozenset(
            role for role in ("simulator", "judge") if any(_role_flags(args, role).values())
        )
        self._extra_body = key_values(args.extra_body)
        self._check_policy()
        self.roles = Roles(
            policy=None if args.policy else self._merged("policy", self._policy_flags()),
            simulator=self._merged("simulator", _role_flags(args, "simulator")),
            judge=self._merged("judge", _role_flags(args, "judge")),
        )
        self._check_urls()

    @property
    def policy(self) -> Endpoint | None:
        """The policy's, unless one of the env's own policies plays."""
        return self.roles.policy

    def concurrency(self) -> int | None:
        """Episodes at once: the flag's, or else what the policy's endpoint says for itself."""
        if self._args.concurrency is not None:
            return int(self._args.concurrency)
        policy = self.roles.policy
        if policy is not None and "max_concurrency" in policy.model_fields_set:
            return policy.max_concurrency
        return None

    def use(self, limits: Limits) -> None:
        """Let the policy's client take as many requests at once as the engine has episodes.

        The engine's slots are then the only queue, so that no episode's clock runs in another.
        """
        policy = self.roles.policy
        if policy is not None and "max_concurrency" not in policy.model_fields_set:
            policy = policy.model_copy(update={"max_concurrency": limits.concurrency})
            self.roles = self.roles.model_copy(update={"policy": policy})

    def check_taken(self, env: str, unused: tuple[Role, ...]) -> None:
        """Refuse a flag for a role that the env doesn't take; say so of a table of the file.

        Raises:
            ConfigError: If there is such a flag.
        """
        for role in unused:
            if role in self.by_flag:
                raise ConfigError(f"{env} takes no {role}; leave out --{role}-url and the like")
            print(f"agentgym: {env} takes no {role}; [{role}] is not used", file=sys.stderr)

    # --- inside -------------------------------------------------------------------------------

    def _check_policy(self) -> None:
        args = self._args
        if args.policy and (args.base_url or args.model):
            raise ConfigError("give either --policy, or --base-url and --model")
        if args.policy and args.extra_body:
            raise ConfigError("--extra-body goes with --base-url and --model")
        if args.policy and args.no_request_seed:
            raise ConfigError("--no-request-seed goes with --base-url and --model")
        named = (args.base_url and args.model) or self._file.policy is not None
        if not args.policy and not named:
            raise ConfigError(
                "say who plays: --base-url and --model, --roles with a table [policy], or "
                "--policy (such as rule)"
            )

    def _policy_flags(self) -> dict[str, Any]:
        args = self._args
        dialect = {}
        if args.tool_calls is not None:
            dialect["tools"] = args.tool_calls == "native"
        if args.no_request_seed:
            dialect["seed"] = False
        return {
            "base_url": args.base_url,
            "model": args.model,
            "api_key_env": args.api_key_env,
            "extra_body": self._extra_body or None,
            "dialect": dialect or None,
        }

    def _merged(self, role: Role, flags: Mapping[str, Any]) -> Endpoint | None:
        """The file's endpoint, with the flags over it."""
        given = {name: value for name, value in flags.items() if value is not None}
        base: Endpoint | None = getattr(self._file, role)
        if not given:
            return base
        fields = base.model_dump(exclude_unset=True) if base else {}
        for name, value in given.items():
            inner = isinstance(value, dict)
            fields[name] = {**fields.get(name, {}), **value} if inner else value
        for name in ("base_url", "model"):
            if name not in fields:
                flag = _flag(role, name)
                raise ConfigError(f"the {role} has no {name}: give {flag}, or set it in --roles")
        return read_endpoint(fields, role=role, where=role)

    def _check_urls(self) -> None:
        from agentgym.clients.failures import checked_url

        for endpoint in self.roles.filled().values():
            checked_url(endpoint.base_url)


def _role_flags(args: argparse.Namespace, role: str) -> dict[str, Any]:
    names = {"base_url": "url", "model": "model", "api_key_env": "key_env"}
    return {field: getattr(args, f"{role}_{name}") for field, name in names.items()}


def _flag(role: Role, field: str) -> str:
    if role == "policy":
        return "--base-url" if field == "base_url" else "--model"
    return f"--{role}-url" if field == "base_url" else f"--{role}-model"


async def preflight(clients: Mapping[Role, Any], tools: tuple[ToolSpec, ...]) -> None:
    """Ask every endpoint for a few tokens before the first episode.

    Args:
        clients: By role.
        tools: What the policy will be offered.

    Raises:
        EndpointError: If one doesn't answer; the message begins with the role.
    """
    for role, client in clients.items():
        try:
            await client.preflight(tools if role == "policy" else ())
        except EndpointError as error:
            raise EndpointError(
                f"{role}: {error}", retryable=error.retryable, status=error.status
            ) from error


def endpoints_table(roles: Roles) -> str:
    """The endpoints in effect, one per line, without secrets."""
    lines = []
    for role, endpoint in roles.filled().items():
        facts = [f"{endpoint.model} at {public_url(endpoint.base_url)}"]
        if "api_key_env" in endpoint.model_fields_set:
            facts.append(f"key from {endpoint.api_key_env}")
        if endpoint.prices is not None:
            prices = endpoint.prices
            cached = "" if prices.cached is None else f"{prices.cached:g} cached, "
            facts.append(f"${prices.input:g} in, {cached}{prices.output:g} out per Mtok")
        if endpoint.budget_usd is not None:
            facts.append(f"budget ${endpoint.budget_usd:g}")
        lines.append(f"{role:<10} {', '.join(facts)}")
    return "\n".join(lines)
