"""A service that is gone and back: accepted work goes on, finished work stays, cursors hold."""

from __future__ import annotations

import asyncio
import json

import pytest
from serving import FLAKY, Client, Policy, config_for_tests, serving

from agentgym.serve.allowed import addresses_of
from agentgym.serve.config import ServiceConfig
from agentgym.serve.server import ServiceServer
from agentgym.serve.store import Store
from agentgym.serve.store_records import StoreError, StoreFull


@pytest.fixture
async def policy():
    async with Policy() as server:
        yield server


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.db"


async def test_restart_goes_on_with_what_is_missing(policy, path):
    fields = {"episodes": {"seeds": list(range(30))}, "idempotency_key": "k"}
    limits = {"limits": {"concurrency": 2, "init_concurrency": 1}}
    async with serving(store=path) as server, Client(server.url) as client:
        job_id = await client.submit(policy.url, **fields, **limits)
        job = server.service.jobs._jobs[job_id]
        await job.wait(lambda: job.cursor >= 5, 10)
        before = (await client.ask("GET", f"/v1/jobs/{job_id}/traces", limit=1000))[1]["traces"]
    begun = policy.begun.total()
    async with serving(store=path) as server, Client(server.url) as client:
        cursor = before[-1]["cursor"]
        rest, page = await client.until_over(job_id, after=cursor)
        assert page["state"] == "finished"
        seeds = [item["trace"]["seed"] for item in before + rest]
        assert sorted(seeds) == list(range(30))
        again = await client.submit(policy.url, **fields, **limits)  # the key holds as well
        assert again == job_id
        assert policy.begun.total() <= begun + 30 - len(before)
        _, told = await client.ask("GET", f"/v1/jobs/{job_id}")
        assert told["episodes"]["finished"] == told["episodes"]["scored"] == 30
        assert told["usage"]["policy"]["calls"] == 60


async def test_ended_jobs_keep_their_traces_over_a_restart(policy, path):
    async with serving(store=path) as server, Client(server.url) as client:
        job_id = await client.submit(policy.url)
        before, _ = await client.until_over(job_id)
        cancelled = await client.submit(policy.url)
        await client.ask("POST", f"/v1/jobs/{cancelled}/cancel")
    async with serving(store=path) as server, Client(server.url) as client:
        assert (await client.until_over(job_id))[0] == before
        _, told = await client.ask("GET", f"/v1/jobs/{cancelled}")
        assert told["state"] in ("cancelled", "finished")


async def test_open_job_stays_open_over_a_restart(policy, path):
    async with serving(store=path) as server, Client(server.url) as client:
        job_id = await client.submit(policy.url, episodes={"seeds": [1]}, open=True)
    async with serving(store=path) as server, Client(server.url) as client:
        more = {"after": 1, "requests": [{"seed": 2}], "last": True}
        await client.ask("POST", f"/v1/jobs/{job_id}/episodes", more)
        traces, _ = await client.until_over(job_id)
        assert sorted(item["trace"]["seed"] for item in traces) == [1, 2]


async def test_early_stop_counts_what_was_there_before_the_restart(policy, path):
    fields = {
        "episodes": {"seeds": list(range(60))},
        "enough": {"episodes": 20},
        "limits": {"concurrency": 1, "init_concurrency": 1},
    }
    async with serving(store=path) as server, Client(server.url) as client:
        job_id = await client.submit(policy.url, **fields)
        job = server.service.jobs._jobs[job_id]
        await job.wait(lambda: job.cursor >= 10, 10)
    async with serving(store=path) as server, Client(server.url) as client:
        traces, page = await client.until_over(job_id)
        assert page["state"] == "finished"
        assert 20 <= len(traces) <= 24


async def test_pools_are_there_after_a_restart(policy, path):
    async with serving(store=path) as server, Client(server.url) as client:
        endpoint = {"base_url": policy.url, "model": "m", "weight_version": "3"}
        await client.ask("POST", "/v1/policies/p/endpoints", {"endpoints": [endpoint]})
        await client.ask("PATCH", "/v1/policies/p/endpoints", {"paused": True})
        _, before = await client.ask("GET", "/v1/policies/p")
    async with serving(store=path) as server, Client(server.url) as client:
        assert (await client.ask("GET", "/v1/policies/p"))[1] == before
        assert before["replicas"][0]["state"] == "paused"
        assert before["replicas"][0]["weight_version"] == "3"


