"""Jobs over HTTP: accepted once, played once, told from any cursor, ended at once."""

from __future__ import annotations

import asyncio
import json

import gymnasium
import pytest
from serving import COUNTER, FLAKY, Client, Policy, job, serving

from agentgym.serve.access import Caller, Quota, Tokens
from agentgym.serve.allowed import Allowed
from agentgym.serve.config import Keeping
from agentgym.serve.job import Job
from agentgym.serve.store import Store
from agentgym.testing.envs import CounterEnv
from agentgym.testing.quirky import Reply
from agentgym.trace import Trace
from agentgym.types import Task

MINE, YOURS = "my-token-0123456789", "your-token-0123456789"


@pytest.fixture
async def policy():
    async with Policy() as server:
        yield server


@pytest.fixture
async def client():
    async with serving() as server, Client(server.url) as asking:
        asking.service = server.service
        yield asking


@pytest.fixture
def waited(monkeypatch):
    """Set once a request waits for something about a job."""
    waited, wait = asyncio.Event(), Job.wait

    async def told(job, enough, wait_s):
        if wait_s:
            waited.set()
        await wait(job, enough, wait_s)

    monkeypatch.setattr(Job, "wait", told)
    return waited


async def in_flight(client, job_id, count):
    """Wait until so many episodes of a job are being played."""
    job = client.service.jobs._jobs[job_id]
    await job.wait(lambda: job.in_flight >= count, 10)
    assert job.in_flight >= count


# --- submitting -----------------------------------------------------------------------------------


async def test_job_is_played_and_its_traces_come_with_rewards(client, policy):
    job_id = await client.submit(policy.url, episodes={"seeds": [1, 2, 3], "samples": 2})
    traces, page = await client.until_over(job_id)
    assert [item["cursor"] for item in traces] == [1, 2, 3, 4, 5, 6]
    found = [Trace.model_validate(item["trace"]) for item in traces]
    assert {(t.seed, t.sample, t.group) for t in found} == {
        (seed, sample, f"seed/{seed}") for seed in (1, 2, 3) for sample in (0, 1)
    }
    assert all(t.reward == 1.0 for t in found)
    assert page["state"] == "finished"
    assert page["error"] is None


@pytest.mark.parametrize(
    ("episodes", "tasks"),
    [
        ({"tasks": ["counter/4", "counter/2"]}, ["counter/2", "counter/4"]),
        ({"first": 3}, ["counter/1", "counter/2", "counter/3"]),
        ({"requests": [{"task_id": "counter/5", "seed": 9}]}, ["counter/5"]),
        ({"tasks": ["counter/4"], "samples": 2}, ["counter/4", "counter/4"]),
    ],
)
async def test_episodes_are_named_in_every_way(client, policy, episodes, tasks):
    job_id = await client.submit(policy.url, episodes=episodes)
    traces, _ = await client.until_over(job_id)
    assert sorted(item["trace"]["task_id"] for item in traces) == tasks


async def test_weight_version_of_an_endpoint_is_in_the_turns(client, policy):
    endpoint = {"base_url": policy.url, "model": "m", "weight_version": "step-17"}
    job_id = await client.submit(policy.url, policy={"endpoints": [endpoint]})
    traces, _ = await client.until_over(job_id)
    versions = {turn["weight_version"] for item in traces for turn in item["trace"]["turns"]}
    assert versions == {"step-17"}


async def test_same_key_and_body_is_the_same_job(client, policy):
    body = job(policy.url, idempotency_key="step-1")
    first = await client.ask("POST", "/v1/jobs", body)
    again = await client.ask("POST", "/v1/jobs", body)
    by_header = await client.ask(
        "POST", "/v1/jobs", job(policy.url), headers={"Idempotency-Key": "step-1"}
    )
    assert first[1]["job_id"] == again[1]["job_id"] == by_header[1]["job_id"]
    await client.until_over(first[1]["job_id"])
    assert policy.begun.total() == 3


async def test_same_key_sent_at_once_is_one_job(client, policy):
    body = job(policy.url, idempotency_key="step-1")
    answers = await asyncio.gather(*(client.ask("POST", "/v1/jobs", body) for _ in range(8)))
    assert {status for status, _ in answers} == {201}
    assert len({told["job_id"] for _, told in answers}) == 1


