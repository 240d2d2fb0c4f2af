"""A vLLM server as a weight sync sees it, without vLLM: its dev routes over a pretend engine.

The engine keeps the rules of 0.31 that a sync can break: a paused scheduler queues what is new,
`wait` lets the running ones finish and `keep` freezes them, blocks in use can't be reset, a prompt
that was computed before is not computed again, and whoever generates after a failed load is dead.
Every answer says which weights each of its tokens, and its prompt, were computed with.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from safetensors import safe_open

from agentgym.client import Endpoint
from agentgym.testing.loopback import LoopbackServer
from agentgym.testing.quirky import answer

START = "default"
STEPS = 4
DIE, HANG = "die", "hang"


@dataclass(eq=False)
class _Running:
    prefix: str | None = None
    tokens: list[str] = field(default_factory=list)


class AdminServer(LoopbackServer):
    """Serves one policy; attributes may be changed at any time.

    Args:
        name: Of the model.
        key: Of the `/v1` routes; "" asks for none.
        dev_mode: Whether the dev routes are there.
        config: Parts of vLLM's configuration that differ from the usual.
    """

    def __init__(self, name="policy", *, key="", dev_mode=True, **config):
        self.name, self.key, self.dev_mode = name, key, dev_mode
        self.config = {
            "model_config": {
                "dtype": "torch.float32", "logprobs_mode": "processed_logprobs",
                "max_model_len": 512, "quantization": None,
            },
            "device_config": {"device": "cpu"},
            "scheduler_config": {"enable_chunked_prefill": False},
            "lora_config": None,
            "weight_transfer_config": None,
        }  # fmt: skip
        for part, values in config.items():
            self.config[part] = {**(self.config[part] or {}), **values}
        self.log: list[str] = []
        """What happened, in order."""
        self.faults: dict[str, list[Any]] = {}
        """For a path, what its next calls meet: `(status, body)`, `DIE`, `HANG`; None: nothing."""
        self.until_paused = False
        """Whether requests stand still before their last step until the server is paused."""
        self.begun: set[str] = set()
        """Weights under which a request has begun."""
        self.crashed = False
        self._port = 0
        self._handling: set[asyncio.Task[Any]] = set()
        self.restart()

    def restart(self):
        """Come back from the dead, with the weights it was started with."""
        self.weights, self.version, self.paused = START, START, None
        self.broken = self.dead = False
        self.adapters: dict[str, str] = {}
        self.cache: dict[Any, str] = {}
        self._running: set[_Running] = set()

    @property
    def endpoint(self):
        return Endpoint(base_url=f"{self.root}/v1", model=self.name, max_concurrency=5000)

    @property
    def steps(self):
        """The log without what was generated."""
        return [line for line in self.log if not line.startswith("answer")]

    async def start(self):
        self._changed = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=4096, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.root = f"http://127.0.0.1:{self._port}"

    async def stop(self):
        await self._runner.cleanup()
        for task in list(self._handling):
            task.cancel()
        await asyncio.gather(*self._handling, return_exceptions=True)

    def let_go(self):
        """Have requests stand still no more; from any thread."""
        self.until_paused = False
        asyncio.run_coroutine_threadsafe(self._wake(), self._loop).result()

    # --- routes -------------------------------------------------------------------------------

    async def _handle(self, request):
        task = asyncio.current_task()
        self._handling.add(task)
        try:
            return await self._answered(request)
        except ConnectionError:  # the client had enough
            return web.Response()
        finally:
            self._handling.discard(task)

    async def _answered(self, request):
        body = await request.read()
        if self.dead:
            return _cut(request)
        scripted = self.faults.get(request.path)
        fault = scripted.pop(0) if scripted else None
        if fault == DIE:
            self.dead = True
            await self._wake()
            return _cut(request)
        if fault == HANG:
            await asyncio.get_running_loop().create_future()
        if fault is not None:
            return web.json_response(fault[1], status=fault[0])
        guarded = request.path.startswith("/v1")
        if guarded and self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return _error(401, "Unauthorized")
        route = "_" + request.path.strip("/").replace("v1/", "").replace("/", "_")
        if (not guarded and not self.dev_mode) or not hasattr(self, route):
            return _error(404, "Not Found")
        told = json.loads(body) if body else {}
        return await getattr(self, route)(request, told)

    async def _health(self, request, body):
        return web.Response()

    async def _models(self, request, body):
        loaded = self.adapters.items()
        adapters = [{"id": id_, "root": path, "parent": self.name} for id_, path in loaded]
        return web.json_response({"data": [{"id": self.name, "parent": None}, *adapters]})

    async def _server_info(self, request, body):
        return web.json_response({"vllm_config": self.config})

    async def _weight_info(self, request, body):
        return web.json_response({"weight_version": self.version})

    async def _is_paused(self, request, body):
        return web.json_response({"is_paused": self.paused is not None})

    async def _pause(self, request, body):
        self.paused = request.query["mode"]
        self.log.append(f"pause {self.paused}")
        await self._wake()
        if self.paused == "wait":
            await self._until(lambda: not self._running)
        self._forget()
        return web.json_response({"status": "paused"})

    async def _resume(self, request, body):
        self.paused = None
        self.log.append("resume")
        await self._wake()
        return web.json_response({"status": "resumed"})

    async def _collective_rpc(self, request, body):
        assert body["method"] == "reload_weights"
        folder = Path(body["kwargs"]["weights_path"])
        self.log.append(f"load {folder.name}")
        self.broken = True
        if not _tensors_in(folder):
            return _error(500, f"Cannot find any model weights with `{folder}`")
        self.weights, self.broken = folder.name, False
        return web.json_response({"results": [None]})

    async def _reset_prefix_cache(self, request, body):
        running = json.loads(request.query["reset_running_requests"])
        done = running or not self._running
        if done:
            self._forget()
        self.log.append("reset" if done else "reset refused")
        return web.json_response({"success": done})

    async def _update_weight_version(self, request, body):
        self.version = body["new_version"]
        self.log.append(f"version {self.version}")
        return web.json_response({"success": True})

    async def _load_lora_adapter(self, request, body):
        if body["lora_name"] in self.adapters:
            return _error(400, f"{body['lora_name']} has already been loaded")
        if not (Path(body["lora_path"]) / "adapter_config.json").is_file():
            return _error(404, f"No adapter found for {body['lora_path']}")
        self.adapters[body["lora_name"]] = body["lora_path"]
        self.log.append(f"load {body['lora_name']}")
        return web.Response(text="Success")

    async def _unload_lora_adapter(self, request, body):
        if self.adapters.pop(body["lora_name"], None) is None:
            return _error(404, f"{body['lora_name']} cannot be found")
        self.log.append(f"unload {body['lora_name']}")
        return web.Response(text="Success")

    # --- the engine ---------------------------------------------------------------------------

    async def _chat_completions(self, request, body):
        model = body["model"]
        if model != self.name and model not in self.adapters:
            return _error(404, f"The model `{model}` does not exist.")
        await self._until(lambda: self.paused is None)
        this = _Running()
        self._running.add(this)
        try:
            for step in range(STEPS):
                await asyncio.sleep(0)
                if self.until_paused and step == STEPS - 1:
                    await self._until(lambda: self.paused or not self.until_paused)
                await self._until(lambda: self.paused != "keep")
                if self.dead or self.broken:
                    self.crashed = self.crashed or self.broken
                    self.dead = True
                    return _cut(request)
                now = model if model in self.adapters else self.weights
                if this.prefix is None:
                    prompt = json.dumps(body["messages"])
                    this.prefix = self.cache.setdefault((model, prompt), now)
                this.tokens.append(now)
                self.begun.add(now)
        finally:
            self._running.discard(this)
            if not self._running:
                await self._wake()
        self.log.append(f"answer {this.tokens[-1]}")
        return web.json_response(answer(json.dumps({"prefix": this.prefix, "of": this.tokens})))

    def _forget(self):
        self.cache.clear()
        for running in self._running:
            running.prefix = None

    async def _until(self, holds):
        async with self._changed:
            await self._changed.wait_for(lambda: self.dead or holds())

    async def _wake(self):
        async with self._changed:
            self._changed.notify_all()


def _tensors_in(folder):
    names = []
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            names += opened.keys()
    return names


def _error(status, text):
    return web.json_response({"error": {"message": text, "code": status}}, status=status)


def _cut(request):
    if request.transport is not None:
        request.transport.close()
    return web.Response()
