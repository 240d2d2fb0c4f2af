"""Statistics: what a figure over a few episodes can and can't say, with numpy alone.

Every room may import it, so that a mean in a training run, a judge's gold set and an evaluation has
one formula and one interval. Each formula names its source.
"""

from agentgym.statistics.agreement import Correlation, cohen_kappa, correlation, pooled_spread
from agentgym.statistics.distributions import Z_95, normal_quantile, t_p_value, t_quantile
from agentgym.statistics.few_tasks import (
    FEW_TASKS,
    Moves,
    chance_shown,
    fewest_that_show,
    most_covariance,
    moves_of_rates,
    moves_of_single,
)
from agentgym.statistics.means import (
    MAX_UNSCORED,
    Estimate,
    Proportion,
    bounded_estimate,
    clustered_stderr,
    mean_estimate,
    share_estimate,
    wilson_interval,
)
from agentgym.statistics.paired import (
    Difference,
    holm_adjusted,
    paired_difference,
    sign_flip_p_value,
)
from agentgym.statistics.passes import pass_at_k, pass_hat_k
from agentgym.statistics.power import (
    Spread,
    detectable_difference,
    fewest_tasks,
    spread_of,
    spread_of_success,
    tasks_needed,
    variance_between,
)

__all__ = [
    "FEW_TASKS",
    "MAX_UNSCORED",
    "Z_95",
    "Correlation",
    "Difference",
    "Estimate",
    "Moves",
    "Proportion",
    "Spread",
    "bounded_estimate",
    "chance_shown",
    "clustered_stderr",
    "cohen_kappa",
    "correlation",
    "detectable_difference",
    "fewest_tasks",
    "fewest_that_show",
    "holm_adjusted",
    "mean_estimate",
    "most_covariance",
    "moves_of_rates",
    "moves_of_single",
    "normal_quantile",
    "paired_difference",
    "pass_at_k",
    "pass_hat_k",
    "pooled_spread",
    "share_estimate",
    "sign_flip_p_value",
    "spread_of",
    "spread_of_success",
    "t_p_value",
    "t_quantile",
    "tasks_needed",
    "variance_between",
    "wilson_interval",
]
