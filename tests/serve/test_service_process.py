"""Real processes: a service that is killed at any moment, one that is asked to stop."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from service_process import ENV, ServiceProcess
from serving import Client, Policy, job, solve

from agentgym.remote import RemoteEngine
from agentgym.rollout import EpisodeRequest, Limits
from agentgym.testing.quirky import Reply

pytestmark = pytest.mark.e2e


class SlowPolicy(Policy):
    """Takes a while for each turn, so that a kill always strikes something in flight."""

    def __init__(self):
        super().__init__()
        play = self.replies[0]
        self.replies = [lambda body: Reply(body=play(body), delay_s=0.03)]


async def test_killed_again_and_again_every_episode_comes_exactly_once(tmp_path):  # case E17
    rng = random.Random(4)
    flags = ("--env", ENV, "--concurrency", "4", "--init-concurrency", "2")
    async with SlowPolicy() as policy:
        service = ServiceProcess(tmp_path, *flags)
        with service:
            engine = RemoteEngine(
                service.url, ENV, client=policy.endpoint, limits=Limits(concurrency=4)
            )

            async def collect():
                wanted = [EpisodeRequest(seed=seed) for seed in range(60)]
                return [trace async for trace in engine.run(wanted)]

            async with engine, asyncio.TaskGroup() as tasks:
                run = tasks.create_task(collect())
                kills = 0
                while kills < 3:
                    await asyncio.wait([run], timeout=rng.uniform(0.1, 0.4))
                    if run.done():
                        break
                    await asyncio.to_thread(service.kill)
                    kills += 1
                    await asyncio.to_thread(service.start)
                traces = await run
        assert kills >= 2
    assert sorted(trace.seed for trace in traces) == list(range(60))
    assert len({trace.trace_id for trace in traces}) == 60
    assert all(trace.reward == 1.0 for trace in traces)
    # Played again is only what was in flight: at most 6 episodes (4 RUN, 2 INIT) a kill.
    assert policy.begun.total() <= 60 + 6 * kills
    assert Counter(trace.verdict.masked for trace in traces) == {False: 60}


async def test_asked_to_stop_it_lets_finish_what_is_in_flight_and_exits_with_0(tmp_path):
    async with Policy() as policy:
        policy.gate = asyncio.Event()
        service = ServiceProcess(tmp_path, "--env", ENV, "--concurrency", "2")
        with service:
            async with Client(service.url) as client:
                body = job(policy.url, env=ENV, episodes={"seeds": list(range(50))})
                _, told = await client.ask("POST", "/v1/jobs", body)
                await policy.asked.wait()
                stopping = asyncio.create_task(asyncio.to_thread(service.terminate))
                policy.gate.set()
                code, said = await stopping
        assert code == 0
        assert service.url in said
        assert "curl" in said or "RemoteEngine" in said
        assert "episodes in flight may finish, for" in said
        assert "going on with" not in said
        begun = policy.begun.total()
        with service:
            async with Client(service.url) as client:
                traces, page = await client.until_over(told["job_id"])
                assert page["state"] == "finished"
                assert len(traces) == 50
                _, said = await asyncio.to_thread(service.terminate)
        assert "going on with 1 job of the store" in said
        assert policy.begun.total() == 50 or begun < policy.begun.total() <= 50


def test_solving_policy_is_what_the_tests_think():
    opening = [{}, {"content": "Bring the counter from 0 to 7, then submit."}]
    call = solve({"messages": opening})["choices"][0]["message"]["tool_calls"][0]
    assert call["function"] == {"name": "add", "arguments": '{"amount": 7}'}
