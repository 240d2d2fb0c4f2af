"""The models of a run: from a file and from flags, checked before the first paid call."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentgym.cli._inputs import key_values
from agentgym.client import Endpoint, Role, public_url
from agentgym.errors import ConfigError, EndpointError
from agentgym.price_book import BY_MODEL, resolve_prices
from agentgym.roles import Roles, read_endpoint, read_policy, split_urls
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
    calls.add_argument(
        "--record",
        metavar="FILE",
        help="keep every model call, to replay the run or to go on with it",
    )
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
        self._template_kwargs = key_values(args.template_kwargs)
        self._urls = split_urls(args.base_url or ())
        self._check_policy()
        servers = () if args.policy else self._policy_servers()
        self.roles = Roles(
            policy=servers[0] if servers else None,
            replicas=servers[1:],
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
        """Let the clients take as many requests at once as the engine has episodes.

        The engine's slots are then the only queue, and what was asked for is what runs. A number
        that was set for an endpoint stays; `endpoints_table` shows it.
        """
        roles = self.roles
        playing, judging = limits.concurrency, limits.eval_concurrency
        servers = [_with_room(server, playing, exact=True) for server in roles.policy_servers]
        self.roles = Roles(
            policy=servers[0] if servers else None,
            replicas=tuple(servers[1:]),
            simulator=roles.simulator and _with_room(roles.simulator, playing),
            judge=roles.judge and _with_room(roles.judge, judging),
        )

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
        if args.policy and (self._urls or args.model):
            raise ConfigError("give either --policy, or --base-url and --model")
        if args.policy and args.extra_body:
            raise ConfigError("--extra-body goes with --base-url and --model")
        if args.policy and (args.tokenizer or args.template_kwargs):
            flag = "--tokenizer" if args.tokenizer else "--template-kwargs"
            raise ConfigError(f"{flag} is for a model: it goes with --base-url and --model")
        if args.policy and args.no_request_seed:
            raise ConfigError("--no-request-seed goes with --base-url and --model")
        for flag in ("tool_calls", "api_key_env", "temperature", "top_p", "max_tokens"):
            if args.policy and getattr(args, flag) is not None:
                name = f"--{flag.replace('_', '-')}"
                raise ConfigError(f"{name} is for a model: it goes with --base-url and --model")
        named = (self._urls and args.model) or self._file.policy is not None
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
        tokens = {"tokenizer": args.tokenizer, "template_kwargs": self._template_kwargs}
        tokens = {name: value for name, value in tokens.items() if value}
        return {
            "tokens": tokens or None,
            "model": args.model,
            "api_key_env": args.api_key_env,
            "extra_body": self._extra_body or None,
            "dialect": dialect or None,
        }

    def _policy_servers(self) -> tuple[Endpoint, ...]:
        """The servers that --base-url names, or else the file's, with the other flags over them."""
        flags = self._policy_flags()
        if self._urls:
            fields = _over(self._file.policy, {**flags, "base_url": self._urls})
            if "model" not in fields:
                raise ConfigError("the policy has no model: give --model, or set it in --roles")
            return read_policy(fields)
        return tuple(
            read_endpoint(_over(server, flags), role="policy", where="policy")
            for server in self._file.policy_servers
        )

    def _merged(self, role: Role, flags: Mapping[str, Any]) -> Endpoint | None:
        """The file's endpoint, with the flags over it."""
        base: Endpoint | None = getattr(self._file, role)
        if all(value is None for value in flags.values()):
            return base
        fields = _over(base, flags)
        for name in ("base_url", "model"):
            if name not in fields:
                flag = f"--{role}-url" if name == "base_url" else f"--{role}-model"
                raise ConfigError(f"the {role} has no {name}: give {flag}, or set it in --roles")
        return read_endpoint(fields, role=role, where=role)

    def _check_urls(self) -> None:
        from agentgym.clients.failures import checked_url

        for endpoint in (*self.roles.filled().values(), *self.roles.replicas):
            checked_url(endpoint.base_url)


def _role_flags(args: argparse.Namespace, role: str) -> dict[str, Any]:
    names = {"base_url": "url", "model": "model", "api_key_env": "key_env"}
    return {field: getattr(args, f"{role}_{name}") for field, name in names.items()}


def _over(base: Endpoint | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """An endpoint's fields, with the flags that were given over them."""
    fields = base.model_dump(exclude_unset=True) if base else {}
    if base and base.prices and base.prices.book:
        another = flags.get("model") not in (None, base.model)
        if another or _is_priced_by_model(base):
            fields["prices"] = BY_MODEL  # the row is not another model's, nor another provider's
    for name, value in flags.items():
        if value is not None:
            inner = isinstance(value, dict)
            fields[name] = {**fields.get(name, {}), **value} if inner else value
    return fields


def _is_priced_by_model(endpoint: Endpoint) -> bool:
    """Whether its prices are those of its own model's row, at the provider it is asked at."""
    model, url = endpoint.model, endpoint.base_url
    with suppress(ConfigError):
        return resolve_prices(BY_MODEL, model=model, base_url=url) == endpoint.prices
    return False


def _with_room(endpoint: Endpoint, requests: int, *, exact: bool = False) -> Endpoint:
    """An endpoint that takes so many requests at once, unless it was told how many.

    Args:
        endpoint: Stays as it is.
        requests: How many there may be.
        exact: Whether it takes no more than that, either.
    """
    if "max_concurrency" in endpoint.model_fields_set:
        return endpoint
    if not exact and requests <= endpoint.max_concurrency:
        return endpoint
    return endpoint.model_copy(update={"max_concurrency": requests})


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
        servers = roles.policy_servers if role == "policy" else (endpoint,)
        urls = ", ".join(public_url(server.base_url) for server in servers)
        room = sum(server.max_concurrency for server in servers)
        facts = [f"{endpoint.model} at {urls}", f"{room} requests at once"]
        if "api_key_env" in endpoint.model_fields_set:
            facts.append(f"key from {endpoint.api_key_env}")
        if endpoint.prices is not None:
            prices = endpoint.prices
            cached = "" if prices.cached is None else f"{prices.cached:g} cached, "
            facts.append(f"${prices.input:g} in, {cached}{prices.output:g} out per Mtok")
            if prices.book is not None:
                facts[-1] += f" (price book: {prices.book})"
        if endpoint.tokens is not None:
            facts.append(f"in the ids of {endpoint.tokens.tokenizer}")
        if endpoint.budget_usd is not None:
            facts.append(f"budget ${endpoint.budget_usd:g}")
        lines.append(f"{role:<10} {', '.join(facts)}")
    return "\n".join(lines)