async def test_same_key_sent_at_once_counts_once_against_the_quota(policy):
    tokens = Tokens({MINE: Caller("me", Quota(open_jobs=1))})
    policy.gate = asyncio.Event()
    async with serving(tokens=tokens) as server, Client(server.url, MINE) as client:
        body = job(policy.url, idempotency_key="step-1")
        answers = await asyncio.gather(*(client.ask("POST", "/v1/jobs", body) for _ in range(4)))
        assert {status for status, _ in answers} == {201}


async def test_order_in_which_fields_are_sent_makes_no_other_job(client, policy):
    metadata = {"a": 1, "b": {"c": 1, "d": 2}}
    turned = {"b": {"d": 2, "c": 1}, "a": 1}
    first, again = [
        await client.ask("POST", "/v1/jobs", job(policy.url, metadata=each, idempotency_key="k"))
        for each in (metadata, turned)
    ]
    assert first[1]["job_id"] == again[1]["job_id"]


async def test_same_key_with_another_body_is_refused(client, policy):
    await client.ask("POST", "/v1/jobs", job(policy.url, idempotency_key="k"))
    other = job(policy.url, idempotency_key="k", episodes={"seeds": [4]})
    status, told = await client.ask("POST", "/v1/jobs", other)
    assert (status, told["error"]["code"]) == (409, "key_taken")


@pytest.mark.parametrize(
    ("fields", "status", "code", "text"),
    [
        ({"env": "agentgym/Nope-v0"}, 404, "unknown_env", "Nope"),
        ({"env": "agentgym/WebShop-v0"}, 403, "env_not_allowed", "WebShop"),
        ({"env": "os:path-v0"}, 403, "env_not_allowed", "imports no module"),
        ({"episodes": {}}, 422, "invalid_request", "say which ones"),
        ({"episodes": {"tasks": ["counter/999"]}}, 422, "unknown_task", "counter/999"),
        ({"episodes": {"first": 999}}, 422, "invalid_request", "20 tasks"),
        ({"episodes": {"seeds": [1, 1]}}, 422, "invalid_request", "must be different"),
        ({"episodes": {"seeds": [1], "first": 2}}, 422, "invalid_request", "one of"),
        ({"env_kwargs": {"tragets": [1]}}, 422, "invalid_request", "tragets"),
        ({"policy": {}}, 422, "invalid_request", "pool or endpoints"),
        ({"policy": {"pool": "none"}}, 404, "unknown_pool", "none"),
        ({"sampling": {"temperature": -1}}, 422, "invalid_request", "sampling.temperature"),
        ({"episode": {"seeds": [1]}}, 422, "invalid_request", "episode"),
        ({"enough": {"episodes": 1, "unfinished": "carry"}}, 422, "invalid_request", "in_flight"),
    ],
)
async def test_what_makes_no_sense_is_refused_before_anything_is_kept(
    client, policy, fields, status, code, text
):
    got, told = await client.ask("POST", "/v1/jobs", job(policy.url, **fields))
    assert (got, told["error"]["code"]) == (status, code), told
    assert text in told["error"]["message"]
    assert (await client.ask("GET", "/v1/jobs"))[1] == {"jobs": []}
    assert not policy.requests


# --- traces ---------------------------------------------------------------------------------------


async def test_cursor_goes_on_where_it_was(client, policy):
    job_id = await client.submit(policy.url, episodes={"seeds": list(range(10))})
    whole, _ = await client.until_over(job_id)
    rest, _ = await client.until_over(job_id, after=4)
    assert rest == whole[4:]
    _, page = await client.ask("GET", f"/v1/jobs/{job_id}/traces", after=4, limit=2)
    assert page["traces"] == whole[4:6]
    assert page["over"] is False


async def test_long_poll_waits_for_a_trace(client, policy):
    policy.gate = asyncio.Event()
    job_id = await client.submit(policy.url, episodes={"seeds": [1]})
    waiting = asyncio.create_task(
        client.ask("GET", f"/v1/jobs/{job_id}/traces", after=0, wait_s=30)
    )
    await policy.asked.wait()
    assert not waiting.done()
    policy.gate.set()
    _, page = await waiting
    assert [item["cursor"] for item in page["traces"]] == [1]


