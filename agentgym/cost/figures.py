"""A plan as plain data, for `--json` and for programs: the same figures as its tables."""

from __future__ import annotations

from typing import Any

from agentgym.cost.bill import Volume
from agentgym.cost.caching import PolicyCache
from agentgym.cost.plan import Plan, RolePlan, other_reading
from agentgym.cost.sensitivity import Sensitivity
from agentgym.cost.turns import mean_and_sd
from agentgym.cost.volumes import volume_at_mean_turns


def plan_figures(
    plan: Plan, found: Sensitivity, cache: PolicyCache | None = None
) -> dict[str, Any]:
    """Every figure of a plan; `null` where something isn't known, never zero.

    Args:
        plan: The plan.
        found: What moves it.
        cache: What hangs on a hosted policy's cache.
    """
    workload = plan.workload
    mean, sd = mean_and_sd(workload.turns.outcomes)
    return {
        "estimate": True,
        "workload": workload.model_dump(mode="json"),
        "episodes": {"per_step": workload.episodes_per_step, "per_run": workload.episodes},
        "turns": {
            "mean": mean,
            "sd": sd,
            "prompt_tokens_per_episode": plan.role("policy").per_episode.input_tokens,
            "prompt_tokens_at_mean_turns": volume_at_mean_turns(workload).input_tokens,
        },
        "roles": {one.role: _role(plan, one) for one in plan.roles},
        "total_usd": plan.total_usd if plan.is_priced else None,
        "total_usd_per_step": plan.total_usd_per_step if plan.is_priced else None,
        "unpriced": list(plan.unpriced),
        "policy_cache": cache and cache.model_dump(mode="json"),
        "parts": [part.model_dump() for part in plan.parts],
        "prompt_growth": [row.model_dump() for row in plan.turn_rows],
        "other_reading": _other_readings(plan),
        "gpu_hours": plan.gpu_hours,
        "gpu_hours_held": plan.gpu_hours_held,
        "wall_clock_s": plan.wall_clock_s,
        "step_time": plan.step
        and {
            **plan.step.model_dump(mode="json"),
            "total_s": plan.step.total_s,
            "bound_by": plan.step.bound_by,
        },
        "sensitivity": found.model_dump(mode="json"),
    }


def _role(plan: Plan, one: RolePlan) -> dict[str, Any]:
    episodes = plan.workload.episodes
    bill = one.usd(episodes)
    return {
        "model": one.model,
        "prices": one.prices and one.prices.model_dump(),
        "per_episode": one.per_episode.model_dump(),
        "per_step": _volume(one.per_episode, plan.workload.episodes_per_step),
        "per_run": _volume(one.per_episode, episodes),
        "best_hit_rate": one.best_hit_rate,
        "usd": plan.usd(one.role),
        "usd_per_step": plan.usd_per_step(one.role),
        "usd_parts": bill and bill.model_dump(),
        "usd_without_cache": one.usd_with_hits(0.0, episodes),
        "usd_with_best_cache": one.usd_with_hits(1.0, episodes),
    }


def _volume(per_episode: Volume, episodes: int) -> dict[str, float]:
    return per_episode.times(episodes).model_dump()


def _other_readings(plan: Plan) -> dict[str, Any]:
    found = {}
    for role, load in plan.workload.roles.items():
        other = other_reading(plan, role)
        if other is not None:
            found[role] = {
                "reads": load.reads,
                "other": other.workload.roles[role].reads,
                "usd": other.usd(role),
                "total_usd": other.total_usd if other.is_priced else None,
            }
    return found
