"""What is settled with an evaluation's models and its budget around the playing.

Before: that every key is there and every model answers, while nothing is paid for. After: how the
whole evaluation stands where the budget ended it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.client import ModelClient
from agentgym.clients import connect
from agentgym.errors import EndpointError
from agentgym.evaluate.columns import ColumnSpec
from agentgym.evaluate.on_disk import ColumnOnDisk
from agentgym.evaluate.setting import EvaluationSetting
from agentgym.roles import Roles
from agentgym.rollout import BudgetStatus, EpisodeRequest
from agentgym.types import ToolSpec


def check_keys(specs: Sequence[ColumnSpec], setting: EvaluationSetting) -> None:
    """See that every key is there, before anything is paid for.

    Raises:
        ConfigError: If one is missing.
    """
    for spec in specs:
        policy = spec.servers[0] if spec.servers else None
        Roles(policy=policy, replicas=spec.servers[1:], **setting.endpoints).check_keys()


async def preflight(
    columns: Sequence[ColumnOnDisk],
    todo: Sequence[ColumnOnDisk],
    clients: Sequence[ModelClient],
    setting: EvaluationSetting,
) -> None:
    """Ask every model for a few tokens; tell those with a budget what is spent of it.

    Args:
        columns: All of them.
        todo: Those that will be played.
        clients: Their policies.
        setting: Has the env's own models.

    Raises:
        EndpointError: If one doesn't answer.
    """
    for role, endpoint in setting.endpoints.items():
        asked: Any = connect(endpoint)
        if endpoint.budget_usd is not None:
            before = [column.usage().get(role) for column in columns]
            asked.spent_before(sum(u.cost_usd or 0.0 for u in before if u is not None))
        await _ask_first(asked, f"the {role}", ())
    for column, client in zip(todo, clients, strict=True):
        if not column.spec.servers:
            continue
        asked = client
        if any(server.budget_usd is not None for server in column.spec.servers):
            usage = column.usage().get("policy")
            asked.spent_before(usage.cost_usd or 0.0 if usage is not None else 0.0)
        await _ask_first(asked, f"column {column.spec.name}", setting.tools)


async def _ask_first(client: Any, who: str, tools: Sequence[ToolSpec]) -> None:
    """One tiny request, so that a wrong name or key shows before anything is played.

    Raises:
        EndpointError: If it isn't answered; the message begins with who it was.
    """
    try:
        await client.preflight(tools)
    except EndpointError as error:
        raise EndpointError(
            f"{who}: {error}", retryable=error.retryable, status=error.status
        ) from error


def status_of_all(
    status: BudgetStatus,
    planned: int,
    missing_before: int,
    missing: Mapping[str, Sequence[EpisodeRequest]],
) -> BudgetStatus:
    """How an evaluation stands: an engine knows one column, and this part of the run only.

    Args:
        status: The engine's, with its column's name before each of its episodes.
        planned: Episodes of all columns.
        missing_before: Those that were missing when this part began.
        missing: Those that are missing now, by column.
    """
    names = [
        f"{column}: {request.name(request.seed or 0)}"
        for column, requests in missing.items()
        for request in requests
    ]
    cut = set(status.cut)
    return status.model_copy(
        update={
            "done": planned - len(names),
            "before": planned - missing_before or None,
            "cut": tuple(name for name in names if name in cut),
            "not_run": tuple(name for name in names if name not in cut),
        }
    )
