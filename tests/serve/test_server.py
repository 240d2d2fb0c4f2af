"""The socket that a service listens on."""

from __future__ import annotations

import socket

from serving import config_for_tests

from agentgym.serve.server import ServiceServer


def test_answers_on_a_kept_connection_wait_for_no_acknowledgement():
    server = ServiceServer(config_for_tests())
    with server._socket as listening, socket.create_connection(("127.0.0.1", server.port)):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    server.service.store.close()
