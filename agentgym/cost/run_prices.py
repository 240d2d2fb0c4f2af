"""The prices that a run was paid at, from the settings beside its traces.

A trace has a policy's dollars and not its prices; `agentgym rollout` keeps those in `config.json`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym.client import Prices


def run_prices(paths: Sequence[Path]) -> dict[str, Prices]:
    """By role, the prices that all of the runs have; a role is left out where they differ.

    Args:
        paths: Folders of runs, and trace files in them.
    """
    found = [_prices_beside(path if path.is_dir() else path.parent) for path in paths]
    if not found:
        return {}
    return {role: p for role, p in found[0].items() if all(one.get(role) == p for one in found)}


def _prices_beside(folder: Path) -> dict[str, Prices]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not every trace has a run's folder
        return {}
    roles = config.get("roles") if isinstance(config, dict) else None
    found = {role: _prices(settings) for role, settings in (roles or {}).items()}
    return {role: prices for role, prices in found.items() if prices is not None}


def _prices(settings: Any) -> Prices | None:
    values = settings.get("prices") if isinstance(settings, dict) else None
    try:
        return Prices.model_validate(values) if values else None
    except ValueError:
        return None
