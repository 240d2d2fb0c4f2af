"""The remote engine: what a local one does, with a service in between that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math

import pytest
from serving import COUNTER, FLAKY, Policy, config_for_tests, serving

from agentgym.client import Endpoint, SamplingParams
from agentgym.errors import ConfigError, RolloutStopped, TraceError
from agentgym.remote import RemoteEngine, ServiceError
from agentgym.rollout import Engine, EpisodeRequest, Limits
from agentgym.rollout.enough import Enough
from agentgym.rollout.plan import plan_requests
from agentgym.serve.access import Caller, Tokens
from agentgym.testing.envs import CounterEnv
from agentgym.testing.faulty import FaultProxy
from agentgym.testing.quirky import QuirkyServer, answer

TOKEN = "a-token-0123456789"


@pytest.fixture
async def policy():
    async with Policy() as server:
        yield server


@pytest.fixture(params=["local", "remote"])
async def engine_for(request, policy):
    """Makes engines of either kind, for one policy."""
    async with contextlib.AsyncExitStack() as stack:
        service = None
        if request.param == "remote":
            service = await stack.enter_async_context(serving())

        async def make(env=COUNTER, client=None, **fields):
            client = client or policy.endpoint
            if service is None:
                engine = Engine(env, client=client, **fields)
            else:
                engine = RemoteEngine(service.url, env, client=client, **fields)
            return await stack.enter_async_context(engine)

        yield make


class Kept:
    """A writer that keeps traces in memory."""

    def __init__(self, full_after=math.inf):
        self.traces = []
        self.full_after = full_after

    def write(self, trace):
        if len(self.traces) >= self.full_after:
            raise TraceError("no space left")
        self.traces.append(trace)


class Told:
    """A progress that remembers what it was told."""

    def __init__(self):
        self.calls = []

    def begin(self, total):
        self.calls.append(("begin", total))

    def turn(self, tokens):
        self.calls.append(("turn", tokens))

    def finish(self, trace):
        self.calls.append(("finish", trace.task_id))

    def end(self):
        self.calls.append(("end",))


def requests(count, **fields):
    return [EpisodeRequest(seed=seed, **fields) for seed in range(count)]


async def collected(engine, wanted, **fields):
    return [trace async for trace in engine.run(wanted, **fields)]


# --- what both do ---------------------------------------------------------------------------------


async def test_every_request_becomes_one_trace(engine_for):
    engine = await engine_for()
    traces = await collected(engine, requests(12))
    assert sorted(trace.seed for trace in traces) == list(range(12))
    assert all(trace.reward == 1.0 for trace in traces)


async def test_same_seeds_play_the_same_tasks(engine_for):
    engine = await engine_for()
    first = {t.seed: t.task_id for t in await collected(engine, requests(6))}
    again = {t.seed: t.task_id for t in await collected(engine, requests(6))}
    assert first == again
    local = Engine(COUNTER, client=Endpoint(base_url="http://127.0.0.1:1/v1", model="m"))
    assert local.status().in_flight == 0


async def test_groups_keep_their_names_and_samples(engine_for):
    engine = await engine_for()
    wanted = plan_requests(["counter/3", "counter/4"], samples=3)
    traces = await collected(engine, wanted)
    key = [(r.task_id, r.seed, r.group, r.sample) for r in wanted]
    assert sorted((t.task_id, t.seed, t.group, t.sample) for t in traces) == sorted(key)


async def test_traces_say_policy_sampling_and_metadata(engine_for):
    engine = await engine_for(
        sampling=SamplingParams(temperature=0.5), policy_name="mine", metadata={"step": 3}
    )
    (trace,) = await collected(engine, requests(1))
    assert trace.policy["model"] == "mine"
    assert trace.policy["temperature"] == 0.5
    assert trace.metadata["step"] == 3


async def test_writer_has_each_trace_before_it_is_yielded(engine_for):
    writer = Kept()
    engine = await engine_for(writer=writer)
    async for trace in engine.run(requests(5)):
        assert any(kept.trace_id == trace.trace_id for kept in writer.traces)
    assert len(writer.traces) == 5


async def test_writer_that_can_not_write_stops_the_run(engine_for, policy):
    engine = await engine_for(writer=Kept(full_after=2), limits=Limits(concurrency=2))
    with pytest.raises(TraceError, match="no space left"):
        await collected(engine, requests(200))
    assert policy.begun.total() < 200


async def test_progress_is_told_of_turns_and_episodes(engine_for):
    progress = Told()
    engine = await engine_for(progress=progress)
    await collected(engine, requests(3))
    assert progress.calls[0] == ("begin", 3)
    assert progress.calls[-1] == ("end",)
    assert sum(call[0] == "finish" for call in progress.calls) == 3
    assert [call for call in progress.calls if call[0] == "turn"] == [("turn", 5)] * 6


async def test_lazy_requests_are_taken_as_there_is_room(engine_for, policy):
    policy.gate = asyncio.Event()
    taken = itertools.count()
    limits = Limits(concurrency=2, init_concurrency=1)
    engine = await engine_for(limits=limits)
    endless = (EpisodeRequest(seed=next(taken)) for _ in itertools.count())
    run = engine.run(endless)
    first = asyncio.create_task(anext(run))
    await policy.asked.wait()
    policy.gate.set()
    await first
    await run.aclose()
    assert next(taken) < 1000


async def test_asynchronous_requests_are_waited_for(engine_for):
    engine = await engine_for()
    more = asyncio.Event()

    async def source():
        yield EpisodeRequest(seed=1)
        await more.wait()
        yield EpisodeRequest(seed=2)

    seeds = []
    async for trace in engine.run(source()):
        seeds.append(trace.seed)
        more.set()
    assert seeds == [1, 2]


async def test_no_requests_are_no_traces(engine_for):
    engine = await engine_for()
    assert await collected(engine, []) == []
    assert await collected(engine, iter(())) == []


async def test_failed_episodes_are_masked(engine_for):
    engine = await engine_for(FLAKY)
    traces = await collected(engine, plan_requests(["counter/3", "counter/12"]))
    by_task = {trace.task_id: trace for trace in traces}
    assert by_task["counter/3"].reward == 1.0
    assert by_task["counter/12"].reward is None
    assert by_task["counter/12"].failure_class == "env"


async def test_abnormal_failures_stop_the_run(engine_for):
    engine = await engine_for(FLAKY, limits=Limits(max_failure_rate=0.2, min_failures=2))
    with pytest.raises(RolloutStopped, match="the shelf fell down"):
        await collected(engine, plan_requests([f"counter/{n}" for n in range(11, 21)]))


async def test_endpoint_that_refuses_the_caller_stops_the_run(engine_for):
    async with QuirkyServer((401, {"error": {"message": "bad key"}})) as refusing:
        endpoint = Endpoint(base_url=refusing.url, model="m")
        engine = await engine_for(client=endpoint)
        with pytest.raises(RolloutStopped, match="401"):
            await collected(engine, requests(5))


async def test_wrong_parameters_are_a_config_error(engine_for):
    with pytest.raises(ConfigError, match="tragets"):
        await collected(await engine_for(env_kwargs={"tragets": [1]}), requests(1))


async def test_replicas_share_the_episodes(engine_for, policy):
    async with Policy() as second:
        engine = await engine_for(client=[policy.endpoint, second.endpoint])
        traces = await collected(engine, requests(20))
        assert len({turn.replica for trace in traces for turn in trace.turns}) == 2
        assert policy.requests
        assert second.requests


async def test_enough_ends_the_run_early(engine_for):
    engine = await engine_for(limits=Limits(concurrency=2, init_concurrency=1))
    traces = await collected(engine, requests(200), enough=Enough(episodes=5))
    assert 5 <= len(traces) < 200


async def test_drain_finishes_what_has_begun(engine_for, policy):
    policy.gate = asyncio.Event()
    engine = await engine_for(limits=Limits(concurrency=2, init_concurrency=1))
    run = asyncio.create_task(collected(engine, requests(100)))
    await policy.asked.wait()
    engine.drain()
    policy.gate.set()
    traces = await run
    assert 1 <= len(traces) < 100
    assert all(trace.scored for trace in traces)


async def test_leaving_a_run_stops_its_episodes(engine_for, policy):
    engine = await engine_for(limits=Limits(concurrency=4))
    async with contextlib.aclosing(engine.run(requests(500))) as run:
        async for _ in run:
            break
    assert engine.status().in_flight == 0
    assert policy.begun.total() < 500


async def test_two_runs_at_once_keep_apart(engine_for):
    engine = await engine_for()
    even, odd = await asyncio.gather(
        collected(engine, [EpisodeRequest(seed=seed) for seed in range(0, 20, 2)]),
        collected(engine, [EpisodeRequest(seed=seed) for seed in range(1, 20, 2)]),
    )
    assert sorted(trace.seed for trace in even) == list(range(0, 20, 2))
    assert sorted(trace.seed for trace in odd) == list(range(1, 20, 2))


# --- what only the remote one does ----------------------------------------------------------------


def test_blocking_run_from_plain_code():
    started, stop = asyncio.Event(), None

    async def main():
        async with Policy() as policy, serving() as server:
            engine = RemoteEngine(server.url, COUNTER, client=policy.endpoint)
            traces = await asyncio.to_thread(engine.run_blocking, requests(3))
            await asyncio.to_thread(engine.close)
            return traces

    assert len(asyncio.run(main())) == 3
    assert not started.is_set()
    assert stop is None


async def test_weight_version_may_change_between_runs(policy):
    async with (
        serving() as server,
        RemoteEngine(server.url, COUNTER, client=policy.endpoint, weight_version="1") as engine,
    ):
        for version in ("1", "2"):
            engine.weight_version = version
            traces = await collected(engine, requests(2))
            assert {t.weight_version for trace in traces for t in trace.turns} == {version}
        assert len(server.service.engines._engines) == 1


async def test_leaving_a_run_cancels_the_job(policy):
    async with (
        serving() as server,
        RemoteEngine(server.url, COUNTER, client=policy.endpoint) as engine,
        contextlib.aclosing(engine.run(requests(500))) as run,
    ):
        await anext(run)
        policy.gate = asyncio.Event()
        await run.aclose()
        (job,) = server.service.jobs._jobs.values()
        assert job.state == "cancelled"
        assert server.service.engines.stages.taken.total() == 0
        assert server.service.engines.stages.stages.run.active == 0
        policy.gate.set()


async def test_status_is_the_services_engine(policy, monkeypatch):
    monkeypatch.setattr("agentgym.remote.run._STATUS_EVERY_S", 0.02)
    policy.gate = asyncio.Event()
    async with (
        serving() as server,
        RemoteEngine(server.url, COUNTER, client=policy.endpoint) as engine,
    ):
        assert engine.status().runs == 0
        run = asyncio.create_task(collected(engine, requests(3)))
        for _ in range(3000):
            waiting = {step.waiting for step in engine.status().waiting}
            if engine.status().in_flight == 3 and waiting == {"policy"}:
                break
            await asyncio.sleep(0.01)
        status = engine.status()
        assert (status.in_flight, status.episodes.requested) == (3, 3)
        assert status.waiting[0].waiting == "policy"
        policy.gate.set()
        await run


async def test_restart_of_the_service_loses_and_doubles_nothing(policy, tmp_path):
    config = config_for_tests(store=tmp_path / "s.db")
    async with serving(config) as server:
        port = server.port
        engine = RemoteEngine(server.url, COUNTER, client=policy.endpoint)
        limits = Limits(concurrency=2, init_concurrency=1)
        engine = RemoteEngine(server.url, COUNTER, client=policy.endpoint, limits=limits)
        run = engine.run(requests(40))
        traces = [await anext(run) for _ in range(5)]
    again = config.model_copy(update={"port": port})
    async with serving(again), contextlib.aclosing(engine):
        traces += [trace async for trace in run]
    assert sorted(trace.seed for trace in traces) == list(range(40))
    assert len({trace.trace_id for trace in traces}) == 40


async def _goes_wrong(*kinds, policy, runs):
    """Jobs that a service has after runs through a proxy that breaks two calls of three."""
    async with (
        serving() as server,
        FaultProxy(server.url, {kind: 0.66 / len(kinds) for kind in kinds}, delay_s=0) as proxy,
        RemoteEngine(proxy.url, COUNTER, client=policy.endpoint) as engine,
    ):
        engine._http._sleep = lambda seconds: asyncio.sleep(0)
        for _ in range(runs):
            traces = await collected(engine, iter(requests(5)))
            assert sorted(trace.seed for trace in traces) == list(range(5))
        return len(server.service.jobs._jobs)


async def test_answer_that_is_lost_makes_no_second_job(policy):  # case E17
    assert await _goes_wrong("lost", "cut", policy=policy, runs=5) == 5
    assert policy.begun.total() == 25


async def test_errors_of_what_stands_between_are_waited_out(policy):
    assert await _goes_wrong("error", "busy", "reset", policy=policy, runs=5) == 5


@pytest.mark.parametrize("drained", [True, False])
async def test_job_that_somebody_else_cancels_does_not_look_whole(policy, drained):
    policy.gate = asyncio.Event()
    async with (
        serving() as server,
        RemoteEngine(server.url, COUNTER, client=policy.endpoint) as engine,
    ):
        run = asyncio.create_task(collected(engine, requests(10)))
        await policy.asked.wait()
        (job,) = server.service.jobs._jobs.values()
        if drained:
            engine.drain()
            await job.wait(lambda: job.ending is not None, 10)
        await server.service.jobs.cancel(job)
        if drained:
            assert await run == []
        else:
            with pytest.raises(ServiceError, match="somebody else cancelled"):
                await run
    policy.gate.set()


async def test_long_requests_are_sent_in_parts(policy, monkeypatch):
    monkeypatch.setattr("agentgym.remote.run._CHUNK_BYTES", 50_000)
    config = config_for_tests(max_body_bytes=100_000)
    async with (
        serving(config) as server,
        RemoteEngine(server.url, COUNTER, client=policy.endpoint) as engine,
    ):
        wanted = requests(20, group="a name of many bytes " * 500)
        assert len(await collected(engine, wanted)) == 20


@pytest.mark.thorough
async def test_client_that_dies_has_its_work_stopped(policy):
    policy.gate = asyncio.Event()
    async with serving() as server:
        engine = RemoteEngine(server.url, COUNTER, client=policy.endpoint, lease_s=30)
        run = asyncio.create_task(collected(engine, requests(10)))
        await policy.asked.wait()
        (job,) = server.service.jobs._jobs.values()
        engine._http._once = _never  # the process is gone: nothing is sent any more, no goodbye
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        job.seen -= 31
        async with asyncio.timeout(10):
            while job.running:  # until the service sees that the connection is gone
                await server.service.jobs.look_after_all()
        assert job.state == "expired"
        assert server.service.engines.stages.taken.total() == 0
        await engine.aclose()
    policy.gate.set()


async def _never(*_):
    raise ServiceError("gone", code="gone")


async def test_service_that_is_not_there_is_one_line():
    engine = RemoteEngine(
        "http://127.0.0.1:1",
        COUNTER,
        client=Endpoint(base_url="http://x/v1", model="m"),
        reconnect_s=0.2,
    )
    async with engine:
        with pytest.raises(ServiceError, match="is the service running there") as caught:
            await collected(engine, requests(1))
    assert "\n" not in str(caught.value)


async def test_token_is_sent_and_a_wrong_one_is_told(policy, monkeypatch):
    async with (
        serving(tokens=Tokens({TOKEN: Caller("me")})) as server,
        RemoteEngine(server.url, COUNTER, client=policy.endpoint) as engine,
    ):
        with pytest.raises(ServiceError, match="needs a token") as caught:
            await collected(engine, requests(1))
        assert caught.value.status == 401
        monkeypatch.setenv("AGENTGYM_SERVICE_TOKEN", TOKEN)
        assert len(await collected(engine, requests(1))) == 1


async def test_what_is_no_service_is_told():
    async with QuirkyServer(answer("hello")) as other:
        engine = RemoteEngine(
            other.url.removesuffix("/v1"), COUNTER, client=Endpoint(base_url=other.url, model="m")
        )
        async with engine:
            with pytest.raises(ServiceError, match="no agentgym service"):
                await collected(engine, requests(1))


@pytest.mark.parametrize(
    ("env", "fields", "told"),
    [
        (CounterEnv, {}, "register it"),
        (COUNTER, {"client": lambda messages: "x"}, "asks the policy itself"),
        (COUNTER, {"client": []}, "at least one"),
        (COUNTER, {"env_kwargs": {"judge": object()}}, "can't be sent"),
        (COUNTER, {"metadata": {"x": math.nan}}, "metadata"),
    ],
)
def test_what_can_not_be_sent_is_refused_at_once(env, fields, told):
    fields = {"client": Endpoint(base_url="http://x/v1", model="m"), **fields}
    with pytest.raises(ConfigError, match=told):
        RemoteEngine("http://127.0.0.1:1", env, **fields)


def test_url_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="http://"):
        RemoteEngine("localhost:8800", COUNTER, client="pool")


async def test_named_pool_plays(policy):
    from serving import Client

    async with serving() as server, Client(server.url) as client:
        body = {"endpoints": [{"base_url": policy.url, "model": "m"}]}
        await client.ask("POST", "/v1/policies/p/endpoints", body)
        async with RemoteEngine(server.url, COUNTER, client="p") as engine:
            assert len(await collected(engine, requests(3))) == 3
