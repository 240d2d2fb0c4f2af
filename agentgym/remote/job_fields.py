"""What a run asks for, in the fields of a job as a service takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeAlias

from gymnasium.envs.registration import EnvSpec
from pydantic import BaseModel

from agentgym.client import Endpoint
from agentgym.errors import ConfigError

RemotePolicy: TypeAlias = Endpoint | Sequence[Endpoint] | str
"""The policy's servers, or the name of a pool that the service has."""


def env_fields(
    env: str | EnvSpec, env_kwargs: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """An environment's id and its parameters.

    Raises:
        ConfigError: If it isn't registered, or a parameter can't be sent.
    """
    if isinstance(env, EnvSpec):
        return env.id, as_json({**env.kwargs, **(env_kwargs or {})}, "env_kwargs")
    if isinstance(env, str):
        return env, as_json(dict(env_kwargs or {}), "env_kwargs")
    raise ConfigError(
        f"a service plays environments by id, got a {type(env).__name__}; register it, and allow "
        "it on the service"
    )


def policy_fields(client: Any, name: str | None) -> dict[str, Any]:
    """The policy: its servers, or the pool that has them.

    Args:
        client: A `RemotePolicy`.
        name: The policy as the traces name it.

    Raises:
        ConfigError: If it is something else, or nothing.
    """
    if isinstance(client, str):
        return {"pool": client, "name": name}
    endpoints = [client] if isinstance(client, Endpoint) else client
    if not (isinstance(endpoints, Sequence) and all(isinstance(e, Endpoint) for e in endpoints)):
        raise ConfigError(
            "a service asks the policy itself: give its Endpoint, several of them, or the name of "
            f"a pool, not a {type(client).__name__}"
        )
    if not endpoints:
        raise ConfigError("client: no endpoint is given; a policy needs at least one")
    return {"endpoints": [as_json(endpoint, "client") for endpoint in endpoints], "name": name}


def as_json(value: Any, what: str) -> Any:
    """A value as it is sent: records by the fields that were set.

    Args:
        value: The value.
        what: Its name, for the error.

    Raises:
        ConfigError: If it can't be sent.
    """

    def plain(item: Any) -> Any:
        if isinstance(item, BaseModel):
            return item.model_dump(mode="json", exclude_unset=True)
        if isinstance(item, PurePath):
            return str(item)
        raise TypeError(f"a {type(item).__name__} can't be sent to a service")

    try:
        return json.loads(json.dumps(value, default=plain, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what}: {error}") from error
