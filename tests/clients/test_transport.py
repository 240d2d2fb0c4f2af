"""Connections: how many, in which loops, how long, and how they end."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import textwrap
import warnings
from base64 import b64encode

import pytest
from pydantic import ValidationError

from agentgym.client import Endpoint, SamplingParams
from agentgym.clients import ChatClient
from agentgym.errors import EndpointError
from agentgym.sync import run_on_background_loop
from agentgym.testing.quirky import QuirkyServer, Reply, Stream, answer

ASK = [{"role": "user", "content": "Hi"}]
SAMPLING = SamplingParams(max_tokens=64)


async def ask(client):
    return await client.complete(ASK, (), SAMPLING)


# --- many at once -----------------------------------------------------------------------------


async def test_all_slots_are_used_and_no_more(server, make_client):
    """E08: nothing times out in a queue, whatever the HTTP library's own pool would allow."""
    full = asyncio.Event()

    def count(body):
        if server.in_flight == 256:
            full.set()
        return answer()

    server.gate, server.replies = asyncio.Event(), [count]
    client = make_client(max_concurrency=256, max_retries=0)
    calls = [asyncio.create_task(ask(client)) for _ in range(500)]
    while server.in_flight < 256:  # real sockets: no event of ours says when
        await asyncio.wait(calls, timeout=0.01)
    assert (client.limiter.in_flight, client.limiter.waiting) == (256, 244)
    server.gate.set()
    got = await asyncio.gather(*calls)
    assert len(got) == 500
    assert server.most_in_flight == 256


@pytest.mark.thorough
async def test_more_than_a_thousand_connections_are_open_at_once(server, make_client):
    """openai's client and most HTTP libraries stop at 1,000 or 100."""
    server.gate = asyncio.Event()
    client = make_client(max_concurrency=1200, max_retries=0)
    calls = [asyncio.create_task(ask(client)) for _ in range(1200)]
    while server.in_flight < 1200:
        await asyncio.wait(calls, timeout=0.01)
    server.gate.set()
    assert len(await asyncio.gather(*calls)) == 1200


async def test_waiting_for_a_slot_uses_up_neither_time_out_nor_deadline(server, make_client):
    server.replies = [Reply(body=answer(), delay_s=0.2)]
    client = make_client(max_concurrency=1, timeout_s=2.0, deadline_s=2.0, max_retries=0)
    got = await asyncio.gather(*(ask(client) for _ in range(12)))
    assert len(got) == 12


async def test_overloaded_server_is_given_room_until_every_call_is_through(server, make_client):
    """E13: at capacity a server answers 503 with Retry-After, and the client queues."""

    def crowded(body):
        if server.in_flight > 4:
            return 503, {"error": {"message": "at capacity"}}, {"Retry-After": "1"}
        return answer()

    server.replies = [crowded]
    client = make_client(max_concurrency=64, max_retries=10, deadline_s=1000)
    got = await asyncio.gather(*(ask(client) for _ in range(64)))
    assert {completion.message["content"] for completion in got} == {"hello"}


async def test_the_limiter_backs_off_and_recovers(server, make_client):
    server.replies = [(429, {"error": {"message": "slow"}}, {"Retry-After": "3"}), answer()]
    client = make_client(max_concurrency=32)
    await ask(client)
    assert client.limiter.allowed < 32
    assert client.pauses == [3.0]
    for _ in range(300):
        await ask(client)
    assert client.limiter.allowed == 32


async def test_an_empty_account_is_no_overload(server, make_client):
    server.replies = [(429, {"error": {"code": "insufficient_quota", "message": "pay"}})]
    client = make_client()
    with pytest.raises(EndpointError, match="no credit"):
        await ask(client)
    assert client.limiter.allowed == client.endpoint.max_concurrency


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        (
            {
                "Date": "Wed, 21 Oct 2026 07:28:00 GMT",
                "Retry-After": "Wed, 21 Oct 2026 07:28:09 GMT",
            },
            9.0,
        ),
        ({"Retry-After": "8.5"}, 8.5),
    ],
)
async def test_retry_after_is_understood_as_seconds_and_as_a_date(
    server, make_client, headers, pause
):
    server.replies = [(429, {"error": {"message": "slow"}}, headers), answer()]
    client = make_client()
    await ask(client)
    assert client.pauses == [pause]


@pytest.mark.parametrize("value", ["soon", "-5", "nan", "inf", "Wed, 99 Oct 2026 07:28:09 GMT"])
async def test_senseless_retry_after_is_an_ordinary_pause(server, make_client, value):
    server.replies = [(429, {"error": {"message": "slow"}}, {"Retry-After": value}), answer()]
    client = make_client()
    await ask(client)
    assert 0.25 <= client.pauses[0] <= 0.5


# --- time -------------------------------------------------------------------------------------


