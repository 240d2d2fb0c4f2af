"""Hand the simulator's and the judge's endpoint to an environment that asks models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym.client import Role
from agentgym.roles import Roles
from agentgym.rollout.source import EnvLike, EnvSource

ENV_ROLES: tuple[Role, ...] = ("simulator", "judge")
"""Roles that an environment fills, as parameters of these names."""


def hosted_kwargs(
    env: EnvLike, env_kwargs: Mapping[str, Any], roles: Roles
) -> tuple[dict[str, Any], tuple[Role, ...]]:
    """An environment's parameters, with the endpoints of the roles that it takes.

    A parameter given by hand stays.

    Args:
        env: As for `Engine`.
        env_kwargs: Its parameters so far.
        roles: The endpoints there are.

    Returns:
        The parameters; and the roles that have an endpoint and that the environment doesn't take.

    Raises:
        ConfigError: If there is no such env.
    """
    filled = {role: roles.filled()[role] for role in ENV_ROLES if role in roles.filled()}
    if not filled:
        return dict(env_kwargs), ()
    source = EnvSource(env)
    taken: dict[str, Any] = {role: end for role, end in filled.items() if source.takes(role)}
    unused = tuple(role for role in filled if role not in taken)
    return {**taken, **env_kwargs}, unused
