"""Multi-turn LLM-agent tasks as Gymnasium environments, rolled out asynchronously and trained on.

Importing registers the environments with Gymnasium, as strings, and loads nothing else: the names
below are imported at first use, so that a program that only wants `gym.make` never pays for a model
client or a trainer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agentgym.envs.registration import register_envs

if TYPE_CHECKING:
    from agentgym.client import Completion, Endpoint, ModelClient, SamplingParams
    from agentgym.core import AgentEnv
    from agentgym.errors import AgentGymError
    from agentgym.judge import Gate, Judge, Score
    from agentgym.roles import Roles
    from agentgym.rollout import Engine
    from agentgym.tools import Tool, ToolBox
    from agentgym.trace import Trace
    from agentgym.types import Episode, Message, Task, ToolCall, Turn, Usage, Verdict

__version__ = "0.1.0"

__all__ = [
    "AgentEnv",
    "AgentGymError",
    "Completion",
    "Endpoint",
    "Engine",
    "Episode",
    "Gate",
    "Judge",
    "Message",
    "ModelClient",
    "Roles",
    "SamplingParams",
    "Score",
    "Task",
    "Tool",
    "ToolBox",
    "ToolCall",
    "Trace",
    "Turn",
    "Usage",
    "Verdict",
    "__version__",
]

_HOMES = {
    "agentgym.client": ("Completion", "Endpoint", "ModelClient", "SamplingParams"),
    "agentgym.core": ("AgentEnv",),
    "agentgym.errors": ("AgentGymError",),
    "agentgym.judge": ("Gate", "Judge", "Score"),
    "agentgym.roles": ("Roles",),
    "agentgym.rollout": ("Engine",),
    "agentgym.tools": ("Tool", "ToolBox"),
    "agentgym.trace": ("Trace",),
    "agentgym.types": ("Episode", "Message", "Task", "ToolCall", "Turn", "Usage", "Verdict"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, also those not imported yet."""
    return sorted({*globals(), *__all__})


register_envs()
