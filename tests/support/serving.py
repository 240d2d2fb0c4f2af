"""A service on a real socket, a policy that solves the counter, and a client that asks by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter

import aiohttp
import gymnasium

from agentgym.client import Endpoint
from agentgym.serve.config import ServiceConfig
from agentgym.serve.server import ServiceServer
from agentgym.testing.envs import CounterEnv
from agentgym.testing.quirky import QuirkyServer, answer

COUNTER = "serving/Counter-v0"
FLAKY = "serving/FlakyCounter-v0"
JSON = {"Content-Type": "application/json"}


class FlakyCounterEnv(CounterEnv):
    """Its tasks above 10 can't be started."""

    async def start(self, task):
        if task.reference > 10:
            raise RuntimeError("the shelf fell down")
        return await super().start(task)


def register():
    """Make the envs known; the service has to allow them, too."""
    for env_id, cls in ((COUNTER, CounterEnv), (FLAKY, FlakyCounterEnv)):
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=cls)


register()


def config_for_tests(**fields):
    """A service that plays the counter, on a free port."""
    from agentgym.serve.allowed import Allowed

    allowed = fields.pop("allowed", None) or Allowed(envs=(COUNTER, FLAKY))
    return ServiceConfig(port=0, allowed=allowed, **fields)


@contextlib.asynccontextmanager
async def serving(config=None, **fields):
    """A running service; drained at the end."""
    server = ServiceServer(config or config_for_tests(**fields))
    running = asyncio.create_task(server.run_until_stopped())
    listening = asyncio.create_task(server.listening.wait())
    await asyncio.wait([running, listening], return_when=asyncio.FIRST_COMPLETED)
    listening.cancel()
    try:
        yield server
    finally:
        server.service.config = server.service.config.model_copy(update={"drain_s": 0.0})
        if not running.done():
            server.stop()
        await running


class Client:
    """Asks a service by hand."""

    def __init__(self, url, token=None):
        self.url = url
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = aiohttp.ClientSession(headers=headers)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self.http.close()

    async def ask(self, method, path, body=None, *, data=None, headers=None, **query):
        """The status and the JSON of an answer."""
        async with self.http.request(
            method,
            self.url + path,
            data=json.dumps(body) if body is not None else data,
            headers={**(JSON if body is not None or data is not None else {}), **(headers or {})},
            params=query,
        ) as response:
            text = await response.text()
            self.headers = response.headers
            is_json = response.content_type == "application/json"
            return response.status, json.loads(text) if is_json and text else text

    async def submit(self, policy_url, /, **fields):
        """Submit a job that must be accepted; its id."""
        status, told = await self.ask("POST", "/v1/jobs", job(policy_url, **fields))
        assert status == 201, told
        return told["job_id"]

    async def until_over(self, job_id, after=0):
        """All traces of a job after a cursor, by cursor, and its last page."""
        found = []
        while True:
            status, page = await self.ask(
                "GET", f"/v1/jobs/{job_id}/traces", after=after, wait_s=10
            )
            assert status == 200, page
            found += page["traces"]
            after = page["cursor"]
            if page["over"]:
                return found, page


def job(policy_url, /, **fields):
    """The body of a job."""
    endpoint = {"base_url": policy_url, "model": "m"}
    return {
        "env": COUNTER,
        "episodes": {"seeds": [1, 2, 3]},
        "policy": {"endpoints": [endpoint]},
        **fields,
    }


def tool_call(name, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": "c", "type": "function", "function": function}


def solve(body):
    """The answer of a policy that adds what the task asks for, then submits."""
    messages = body["messages"]
    target = int(re.search(r" to (\d+),", messages[1]["content"])[1])
    call = tool_call("submit") if len(messages) > 2 else tool_call("add", amount=target)
    return answer(None, message={"tool_calls": [call]}, finish_reason="tool_calls")


class Policy(QuirkyServer):
    """A policy's server that solves the counter and counts how often each task was begun."""

    def __init__(self):
        self.begun = Counter()

        def play(body):
            if len(body["messages"]) == 2:
                self.begun[body["messages"][1]["content"]] += 1
            return solve(body)

        super().__init__(play)

    @property
    def endpoint(self):
        return Endpoint(base_url=self.url, model="m")