async def test_retries_do_not_multiply_the_deadline(server):
    """E07: openai-python#3828."""
    server.replies = [Reply(hangs=True)]
    client = ChatClient(
        Endpoint(base_url=server.url, model="m", timeout_s=0.2, deadline_s=0.5, max_retries=50)
    )
    with pytest.raises(EndpointError, match="no answer"):
        await ask(client)
    assert len(server.requests) <= 3
    await client.aclose()


@pytest.mark.parametrize("field", ["timeout_s", "deadline_s"])
@pytest.mark.parametrize("value", [None, float("inf"), 0])
def test_there_is_no_way_to_wait_for_ever(field, value):
    """E07: openai-python#809."""
    with pytest.raises(ValidationError, match=field):
        Endpoint(base_url="http://h/v1", model="m", **{field: value})


# --- loops and threads ------------------------------------------------------------------------


@pytest.fixture
def threaded():
    with QuirkyServer(answer()) as found:
        yield found


def client_of(server, **fields):
    return ChatClient(Endpoint(base_url=server.url, model="m", **fields))


def test_one_client_serves_loop_after_loop_and_leaves_nothing_open(threaded):
    """E10: closing is not needed for that; the connections end with their loop."""
    client = client_of(threaded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert asyncio.run(ask(client)).message["content"] == "hello"
            gc.collect()


async def test_a_client_that_nobody_closes_leaves_nothing_open(server):
    for _ in range(3):
        await ask(client_of(server))
        gc.collect()
    # Its connections are closed by a task of the loop's own.
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.mark.thorough
def test_a_process_that_closes_nothing_ends_in_silence(threaded):
    program = f"""
        import asyncio
        from agentgym.client import Endpoint, SamplingParams
        from agentgym.clients import ChatClient
        from agentgym.sync import run_on_background_loop
        client = ChatClient(Endpoint(base_url={threaded.url!r}, model="m"))
        ask = lambda: client.complete([{{"role": "user", "content": "Hi"}}], (), SamplingParams())
        print(run_on_background_loop(ask()).message["content"])
        print(asyncio.run(ask()).message["content"])
    """
    command = [sys.executable, "-X", "dev", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout.split(), done.stderr) == (["hello", "hello"], "")


async def test_one_client_serves_several_threads_and_a_running_loop(threaded):
    """E10: pydantic-ai#180."""
    client = client_of(threaded, max_concurrency=4)

    async def several():
        return await asyncio.gather(*(ask(client) for _ in range(10)))

    got = await asyncio.gather(
        several(),
        *(asyncio.to_thread(asyncio.run, several()) for _ in range(4)),
        asyncio.to_thread(run_on_background_loop, several()),
    )
    assert sum(map(len, got)) == 60
    assert client.usage.calls == 60
    assert threaded.most_in_flight <= 4
    await client.aclose()


def test_a_forked_process_does_not_wait_for_the_calls_of_its_parent(threaded):
    """Vector environments fork while other calls are in flight."""
    program = f"""
        import asyncio, multiprocessing, threading
        from agentgym.client import Endpoint, SamplingParams
        from agentgym.clients import ChatClient
        client = ChatClient(Endpoint(
            base_url={threaded.url!r}, model="m", max_concurrency=1,
            budget_usd=0.001, prices={{"input": 0, "output": 1}},  # for one call at a time
        ))
        client.budget.spent_usd = 0.0001
        sampling = SamplingParams(max_tokens=900)
        ask = lambda: client.complete([{{"role": "user", "content": "Hi"}}], (), sampling)
        async def call():
            async with client.budget.reserved(0, 0, 900), client.limiter.slot(0):
                sent.set()
                await asyncio.get_running_loop().create_future()
        def child(answers):
            answers.put(asyncio.run(ask()).message["content"])
            answers.put(round(client.budget.spent_usd, 6))
        sent = threading.Event()
        threading.Thread(target=asyncio.run, args=(call(),), daemon=True).start()
        sent.wait()
        context = multiprocessing.get_context("fork")
        answers = context.Queue()
        context.Process(target=child, args=(answers,), daemon=True).start()
        print(answers.get(timeout=60), answers.get(timeout=60))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("hello 0.000105\n", "")


async def test_closing_ends_the_calls_in_flight_with_a_clear_error(server, make_client):
    server.replies = [Reply(hangs=True)]
    client = make_client(max_concurrency=1)
    calls = [asyncio.create_task(ask(client)) for _ in range(2)]  # one sent, one in the queue
    await server.asked.wait()
    await client.aclose()
    for call in calls:
        with pytest.raises(EndpointError, match="closed while this call was in flight"):
            await call
    assert client.limiter.in_flight == 0


async def test_a_closed_client_can_be_used_again(server, make_client):
    client = make_client()
    await ask(client)
    await client.aclose()
    await client.aclose()
    assert (await ask(client)).message["content"] == "hello"


async def test_cancelled_call_of_the_caller_stays_a_cancellation(server, make_client):
    server.replies = [Reply(hangs=True)]
    call = asyncio.create_task(ask(make_client()))
    await server.asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


# --- what comes back --------------------------------------------------------------------------


@pytest.mark.parametrize("cut_after", [0, 10])
async def test_connection_cut_in_the_middle_is_retried(server, make_client, cut_after):
    server.replies = [Reply(body=answer(), cut_after=cut_after), answer("good")]
    assert (await ask(make_client())).message["content"] == "good"


async def test_server_that_sends_requests_elsewhere_is_named(server, make_client):
    server.replies = [(308, "", {"Location": "https://u:pa55word@new.host/v1?key=s3cret"})]
    with pytest.raises(EndpointError, match=r"308.*https://new\.host/v1; set base_url") as caught:
        await ask(make_client())
    assert len(server.requests) == 1
    assert "pa55word" not in str(caught.value)


async def test_server_that_does_not_speak_http_is_an_error_that_may_pass(make_client):
    async def babble(reader, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    babbler = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = babbler.sockets[0].getsockname()[1]
    client = make_client(base_url=f"http://127.0.0.1:{port}/v1", max_retries=1)
    with pytest.raises(EndpointError, match="after 2 attempts") as caught:
        await ask(client)
    assert caught.value.retryable
    babbler.close()
    await babbler.wait_closed()


# --- secrets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["user:pa55word@", "t0ken-as-user@"])
@pytest.mark.parametrize("at", [0, *range(100, 240, 20), 560, 580])
async def test_no_echo_of_a_request_shows_a_secret_wherever_it_is_cut(
    server, make_client, monkeypatch, user, at
):
    """J10: a debugging proxy that tells what it was sent."""
    monkeypatch.setenv("SOME_KEY", "sk-test-12345")
    secrets = [
        "sk-test-12345",
        "k3y-in-query",
        "pa55word",
        "t0ken-as-user",
        "xtra-1234",
        "n3sted-12",
    ]
    secrets += [b64encode(pair).decode() for pair in (b"user:pa55word", b"t0ken-as-user:")]

    def echo(body):
        query, headers = server.queries[-1], server.headers[-1]
        word = user[:-1].rpartition(":")[2]
        text = f"{'.' * at}{headers['Authorization']} {query} {body} {word} sk-test-12345"
        status = len(server.requests)
        return (400, text) if status == 1 else (200, text) if status == 2 else Stream(events=[text])

    server.replies = [echo]
    client = make_client(
        base_url=server.url.replace("//", f"//{user}") + "?key=k3y-in-query",
        api_key_env="SOME_KEY",
        extra_body={"api_key": "xtra-1234", "provider": {"auth": [{"name": "n3sted-12"}]}},
        max_retries=0,
    )
    for _ in range(3):
        with pytest.raises(EndpointError) as caught:
            await ask(client)
        shown = f"{caught.value!s}{client!r}"
        hinted = [secret for secret in secrets if secret[:6] in shown]
        assert not hinted


@pytest.mark.parametrize("quirk", ["401", "500", "cut", "hang", "nobody", "html"])
async def test_no_failure_and_no_log_shows_a_secret(
    server, make_client, monkeypatch, caplog, quirk
):
    """J10: keys in headers, in URLs, in servers' own words."""
    monkeypatch.setenv("SOME_KEY", "sk-test-12345")
    echo = "bad key sk-test-12345, bad query k3y-in-query"
    url = server.url.replace("//", "//user:pa55word@") + "?key=k3y-in-query"
    replies = {
        "401": (401, {"error": {"message": echo}}),
        "500": (500, echo),
        "cut": Reply(body=answer(), cut_after=5),
        "hang": Reply(hangs=True),
        "html": f"<html>{echo}</html>",
        "nobody": answer(),
    }
    server.replies = [replies[quirk]]
    if quirk == "nobody":
        url = "http://user:pa55word@127.0.0.1:9/v1?key=k3y-in-query"
    client = make_client(base_url=url, api_key_env="SOME_KEY", timeout_s=0.3, max_retries=2)
    with caplog.at_level(logging.DEBUG), pytest.raises(EndpointError) as caught:
        await ask(client)
    shown = f"{caplog.text}{caught.value!s}{caught.value!r}{client!r}{client.endpoint!r}"
    for secret in ("sk-test-12345", "k3y-in-query", "pa55word"):
        assert secret not in shown


def test_no_form_of_an_endpoint_shows_a_secret_that_it_never_holds(monkeypatch):
    """J11."""
    monkeypatch.setenv("SOME_KEY", "sk-test-12345")
    endpoint = Endpoint(base_url="http://h/v1", model="m", api_key_env="SOME_KEY")
    shown = f"{endpoint!r}{endpoint}{endpoint.model_dump()}{endpoint.model_dump_json()}"
    assert "sk-test-12345" not in shown
    assert "SOME_KEY" in shown
