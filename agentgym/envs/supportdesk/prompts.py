"""The written policy: what the agent is told, and what it is held to."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files


@lru_cache(maxsize=1)
def written_policy() -> str:
    """The shop's rules, as the system prompt has them."""
    text = files("agentgym.envs.supportdesk").joinpath("policy.md").read_text(encoding="utf-8")
    return text.replace("\\\n", "").strip()
