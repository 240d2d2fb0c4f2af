"""What crosses from one process to another: errors with their facts, clients as their endpoints."""

from __future__ import annotations

import pickle

import pytest

from agentgym.client import Endpoint
from agentgym.clients import BalancedClient
from agentgym.clients.connect import connect, connecting_by
from agentgym.clients.limiter import Limiter
from agentgym.clients.scripted import ScriptedClient
from agentgym.errors import BudgetExceeded, ContextOverflow, EmptyReply, EndpointError
from agentgym.types import Usage

ENDPOINT = Endpoint(base_url="http://127.0.0.1:9/v1", model="m", max_concurrency=8)


@pytest.mark.parametrize(
    "error",
    [
        EndpointError("down", retryable=True, status=503, usage=Usage(prompt_tokens=7)),
        EmptyReply("nothing", retryable=False),
        ContextOverflow("too long"),
        BudgetExceeded("spent"),
    ],
)
def test_errors_of_endpoints_cross_with_what_they_know(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)


def test_a_shared_client_crosses_as_its_endpoint():
    client = connect(ENDPOINT)
    packed = pickle.dumps(client)
    assert pickle.loads(packed) is client
    other = ScriptedClient(["hi"])
    with connecting_by(lambda endpoint: other):
        assert pickle.loads(packed) is other


def test_a_balanced_client_follows_another_processs_servers():
    first, second, third = (
        ENDPOINT.model_copy(update={"base_url": f"http://127.0.0.1:{port}/v1"})
        for port in (1, 2, 3)
    )
    there, here = BalancedClient([first, second]), BalancedClient([first, second])
    before = there.changes
    there.add(third, weight_version="v2")
    there.pause("127.0.0.1:2")
    assert there.changes > before
    roster = pickle.loads(pickle.dumps(there.roster))
    assert here.follow(roster, sharers=4) == []
    assert here.roster == there.roster
    assert [replica.capacity for replica in here.status()] == [2, 2, 2]
    there.resume()
    assert here.follow(there.roster[1:]) == ["127.0.0.1:1"]
    assert [(r.state, r.capacity) for r in here.status()][1:] == [("ready", 8), ("ready", 8)]


def test_a_limiter_takes_on_another_size():
    limiter = Limiter(8)
    limiter.resize(2)
    assert (limiter.allowed, limiter.take(), limiter.take(), limiter.take()) == (2, 1, 1, 0)
    limiter.resize(3)
    assert limiter.take()


async def test_a_limiter_that_has_backed_off_stays_careful_at_another_size():
    limiter = Limiter(16)
    async with limiter.slot(limiter.ticket()) as permit:
        limiter.overloaded(permit)
    limiter.resize(32)
    assert limiter.allowed == 2
