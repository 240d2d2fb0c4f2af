"""What a cluster backend is made of, without a cluster: shares, parcels, what is sent, the desk."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import sys
import threading
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.client import Endpoint, Prices, RateLimits, SamplingParams
from agentgym.clients import BalancedClient, ScriptedClient
from agentgym.clients.chat import ChatClient
from agentgym.clients.connect import connect, connecting_by
from agentgym.deadline import Deadline
from agentgym.errors import BudgetExceeded, ConfigError, MissingExtraError
from agentgym.metering import Meter, metered
from agentgym.rollout import Canary, Cluster, Engine, EpisodeRequest, Limits
from agentgym.rollout.backend import Played
from agentgym.rollout.cluster_desk import ClientsOfWorker, Desk, DeskClient, is_rationed
from agentgym.rollout.cluster_job import packed, unpacked
from agentgym.rollout.cluster_join import join
from agentgym.rollout.cluster_parcel import Member, Parcel
from agentgym.rollout.cluster_shares import share_of
from agentgym.rollout.cluster_worker import Finished, RolloutWorker
from agentgym.rollout.limits import FailureWatch
from agentgym.rollout.progress import NoProgress
from agentgym.rollout.source import EnvSource
from agentgym.rollout.stages import Stages
from agentgym.rollout.turns import Setting
from agentgym.testing.envs import CounterEnv
from agentgym.testing.quirky import QuirkyServer, answer
from agentgym.trace import Trace
from agentgym.types import Usage, Verdict

HERE = Endpoint(base_url="http://127.0.0.1:9/v1", model="m", max_concurrency=10)
COST = {"policy": Usage(prompt_tokens=7)}


def setting(client: Any = None, **fields: Any) -> Setting:
    return Setting(
        client=client,
        sampling=SamplingParams(),
        limits=Limits(),
        policy={"model": "m"},
        metadata={},
        progress=NoProgress(),
        **fields,
    )


def trace(**fields: Any) -> Trace:
    verdict = Verdict(reward=1.0)
    about = {"trace_id": "t", "env_spec": "{}", "verdict": verdict, "started_at": "now"}
    return Trace(**about | {"usage": COST} | fields)


# --- shares ------------------------------------------------------------------------------------


@given(concurrency=st.integers(1, 300), init=st.integers(1, 50), workers=st.integers(1, 400))
def test_shares_of_run_add_up_and_nobody_else_plays(concurrency, init, workers):
    limits = Limits(concurrency=concurrency, init_concurrency=init)
    shares = [share_of(limits, number, workers) for number in range(workers)]
    playing = [share for share, slots in shares if slots]
    assert sum(share.concurrency for share in playing) == concurrency
    assert len(playing) == min(workers, concurrency)
    parts = [share.concurrency for share in playing]
    assert max(parts) - min(parts) <= 1
    assert sum(share.init_concurrency for share in playing) == max(init, len(playing))


def test_one_worker_has_all_of_the_limits():
    limits = Limits(concurrency=7, init_concurrency=3, eval_concurrency=5, backlog=11)
    assert share_of(limits, 0, 1) == (limits, 10)


def test_a_lost_worker_is_no_sign_that_a_run_fails():
    watch = FailureWatch(Limits(max_failure_rate=0.0, min_failures=1))
    member = new_member()
    member.lose("gone")
    watch.count(member.with_lost(trace()))


# --- parcels -----------------------------------------------------------------------------------


def new_member(sample: int = 0) -> Member:
    async def make() -> Member:
        return Member(EpisodeRequest(task_id="counter/1", sample=sample))

    return asyncio.run(make())


async def group_of(size: int) -> Parcel:
    parcel = Parcel(is_group=True)
    parcel.members += [Member(EpisodeRequest(seed=1, sample=k)) for k in range(size)]
    parcel.is_closed = True
    return parcel


async def test_a_second_attempt_is_at_the_same_episode():
    member = Member(EpisodeRequest(task_id="counter/1"))
    seed, key = member.request.seed, member.key
    member.lose("gone")
    assert (member.request.seed, member.whereabouts.attempt) == (seed, 1)
    assert member.key != key


async def test_what_lost_attempts_cost_is_in_the_trace():
    member = Member(EpisodeRequest(seed=1))
    for _ in range(2):
        member.usage = dict(COST)
        member.lose("gone")
    whole = member.with_lost(trace())
    assert [attempt.usage for attempt in whole.earlier] == [COST, COST]
    assert whole.usage["policy"] == COST["policy"] + COST["policy"] + COST["policy"]


async def test_results_of_a_group_are_handed_on_together():
    parcel = await group_of(2)
    first, second = parcel.members
    parcel.take(second, Played(trace()))
    assert not second.played.done()
    parcel.take(first, Played(trace()))
    assert (first.played.done(), second.played.done(), parcel.is_over) == (True, True, True)


async def test_a_group_that_loses_its_worker_starts_again_with_all_its_members():
    parcel = await group_of(2)
    first, second = parcel.members
    parcel.take(second, Played(trace()))
    name = parcel.name
    parcel.lose("gone")
    assert parcel.name != name
    assert not second.is_over
    assert second.lost[0].usage == COST  # it was over, and is paid for
    for member in (first, second):
        parcel.take(member, Played(trace()))
    assert [len((await member.played).trace.earlier) for member in (first, second)] == [1, 1]


async def test_a_refusal_that_ends_the_run_is_not_held_back():
    parcel = await group_of(2)
    parcel.take(parcel.members[0], Played(trace(), fatal="wrong key"))
    assert (await parcel.members[0].played).fatal == "wrong key"


async def test_a_cancelled_member_is_waited_for_by_nobody():
    parcel = await group_of(2)
    first, second = parcel.members
    first.played.cancel()
    parcel.take(second, Played(trace()))
    assert second.played.done()


async def test_a_convict_is_masked_and_says_how_often_it_killed():
    parcel = Parcel(is_group=False)
    parcel.members.append(Member(EpisodeRequest(task_id="counter/1", seed=3)))
    parcel.lose("segfault")
    parcel.convict("segfault", "{}", setting())
    (played,) = [await member.played for member in parcel.members]
    assert (played.trace.reward, played.trace.failure_class) == (None, "env")
    assert (played.trace.seed, len(played.trace.earlier)) == (3, 1)
    assert "died 1 times" in (played.trace.error or "")


# --- what is sent ------------------------------------------------------------------------------


def test_clients_are_sent_as_their_endpoints():
    job = unpacked(packed(EnvSource(CounterEnv), setting(ChatClient(HERE)), ()))
    assert (job.endpoints, job.client) == ((HERE,), None)
    job = unpacked(packed(EnvSource(CounterEnv), setting(connect(HERE)), ()))
    assert job.endpoints == (HERE,)


def test_a_script_is_sent_as_it_is():
    job = unpacked(packed(EnvSource(CounterEnv), setting(ScriptedClient(lambda m: "hi")), ()))
    assert isinstance(job.client, ScriptedClient)
    assert job.endpoints == ()


def test_a_client_that_cannot_be_sent_is_refused_with_what_to_give():
    client = ScriptedClient(["hi"])
    client.lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"client: a ScriptedClient can't be sent .*Endpoint"):
        packed(EnvSource(CounterEnv), setting(client), ())


def test_an_env_that_cannot_be_sent_is_refused_with_what_to_give():
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="the env can't be sent .*module:id"):
        packed(EnvSource(lambda: CounterEnv() if lock else None), setting(), (HERE,))


def test_recordings_stay_in_one_process():
    refused = pytest.raises(ConfigError, match="recordings belong to one process")
    with connecting_by(lambda endpoint: ScriptedClient([])), refused:
        packed(EnvSource(CounterEnv), setting(), (HERE,))


def test_code_that_a_worker_lacks_is_named():
    ray = pytest.importorskip("ray")
    lines = ray.cloudpickle.dumps(CounterEnv).replace(
        b"agentgym.testing.envs", b"agentgym.testing.nope"
    )
    with pytest.raises(ConfigError, match=r"No module named 'agentgym.testing.nope'.*runtime_env"):
        unpacked(lines)


# --- what is refused ---------------------------------------------------------------------------


def on_cluster(**fields: Any) -> Engine:
    return Engine(CounterEnv, client=ScriptedClient([]), backend="ray", **fields)


async def refusal_of(engine: Engine) -> str:
    with pytest.raises(ConfigError) as caught:
        _ = [trace async for trace in engine.run([EpisodeRequest(seed=1)])]
    return str(caught.value)


async def test_without_ray_the_command_that_installs_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'pip install "agentgym-envs\[ray\]"'):
        _ = [trace async for trace in on_cluster().run([EpisodeRequest(seed=1)])]


def test_stages_of_this_process_are_refused_at_once():
    with pytest.raises(ConfigError, match=r"stages: shared slots are of this process.*limits"):
        on_cluster(stages=Stages(Limits()))


async def test_a_canary_needs_a_judge_in_this_process():
    assert "Canary(judge=…)" in await refusal_of(on_cluster(canary=Canary([trace()])))


def test_nobody_listening_is_told_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match=f"no Ray cluster at 127.0.0.1:{port}: .*refused"):
        join(Cluster(address=f"127.0.0.1:{port}"))


def test_a_cluster_that_wants_a_token_says_how_to_send_it(monkeypatch):
    exceptions = pytest.importorskip("ray.exceptions")
    no_token = exceptions.AuthenticationError("no token was found")
    turned_away = ConnectionError("Failed to connect")
    turned_away.__cause__ = RuntimeError("RPC error: InvalidAuthToken: token is missing")
    with socket.create_server(("127.0.0.1", 0)) as server:
        for error in (no_token, turned_away):
            monkeypatch.setattr("ray.init", Mock(side_effect=error))
            with pytest.raises(ConfigError, match="wants a token: set RAY_AUTH_MODE=token"):
                join(Cluster(address=f"127.0.0.1:{server.getsockname()[1]}"))


@pytest.mark.parametrize(
    ("address", "why"), [("ray://head:10001", "ray job submit"), ("head", "host:port")]
)
def test_addresses_that_lead_nowhere_are_told(address, why):
    with pytest.raises(ConfigError, match=why):
        join(Cluster(address=address))


# --- a worker ----------------------------------------------------------------------------------


async def started_worker(monkeypatch: pytest.MonkeyPatch, client: Any) -> RolloutWorker:
    monkeypatch.setattr("agentgym.rollout.cluster_worker._here", lambda: ("node", "here (pid 1)"))
    job = packed(EnvSource(CounterEnv), setting(client), ())
    worker = RolloutWorker()
    started = await worker.start("w", job, Limits().model_dump_json(), None)
    assert (started.label, started.judges_groups) == ("here (pid 1)", False)
    return worker


def begin(key: str, parcel: str = "", **about: Any) -> tuple[Any, ...]:
    request = EpisodeRequest(task_id="counter/1", seed=1, **about)
    return ("begin", parcel, key, request.model_dump_json())


async def results_of(worker: RolloutWorker, count: int) -> list[Finished]:
    """What a worker tells until it has told so many, and has nothing left to play."""
    news = await worker.news()
    finished = news.finished
    async with asyncio.timeout(20):
        while len(finished) < count or news.pending:
            news = await worker.news()
            finished += news.finished
    return finished


async def test_a_worker_tells_each_result_once(monkeypatch):
    worker = await started_worker(monkeypatch, ScriptedClient(["hi"], repeat=True))
    await worker.orders([begin(key) for key in "abc"])
    finished = await results_of(worker, 3)
    assert sorted(result.key for result in finished) == ["a", "b", "c"]
    traces = [Trace.model_validate_json(result.trace or "") for result in finished]
    assert all(trace.scored for trace in traces)
    assert (await worker.news()).finished == []
    await worker.stop()


async def test_a_worker_tells_what_it_was_told_to_cancel(monkeypatch):
    async def never(messages: Any) -> None:
        await asyncio.get_running_loop().create_future()

    worker = await started_worker(monkeypatch, ScriptedClient(never))
    await worker.orders([begin("a"), begin("b"), ("cancel", "b")])
    assert [result.key for result in await first_news(worker)] == ["b"]
    await worker.orders([("cancel", "a"), ("cancel", "nobody")])
    (result,) = await results_of(worker, 1)
    assert (result.key, result.trace, result.error) == ("a", None, None)
    await worker.stop()


async def first_news(worker: RolloutWorker) -> list[Finished]:
    async with asyncio.timeout(20):
        while not (finished := (await worker.news()).finished):
            pass
    return finished


async def test_a_worker_asks_the_replicas_that_the_driver_has(monkeypatch):
    async with QuirkyServer(answer("hi")) as old, QuirkyServer(answer("hi")) as new:
        replica = HERE.model_copy(update={"base_url": old.url, "api_key_env": "HOME"})
        driver = BalancedClient([replica])
        worker = await started_worker(monkeypatch, driver)
        driver.add(replica.model_copy(update={"base_url": new.url}), weight_version="v2")
        await driver.remove(old.url)
        await worker.orders([("policy", driver.roster), begin("a")])
        (result,) = await results_of(worker, 1)
        await worker.stop()
    assert (len(old.requests), len(new.requests) > 0) == (0, True)
    trace = Trace.model_validate_json(result.trace or "")
    assert {turn.weight_version for turn in trace.turns} == {"v2"}


def test_replicas_with_a_budget_are_refused():
    client = BalancedClient([rationed("http://127.0.0.1:9/v1")])
    with pytest.raises(ConfigError, match="neither budget_usd nor rate"):
        packed(EnvSource(CounterEnv), setting(client), ())


# --- the desk ----------------------------------------------------------------------------------


class Remote:
    """Calls an actor's body as Ray would, in this process."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._body, name)

        class Method:
            @staticmethod
            def remote(*arguments: Any) -> Any:
                loop, elsewhere = asyncio.get_running_loop(), contextvars.Context()
                return loop.create_task(method(*arguments), context=elsewhere)

        return Method


