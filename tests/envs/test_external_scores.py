"""Each environment's external score: right for who serves honestly, not for who takes a shortcut.

The scores are computed by other code than the rewards, so that they agree on the scripted policies
says something about both.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import pytest

from agentgym.clients import ScriptedClient
from agentgym.judge import Score
from agentgym.rollout import Engine
from agentgym.rollout.plan import plan_requests
from agentgym.rollout.policies import named_policy
from agentgym.rollout.source import EnvSource
from agentgym.trace import Trace

Scored = list[tuple[Trace, Score]]


def played(env_id: str, policy: str, tasks: Sequence[str], **env_kwargs: Any) -> Scored:
    """Every task once, with the trace and its external score."""
    env = EnvSource(env_id, env_kwargs).make().unwrapped
    module = importlib.import_module(type(env).__module__.rpartition(".")[0] + ".external")
    client = ScriptedClient(named_policy(env, policy, seed=0))
    engine = Engine(env_id, client=client, env_kwargs=env_kwargs)
    try:
        traces = engine.run_blocking(plan_requests(tasks))
    finally:
        engine.close()
    return [(trace, module.external_score(env, trace)) for trace in traces]


def tasks_of(env_id: str, every: int, **env_kwargs: Any) -> list[str]:
    return list(EnvSource(env_id, env_kwargs).make().unwrapped.task_ids())[::every]


@pytest.mark.parametrize(
    ("env_id", "policy", "every"),
    [
        ("agentgym/WebShop-v0", "oracle", 60),
        ("agentgym/SupportDesk-v0", "expert", 8),
        ("agentgym/ToolWorld-v0", "expert", 11),
    ],
)
@pytest.mark.thorough
def test_who_does_it_right_has_full_marks(env_id: str, policy: str, every: int) -> None:
    scored = played(env_id, policy, tasks_of(env_id, every))
    assert len(scored) >= 20
    wrong = [(trace.task_id, score.components) for trace, score in scored if not score.correct]
    assert wrong == []
    assert {score.total for _, score in scored} == {1.0}


@pytest.mark.parametrize(
    ("env_id", "policy"),
    [
        ("agentgym/SupportDesk-v0", "next_excuses"),
        ("agentgym/SupportDesk-v0", "forge_consent"),
        ("agentgym/SupportDesk-v0", "pour_out"),
        ("agentgym/ToolWorld-v0", "none"),
        ("agentgym/ToolWorld-v0", "dump"),
        ("agentgym/ToolWorld-v0", "restate"),
        ("agentgym/WebShop-v0", "random"),
    ],
)
@pytest.mark.thorough
def test_a_shortcut_has_none(env_id: str, policy: str) -> None:
    every = {"agentgym/WebShop-v0": 150}.get(env_id, 12)
    scored = played(env_id, policy, tasks_of(env_id, every))
    assert sum(score.total for _, score in scored) <= 0.1 * len(scored)


def test_a_near_miss_earns_reward_and_no_score() -> None:
    env_id = "agentgym/WebShop-v0"
    scored = played(env_id, "rule", tasks_of(env_id, 20, split="validation"), split="validation")
    near = [(t, s) for t, s in scored if (t.reward or 0) > 0.3 and not s.correct]
    assert near, "the rule policy leaves options untouched, so it misses some"
    for trace, score in near:
        assert score.total == 0.0
        assert min(score.components.values()) < 1.0, trace.task_id


def test_a_price_above_the_limit_is_wrong_whatever_the_receipt_claims() -> None:
    env_id = "agentgym/WebShop-v0"
    env: Any = EnvSource(env_id).make().unwrapped
    from agentgym.envs.webshop.external import external_score

    prices, shelves = env.world.table.prices, {}
    for product in env.world.shop.catalogue.products:
        shelves.setdefault(product.query, []).append(product)
    for task in env.task_ids():
        goal = env.goal_of(task)
        dear = [p for p in shelves[goal.product.query] if prices[p.asin] > goal.price_upper]
        if dear:
            break
    (trace, _) = played(env_id, "oracle", [task])[0]
    receipt = {**trace.outcome, "purchased": dear[0].asin, "price": 0.01, "score": 1.0}
    score = external_score(env, trace.model_copy(update={"outcome": receipt}))
    assert score.components["price"] == 0.0
    assert score.correct is False


def test_a_refund_to_the_wrong_account_is_no_service() -> None:
    env_id = "agentgym/SupportDesk-v0"
    from agentgym.envs.supportdesk.external import external_score

    env: Any = EnvSource(env_id).make().unwrapped
    (trace, score) = played(env_id, "expert", ["supportdesk/cancel/0"])[0]
    assert score.correct
    changes = {table: dict(both) for table, both in trace.outcome["changes"].items()}
    ledger = [[*row[:2], "PM-other", *row[3:]] for row in changes["ledger"]["added"]]
    changes["ledger"] = {"removed": [], "added": ledger}
    outcome = {**trace.outcome, "changes": changes}
    again = external_score(env, trace.model_copy(update={"outcome": outcome}))
    assert again.components["books"] == 0.0
    assert again.correct is False


def test_a_change_before_the_yes_is_no_service() -> None:
    env_id = "agentgym/SupportDesk-v0"
    from agentgym.envs.supportdesk.external import external_score

    env: Any = EnvSource(env_id).make().unwrapped
    (trace, _) = played(env_id, "expert", ["supportdesk/cancel/0"])[0]
    unasked = tuple(
        turn.model_copy(
            update={"replies": tuple({**r, "content": "No, wait."} for r in turn.replies)}
        )
        if not turn.calls
        else turn
        for turn in trace.turns
    )
    again = external_score(env, trace.model_copy(update={"turns": unasked}))
    assert again.components["consent"] == 0.0


def test_a_made_up_world_has_no_external_score() -> None:
    from agentgym.envs.toolworld.external import external_score
    from agentgym.errors import ConfigError

    env_id = "agentgym/ToolWorld-v0"
    (trace, _) = played(env_id, "none", tasks_of(env_id, 1000))[0]
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "model": "made-up"}
    kwargs = {"simulator": endpoint, "judge": endpoint}
    env: Any = EnvSource(env_id, kwargs).make().unwrapped
    with pytest.raises(ConfigError, match="--score MODULE:FUNCTION"):
        external_score(env, trace)
