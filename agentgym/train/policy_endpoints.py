"""Policy servers as a training run asks them: where, how hard to lean on them, with whose key."""

from __future__ import annotations

import os
from typing import Any

from pydantic import ValidationError

from agentgym.client import Endpoint
from agentgym.errors import ConfigError, TrainingError
from agentgym.tokens.loading import load_tokenizer
from agentgym.types import in_one_line

IN_FLIGHT = 256
"""Requests that one server works on at once, vLLM's own limit."""
_TIMEOUT_S = 600.0
"""A turn that is longer than this hangs; a busy server answers in its order, and may be late."""
_DEADLINE_S = 1800.0
_KEY_VARIABLE = "VLLM_API_KEY"
"""Where servers given by URL have their key, if any: vLLM reads its own there, too. The usual one
would send a hosted provider's key to them."""


def policy_endpoint(server: str | Endpoint, model: str | None) -> Endpoint:
    """The endpoint of a policy server; its model's name may have to be asked for yet.

    Args:
        server: Its URL, with or without `/v1`; or an endpoint, which stays as it is.
        model: What it calls the model; None if that isn't known.

    Raises:
        ConfigError: If the URL is none.
    """
    if isinstance(server, Endpoint):
        return server
    root = server.rstrip("/").removesuffix("/v1")
    try:
        return Endpoint(
            base_url=f"{root}/v1",
            model=model or "?",
            max_concurrency=IN_FLIGHT,
            api_key_env=_KEY_VARIABLE,
            timeout_s=_TIMEOUT_S,
            deadline_s=_DEADLINE_S,
        )
    except ValidationError as error:
        raise ConfigError(f"policy server {server!r}: {in_one_line(error)}") from error


def without_unset_key(endpoint: Endpoint) -> Endpoint:
    """An endpoint that names no key where there is none: services refuse keys they don't know."""
    if endpoint.api_key_env != _KEY_VARIABLE or os.environ.get(_KEY_VARIABLE):
        return endpoint
    fields = endpoint.model_dump(exclude_unset=True, exclude={"api_key_env"})
    return Endpoint.model_validate(fields)


def check_same_tokenizer(tokenizer: Any) -> None:
    """See that whoever loads the tokenizer by its name has the trainer's.

    Raises:
        TrainingError: If its chat template or vocabulary was changed since it was loaded.
    """
    named = load_tokenizer(tokenizer.name_or_path).tokenizer
    differs = [
        what
        for what, ours, theirs in (
            ("chat template", tokenizer.chat_template, named.chat_template),
            ("vocabulary", tokenizer.get_vocab(), named.get_vocab()),
        )
        if ours != theirs
    ]
    if differs:
        raise TrainingError(
            f"the trainer's tokenizer is not the one in {tokenizer.name_or_path!r} any more "
            f"({', '.join(differs)}): save it to a folder and load it from there, so that the "
            "policy is asked with it"
        )
