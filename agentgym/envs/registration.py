"""The environments' ids, for Gymnasium.

Entry points are strings, so registering imports no environment; Gymnasium imports the one that is
made. An id's version changes when what the environment observes or rewards changes.
"""

from __future__ import annotations

import gymnasium

NAMESPACE = "agentgym"

ENTRY_POINTS = {
    f"{NAMESPACE}/SupportDesk-v0": "agentgym.envs.supportdesk.env:SupportDeskEnv",
    f"{NAMESPACE}/ToolWorld-v0": "agentgym.envs.toolworld.env:ToolWorldEnv",
    f"{NAMESPACE}/WebShop-v0": "agentgym.envs.webshop.env:WebShopEnv",
}
"""Where each environment's class is, by id."""


def register_envs() -> None:
    """Register every environment that isn't registered yet.

    An environment caps its own turns, since finishing on the last one is `terminated` and not
    `truncated`; Gymnasium's `TimeLimit` would say both, so `max_episode_steps` is not used.
    """
    for env_id, entry_point in ENTRY_POINTS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, entry_point=entry_point)
