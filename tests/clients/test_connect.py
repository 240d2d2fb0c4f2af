"""One client per endpoint for the whole process, closed with the loop that used it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap

import pytest

from agentgym.client import Endpoint, SamplingParams
from agentgym.clients import ScriptedClient
from agentgym.clients.connect import connect
from agentgym.errors import ConfigError, EndpointError
from agentgym.metering import Meter, metered

HI = [{"role": "user", "content": "Hi"}]


def test_equal_endpoints_share_a_client():
    one = connect(Endpoint(base_url="http://h/v1", model="m"))
    assert connect(Endpoint(base_url="http://h/v1/", model="m")) is one
    assert connect({"base_url": "http://h/v1", "model": "m"}) is one
    assert connect(Endpoint(base_url="http://h/v1", model="other")) is not one
    assert connect(Endpoint(base_url="http://h/v1", model="m", role="judge")) is not one


def test_client_is_given_back_as_it_is():
    client = ScriptedClient(["x"])
    assert connect(client) is client


def test_role_is_filled_in_where_the_endpoint_does_not_say_it():
    endpoint = Endpoint(base_url="http://h/v1", model="m")
    assert connect(endpoint, role="judge").endpoint.role == "judge"
    assert connect(endpoint.public() | {"role": "simulator"}, role="judge").endpoint.role == (
        "simulator"
    )
    assert connect({"base_url": "http://h/v1", "model": "m"}, role="judge").endpoint.role == "judge"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "judge: expected an Endpoint, a mapping with base_url and model, or a client"),
        ("http://h/v1", "judge: expected an Endpoint"),
        ({"base_url": "http://h/v1"}, "judge: model: is missing"),
        ({"base_url": "http://h/v1", "model": "m", "modle": 1}, "did you mean 'model'"),
        ({"base_url": "http://[::1", "model": "m"}, "no usable URL"),
    ],
)
def test_refusal_is_one_line(value, message):
    with pytest.raises(ConfigError, match=message) as caught:
        connect(value, role="judge")
    assert "\n" not in str(caught.value)


async def test_refused_caller_is_reported_to_the_meter(server):
    server.replies = [(402, {"error": {"message": "no credit"}})]
    client = connect(Endpoint(base_url=server.url, model="m", role="judge"))
    meter = Meter()
    with metered(meter), pytest.raises(EndpointError):
        await client.complete(HI, (), SamplingParams())
    assert "no credit" in meter.refused["judge"]


async def test_other_failures_are_no_refusal(server):
    server.replies = [(404, {"error": {"message": "no model"}})]
    client = connect(Endpoint(base_url=server.url, model="m", role="judge"))
    meter = Meter()
    with metered(meter), pytest.raises(EndpointError):
        await client.complete(HI, (), SamplingParams())
    assert meter.refused == {}


async def test_closing_it_does_not_cut_off_the_others(server, reply):
    server.replies = [reply()]
    server.gate = asyncio.Event()
    client = connect(Endpoint(base_url=server.url, model="m"))
    async with asyncio.TaskGroup() as group:
        call = group.create_task(client.complete(HI, (), SamplingParams()))
        await server.asked.wait()
        await client.aclose()
        server.gate.set()
    assert call.result().message["content"] == "hello"


def serve_and(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, with warnings as errors and a server at `url`."""
    script = """
    import asyncio, gc, json, threading, tracemalloc
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from agentgym.client import Endpoint, SamplingParams
    from agentgym.clients.connect import connect
    from agentgym.sync import run_on_background_loop

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            message = {"role": "assistant", "content": "hello"}
            body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"

    async def ask():
        client = connect(Endpoint(base_url=url, model="m"))
        hi = [{"role": "user", "content": "Hi"}]
        return (await client.complete(hi, (), SamplingParams())).message["content"]
    """
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(script) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    "code",
    [
        "print(*(asyncio.run(ask()) for _ in range(3))); gc.collect()",
        "print(*(run_on_background_loop(ask()) for _ in range(3)))",
    ],
)
@pytest.mark.thorough
def test_nothing_is_left_open_at_the_end_of_a_loop_or_of_the_process(code):
    found = serve_and(code)
    assert (found.returncode, found.stdout) == (0, "hello hello hello\n"), found.stderr
    assert "Warning" not in found.stderr
    assert "Unclosed" not in found.stderr


def test_what_is_no_endpoint_is_refused_unshown():
    with pytest.raises(ConfigError, match="judge: expected an Endpoint, .* got a str") as caught:
        connect("http://user:hunter22@h/v1", role="judge")
    assert "hunter22" not in str(caught.value)