async def test_cursor_the_job_never_had_is_refused(client, policy):
    job_id = await client.submit(policy.url)
    await client.until_over(job_id)
    status, told = await client.ask("GET", f"/v1/jobs/{job_id}/traces", after=99)
    assert (status, told["error"]["code"]) == (409, "bad_cursor")


async def test_stream_ends_with_the_job_and_goes_on_from_a_cursor(client, policy):
    job_id = await client.submit(policy.url, episodes={"seeds": [1, 2, 3]})
    whole, _ = await client.until_over(job_id)
    for after in (0, 2):
        _, text = await client.ask("GET", f"/v1/jobs/{job_id}/stream", after=after)
        lines = [json.loads(line) for line in text.splitlines() if line]
        assert lines[:-1] == whole[after:]
        assert lines[-1] == {"cursor": 3, "state": "finished", "over": True, "error": None}


async def test_status_counts_by_state(client, policy):
    policy.gate = asyncio.Event()
    job_id = await client.submit(policy.url, limits={"concurrency": 2, "init_concurrency": 1})
    await in_flight(client, job_id, 3)
    _, told = await client.ask("GET", f"/v1/jobs/{job_id}")
    assert (told["state"], told["episodes"]["in_flight"]) == ("running", 3)
    assert told["engine"]["in_flight"] == 3
    policy.gate.set()
    await client.until_over(job_id)
    _, told = await client.ask("GET", f"/v1/jobs/{job_id}")
    counts = told["episodes"]
    assert (counts["requested"], counts["finished"], counts["scored"]) == (3, 3, 3)
    assert told["usage"]["policy"]["calls"] == 6
    assert told["finished_at"] is not None


async def test_failed_episodes_are_masked_and_counted_by_class(client, policy):
    job_id = await client.submit(
        policy.url, env=FLAKY, episodes={"tasks": ["counter/3", "counter/12"]}
    )
    traces, page = await client.until_over(job_id)
    by_task = {item["trace"]["task_id"]: item["trace"] for item in traces}
    assert by_task["counter/12"]["verdict"]["reward"] is None
    assert by_task["counter/3"]["verdict"]["reward"] == 1.0
    assert page["state"] == "finished"
    _, told = await client.ask("GET", f"/v1/jobs/{job_id}")
    assert told["episodes"]["masked"] == {"env": 1}


async def test_abnormal_failures_end_the_job_with_the_cause(client, policy):
    job_id = await client.submit(
        policy.url,
        env=FLAKY,
        episodes={"tasks": [f"counter/{n}" for n in range(11, 21)]},
        limits={"max_failure_rate": 0.5, "min_failures": 5},
    )
    traces, page = await client.until_over(job_id)
    assert page["state"] == "failed"
    assert page["error"]["code"] == "rollout_stopped"
    assert "the shelf fell down" in page["error"]["message"]
    assert len(traces) >= 5


async def test_early_stop_cancels_what_is_unfinished(client, policy):
    job_id = await client.submit(
        policy.url,
        episodes={"seeds": list(range(200))},
        enough={"episodes": 5},
        limits={"concurrency": 4, "init_concurrency": 1},
    )
    traces, page = await client.until_over(job_id)
    assert page["state"] == "finished"
    assert 5 <= len(traces) < 200


# --- open jobs ------------------------------------------------------------------------------------


async def test_episodes_added_later_are_played_and_added_once(client, policy):
    job_id = await client.submit(policy.url, episodes={"seeds": [1]}, open=True)
    path = f"/v1/jobs/{job_id}/episodes"
    more = {"after": 1, "requests": [{"seed": 2}, {"seed": 3}]}
    for _ in range(2):  # the first answer was lost
        status, told = await client.ask("POST", path, more)
        assert (status, told["episodes"]) == (200, 3)
    status, told = await client.ask("POST", path, {"after": 5, "requests": [{"seed": 9}]})
    assert (status, told["error"]["code"]) == (409, "episodes_missing")
    await client.ask("POST", path, {"after": 3, "last": True})
    traces, page = await client.until_over(job_id)
    assert sorted(item["trace"]["seed"] for item in traces) == [1, 2, 3]
    assert page["state"] == "finished"
    status, told = await client.ask("POST", path, {"after": 3, "requests": [{"seed": 4}]})
    assert (status, told["error"]["code"]) == (409, "job_closed")