def rationed(url: str, **fields: Any) -> Endpoint:
    prices = Prices(input=1000.0, output=0.0)
    about = {"base_url": url, "model": "m", "prices": prices, "budget_usd": 1.0}
    return Endpoint(**about | {"api_key_env": "HOME", "role": "judge"} | fields)


ASK = ([{"role": "user", "content": "hi"}], [], SamplingParams(max_tokens=1))


def test_only_budgets_and_rates_go_to_the_desk():
    assert not is_rationed(HERE)
    assert is_rationed(HERE.model_copy(update={"rate": RateLimits(requests_per_minute=1)}))
    clients = ClientsOfWorker(desk=None, worker="w")
    assert isinstance(clients.client_of(rationed(HERE.base_url)), DeskClient)
    direct = clients.client_of(HERE)
    assert clients.client_of(HERE) is direct
    assert not isinstance(direct, DeskClient)


def test_workers_share_the_slots_of_an_endpoint():
    endpoint = HERE.model_copy(update={"model": "shared"})
    clients = ClientsOfWorker(desk=None, worker="w")
    limiter = clients.client_of(endpoint)._client.limiter
    clients.share(4)
    assert limiter.allowed == 2
    clients.share(100)
    assert limiter.allowed == 1
    clients.share(1)
    assert limiter.allowed == 10


