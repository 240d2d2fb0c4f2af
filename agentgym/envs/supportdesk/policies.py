"""Policies without a model, by name: the expert, and what must not score."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentgym.envs.supportdesk.expert import expert
from agentgym.envs.supportdesk.stubs import STUBS, Policy

PolicyMaker = Callable[[Any, int], Policy]


def _always(policy: Policy) -> PolicyMaker:
    return lambda env, seed: policy


POLICIES: Mapping[str, PolicyMaker] = {
    "expert": _always(expert),
    **{name: _always(policy) for name, policy in STUBS.items()},
}
"""What ``agentgym rollout --policy`` finds: makers of a policy, from an environment and a seed."""