async def test_open_job_says_when_it_has_room(client, policy):
    policy.gate = asyncio.Event()
    places = client.service.engines.stages.places
    job_id = await client.submit(policy.url, episodes={"seeds": [1]}, open=True)
    await in_flight(client, job_id, 1)
    path = f"/v1/jobs/{job_id}/episodes"
    requests = [{"seed": seed} for seed in range(2 * places)]
    _, told = await client.ask("POST", path, {"after": 1, "requests": requests})
    assert told["room"] < places
    await in_flight(client, job_id, places)
    _, told = await client.ask("POST", path, {"after": 1 + len(requests), "wait_s": 0})
    assert told["room"] == 0 or told["room"] < places
    policy.gate.set()
    _, told = await client.ask("POST", path, {"after": 1 + len(requests), "wait_s": 30})
    assert told["room"] > 0


# --- ending ---------------------------------------------------------------------------------------


async def test_cancel_frees_slots_and_the_policy_at_once(client, policy):
    policy.gate = asyncio.Event()
    job_id = await client.submit(policy.url, episodes={"seeds": list(range(300))})
    await in_flight(client, job_id, 8)
    await policy.asked.wait()
    status, told = await client.ask("POST", f"/v1/jobs/{job_id}/cancel")
    assert (status, told["state"]) == (200, "cancelled")
    assert client.service.engines.stages.taken.total() == 0
    assert client.service.engines.stages.stages.run.active == 0
    policy.gate.set()
    traces, page = await client.until_over(job_id)
    assert (traces, page["over"]) == ([], True)
    other = await client.submit(policy.url)
    assert len((await client.until_over(other))[0]) == 3


async def test_cancel_may_let_finish_what_is_in_flight(client, policy):
    policy.gate = asyncio.Event()
    job_id = await client.submit(
        policy.url,
        episodes={"seeds": list(range(50))},
        limits={"concurrency": 2, "init_concurrency": 1},
    )
    await in_flight(client, job_id, 3)
    await client.ask("POST", f"/v1/jobs/{job_id}/cancel", in_flight="finish")
    policy.gate.set()
    traces, page = await client.until_over(job_id)
    assert 3 <= len(traces) <= 4
    assert page["state"] == "cancelled"


async def test_deleted_job_is_gone(client, policy):
    job_id = await client.submit(policy.url)
    status, _ = await client.ask("DELETE", f"/v1/jobs/{job_id}")
    assert status == 204
    status, told = await client.ask("GET", f"/v1/jobs/{job_id}")
    assert (status, told["error"]["code"]) == (404, "unknown_job")


async def test_job_of_which_nobody_asks_expires(client, policy):
    policy.gate = asyncio.Event()
    job_id = await client.submit(policy.url, lease_s=50)
    job = client.service.jobs._jobs[job_id]
    await in_flight(client, job_id, 3)
    job.seen -= 51
    await client.service.jobs.look_after_all()
    assert client.service.engines.stages.taken.total() == 0
    _, told = await client.ask("GET", f"/v1/jobs/{job_id}")
    assert told["state"] == "expired"
    assert told["error"]["code"] == "lease_expired"


async def test_asking_renews_the_lease(client, policy):
    policy.gate = asyncio.Event()
    job_id = await client.submit(policy.url, lease_s=50)
    client.service.jobs._jobs[job_id].seen -= 49
    await client.ask("GET", f"/v1/jobs/{job_id}/traces")
    await client.service.jobs.look_after_all()
    assert client.service.jobs._jobs[job_id].unseen_s < 40
    assert client.service.jobs._jobs[job_id].state == "running"


@pytest.mark.parametrize("face", ["traces?wait_s=30", "stream"])
async def test_job_does_not_expire_while_somebody_waits_for_it(client, policy, waited, face):
    policy.gate = asyncio.Event()
    job_id = await client.submit(policy.url, lease_s=50)
    await in_flight(client, job_id, 3)
    job = client.service.jobs._jobs[job_id]
    waited.clear()
    waiting = asyncio.create_task(client.ask("GET", f"/v1/jobs/{job_id}/{face}"))
    await waited.wait()
    job.seen -= 51
    await client.service.jobs.look_after_all()
    assert job.running
    policy.gate.set()
    status, _ = await waiting
    assert status == 200
    assert job.unseen_s < 40