async def test_what_is_asked_at_the_desk_is_charged_to_the_asker_once():
    async with QuirkyServer(answer("hello")) as server:
        desk = Desk()
        client = DeskClient(rationed(server.url), Remote(desk), "w")
        with metered(Meter()) as meter:
            completion = await client.complete(*ASK)
    assert completion.message["content"] == "hello"
    assert meter.by_role["judge"].calls == 1
    assert len(server.requests) == 1
    assert not desk._calls


async def test_two_workers_spend_one_budget():
    async with QuirkyServer(answer("hello")) as server:
        desk = Remote(Desk())
        endpoint = rationed(server.url, budget_usd=0.09, model="two")
        workers = [DeskClient(endpoint, desk, name) for name in "ab"]
        asked = [worker.complete(*ASK) for worker in workers for _ in range(10)]
        with metered(Meter()) as meter:
            results = await asyncio.gather(*asked, return_exceptions=True)
    refused = [result for result in results if isinstance(result, BudgetExceeded)]
    assert len(refused) + len(server.requests) == 20
    assert 0 < len(server.requests) <= 4  # two cents each
    assert "budget_usd" in meter.refused["judge"]


async def test_waiting_for_ones_turn_at_the_desk_is_free():
    busy, served = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedClient):
        async def complete(self, *args: Any, **kwargs: Any) -> Any:
            from agentgym.deadline import queued

            with queued():
                busy.set()
                await served.wait()
            return await super().complete(*args, **kwargs)

    slow = Slow(["hello"])
    desk = Desk()
    client = DeskClient(rationed("http://127.0.0.1:9/v1"), Remote(desk), "w")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentgym.rollout.cluster_desk.shared_client", lambda endpoint: slow)
        async with Deadline(0.05) as deadline:
            asking = asyncio.ensure_future(client.complete(*ASK))
            await busy.wait()
            await asyncio.sleep(0.2)
            assert not deadline.is_over
            served.set()
            assert (await asking).message["content"] == "hello"


async def test_a_call_that_is_given_up_is_given_up_at_the_desk():
    asked, gone = asyncio.Event(), asyncio.Event()

    class Endless(ScriptedClient):
        async def complete(self, *args: Any, **kwargs: Any) -> Any:
            asked.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                gone.set()

    endless = Endless([])
    desk = Desk()
    client = DeskClient(rationed("http://127.0.0.1:9/v1"), Remote(desk), "w")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentgym.rollout.cluster_desk.shared_client", lambda endpoint: endless)
        asking = asyncio.ensure_future(client.complete(*ASK))
        await asked.wait()
        asking.cancel()
        async with asyncio.timeout(5):
            await gone.wait()
    assert asking.cancelled() or asking.cancelling()
    await asyncio.gather(asking, return_exceptions=True)
    assert not desk._calls
