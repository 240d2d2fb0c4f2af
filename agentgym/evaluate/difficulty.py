"""What makes an environment's tasks easier: its own parameters, where it has some.

They are found in the constructor's signature and docstring, so an environment need not declare
anything, and one of somebody else's is read as well.
"""

from __future__ import annotations

import inspect
import json
import re

import gymnasium
from gymnasium.envs.registration import load_env_creator

_TELLS = re.compile(r"difficult|\beasier|\bharder|\blevel\b|distract", re.IGNORECASE)
_ARGUMENT = re.compile(r"^ {4,12}(\w+)(?: \([^)]*\))?: (.+)$", re.MULTILINE)


def difficulty_parameters(env_spec: str) -> dict[str, str]:
    """Parameters that decide how hard an environment's tasks are.

    Args:
        env_spec: Gymnasium's `EnvSpec` as JSON, as traces and results have it.

    Returns:
        Their present values by name; none where the environment isn't installed, or has none.
    """
    try:
        described = json.loads(env_spec)
        spec = gymnasium.spec(described["id"])
        given = described.get("kwargs") or {}
        entry = spec.entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        parameters = inspect.signature(creator).parameters if creator is not None else {}
    except (ValueError, KeyError, TypeError, ImportError, AttributeError, gymnasium.error.Error):
        return {}
    documented = dict(_ARGUMENT.findall(creator.__doc__ or ""))
    found = {}
    for name, parameter in parameters.items():
        if _TELLS.search(name) or _TELLS.search(documented.get(name, "")):
            default = None if parameter.default is parameter.empty else parameter.default
            found[name] = str(given.get(name, default))
    return found