async def test_client_that_has_gone_waits_no_longer(client, policy, waited):
    policy.gate = asyncio.Event()
    job_id = await client.submit(policy.url, lease_s=50)
    await in_flight(client, job_id, 3)
    job = client.service.jobs._jobs[job_id]
    waited.clear()
    waiting = asyncio.create_task(client.ask("GET", f"/v1/jobs/{job_id}/traces?wait_s=60"))
    await waited.wait()
    waiting.cancel()
    job.seen -= 51
    async with asyncio.timeout(10):
        while job.running:
            await client.service.jobs.look_after_all()
    assert job.state == "expired"


async def test_ended_at_once_by_several_a_job_ends_once_and_keeps_nothing_after_its_end(
    client, policy, monkeypatch
):
    policy.gate = asyncio.Event()
    job_id = await client.submit(policy.url, episodes={"seeds": list(range(20))})
    await in_flight(client, job_id, 20)
    ends = []
    monkeypatch.setattr(
        Store,
        "end",
        lambda store, *ending, end=Store.end: (ends.append(ending), end(store, *ending)),
    )
    asked = [client.ask("POST", f"/v1/jobs/{job_id}/cancel") for _ in range(3)]
    deleted = client.ask("DELETE", f"/v1/jobs/{job_id}")
    answers = await asyncio.gather(*asked, deleted)
    assert [told["state"] for status, told in answers if status == 200] == ["cancelled"] * 3
    assert len(ends) == 1
    assert client.service.store.cursor(job_id) == 0


async def test_stream_of_a_job_that_is_deleted_has_no_last_line(client, policy, waited):
    policy.gate = asyncio.Event()
    job_id = await client.submit(policy.url)
    reading = asyncio.create_task(client.ask("GET", f"/v1/jobs/{job_id}/stream"))
    await waited.wait()
    await client.ask("DELETE", f"/v1/jobs/{job_id}")
    _, text = await reading
    assert "over" not in text


async def test_ended_jobs_are_forgotten_after_a_while(policy):
    async with serving(keeping=Keeping(ended_job_s=100)) as server, Client(server.url) as client:
        job_id = await client.submit(policy.url)
        await client.until_over(job_id)
        await server.service.jobs.look_after_all()
        assert (await client.ask("GET", f"/v1/jobs/{job_id}"))[0] == 200
        server.service.jobs._jobs[job_id].seen -= 101
        await server.service.jobs.look_after_all()
        assert (await client.ask("GET", f"/v1/jobs/{job_id}"))[0] == 404
        assert server.service.store.traces(job_id, 0, 10, 10**6) == []


async def test_no_more_ended_jobs_are_kept_of_a_client_than_configured(policy):
    """Nobody's jobs make room for another client's, and those asked for last stay."""
    tokens = Tokens({f"{name}-token-0123456789": Caller(name) for name in ("one", "two")})
    keeping = Keeping(ended_jobs=2)
    async with serving(keeping=keeping, tokens=tokens) as server:
        jobs = {}
        for name, number in (("one", 4), ("two", 2)):
            async with Client(server.url, f"{name}-token-0123456789") as client:
                jobs[name] = [await client.submit(policy.url) for _ in range(number)]
                for job_id in jobs[name]:
                    await client.until_over(job_id)
        kept = server.service.jobs._jobs
        for age_s, job_id in zip((10, 40, 30, 20), jobs["one"], strict=True):
            kept[job_id].seen -= age_s
        await server.service.jobs.look_after_all()
        assert set(kept) == {jobs["one"][0], jobs["one"][3], *jobs["two"]}
        assert server.service.store.traces(jobs["one"][1], 0, 10, 10**6) == []
        assert server.service.store.traces(jobs["one"][0], 0, 10, 10**6) != []


