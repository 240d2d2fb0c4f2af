"""Hand the simulator's and the judge's endpoint to an environment that asks models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from agentgym.client import Role
from agentgym.roles import Roles
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
