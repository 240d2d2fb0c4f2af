"""Pools of policy servers: shared by the jobs that name them, changed while they play."""

from __future__ import annotations

import asyncio

import pytest
from serving import Client, Policy, job, serving

from agentgym.serve.access import Caller, Tokens

MINE, YOURS = "my-token-0123456789", "your-token-0123456789"


@pytest.fixture
async def policies():
    async with Policy() as first, Policy() as second:
        yield first, second


@pytest.fixture
async def client():
    async with serving() as server, Client(server.url) as asking:
        asking.service = server.service
        yield asking


def endpoint(policy, **fields):
    return {"base_url": policy.url, "model": "m", **fields}


async def add(client, pool, *endpoints):
    body = {"endpoints": list(endpoints)}
    status, told = await client.ask("POST", f"/v1/policies/{pool}/endpoints", body)
    assert status == 200, told
    return told


def of_pool(pool, **fields):
    return {**job("", **fields), "policy": {"pool": pool}}


async def submitted(client, pool, **fields):
    status, told = await client.ask("POST", "/v1/jobs", of_pool(pool, **fields))
    assert status == 201, told
    return told["job_id"]


async def test_jobs_play_with_the_pool_they_name(client, policies):
    first, second = policies
    await add(client, "p", endpoint(first, weight_version="1"), endpoint(second))
    job_id = await submitted(client, "p", episodes={"seeds": list(range(20))})
    traces, page = await client.until_over(job_id)
    assert page["state"] == "finished"
    assert len({turn["replica"] for item in traces for turn in item["trace"]["turns"]}) == 2
    assert first.requests
    assert second.requests


async def test_a_server_may_join_and_leave_while_a_job_plays(client, policies):
    first, second = policies
    first.gate = asyncio.Event()
    await add(client, "p", endpoint(first))
    job_id = await submitted(client, "p", episodes={"seeds": list(range(20))})
    await first.asked.wait()
    await add(client, "p", endpoint(second))
    status, told = await client.ask(
        "DELETE", "/v1/policies/p/endpoints", base_url=first.url, drain="false"
    )
    assert status == 200
    assert len(told["replicas"]) == 1
    traces, page = await client.until_over(job_id)
    assert (len(traces), page["state"]) == (20, "finished")
    assert all(item["trace"]["verdict"]["reward"] == 1.0 for item in traces)
    first.gate.set()


async def test_weight_version_changes_for_all_at_once(client, policies):
    first, second = policies
    await add(client, "p", endpoint(first), endpoint(second))
    status, told = await client.ask(
        "PATCH", "/v1/policies/p/endpoints", {"weight_version": "step-2"}
    )
    assert status == 200
    assert {replica["weight_version"] for replica in told["replicas"]} == {"step-2"}
    traces, _ = await client.until_over(await submitted(client, "p"))
    versions = {turn["weight_version"] for item in traces for turn in item["trace"]["turns"]}
    assert versions == {"step-2"}


async def test_paused_server_gets_nothing_until_it_resumes(client, policies):
    first, second = policies
    await add(client, "p", endpoint(first), endpoint(second))
    path = "/v1/policies/p/endpoints"
    await client.ask("PATCH", path, {"base_url": first.url, "paused": True})
    await client.until_over(await submitted(client, "p"))
    assert not first.requests
    await client.ask("PATCH", path, {"base_url": first.url, "paused": False})
    await client.until_over(await submitted(client, "p", episodes={"seeds": list(range(30))}))
    assert first.requests


async def test_adding_twice_changes_nothing(client, policies):
    for _ in range(2):
        told = await add(client, "p", endpoint(policies[0]))
        assert len(told["replicas"]) == 1


async def test_pool_in_use_is_not_deleted(client, policies):
    first, _ = policies
    first.gate = asyncio.Event()
    await add(client, "p", endpoint(first))
    job_id = await submitted(client, "p")
    await first.asked.wait()
    status, told = await client.ask("DELETE", "/v1/policies/p")
    assert (status, told["error"]["code"]) == (409, "pool_in_use")
    await client.ask("POST", f"/v1/jobs/{job_id}/cancel")
    first.gate.set()


async def test_deleted_pool_is_gone(client, policies):
    await add(client, "p", endpoint(policies[0]))
    assert (await client.ask("DELETE", "/v1/policies/p"))[0] == 200
    status, told = await client.ask("GET", "/v1/policies/p")
    assert (status, told["error"]["code"]) == (404, "unknown_pool")


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"base_url": "http://10.0.0.1:8000/v1"}, 403, "not_allowed"),
        ({"api_key_env": "AWS_SECRET_ACCESS_KEY"}, 403, "not_allowed"),
        ({"base_url": "ftp://x"}, 422, "invalid_request"),
        ({"model": "another"}, 422, "invalid_request"),
    ],
)
async def test_a_server_that_may_not_or_does_not_fit_is_refused(
    client, policies, fields, status, code
):
    first, second = policies
    await add(client, "p", endpoint(first))
    body = {"endpoints": [endpoint(second, **fields)]}
    got, told = await client.ask("POST", "/v1/policies/p/endpoints", body)
    assert (got, told["error"]["code"]) == (status, code), told
    _, told = await client.ask("GET", "/v1/policies/p")
    assert len(told["replicas"]) == 1


async def test_unknown_server_and_odd_pool_names_are_refused(client, policies):
    await add(client, "p", endpoint(policies[0]))
    change = {"base_url": "http://127.0.0.1:1/v1", "paused": True}
    status, told = await client.ask("PATCH", "/v1/policies/p/endpoints", change)
    assert (status, told["error"]["code"]) == (404, "unknown_endpoint")
    body = {"endpoints": [endpoint(policies[0])]}
    status, told = await client.ask("POST", "/v1/policies/..%2Fx/endpoints", body)
    assert status in (404, 422)


async def test_a_pool_is_its_clients_alone(policies):
    tokens = Tokens({MINE: Caller("me"), YOURS: Caller("you")})
    async with (
        serving(tokens=tokens) as server,
        Client(server.url, MINE) as me,
        Client(server.url, YOURS) as you,
    ):
        await add(me, "p", endpoint(policies[0]))
        assert (await you.ask("GET", "/v1/policies"))[1] == {"pools": []}
        status, told = await you.ask("POST", "/v1/jobs", of_pool("p"))
        assert (status, told["error"]["code"]) == (404, "unknown_pool")
