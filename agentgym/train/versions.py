"""Which TRL this package is written against, checked before anything of it is used.

`rollout_func` is marked experimental by TRL; an older TRL ignores it and trains on something else.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util

from agentgym.errors import MissingExtraError

TRL_RANGE = ("1.16", "1.17")
"""From, inclusive, and below."""
INSTALL = 'pip install "agentgym-envs[train]"'


def require_training_stack() -> None:
    """Raise a `MissingExtraError` unless torch, vLLM and a TRL that works are there."""
    missing = [name for name in ("torch", "trl", "vllm") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"training needs {', '.join(missing)}: {INSTALL}")
    found = importlib.metadata.version("trl")
    low, high = TRL_RANGE
    if not _numbers(low) <= _numbers(found) < _numbers(high):
        raise MissingExtraError(f"training needs trl>={low},<{high}, found {found}: {INSTALL}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