async def test_job_that_is_no_longer_allowed_fails_after_a_restart(policy, path):
    policy.gate = asyncio.Event()
    async with serving(store=path) as server, Client(server.url) as client:
        job_id = await client.submit(policy.url)
    config = config_for_tests(store=path)
    stricter = config.allowed.model_copy(update={"policy_hosts": ("10.0.0.0/8",)})
    config = config.model_copy(update={"allowed": stricter})
    async with serving(config) as server, Client(server.url) as client:
        traces, page = await client.until_over(job_id)
        assert (traces, page["state"], page["error"]["code"]) == ([], "failed", "not_allowed")


async def test_job_waits_for_names_that_can_not_be_looked_up_after_a_restart(
    policy, path, monkeypatch
):
    config = config_for_tests(store=path)
    allowed = config.allowed.model_copy(update={"policy_hosts": ("127.0.0.0/8",)})
    config = config.model_copy(update={"allowed": allowed})
    url = policy.url.replace("127.0.0.1", "localhost")
    policy.gate = asyncio.Event()
    async with serving(config) as server, Client(server.url) as client:
        job_id = await client.submit(url, policy={"endpoints": [{"base_url": url, "model": "m"}]})
        pool = {"endpoints": [{"base_url": url, "model": "m"}]}
        await client.ask("POST", "/v1/policies/main/endpoints", pool)
    policy.gate.set()
    looked_up = []

    def nowhere_at_first(host):
        looked_up.append(host)
        return addresses_of(host) if len(looked_up) > 12 else []

    monkeypatch.setattr("agentgym.serve.allowed.addresses_of", nowhere_at_first)
    monkeypatch.setattr("agentgym.serve.job_player._LONGEST_PAUSE_S", 0)
    async with serving(config) as server, Client(server.url) as client:
        traces, page = await client.until_over(job_id)
        assert (len(traces), page["state"]) == (3, "finished")
        _, told = await client.ask("GET", "/v1/policies/main")
        assert len(told["replicas"]) == 1


async def test_pool_has_only_servers_that_are_still_allowed_after_a_restart(policy, path):
    config = config_for_tests(store=path)
    pool = {"endpoints": [{"base_url": policy.url, "model": "m"}]}
    async with serving(config) as server, Client(server.url) as client:
        await client.ask("POST", "/v1/policies/main/endpoints", pool)
    stricter = config.allowed.model_copy(update={"policy_hosts": ("10.0.0.0/8",)})
    config = config.model_copy(update={"allowed": stricter})
    async with serving(config) as server, Client(server.url) as client:
        assert (await client.ask("GET", "/v1/policies/main"))[0] == 404


async def test_one_job_that_can_not_be_read_keeps_no_other_from_going_on(policy, path):
    policy.gate = asyncio.Event()
    async with serving(store=path) as server, Client(server.url) as client:
        odd, fine = await client.submit(policy.url), await client.submit(policy.url)
        (text,) = {job.spec for job in server.service.store.jobs() if job.job_id == odd}
        spec = json.dumps({**json.loads(text), "of_another_version": 1})
        server.service.store._db.execute("UPDATE jobs SET spec = ? WHERE job_id = ?", (spec, odd))
    policy.gate.set()
    async with serving(store=path) as server, Client(server.url) as client:
        assert len((await client.until_over(fine))[0]) == 3
        assert (await client.ask("GET", f"/v1/jobs/{odd}"))[0] == 404
        assert odd in {job.job_id for job in server.service.store.jobs()}


async def test_store_that_can_not_be_read_is_one_line(path):
    store = Store(path)
    store._db.execute("DROP TABLE replicas")
    store.close()
    with pytest.raises(StoreError, match="can't be read: no such table"):
        async with serving(store=path):
            pytest.fail("it started")
    Store(path).close()


async def test_full_disk_holds_a_job_up_and_loses_nothing(policy, path, monkeypatch):
    monkeypatch.setattr("agentgym.serve.job._FULL_PAUSE_S", (0.01, 0.05))
    policy.gate = asyncio.Event()
    async with serving(store=path) as server, Client(server.url) as client:
        job_id = await client.submit(policy.url, episodes={"seeds": list(range(40))})
        job = server.service.jobs._jobs[job_id]
        store = server.service.store

        def resize(pages):
            (least,) = store._db.execute("PRAGMA page_count").fetchone()
            store._db.execute(f"PRAGMA max_page_count = {least + pages}")

        await store.do(lambda _: resize(0))
        policy.gate.set()
        await job.wait(lambda: job.error is not None, 10)
        _, told = await client.ask("GET", f"/v1/jobs/{job_id}")
        assert (told["state"], told["error"]["code"]) == ("running", "storage_full")
        status, told = await client.ask("POST", "/v1/jobs", _large_job(policy.url))
        assert (status, told["error"]["code"]) == (507, "storage_full")
        await store.do(lambda _: resize(10_000))
        traces, page = await client.until_over(job_id)
        assert sorted(item["trace"]["seed"] for item in traces) == list(range(40))
        assert (page["state"], page["error"]) == ("finished", None)


