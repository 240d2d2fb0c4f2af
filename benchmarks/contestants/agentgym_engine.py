"""agentgym: the engine over all servers, verdicts, accounting and traces on disk included."""

from __future__ import annotations

import asyncio
from pathlib import Path

from contest import Contest, measured

from agentgym.client import Endpoint, SamplingParams
from agentgym.rollout import Engine, EpisodeRequest, Limits, collecting_seldom
from agentgym.testing.fleet import ReplicaSpec, WorkloadEnv
from agentgym.traces import TraceWriter


async def main() -> None:
    """Play all episodes at once."""
    contest = Contest.from_command_line()
    n, slots = contest.episodes, ReplicaSpec().slots
    endpoints = [
        Endpoint(base_url=url, model="simulated", max_concurrency=slots) for url in contest.urls
    ]

    def env() -> WorkloadEnv:
        return WorkloadEnv(workload=contest.workload, speed=contest.speed, tasks=n)

    with TraceWriter(Path(contest.folder) / "traces.jsonl") as writer:
        engine = Engine(
            env,
            client=endpoints,
            sampling=SamplingParams(max_tokens=contest.workload.max_completion),
            limits=Limits(concurrency=n, init_concurrency=n, eval_concurrency=n),
            writer=writer,
        )
        async with engine:
            with measured(contest):
                requests = [EpisodeRequest(task_id=f"workload/{k}", seed=k) for k in range(n)]
                traces = [trace async for trace in engine.run(requests)]
    assert len(traces) == n
    assert all(trace.scored and trace.terminated for trace in traces)
    assert sum(len(trace.turns) for trace in traces) == contest.turns


with collecting_seldom():  # as the commands do
    asyncio.run(main())
