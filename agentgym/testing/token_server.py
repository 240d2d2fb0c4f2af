"""A vLLM server's completions in token ids, without vLLM: the routes, checks and replies of 0.31.

It samples from a `TokenModel`, or says what its script says. Requests are refused where vLLM
refuses them, in its words: another model, ids out of the vocabulary, a prompt that leaves no room.
What servers get wrong can be switched on, one flag each.

Example:
    >>> async with TokenServer(TokenModel(300), tokenizer=tokenizer) as server:
    ...     path = TokenPath(tokenizer=folder)
    ...     client = ChatClient(Endpoint(base_url=server.url, model="policy", tokens=path))
    ...     completion = await client.complete(messages, tools, SamplingParams(), session="one")
    >>> completion.prompt_ids == tuple(server.requests[0]["prompt"])
    True
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from agentgym.testing.loopback import LoopbackServer
from agentgym.testing.token_model import Sampled, TokenModel

_BLOCK = 16
"""Tokens of one block of the prefix cache; only whole blocks are found again."""
_LOWEST = -9999.0
"""What vLLM writes for -inf."""

TokenScript = Any
"""What a request is answered with: ids, a text for the tokenizer, `(status, error text)`, a `dict`
of fields that take the place of the answer's own, None for whatever the model samples, or a
function of the request's body that returns one of these."""


