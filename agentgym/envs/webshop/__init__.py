"""WebShop as a Gymnasium environment: see README.md beside this file."""

from agentgym.envs.webshop.env import WebShopEnv
from agentgym.envs.webshop.statistics import ShopStatistics, SplitStatistics, stats

__all__ = ["ShopStatistics", "SplitStatistics", "WebShopEnv", "stats"]
