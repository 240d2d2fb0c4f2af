"""List the environments.

Example:
  agentgym envs
"""

from __future__ import annotations

import argparse
import inspect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def run(args: argparse.Namespace) -> int:
    """Print id and first line of every environment."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    from agentgym.envs.registration import NAMESPACE

    ids = sorted(env_id for env_id in gymnasium.registry if env_id.startswith(f"{NAMESPACE}/"))
    width = max(len(env_id) for env_id in ids)
    for env_id in ids:
        entry = gymnasium.spec(env_id).entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        about = (inspect.getdoc(creator) or "").partition("\n")[0]
        print(f"{env_id:<{width}}  {about}")
    return 0
