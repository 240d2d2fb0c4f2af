"""Simulator and judge played by a real model on a real server, which dies and comes back.

SmolLM2-135M is no good judge and no good shopper, and needn't be: what is tested is that each of
its answers, and each answer that never comes, ends up where it belongs.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from counting_proxy import CountingProxy
from tiny_home import TINY_HOME
from vllm_server import MODEL, VllmServer

import agentgym  # noqa: F401  # registers the environments
from agentgym.client import Endpoint, Role
from agentgym.clients import ScriptedClient
from agentgym.clients.connect import connect
from agentgym.judges import DEFAULT_RUBRIC, RubricJudge, TranscriptLimits
from agentgym.roles import Roles
from agentgym.rollout import Engine, EpisodeRequest, Limits
from agentgym.spaces import AssistantSpace
from agentgym.trace import Trace
from agentgym.types import Usage

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

CONTEXT = 8192
# So small a model rambles; the server can hold it to short answers of the right form.
HELD: dict[str, dict[str, Any]] = {
    "simulator": {"max_tokens": 200},
    "judge": {"max_tokens": 200},
}
ENVS = ("agentgym/ToolWorld-v0", "agentgym/SupportDesk-v0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    found = VllmServer(tmp_path_factory.mktemp("vllm") / "server.log", context=CONTEXT, cache_gib=3)
    found.start()
    try:
        yield found
    finally:
        found.stop()


def endpoint(url: str, role: Role, **fields: Any) -> Endpoint:
    values = {
        "base_url": f"{url}/v1",
        "model": MODEL,
        "role": role,
        "prices": {"input": 1.0, "output": 2.0},
        "max_concurrency": 8,
        "extra_body": HELD[role],
        **fields,
    }
    return Endpoint.model_validate(values)


def talker(messages: Sequence[dict[str, Any]], info: dict[str, Any], sampling: Any) -> Any:
    """A policy that calls a tool, asks the user something, and answers."""
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn % 2 == 0 and turn < 4:
        space = AssistantSpace(info["tools"], seed=np.random.default_rng(sampling.seed))
        return space.sample()
    return "Could you tell me more?" if turn < 4 else "Answer: none"


def play(
    env_id: str, *, simulator: Endpoint, judge: Endpoint, episodes: int, concurrency: int = 4
) -> list[Trace]:
    scoring = RubricJudge(
        connect(judge), DEFAULT_RUBRIC, transcript=TranscriptLimits(max_tokens=1200)
    )
    limits = Limits(
        concurrency=concurrency, init_concurrency=concurrency, max_turns=5, max_failure_rate=1
    )
    kwargs: dict[str, Any] = {"simulator": simulator, "judge": scoring, "split": "train"}
    if "ToolWorld" in env_id and simulator.model == MODEL:
        kwargs["domains"] = [TINY_HOME]
    with gym.make(env_id, **kwargs) as env:
        tasks = env.unwrapped.task_ids()[:: len(env.unwrapped.task_ids()) // episodes][:episodes]
    engine = Engine(env_id, client=ScriptedClient(talker), env_kwargs=kwargs, limits=limits)
    try:
        return engine.run_blocking(EpisodeRequest(task_id=task, seed=7) for task in tasks)
    finally:
        engine.close()


def spent(traces: Sequence[Trace], *roles: Role) -> Usage:
    used = (trace.usage.get(role) for trace in traces for role in roles)
    return sum((usage for usage in used if usage), Usage(calls=0))


def assert_each_is_scored_or_masked_with_reason(traces: Sequence[Trace]) -> None:
    for trace in traces:
        if trace.scored:
            assert any("grounded" in name for name in trace.verdict.components)
            assert trace.usage["judge"].calls >= 1
        else:
            assert trace.failure_class in ("simulator", "judge"), trace.error
            assert trace.reward is None
            assert trace.error


@pytest.mark.parametrize("env_id", ENVS)
def test_usage_adds_up_with_the_servers_own_counts(server: VllmServer, env_id: str) -> None:
    metrics = ("prompt_tokens_total", "generation_tokens_total")
    before = [server.counted(name) for name in metrics]
    traces = play(
        env_id,
        simulator=endpoint(server.url, "simulator"),
        judge=endpoint(server.url, "judge"),
        episodes=4,
    )
    after = [server.counted(name) for name in metrics]
    assert len(traces) == 4
    assert_each_is_scored_or_masked_with_reason(traces)
    assert any(trace.scored for trace in traces), [trace.error for trace in traces]
    used = spent(traces, "simulator", "judge")
    assert spent(traces, "simulator").calls >= 4
    assert [used.prompt_tokens, used.completion_tokens] == [
        b - a for a, b in zip(before, after, strict=True)
    ]
    assert not used.estimated
    assert used.cost_usd == pytest.approx(
        (used.prompt_tokens + 2 * used.completion_tokens) / 1e6, rel=1e-6
    )


def test_killed_server_masks_what_it_owed_and_is_used_again_once_it_is_back(
    server: VllmServer,
) -> None:
    """A server that stays away masks the episodes in flight; none hangs, none becomes a number."""
    with CountingProxy(server.url) as proxy:
        impatient = {"max_retries": 1}
        roles = {role: endpoint(proxy.url, role, **impatient) for role in ("simulator", "judge")}
        proxy.on_answer = lambda number: server.kill() if number == 4 else None
        traces = play("agentgym/ToolWorld-v0", episodes=8, **roles)
        proxy.on_answer = None
        assert len(traces) == 8
        assert_each_is_scored_or_masked_with_reason(traces)
        assert proxy.drops > 0
        lost = [trace for trace in traces if not trace.scored]
        assert {trace.failure_class for trace in lost} & {"simulator", "judge"}
        assert spent(traces, "simulator", "judge").failed_calls > 0
        server.start()
        again = play("agentgym/ToolWorld-v0", episodes=4, **roles)
        assert_each_is_scored_or_masked_with_reason(again)
        assert any(trace.scored for trace in again), [trace.error for trace in again]
        used = spent([*traces, *again], "simulator", "judge")
        assert (used.prompt_tokens, used.completion_tokens) == (
            proxy.prompt_tokens,
            proxy.completion_tokens,
        )


def test_patient_calls_outlast_a_restart(server: VllmServer) -> None:
    """With a deadline longer than the outage, no episode is lost to it."""
    with CountingProxy(server.url) as proxy:
        patient = {"max_retries": 1000, "deadline_s": 300.0}
        roles = {role: endpoint(proxy.url, role, **patient) for role in ("simulator", "judge")}

        def restart(number: int) -> None:
            if number == 4:
                server.kill()
                threading.Thread(target=server.start).start()

        proxy.on_answer = restart
        traces = play("agentgym/ToolWorld-v0", episodes=6, **roles)
        assert proxy.drops > 0
        assert len(traces) == 6
        assert_each_is_scored_or_masked_with_reason(traces)
        used = spent(traces, "simulator", "judge")
        assert used.retries >= proxy.drops > 0
        assert used.failed_calls == 0
        for trace in traces:
            if not trace.scored:  # the small model's own slips, not the outage
                assert "connection" not in (trace.error or "")


@pytest.mark.skipif(
    not {"simulator", "judge"} <= Roles.from_environ().filled().keys(),
    reason="AGENTGYM_SIMULATOR_BASE_URL, _MODEL and AGENTGYM_JUDGE_… are not set",
)
@pytest.mark.parametrize("env_id", ENVS)
def test_hosted_provider(env_id: str) -> None:
    """The same against a provider, whose own answers may still be unusable now and then."""
    roles = Roles.from_environ()
    roles.check_keys()
    assert roles.simulator
    assert roles.judge
    traces = play(env_id, simulator=roles.simulator, judge=roles.judge, episodes=6)
    assert_each_is_scored_or_masked_with_reason(traces)
    assert sum(trace.scored for trace in traces) >= 4, [trace.error for trace in traces]
