"""The fault proxy: each kind of fault as a client meets it, and a count that is the server's."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from agentgym.errors import ConfigError
from agentgym.testing.faulty import FAULT_KINDS, FaultProxy, evenly
from agentgym.testing.quirky import QuirkyServer, answer

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
EXECUTED = {"delay", "lost", "cut", "drip"}


def run(main):
    return asyncio.run(main)


async def asked(proxy, body=BODY, *, patience_s=20.0):
    """One request on a connection of its own: the status and the answer's JSON."""
    timeout = aiohttp.ClientTimeout(total=patience_s)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(f"{proxy.url}/chat/completions", json=body) as reply,
    ):
        return reply.status, reply.headers.get("Retry-After"), await reply.json()


async def one_fault(kind, **options):
    """What a client gets of a fault, and the proxy afterwards."""
    patience_s = options.pop("patience_s", 20.0)
    async with (
        QuirkyServer(answer("hello")) as server,
        FaultProxy(server.url, {kind: 1.0}, **options) as proxy,
    ):
        try:
            outcome = await asked(proxy, patience_s=patience_s)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            outcome = error
        return outcome, proxy, len(server.requests)


def test_without_faults_answers_pass_and_are_counted():
    async def main():
        async with QuirkyServer(answer("hello")) as server, FaultProxy(server.url, {}) as proxy:
            (status, _, body), *_ = [await asked(proxy) for _ in range(3)]
            return status, body, proxy.counted["m"]

    status, body, counted = run(main())
    assert (status, body["choices"][0]["message"]["content"]) == (200, "hello")
    assert (counted.asked, counted.executed, counted.delivered, counted.lost) == (3, 3, 3, 0)
    assert counted.delivered_usage.prompt_tokens == 60
    assert counted.delivered_usage.calls == 3


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_server_executes_exactly_the_faults_that_come_after_it(kind):
    outcome, proxy, executed = run(one_fault(kind, patience_s=0.5))
    assert executed == proxy.counted["m"].executed == (kind in EXECUTED)
    assert proxy.faults == {kind: 1}
    delivered = isinstance(outcome, tuple) and outcome[0] == 200
    assert proxy.counted["m"].delivered == delivered == (kind in {"delay", "drip"})


def test_busy_comes_with_and_without_a_hint():
    (status, hint, _), *_ = run(one_fault("busy_hinted", retry_after_s=3))
    assert (status, hint) == (429, "3")
    (status, hint, _), *_ = run(one_fault("busy"))
    assert (status, hint) == (429, None)


def test_error_is_a_servers():
    (status, *_), *_ = run(one_fault("error"))
    assert status in (500, 502, 503, 504)


def test_half_open_connection_is_never_answered():
    outcome, *_ = run(one_fault("half_open", patience_s=0.2))
    assert isinstance(outcome, TimeoutError)


def test_reset_is_a_reset_and_a_lost_answer_a_plain_end():
    outcome, *_ = run(one_fault("reset"))
    assert isinstance(outcome, ConnectionResetError | aiohttp.ClientOSError)
    outcome, *_ = run(one_fault("lost"))
    assert isinstance(outcome, aiohttp.ServerDisconnectedError)


def test_cut_body_ends_in_the_middle():
    outcome, *_ = run(one_fault("cut"))
    assert isinstance(outcome, aiohttp.ClientPayloadError)


def test_same_seed_breaks_the_same_requests_whatever_their_order():
    bodies = [{**BODY, "messages": [{"role": "user", "content": str(k)}]} for k in range(60)]

    async def broken(order, seed):
        async with (
            QuirkyServer(answer("hello")) as server,
            FaultProxy(server.url, {"error": 0.3}, seed=seed) as proxy,
        ):
            replies = {k: (await asked(proxy, bodies[k]))[0] for k in order}
            return {k for k, status in replies.items() if status != 200}

    first = run(broken(range(60), 1))
    assert 5 < len(first) < 35
    assert run(broken(reversed(range(60)), 1)) == first
    assert run(broken(range(60), 2)) != first


def test_server_works_on_when_the_client_has_gone():
    async def main():
        async with QuirkyServer(answer("hello")) as server, FaultProxy(server.url, {}) as proxy:
            server.gate = asyncio.Event()
            impatient = asyncio.create_task(asked(proxy))
            await server.asked.wait()
            impatient.cancel()
            await asyncio.gather(impatient, return_exceptions=True)
            server.gate.set()
            await proxy.settled()
            return proxy.counted["m"]

    counted = run(main())
    assert (counted.executed, counted.delivered, counted.lost) == (1, 0, 1)


@pytest.mark.parametrize("kind", ["delay", "cut", "drip"])
def test_client_that_has_gone_is_no_error_and_got_nothing(monkeypatch, caplog, kind):
    async def gone(request, answer):
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr("agentgym.testing.faulty._begun", gone)
    _, proxy, executed = run(one_fault(kind))
    assert (proxy.counted["m"].executed, proxy.counted["m"].delivered) == (executed, 0)
    assert executed > 0
    assert caplog.records == []


def test_faults_may_be_one_models_only():
    async def main():
        async with (
            QuirkyServer(answer("hello")) as server,
            FaultProxy(server.url, {"error": 1.0}, only={"judge"}) as proxy,
        ):
            replies = [await asked(proxy, {**BODY, "model": name}) for name in ("m", "judge")]
            return [status for status, *_ in replies]

    ours, judges = run(main())
    assert (ours, judges >= 500) == (200, True)


def test_streamed_answers_are_counted_too():
    async def main():
        body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
        async with QuirkyServer(answer("hello")) as server, FaultProxy(server.url, {}) as proxy:
            url = f"{proxy.url}/chat/completions"
            async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
                return await reply.text(), proxy.counted["m"].delivered_usage

    text, usage = run(main())
    assert text.endswith("data: [DONE]\n\n")
    assert (usage.prompt_tokens, usage.completion_tokens) == (20, 5)


def test_server_that_is_gone_is_a_bad_gateway_and_bills_nothing():
    async def main():
        async with FaultProxy("http://127.0.0.1:9", {}) as proxy:
            status, *_ = await asked(proxy)
            return status, proxy.counted["m"].executed

    assert run(main()) == (502, 0)


def test_runs_on_a_thread_of_its_own():
    with QuirkyServer(answer("hello")) as server, FaultProxy(server.url, {}) as proxy:
        assert run(asked(proxy))[0] == 200


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"dely": 0.1}, "did you mean 'delay'"),
        ({"delay": -0.1}, "0 to 1"),
        ({"delay": 0.6, "cut": 0.6}, "at most 1 together, got 1.2"),
    ],
)
def test_wrong_shares_are_refused(shares, message):
    with pytest.raises(ConfigError, match=message):
        FaultProxy("http://127.0.0.1:9", shares)


def test_evenly_makes_every_kind_as_likely():
    shares = evenly(0.18)
    assert set(shares) == set(FAULT_KINDS)
    assert sum(shares.values()) == pytest.approx(0.18)