async def test_idle_engines_are_closed(policy):
    async with serving(keeping=Keeping(idle_engine_s=0)) as server, Client(server.url) as client:
        await client.until_over(await client.submit(policy.url))
        engines = server.service.engines
        assert len(engines._engines) == 1
        await server.service.jobs.look_after_all()
        assert len(engines._engines) == 0
        assert server.service.pools._brought == {}


async def test_jobs_of_a_kind_share_an_engine(client, policy):
    for step in ("1", "2"):
        endpoint = {"base_url": policy.url, "model": "m", "weight_version": step}
        job_id = await client.submit(policy.url, policy={"endpoints": [endpoint]})
        traces, _ = await client.until_over(job_id)
        assert {turn["weight_version"] for i in traces for turn in i["trace"]["turns"]} == {step}
    assert len(client.service.engines._engines) == 1


# --- clients beside each other --------------------------------------------------------------------


async def test_clients_share_the_slots_evenly(policy):
    tokens = Tokens({MINE: Caller("me"), YOURS: Caller("you")})
    policy.gate = asyncio.Event()
    async with (
        serving(tokens=tokens) as server,
        Client(server.url, MINE) as me,
        Client(server.url, YOURS) as you,
    ):
        stages = server.service.engines.stages
        me.service = you.service = server.service
        many = await me.submit(policy.url, episodes={"seeds": list(range(400))})
        await in_flight(me, many, stages.places)
        few = await you.submit(policy.url, episodes={"seeds": [1, 2, 3]})
        policy.gate.set()
        await you.until_over(few)
        _, yours = await you.ask("GET", f"/v1/jobs/{few}")
        _, mine = await me.ask("GET", f"/v1/jobs/{many}")
        assert mine["state"] == "running" or yours["finished_at"] < mine["finished_at"]
        await me.ask("POST", f"/v1/jobs/{many}/cancel")


async def test_quota_bounds_a_clients_episodes_at_once(policy):
    tokens = Tokens({MINE: Caller("me", Quota(concurrent_episodes=3))})
    policy.gate = asyncio.Event()
    async with serving(tokens=tokens) as server, Client(server.url, MINE) as client:
        client.service = server.service
        job_id = await client.submit(policy.url, episodes={"seeds": list(range(20))})
        job = server.service.jobs._jobs[job_id]
        await job.wait(lambda: job._fed >= 4, 10)
        await policy.asked.wait()
        assert server.service.engines.stages.taken["me"] == 3
        policy.gate.set()
        assert len((await client.until_over(job_id))[0]) == 20
        assert policy.most_in_flight <= 3


@pytest.mark.parametrize(
    ("quota", "fields", "status", "code"),
    [
        ({"episodes_per_job": 2}, {}, 422, "too_many_episodes"),
        ({}, {"episodes": {"seeds": [1], "samples": 10**12}}, 422, "too_many_episodes"),
        ({}, {"episodes": {"requests": [{}] * 100_001}}, 422, "invalid_request"),
        ({"episodes_per_day": 2}, {}, 429, "quota_used_up"),
    ],
)
async def test_too_much_is_refused(policy, quota, fields, status, code):
    tokens = Tokens({MINE: Caller("me", Quota(**quota))})
    async with serving(tokens=tokens) as server, Client(server.url, MINE) as client:
        got, told = await client.ask("POST", "/v1/jobs", job(policy.url, **fields))
        assert (got, told["error"]["code"]) == (status, code)
        assert ("Retry-After" in client.headers) == (status == 429)


async def test_too_many_open_jobs_are_refused_until_one_ends(policy):
    tokens = Tokens({MINE: Caller("me", Quota(open_jobs=1))})
    policy.gate = asyncio.Event()
    async with serving(tokens=tokens) as server, Client(server.url, MINE) as client:
        first = await client.submit(policy.url)
        status, told = await client.ask("POST", "/v1/jobs", job(policy.url))
        assert (status, told["error"]["code"]) == (429, "too_many_jobs")
        assert int(client.headers["Retry-After"]) > 0
        policy.gate.set()
        await client.until_over(first)
        await client.submit(policy.url)


