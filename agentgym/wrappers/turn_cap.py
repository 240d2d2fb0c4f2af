"""A cap on assistant turns, set from outside.

Gymnasium's `TimeLimit` flags the step at the limit as truncated even when the episode ended there
by itself, and the environment never learns of it, so nothing is judged. This cap is passed down to
the environment's own, which gets both right: the last turn is judged, and an answer on it
terminates.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from agentgym.errors import ConfigError
from agentgym.wrappers.base import AgentWrapper, agent_env


class TurnCap(AgentWrapper, RecordConstructorArgs):
    """Allows a number of assistant messages per episode, however many calls each makes.

    Of several caps (this one, the env's own, another wrapper's, `options["max_turns"]`) the
    tightest holds. A capped episode has `truncated=True` and
    `info["truncation_reason"] == "turns"`.

    Args:
        env: An agent environment.
        max_turns: Turns allowed, at least 1.
        human_turns: Turns a person needs; one and a half times as many are allowed, rounded up.

    Raises:
        ConfigError: If not exactly one of the two is given, if it isn't a whole number of at least
            1, or if `env` is not an agent environment.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        max_turns: int | None = None,
        human_turns: int | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(self, max_turns=max_turns, human_turns=human_turns)
        AgentWrapper.__init__(self, env)
        agent_env(env, wrapper="TurnCap", instead="use gymnasium.wrappers.TimeLimit")
        if (max_turns is None) == (human_turns is None):
            raise ConfigError("TurnCap takes either max_turns or human_turns, and exactly one")
        name = "max_turns" if human_turns is None else "human_turns"
        given: Any = max_turns if human_turns is None else human_turns
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise ConfigError(f"{name} must be a whole number of at least 1, got {given!r}")
        self.max_turns: int = given if human_turns is None else (3 * given + 1) // 2
        """Assistant messages this wrapper allows."""

    def on_reset(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """Pass the cap down; the env takes the tightest and checks what it is given."""
        options = dict(options or {})
        asked = options.get("max_turns")
        if asked is None or (isinstance(asked, int) and asked > self.max_turns):
            options["max_turns"] = self.max_turns
        return options