def _large_job(url):
    return {
        "env": FLAKY,
        "episodes": {"seeds": list(range(3000))},
        "policy": {"endpoints": [{"base_url": url, "model": "m"}]},
    }


def _no_room(store, *args):
    raise StoreFull("no room")


async def test_job_cancelled_while_the_disk_was_full_stays_cancelled(policy, path):
    policy.gate = asyncio.Event()
    async with serving(store=path) as server, Client(server.url) as client:
        job_id = await client.submit(policy.url)
        await server.service.jobs.look_after_all()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Store, "end", _no_room)
            _, told = await client.ask("POST", f"/v1/jobs/{job_id}/cancel")
            assert told["state"] == "cancelled"
        await server.service.jobs.look_after_all()
    async with serving(store=path) as server, Client(server.url) as client:
        assert (await client.ask("GET", f"/v1/jobs/{job_id}"))[1]["state"] == "cancelled"


async def test_full_disk_does_not_keep_a_job_from_being_cancelled(policy, path, monkeypatch):
    monkeypatch.setattr("agentgym.serve.job._FULL_PAUSE_S", (0.01, 0.05))
    async with serving(store=path) as server, Client(server.url) as client:
        job_id = await client.submit(policy.url, episodes={"seeds": list(range(40))})
        job = server.service.jobs._jobs[job_id]

        monkeypatch.setattr(Store, "keep", _no_room)
        await job.wait(lambda: job.error is not None, 10)
        status, told = await client.ask("POST", f"/v1/jobs/{job_id}/cancel")
        assert (status, told["state"]) == (200, "cancelled")


async def test_drain_lets_finish_what_is_in_flight_and_takes_nothing_more(policy, path):
    policy.gate = asyncio.Event()
    config = config_for_tests(store=path, drain_s=30)
    async with serving(config) as server, Client(server.url) as client:
        job_id = await client.submit(
            policy.url,
            episodes={"seeds": list(range(20))},
            limits={"concurrency": 2, "init_concurrency": 1},
        )
        job = server.service.jobs._jobs[job_id]
        await job.wait(lambda: job.in_flight >= 3, 10)
        server.stop()
        await job.wait(lambda: job.ending == "drain", 10)
        assert await client.ask("GET", "/readyz") == (503, "not ready\n")
        status, told = await client.ask("POST", "/v1/jobs", _large_job(policy.url))
        assert (status, told["error"]["code"]) == (503, "draining")
        policy.gate.set()
        await job.wait(lambda: job.task.done(), 10)
        assert 3 <= job.cursor <= 4
    async with serving(store=path) as server, Client(server.url) as client:
        traces, _ = await client.until_over(job_id)
        assert sorted(item["trace"]["seed"] for item in traces) == list(range(20))


async def test_no_secret_is_in_answers_or_on_disk(path, monkeypatch):  # cases J10, J11
    secret = "hunter2-very-secret-0123"
    monkeypatch.setenv("SOME_PROVIDER_API_KEY", secret)
    monkeypatch.setenv("AGENTGYM_SERVICE_TOKEN", "the-token-0123456789")
    from agentgym.serve.access import Tokens
    from agentgym.testing.quirky import QuirkyServer, answer

    refusing = (401, {"error": {"message": f"bad key {secret}"}})
    async with QuirkyServer(answer(f"my key is {secret}"), refusing) as policy:
        config = config_for_tests(store=path, tokens=Tokens.read())
        async with serving(config) as server, Client(server.url, "the-token-0123456789") as client:
            job_id = await client.submit(policy.url, episodes={"seeds": [1, 2, 3]})
            traces, page = await client.until_over(job_id)
            _, status = await client.ask("GET", f"/v1/jobs/{job_id}")
            told = json.dumps([traces, page, status, (await client.ask("GET", "/v1/status"))[1]])
            assert page["state"] == "failed"
    for text in (told, *(p.read_bytes().decode("latin-1") for p in path.parent.iterdir())):
        assert secret not in text
        assert "the-token-0123456789" not in text


def test_second_service_on_a_store_does_not_start(path):
    first = ServiceServer(ServiceConfig(port=0, store=path))
    with pytest.raises(Exception, match="in use by another service"):
        ServiceServer(ServiceConfig(port=0, store=path))
    first._socket.close()
    first.service.store.close()
