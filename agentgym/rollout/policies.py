"""Policies without a model, found by name.

An environment may bring its own: `POLICIES: dict[str, Callable[[env, seed], policy]]` in the module
of its class or in a module `policies` beside it, where a policy is what `ScriptedClient` takes.
`random` is there for every environment, since every action space can be sampled.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from agentgym.client import SamplingParams
from agentgym.core import AgentEnv
from agentgym.errors import ConfigError
from agentgym.spaces import AssistantSpace
from agentgym.types import Action, Message

PolicyFactory: TypeAlias = Callable[[Any, int], Any]


def policies_of(env: AgentEnv) -> dict[str, PolicyFactory]:
    """The named policies that can play an environment."""
    found: dict[str, PolicyFactory] = {"random": lambda env, seed: random_policy}
    found.update(getattr(sys.modules.get(type(env).__module__), "POLICIES", {}))
    package = type(env).__module__.rpartition(".")[0]
    name = f"{package}.policies"
    if package and importlib.util.find_spec(name) is not None:
        found.update(getattr(importlib.import_module(name), "POLICIES", {}))
    return found


def named_policy(env: AgentEnv, name: str, *, seed: int) -> Any:
    """One of the environment's policies.

    Raises:
        ConfigError: If it has none of that name.
    """
    known = policies_of(env)
    if name not in known:
        raise ConfigError(
            f"{type(env).__name__} has no policy {name!r}; it has {', '.join(sorted(known))} "
            f"(others go into a dict POLICIES in {type(env).__module__})"
        )
    return known[name](env, seed)


def random_policy(
    messages: Sequence[Message], info: Mapping[str, Any], sampling: SamplingParams
) -> Action:
    """A valid call of a random tool with random arguments, by the turn's seed."""
    return AssistantSpace(info["tools"], seed=sampling.seed).sample()