class TokenServer(LoopbackServer):
    """Answers `/v1/completions` with ids and log-probabilities.

    Use it with `async with` in the running loop, or with `with`, on a thread of its own. Attributes
    may be changed at any time.

    Args:
        model: What it samples from.
        script: Answers to the first requests, see `TokenScript`; then the model samples.
        tokenizer: Makes the answers' text, and is asked by `/tokenize`; None sends no text.
        name: The model's name on this server.
        max_model_len: Tokens of prompt and answer that fit.
    """

    def __init__(
        self,
        model: TokenModel,
        *,
        script: Sequence[TokenScript] = (),
        tokenizer: Any = None,
        name: str = "policy",
        max_model_len: int | None = 4096,
    ) -> None:
        self.model = model
        self.script: list[TokenScript] = list(script)
        self.tokenizer = tokenizer
        self.name = name
        self.max_model_len = max_model_len
        self.url = ""
        """The base URL, /v1 included, once the server runs."""
        self.requests: list[dict[str, Any]] = []
        """Bodies of the completions that were not refused, in the order they came."""
        self.refused: list[str] = []
        """Why requests were refused."""
        self.asked: list[str] = []
        """Every request's method and path."""
        self.in_flight = 0
        self.aborted = 0
        """Requests whose client went away before the answer."""
        self.gate: asyncio.Event | None = None
        """If there is one, no completion is answered before it is set."""
        self.gives_ids = True
        """Whether `return_token_ids` is known; older servers ignore it."""
        self.counts_cached = True
        """Whether it says how much of a prompt was cached (`--enable-prompt-tokens-details`)."""
        self._blocks: set[int] = set()
        self._port = 0
        self._runner: web.AppRunner | None = None

    @property
    def root(self) -> str:
        """The server's root, without /v1."""
        return self.url.removesuffix("/v1")

    # --- running ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen; on the same port as before, if it ran before."""
        app = web.Application(client_max_size=1 << 28, middlewares=[self._noted])
        self.add_routes(app)
        self._runner = web.AppRunner(
            app, shutdown_timeout=0.01, access_log=None, handler_cancellation=True
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=4096, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}/v1"

    async def stop(self) -> None:
        """Cut every connection and stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def add_routes(self, app: web.Application) -> None:
        """What it answers; a subclass may add to that."""
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/reset_prefix_cache", self._reset)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        self._blocks.clear()

    # --- answering ----------------------------------------------------------------------------

    @web.middleware
    async def _noted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        found: web.StreamResponse = await handler(request)
        return found

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _reset(self, request: web.Request) -> web.Response:
        self.forget_prefixes()
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": self.name, "object": "model", "owned_by": "vllm", "root": self.name}
        listed = [{**card, "parent": None, "max_model_len": self.max_model_len}]
        return web.json_response({"object": "list", "data": listed})

    async def _tokenize(self, request: web.Request) -> web.Response:
        if self.tokenizer is None:
            return web.Response(status=404)
        text = (await request.json())["prompt"]
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        answer = {"tokens": ids, "count": len(ids), "max_model_len": self.max_model_len}
        return web.json_response(answer)

    async def _completion(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (refusal := self._refusal_of(body)) is not None:
            self.refused.append(refusal[1])
            return _error(*refusal)
        number = len(self.requests)
        self.requests.append(body)
        self.in_flight += 1
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.in_flight -= 1
        planned = self.script[number] if number < len(self.script) else None
        planned = planned(body) if callable(planned) else planned
        if isinstance(planned, tuple) and len(planned) == 2 and isinstance(planned[1], str):
            return _error(*planned)
        fields = planned if isinstance(planned, dict) else {}
        if isinstance(planned, str):
            planned = self.tokenizer(planned, add_special_tokens=False)["input_ids"]
        said = None if planned is None or fields else planned
        answer = self._answer(body, self.model.sample(body["prompt"], body, said=said), fields)
        # Python's own writer has NaN and Infinity, as servers that don't check for them.
        return web.Response(text=json.dumps(answer), content_type="application/json")

    def _refusal_of(self, body: Mapping[str, Any]) -> tuple[int, str] | None:
        """Status and text, as vLLM has them."""
        prompt, limit = body.get("prompt"), body.get("max_tokens", 16)
        if body.get("model") != self.name:
            return 404, f"The model `{body.get('model')}` does not exist."
        if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
            return 400, "this server is asked in token ids: prompt must be a list of integers"
        if not prompt:
            return 400, "Either prompt or prompt_embeds must be provided and non-empty."
        if (largest := max(prompt)) >= self.model.vocabulary:
            return 400, f"Token id {largest} is out of vocabulary"
        if type(limit) is not int or limit < 1:
            return 400, f"max_tokens must be at least 1, got {limit}."
        if self.max_model_len is not None and len(prompt) + limit > self.max_model_len:
            return 400, (
                f"This model's maximum context length is {self.max_model_len} tokens. However, you "
                f"requested {limit} output tokens and your prompt contains {len(prompt)} input "
                f"tokens, for a total of {len(prompt) + limit} tokens. Please reduce the length of "
                "the input prompt or the number of requested output tokens."
            )
        return None

    def _answer(
        self, body: Mapping[str, Any], sampled: Sampled, fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        prompt, ids = body["prompt"], list(sampled.ids)
        with_ids = bool(body.get("return_token_ids")) and self.gives_ids
        choice = {
            "index": 0,
            "text": self._text_of(ids, body),
            "logprobs": self._logprobs(body, sampled),
            "finish_reason": sampled.finish_reason,
            "stop_reason": ids[-1] if ids and sampled.finish_reason == "stop" else None,
            "token_ids": ids if with_ids else None,
            "prompt_token_ids": list(prompt) if with_ids else None,
        }
        cached = self._cached(prompt)
        usage: dict[str, Any] = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "total_tokens": len(prompt) + len(ids),
            "prompt_tokens_details": {"cached_tokens": cached} if self.counts_cached else None,
        }
        head = {"id": "cmpl-0", "object": "text_completion", "model": self.name}
        return {**head, "choices": [{**choice, **fields}], "usage": usage}

    def _text_of(self, ids: Sequence[int], body: Mapping[str, Any]) -> str:
        """Text of the ids; that of a stop token is left out."""
        if self.tokenizer is None:
            return ""
        shown = ids[:-1] if ids and ids[-1] in (body.get("stop_token_ids") or ()) else ids
        skipped = body.get("skip_special_tokens", True)
        return str(self.tokenizer.decode(shown, skip_special_tokens=skipped))

    def _logprobs(self, body: Mapping[str, Any], sampled: Sampled) -> dict[str, Any] | None:
        """As vLLM gives them, the likeliest ids beside the sampled one."""
        most = body.get("logprobs")
        if most is None:
            return None
        by_id = body.get("return_tokens_as_token_ids")
        tokens = [self._token_text(token, by_id) for token in sampled.ids]
        top: list[dict[str, float]] = []
        context = list(body["prompt"])
        for text, token, logprob in zip(tokens, sampled.ids, sampled.logprobs, strict=True):
            found = {text: max(logprob, _LOWEST)}
            if most:
                given_out = self.model.logprobs(context, body)
                for likely in given_out.argsort()[::-1][:most]:
                    text = self._token_text(int(likely), by_id)
                    found[text] = max(float(given_out[likely]), _LOWEST)
            context.append(token)
            top.append(found)
        logprobs = [max(logprob, _LOWEST) for logprob in sampled.logprobs]
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": top}

    def _token_text(self, token: int, by_id: Any) -> str:
        if by_id or self.tokenizer is None:
            return f"token_id:{token}"
        return str(self.tokenizer.decode([token]))

    def _cached(self, prompt: Sequence[int]) -> int:
        """Tokens of the prompt whose blocks were seen before; notes the prompt's own."""
        key, cached, is_known = 0, 0, True
        for end in range(_BLOCK, len(prompt) + 1, _BLOCK):
            key = hash((key, tuple(prompt[end - _BLOCK : end])))
            is_known = is_known and key in self._blocks
            cached += _BLOCK * is_known
            self._blocks.add(key)
        # The last token is always computed, for what follows it.
        return min(cached, (len(prompt) - 1) // _BLOCK * _BLOCK)


def _error(status: int, text: str) -> web.Response:
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    error = {"message": text, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)
