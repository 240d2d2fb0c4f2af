"""Policy servers and a way of syncing weights, both without vLLM."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from agentgym.client import Endpoint
from agentgym.testing.token_model import TokenModel
from agentgym.testing.token_server import TokenServer
from agentgym.train.sync import SyncListener, SyncReport, Weights
from agentgym.train.sync.admin import root_of


class FakePolicyServer(TokenServer):
    """A token server that also says how it was started.

    Args:
        tokenizer: Of the policy.
        context: Tokens that fit.
        dev_mode: Whether it has vLLM's dev routes.
    """

    def __init__(self, tokenizer: Any, *, context: int = 96, dev_mode: bool = True) -> None:
        model = TokenModel(len(tokenizer), favoured={tokenizer.eos_token_id: 4.0})
        super().__init__(model, tokenizer=tokenizer, max_model_len=context)
        self.dev_mode = dev_mode
        self.dtype = "torch.float32"
        self.started_with: str | None = None
        """The model that it says it has."""
        self.paused = False
        """Whether it says that it is."""

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)
        if self.dev_mode:
            app.router.add_get("/server_info", self._info)
            app.router.add_get("/is_paused", self._is_paused)

    async def _is_paused(self, request: web.Request) -> web.Response:
        return web.json_response({"is_paused": self.paused})

    async def _info(self, request: web.Request) -> web.Response:
        model = {
            "dtype": self.dtype,
            "logprobs_mode": self.model.mode,
            "max_model_len": self.max_model_len,
            "model": self.started_with,
        }
        config = {"model_config": model, "device_config": {"device": "cpu"}}
        return web.json_response({"vllm_config": config})


class FakeSync:
    """Says what it is told to say about each push."""

    def __init__(self) -> None:
        self.listeners: list[SyncListener] = []
        self.servers: list[Endpoint] = []
        self.versions: list[str] = []
        self.fails_at: dict[str, str] = {}
        """Root of a server to why it takes no weights."""
        self.stale_ones: dict[str, str] = {}
        self.adapter: str | None = None
        self.closed = False

    def check(self, servers: Any) -> None:
        self.servers = list(servers)

    def push(self, weights: Weights, *, version: str) -> SyncReport:
        self.versions.append(version)
        for server in self.servers:
            for listener in self.listeners:
                why = self.fails_at.get(root_of(server))
                if why is None:
                    listener.synced(server, version=version, model=self.adapter)
                else:
                    listener.lost(server, why)
        took = tuple(r for s in self.servers if (r := root_of(s)) not in self.fails_at)
        return SyncReport(version, self.adapter, took, lost=dict(self.fails_at))

    def take_part(self, weights: Weights) -> None:
        raise AssertionError("there is one process")

    def stale(self) -> dict[str, str]:
        return self.stale_ones

    def close(self) -> None:
        self.closed = True