async def test_used_up_tokens_end_running_jobs(policy):
    tokens = Tokens({MINE: Caller("me", Quota(tokens_per_day=100))})
    async with serving(tokens=tokens) as server, Client(server.url, MINE) as client:
        job_id = await client.submit(policy.url, episodes={"seeds": [1, 2, 3, 4]}, open=True)
        job = server.service.jobs._jobs[job_id]
        await job.wait(lambda: job.cursor == 4, 10)  # 4 episodes, 8 calls, 200 tokens
        await server.service.jobs.look_after_all()
        _, told = await client.ask("GET", f"/v1/jobs/{job_id}")
        assert told["state"] == "failed"
        assert told["error"]["code"] == "quota_used_up"
        status, told = await client.ask("POST", "/v1/jobs", {**_job_of(policy)})
        assert (status, told["error"]["code"]) == (429, "quota_used_up")


async def test_what_cancelled_episodes_had_cost_counts_against_the_quota(policy):
    tokens = Tokens({MINE: Caller("me", Quota(tokens_per_day=100))})
    second_turn = asyncio.Event()
    play = policy.replies[0]

    def slow_in_the_end(body):
        if len(body["messages"]) > 2:
            second_turn.set()
            return Reply(body=play(body), delay_s=60)
        return play(body)

    policy.replies = [slow_in_the_end]
    async with serving(tokens=tokens) as server, Client(server.url, MINE) as client:
        for _ in range(4):  # of one turn each, of 25 tokens
            job_id = await client.submit(policy.url, episodes={"seeds": [1]})
            await second_turn.wait()
            second_turn.clear()
            await client.ask("POST", f"/v1/jobs/{job_id}/cancel")
        status, told = await client.ask("POST", "/v1/jobs", job(policy.url))
        assert (status, told["error"]["code"]) == (429, "quota_used_up")


def _job_of(policy):
    return job(policy.url)


async def test_a_job_is_its_clients_alone(policy):
    tokens = Tokens({MINE: Caller("me"), YOURS: Caller("you")})
    async with (
        serving(tokens=tokens) as server,
        Client(server.url, MINE) as me,
        Client(server.url, YOURS) as you,
    ):
        job_id = await me.submit(policy.url, idempotency_key="k")
        for method, path in [
            ("GET", f"/v1/jobs/{job_id}"),
            ("GET", f"/v1/jobs/{job_id}/traces"),
            ("GET", f"/v1/jobs/{job_id}/stream"),
            ("POST", f"/v1/jobs/{job_id}/cancel"),
            ("DELETE", f"/v1/jobs/{job_id}"),
        ]:
            status, told = await you.ask(method, path)
            assert (status, told["error"]["code"]) == (404, "unknown_job")
        assert (await you.ask("GET", "/v1/jobs"))[1] == {"jobs": []}
        theirs = await you.submit(policy.url, idempotency_key="k")  # keys are each client's own
        assert theirs != job_id
        assert len((await me.until_over(job_id))[0]) == 3


class SecretiveEnv(CounterEnv):
    """Knows something that nobody else may."""

    def choose_task(self, options):
        task = super().choose_task({"task_id": "counter/3"})
        return Task(task_id=task.task_id, reference="SECRET-REFERENCE")

    async def start(self, task):
        return await super().start(super().choose_task({"task_id": task.task_id}))

    def outcome(self):
        return {"value": self.value}


async def test_hidden_reference_is_in_no_answer(policy):  # case J08
    if "serving/Secretive-v0" not in gymnasium.registry:
        gymnasium.register("serving/Secretive-v0", entry_point=SecretiveEnv)
    allowed = Allowed(envs=("serving/Secretive-v0",))
    async with serving(allowed=allowed) as server, Client(server.url) as client:
        job_id = await client.submit(policy.url, env="serving/Secretive-v0")
        traces, _ = await client.until_over(job_id)
        assert len(traces) == 3
        assert all(item["trace"]["turns"] for item in traces)
        _, status = await client.ask("GET", f"/v1/jobs/{job_id}")
        told = json.dumps([traces, status])
        assert "SECRET" not in told
        assert '"reference"' not in told


async def test_counter_is_the_env_of_these_tests(client):
    _, told = await client.ask("GET", "/v1/envs")
    entry = next(each for each in told["envs"] if each["env"] == COUNTER)
    assert {"targets", "max_turns"} <= {parameter["name"] for parameter in entry["parameters"]}
    assert entry["about"]
