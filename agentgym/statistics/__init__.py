"""Statistics: what a figure over a few episodes can and can't say, with numpy alone.

Every room may import it, so that a mean in a training run, a judge's gold set and an evaluation has
one formula and one interval. Each formula names its source.
"""

from agentgym.statistics.agreement import Correlation, cohen_kappa, correlation, pooled_spread
from agentgym.statistics.distributions import Z_95, normal_quantile, t_p_value, t_quantile
from agentgym.statistics.means import (
    Estimate,
    Proportion,
    clustered_stderr,
    mean_estimate,
    share_estimate,
    wilson_interval,
)

__all__ = [
    "Z_95",
    "Correlation",
    "Estimate",
    "Proportion",
    "clustered_stderr",
    "cohen_kappa",
    "correlation",
    "mean_estimate",
    "normal_quantile",
    "pooled_spread",
    "share_estimate",
    "t_p_value",
    "t_quantile",
    "wilson_interval",
]
