"""A reverse proxy that adds up the tokens a server reports, independently of any client."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable

from aiohttp import ClientError, ClientSession, ClientTimeout, web


class CountingProxy:
    """Forwards to a server and keeps count; connections are dropped while the server is gone.

    Args:
        target: The server's root URL.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="counting-proxy", daemon=True)
        self.url = ""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.answers = 0
        """Good replies that were passed on."""
        self.drops = 0
        """Requests whose connection was dropped."""
        self.on_answer: Callable[[int], None] | None = None
        """Told the number of each answer."""

    def __enter__(self) -> CountingProxy:
        self._thread.start()
        assert self._up.wait(30)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(30)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._done = asyncio.Event()
        timeout = ClientTimeout(total=None)
        async with ClientSession(timeout=timeout) as self._session:
            app = web.Application(client_max_size=2**26)
            app.router.add_post("/{path:.*}", self._forward)
            runner = web.AppRunner(app, shutdown_timeout=1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            (address, *_) = runner.addresses
            self.url = f"http://127.0.0.1:{address[1]}"
            self._up.set()
            await self._done.wait()
            await runner.cleanup()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(
                f"{self._target}/{request.match_info['path']}", data=body, headers=headers
            ) as reply:
                text, status = await reply.text(), reply.status
        except (ClientError, OSError):
            self.drops += 1
            if request.transport is not None:
                request.transport.close()
            return web.Response(status=502)
        if status == 200:
            usage = json.loads(text)["usage"]
            self.prompt_tokens += usage["prompt_tokens"]
            self.completion_tokens += usage["completion_tokens"]
            self.answers += 1
            if self.on_answer is not None:
                self.on_answer(self.answers)
        return web.Response(status=status, text=text, content_type="application/json")
