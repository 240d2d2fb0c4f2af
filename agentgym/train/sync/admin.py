"""The side of a vLLM server that changes what it serves: load, pause, forget, say which weights.

These routes are there only if the server runs with `VLLM_SERVER_DEV_MODE=1` (vLLM 0.31,
`vllm.entrypoints.serve.dev`), and they trust whoever reaches them: they belong on a network of
their own. They answer 200 to much that has not happened, so each method here looks at the answer.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from agentgym.client import Endpoint, public_url
from agentgym.clients.failures import api_key
from agentgym.errors import TrainingError
from agentgym.train.sync.contract import InFlight

UNNAMED = "default"
"""What vLLM calls the weights that a server was started with."""
DEV_MODE = "VLLM_SERVER_DEV_MODE=1"
_QUICK_S = 30.0
"""For what only sets or tells something, seconds."""
_RESET_PAUSE_S = 0.05
_QUOTED = 300
"""Characters of a server's own words that an error repeats."""


class ServerFault(TrainingError):
    """A server did not do what a weight sync needs; the message says which, and why."""


def root_of(endpoint: Endpoint) -> str:
    """A server's root: its base URL without `/v1`, and without what may be a secret."""
    return public_url(endpoint.base_url).rstrip("/").removesuffix("/v1")


class AdminClient:
    """One server, for whoever changes its weights.

    Args:
        endpoint: Where it is.
        http: Open connections of the running loop.
    """

    def __init__(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> None:
        self.endpoint = endpoint
        self.root = root_of(endpoint)
        self._base = endpoint.base_url.rstrip("/").removesuffix("/v1")
        self._http = http

    async def info(self) -> dict[str, Any]:
        """The server's configuration, as vLLM dumps it."""
        params = {"config_format": "json"}
        found = await self.ask("GET", "/server_info", params=params)
        config = found.get("vllm_config") if isinstance(found, dict) else None
        if not isinstance(config, dict):
            raise ServerFault(f"{self.root} tells no configuration; it must be vLLM 0.26 or newer")
        return config

    async def models(self) -> list[str]:
        """The names under which it serves models and adapters."""
        return [str(model["id"]) for model in await self._listed()]

    async def adapters(self) -> dict[str, str]:
        """The adapters that it serves, and the folders that it has them from."""
        listed = await self._listed()
        return {str(m["id"]): str(m["root"]) for m in listed if m.get("parent") and m.get("root")}

    async def _listed(self) -> list[dict[str, Any]]:
        models = await self._told("/v1/models", "data")
        if not isinstance(models, list) or not all(
            isinstance(model, dict) and "id" in model for model in models
        ):
            raise ServerFault(f"{self.root} lists no models; is it vLLM's server?")
        return models

    async def pause(self, in_flight: InFlight, *, timeout_s: float) -> None:
        """Let nothing run: see `InFlight`. Clears the caches, too."""
        mode = {"pause": "wait", "through": "keep"}[in_flight]
        await self.ask("POST", "/pause", params={"mode": mode}, timeout_s=timeout_s)
        if not await self.is_paused():
            raise ServerFault(f"{self.root} says it is paused and is not; nothing was loaded")

    async def resume(self) -> None:
        """Go on with what waits."""
        await self.ask("POST", "/resume")
        if await self.is_paused():
            raise ServerFault(f"{self.root} does not go on after its pause")

    async def is_paused(self) -> bool:
        """Whether nothing runs."""
        return bool(await self._told("/is_paused", "is_paused"))

    async def reload(self, path: str, *, timeout_s: float) -> None:
        """Load safetensors from a folder that the server sees, in every one of its workers."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        try:
            answer = await self.ask("POST", "/collective_rpc", body=body, timeout_s=timeout_s)
        except ServerFault as fault:
            raise ServerFault(
                f"{fault}; does the server see the folder {path}? Its log says what it met"
            ) from fault
        results = answer.get("results") if isinstance(answer, dict) else None
        if not results or any(result is not None for result in results):
            raise ServerFault(f"{self.root} answered {_short(answer)} to reload_weights")

    async def reset_prefix_cache(self, *, running: bool, timeout_s: float) -> None:
        """Forget every cached block; waits while blocks are in use.

        Args:
            running: Whether running requests give up their blocks, to compute them anew.
            timeout_s: How long to wait, seconds.
        """
        params = {"reset_running_requests": json.dumps(running), "reset_external": "true"}
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            answer = await self.ask("POST", "/reset_prefix_cache", params=params)
            if isinstance(answer, dict) and answer.get("success") is True:
                return
            if asyncio.get_running_loop().time() >= deadline:
                raise ServerFault(
                    f"{self.root} could not reset its prefix cache (it answered {_short(answer)}): "
                    "blocks computed with old weights would be reused"
                )
            await asyncio.sleep(_RESET_PAUSE_S)

    async def version(self) -> str:
        """The name of its weights, or `UNNAMED`."""
        return str(await self._told("/weight_info", "weight_version"))

    async def set_version(self, version: str) -> None:
        """Name its weights. A server that starts again has forgotten the name."""
        await self.ask("POST", "/update_weight_version", body={"new_version": version})
        if (found := await self.version()) != version:
            raise ServerFault(f"{self.root} has weights {found!r} after {version!r} were loaded")

    async def load_adapter(self, name: str, path: str, *, timeout_s: float) -> None:
        """Load a LoRA adapter from a folder that the server sees, and serve it under a name."""
        body = {"lora_name": name, "lora_path": path}
        try:
            await self.ask("POST", "/v1/load_lora_adapter", body=body, timeout_s=timeout_s)
        except ServerFault as fault:
            raise ServerFault(f"{fault}; does the server see the folder {path}?") from fault
        if name not in await self.models():
            raise ServerFault(f"{self.root} took adapter {name!r} and does not serve it")

    async def unload_adapter(self, name: str) -> None:
        """Serve an adapter no more."""
        await self.ask("POST", "/v1/unload_lora_adapter", body={"lora_name": name})

    async def world_size(self) -> int:
        """Its workers, of all kinds of parallelism."""
        size = await self._told("/get_world_size", "world_size")
        if not isinstance(size, int):
            raise ServerFault(f"{self.root} says it has {_short(size)} workers")
        return size

    async def init_transfer(self, init_info: dict[str, Any], *, timeout_s: float) -> None:
        """Have its workers join a group for weight transfer; answers once all have joined."""
        body = {"init_info": init_info}
        await self.ask("POST", "/init_weight_transfer_engine", body=body, timeout_s=timeout_s)

    async def receive(self, update_info: dict[str, Any], *, timeout_s: float) -> None:
        """Have its workers take the tensors that are broadcast meanwhile."""
        await self.ask("POST", "/start_weight_update", body={})
        body = {"update_info": update_info}
        await self.ask("POST", "/update_weights", body=body, timeout_s=timeout_s)
        await self.ask("POST", "/finish_weight_update", body={}, timeout_s=timeout_s)

    async def _told(self, path: str, field: str) -> Any:
        """A field of what the server says of itself."""
        found = await self.ask("GET", path)
        if not isinstance(found, dict) or field not in found:
            raise ServerFault(
                f"{self.root}{path} answered {_short(found)}, without {field!r}; is it vLLM's "
                "server?"
            )
        return found[field]

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: dict[str, str] | None = None,
        timeout_s: float = _QUICK_S,
    ) -> Any:
        """The answer to one request: JSON, or text.

        Raises:
            ServerFault: If there is none, or it is a refusal.
        """
        key = api_key(self.endpoint.api_key_env)
        try:
            async with self._http.request(
                method,
                self._base + path,
                json=body,
                params=params,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_QUICK_S),
                allow_redirects=False,  # or a POST arrives as a GET
            ) as answer:
                text = await answer.text(errors="replace")
                status, is_json = answer.status, answer.content_type == "application/json"
        except TimeoutError as error:
            raise ServerFault(f"{self.root}{path}: no answer in {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            said = str(error) or type(error).__name__
            raise ServerFault(f"{self.root}: no connection ({said}); is it running?") from error
        except ValueError as error:  # a key that is no header, or a second one in the URL
            raise ServerFault(f"{self.root} can't be asked: {error}") from error
        if status == 200:
            try:
                return json.loads(text) if is_json else text
            except ValueError as error:
                raise ServerFault(f"{self.root}{path} answered no JSON: {_short(text)}") from error
        raise ServerFault(self._refusal(path, status, text))

    def _refusal(self, path: str, status: int, text: str) -> str:
        if 300 <= status < 400:
            return f"{self.root}{path}: HTTP {status}, it is somewhere else; give that URL"
        if status in (401, 403):
            variable = self.endpoint.api_key_env
            return f"{self.root}{path}: HTTP {status}; put the server's key in {variable}"
        if status == 404 and path.startswith("/v1/") and "adapter" in path and "lora" in path:
            return (
                f"{self.root} has no {path}: start it with --enable-lora and, in its environment, "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
            )
        if status == 404 and not path.startswith("/v1"):
            return (
                f"{self.root} has no {path}: start it with {DEV_MODE} in its environment; "
                "`agentgym train --print-server-command` has all that a server needs"
            )
        return f"{self.root}{path}: HTTP {status}: {_short(_message(text))}"


def _message(text: str) -> Any:
    """What an error body says."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    error = found.get("error", found) if isinstance(found, dict) else found
    return error.get("message", error) if isinstance(error, dict) else error


def _short(said: Any) -> str:
    text = said if isinstance(said, str) else json.dumps(said, default=str)
    line = " ".join(text.split())
    return line if len(line) <= _QUOTED else line[: _QUOTED - 1] + "…"
