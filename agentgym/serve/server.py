"""The process that serves: a socket, uvicorn, and an orderly end.

Asked to stop (SIGTERM, Ctrl-C), a service takes nothing more, lets the episodes in flight finish
for a while, and goes; asked twice, it goes at once. Either way what isn't over is in the store.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from agentgym.errors import ConfigError
from agentgym.rollout import collecting_seldom
from agentgym.serve.app import create_app
from agentgym.serve.config import ServiceConfig
from agentgym.serve.service import Service

_LAST_ANSWERS_S = 5


class ServiceServer(uvicorn.Server):
    """A service on a socket.

    Args:
        config: The service's.
        tell: Given a line for whoever runs it, when it goes on with jobs and when it stops.

    Raises:
        ConfigError: If the port is taken or the host isn't this machine's.
        StoreError: If the store can't be used.
    """

    def __init__(self, config: ServiceConfig, *, tell: Callable[[str], None] | None = None) -> None:
        self._tell = tell or (lambda line: None)
        self._socket = _listening(config.host, config.port)
        self.port: int = self._socket.getsockname()[1]
        try:
            self._app = create_app(config)
        except BaseException:
            self._socket.close()
            raise
        self.service: Service = self._app.state.service
        self.url = f"http://{_in_url(reachable(config.host))}:{self.port}"
        """Where it is, as clients on this machine name it."""
        self.listening = asyncio.Event()
        """Set once it answers."""
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                self._app,
                lifespan="off",  # which would log what can't be started, and not raise it
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_LAST_ANSWERS_S,
            )
        )

    async def run_until_stopped(self) -> None:
        """Take up the store's jobs, and serve until a signal comes.

        Raises:
            StoreError: If the store can't be read.
        """
        self._loop = asyncio.get_running_loop()
        try:
            async with self._app.router.lifespan_context(self._app):
                if jobs := len(self.service.jobs.running):
                    self._tell(f"going on with {jobs} job{'s' * (jobs != 1)} of the store")
                await self.serve(sockets=[self._socket])
        finally:
            self._socket.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self.listening.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, stop at the second."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Drain; if it drains already, stop at once."""
        if self._draining is None:
            in_flight = sum(job.in_flight for job in self.service.jobs.running)
            self._tell(
                f"stopping; {in_flight} episodes in flight may finish, for "
                f"{self.service.config.drain_s:.0f} s at most (again: stop now)"
            )
            self._draining = asyncio.ensure_future(self._drain())
        else:
            self.should_exit = True

    async def _drain(self) -> None:
        try:
            await self.service.drain()
        finally:
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer who still waits, and close."""
        self.service.jobs.answer_all()
        await super().shutdown(sockets)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            text = f"port {port} on {host} is in use; choose another one, 0 takes a free one"
        else:
            text = f"can't listen on {host}, port {port}: {error.strerror or error}"
        raise ConfigError(text) from error
    # Connections inherit it. Without, every answer on a kept connection waits 40 ms for the
    # client's delayed acknowledgement: asyncio sets it only on sockets made with a protocol.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def reachable(host: str) -> str:
    """The address to call a service by that listens on a host, from this machine.

    All interfaces (`0.0.0.0`, `::`) is something to listen on, not an address to call.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def serve(
    config: ServiceConfig, *, announce: Any = None, tell: Callable[[str], None] | None = None
) -> None:
    """Serve until a signal comes.

    Args:
        config: The service's.
        announce: Called with the server once it listens.
        tell: As `ServiceServer` takes it.

    Raises:
        AgentGymError: If it can't start.
    """
    server = ServiceServer(config, tell=tell)
    if announce is not None:
        announce(server)
    with collecting_seldom():
        asyncio.run(server.run_until_stopped())
