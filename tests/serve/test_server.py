"""The socket that a service listens on."""

from __future__ import annotations

import socket

from serving import COUNTER, Client, config_for_tests, serving

from agentgym.serve.server import ServiceServer


def test_answers_on_a_kept_connection_wait_for_no_acknowledgement():
    server = ServiceServer(config_for_tests())
    with server._socket as listening, socket.create_connection(("127.0.0.1", server.port)):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    server.service.store.close()


async def test_a_service_that_drains_gives_out_no_session():
    async with serving() as server, Client(server.url) as client:
        await server.service.drain()
        status, told = await client.ask("POST", "/v1/sessions", {"env": COUNTER})
    assert (status, told["error"]["code"]) == (503, "draining")
