"""Questions to every server of a policy at once: what it is, and how it continues a prompt."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import aiohttp

from agentgym.client import Endpoint, public_url
from agentgym.errors import TrainingError
from agentgym.train.sync.admin import AdminClient, ServerFault
from agentgym.train.sync.info import ServerInfo

_PROBE_S = 120.0
_SERVICE_S = 10.0


async def described(endpoints: Sequence[Endpoint]) -> list[ServerInfo]:
    """What the servers say of themselves, in their order.

    Raises:
        ServerFault: If one doesn't answer, or not as a server whose weights can be changed.
    """

    async def one(server: AdminClient) -> ServerInfo:
        return ServerInfo.of(server.root, await server.models(), await server.info())

    async with aiohttp.ClientSession() as http:
        return list(await asyncio.gather(*(one(AdminClient(e, http)) for e in endpoints)))


async def paused_ones(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """The servers that keep everybody waiting.

    Raises:
        ServerFault: As by `described`.
    """
    async with aiohttp.ClientSession() as http:
        are = await asyncio.gather(*(AdminClient(e, http).is_paused() for e in endpoints))
    return [endpoint for endpoint, is_paused in zip(endpoints, are, strict=True) if is_paused]


async def find_service(url: str) -> None:
    """See that a rollout service answers, and takes jobs.

    Raises:
        TrainingError: If not.
    """
    root = url.rstrip("/").removesuffix("/v1")  # as `RemoteEngine` has it
    where = public_url(root)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SERVICE_S)) as http,
            http.get(f"{root}/readyz") as answer,
        ):
            status = answer.status
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        said = str(error) or type(error).__name__
        raise TrainingError(
            f"no rollout service answers at {where} ({said}): start one with `agentgym serve`, or "
            "leave service out to play the episodes here"
        ) from error
    if status != HTTPStatus.OK:
        raise TrainingError(
            f"{where} is no rollout service that takes jobs now (HTTP {status} for /readyz): look "
            "at its log, or at the URL"
        )


async def continued(
    endpoints: Sequence[Endpoint], prompt_ids: Sequence[int], *, tokens: int, temperature: float
) -> list[tuple[list[int], list[float]] | ServerFault]:
    """Ids and log-probabilities of a fixed-seed continuation, by server.

    Args:
        endpoints: The servers.
        prompt_ids: Shape `(P,)`.
        tokens: How many to sample.
        temperature: Of the sampling, and of the log-probabilities.

    Returns:
        For each server ids and log-probabilities, shapes `(tokens,)`, or why it gave none.
    """
    body = {
        "prompt": list(prompt_ids),
        "max_tokens": tokens,
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": 0,
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
    }

    async def one(server: AdminClient) -> tuple[list[int], list[float]] | ServerFault:
        asked = {**body, "model": server.endpoint.model}
        try:
            answer = await server.ask("POST", "/v1/completions", body=asked, timeout_s=_PROBE_S)
            return _sampled(server, answer, tokens)
        except ServerFault as fault:
            return fault

    async with aiohttp.ClientSession() as http:
        return list(await asyncio.gather(*(one(AdminClient(e, http)) for e in endpoints)))


def _sampled(server: AdminClient, answer: Any, tokens: int) -> tuple[list[int], list[float]]:
    try:
        choice = answer["choices"][0]
        ids = [int(token) for token in choice["token_ids"]]
        logprobs = [
            math.nan if value is None else float(value)
            for value in choice["logprobs"]["token_logprobs"]
        ]
    except (KeyError, IndexError, TypeError) as error:
        raise ServerFault(
            f"{server.root} answers without token ids or log-probabilities; it must be vLLM 0.26 "
            "or newer"
        ) from error
    if len(ids) != tokens or len(logprobs) != tokens:
        raise ServerFault(
            f"{server.root} was asked for {tokens} tokens and gave {len(ids)} ids with "
            f"{len(logprobs)} log-probabilities"
        )
    return ids, logprobs
