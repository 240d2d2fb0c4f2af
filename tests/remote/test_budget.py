"""A run's budget through a service: the job keeps it, and its end is what a local engine's is."""

from __future__ import annotations

from typing import Any

from serving import COUNTER, Policy, serving

from agentgym.client import SamplingParams
from agentgym.errors import BudgetStop
from agentgym.remote import RemoteEngine
from agentgym.rollout import EpisodeRequest, Limits, RunBudget


async def test_a_job_ends_with_its_budget():
    limits = Limits(concurrency=1, budget=RunBudget(tokens=4000))
    traces: list[Any] = []
    async with Policy() as policy, serving() as service:
        engine = RemoteEngine(
            service.url,
            COUNTER,
            client=policy.endpoint,
            sampling=SamplingParams(max_tokens=16),
            limits=limits,
        )
        requests = [EpisodeRequest(seed=seed) for seed in range(200)]
        async with engine:
            stop = None
            try:
                async for trace in engine.run(requests):
                    traces += [trace]
            except BudgetStop as error:
                stop = error
    assert "stopped by the budget:" in str(stop)
    assert "of 4,000 tokens are spent" in str(stop)
    used = [trace.usage["policy"] for trace in traces]
    assert 0 < sum(usage.prompt_tokens + usage.completion_tokens for usage in used) <= 4000
    assert len(traces) < len(requests)
