"""Hand the simulator's and the judge's endpoint to an environment that asks models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from agentgym.client import Endpoint, Role
from agentgym.clients.connect import connects_to_servers
from agentgym.roles import Roles, read_endpoint
from agentgym.rollout.source import EnvLike, EnvSource

ENV_ROLES: tuple[Role, ...] = ("simulator", "judge")
"""Roles that an environment fills, as parameters of these names."""


class Hosted(NamedTuple):
    """An environment's parameters, and which models they name."""

    env_kwargs: dict[str, Any]
    """The parameters, endpoints among them."""
    used: Roles
    """The roles that the environment gets."""
    unused: tuple[Role, ...]
    """The roles that it has no use for."""


def endpoints_in(env_kwargs: Mapping[str, Any]) -> dict[Role, Endpoint]:
    """The endpoints in an environment's parameters, by the role they fill.

    Raises:
        ConfigError: If one is malformed.
    """
    found: dict[Role, Endpoint] = {}
    for role in ENV_ROLES:
        given = env_kwargs.get(role)
        if isinstance(given, Endpoint):
            found[role] = given.model_copy(update={"role": role})
        elif isinstance(given, Mapping):
            found[role] = read_endpoint(given, role=role, where=role)
    return found


def check_keys(env_kwargs: Mapping[str, Any]) -> None:
    """See that the endpoints in an environment's parameters have their keys, before anybody plays.

    Raises:
        ConfigError: If one is missing, naming role and variable; or if an endpoint is malformed.
    """
    found: Any = endpoints_in(env_kwargs)
    if connects_to_servers():
        Roles(**found).check_keys()


def hosted_kwargs(env: EnvLike, env_kwargs: Mapping[str, Any], roles: Roles) -> Hosted:
    """Add to an environment's parameters the endpoints of the roles that it takes.

    A parameter given by hand stays.

    Args:
        env: As for `Engine`.
        env_kwargs: Its parameters so far.
        roles: The endpoints there are.

    Raises:
        ConfigError: If there is no such env.
    """
    there = [role for role in ENV_ROLES if getattr(roles, role) is not None]
    if not there:
        return Hosted(dict(env_kwargs), Roles(), ())
    source = EnvSource(env)
    unused = tuple(role for role in there if not source.takes(role))
    taken: dict[str, Any] = {
        role: getattr(roles, role)
        for role in there
        if role not in unused and role not in env_kwargs
    }
    return Hosted({**env_kwargs, **taken}, Roles(**taken), unused)
