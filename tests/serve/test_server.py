"""The socket that a service listens on."""

from __future__ import annotations

import re
import socket

import pytest
from serving import COUNTER, Client, config_for_tests, serving

from agentgym.serve.request_page import request_page
from agentgym.serve.server import ServiceServer, reachable


def test_answers_on_a_kept_connection_wait_for_no_acknowledgement():
    server = ServiceServer(config_for_tests())
    with server._socket as listening, socket.create_connection(("127.0.0.1", server.port)):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    server.service.store.close()


@pytest.mark.parametrize(
    ("listens", "called"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "::1"),
        ("10.0.0.7", "10.0.0.7"),
        ("localhost", "localhost"),
        ("::1", "::1"),
    ],
)
def test_what_listens_everywhere_is_called_on_the_loopback(listens, called):
    assert reachable(listens) == called


async def test_page_of_requests_lists_all_of_them_and_loads_nothing():
    async with serving() as server, Client(server.url) as client:
        schema = (await client.ask("GET", "/v1/openapi.json"))[1]
        status, page = await client.ask("GET", "/v1/docs")
    assert status == 200
    named = set(re.findall(r"<code>([^<]+)</code>", page))
    assert named == {
        f"{method.upper()} {path}"
        for path, methods in schema["paths"].items()
        for method in methods
    }
    assert "<script" not in page
    assert re.findall(r"""(?:src|href)=["']?([^"'> ]+)""", page) == ["openapi.json"]


def test_page_of_requests_escapes_what_it_is_given():
    operation = {"tags": ["<b>"], "description": "<script>alert(1)</script>"}
    info = {"title": "<i>", "version": "1", "description": "a & b"}
    page = request_page({"info": info, "paths": {"/<x>": {"get": operation}}}, schema_url='"><s>')
    assert not re.search(r"<(b|i|x|s|script)>", page)


async def test_a_service_that_drains_gives_out_no_session():
    async with serving() as server, Client(server.url) as client:
        await server.service.drain()
        status, told = await client.ask("POST", "/v1/sessions", {"env": COUNTER})
    assert (status, told["error"]["code"]) == (503, "draining")
