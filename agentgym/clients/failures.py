"""What a failed request means: is it worth another try, and what the user should do.

openai's exceptions and servers' error texts come in; one line that names base URL and model comes
out. Keys and credentials in URLs never do.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import openai

from agentgym.client import Endpoint
from agentgym.clients.wire import BadReply, is_retryable
from agentgym.errors import ContextOverflow, EndpointError

_OVERFLOW = re.compile(
    r"context[_ ]length|maximum context|context window|max_model_len|context size"
    r"|prompt is too long|input is too long|reduce the length",
    re.IGNORECASE,
)
_NO_TOOL_PARSER = "requires --enable-auto-tool-choice"
_MAX_RETRY_AFTER_S = 120.0


def as_bad_reply(error: openai.OpenAIError) -> BadReply:
    """Class one of openai's exceptions."""
    if isinstance(error, openai.APITimeoutError):
        return BadReply("no answer within the time-out", retryable=True, status=408)
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        return BadReply(f"no connection: {str(cause) or type(cause).__name__}", retryable=True)
    if isinstance(error, openai.APIStatusError):
        return _status_error(error)
    return BadReply(f"{type(error).__name__}: {error}", retryable=False)


def _status_error(error: openai.APIStatusError) -> BadReply:
    body: Any = error.body
    details = body if isinstance(body, dict) else {}
    text = str(details.get("message") or details.get("detail") or error.message)
    out_of_money = "insufficient_quota" in (details.get("code"), details.get("type"))
    return BadReply(
        text,
        retryable=is_retryable(error.status_code) and not out_of_money,
        status=error.status_code,
        retry_after_s=_seconds(error.response.headers.get("retry-after")),
    )


def _seconds(value: str | None) -> float | None:
    """A Retry-After header in seconds; its rare date form is not worth a parser."""
    try:
        return min(max(float(value), 0.0), _MAX_RETRY_AFTER_S) if value else None
    except ValueError:
        return None


def is_overflow(failure: BadReply) -> bool:
    """Whether the server says that the conversation is too long for the model."""
    return failure.status in (400, 413, 422) and bool(_OVERFLOW.search(str(failure)))


def as_error(failure: BadReply, endpoint: Endpoint, *, attempts: int) -> EndpointError:
    """The error for the caller, in one line that says what to do."""
    text = " ".join(scrubbed(str(failure), endpoint).split())[:600]
    where = f"{public_url(endpoint.base_url)} (model {endpoint.model!r})"
    if is_overflow(failure):
        return ContextOverflow(f"{where}: {text}")
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    if failure.status is None:
        line = f"{where}: {text}{tried}; is the server running, and is the base URL right?"
    elif failure.status in (401, 403):
        key = endpoint.api_key_env
        state = "has the wrong key" if os.environ.get(key) else "is not set"
        line = f"{where} answered {failure.status}: {text}; the environment variable {key} {state}"
    elif failure.status == 404:
        line = (
            f"{where} answered 404: {text}; check the model's name, and that the base URL is the "
            "API's root (often ending in /v1)"
        )
    else:
        line = f"{where} answered {failure.status}{tried}: {text}"
    if _NO_TOOL_PARSER in text:
        line += "; or send no tools: --tool-calls text, ChatClient(…, send_tools=False)"
    return EndpointError(line, retryable=failure.retryable, status=failure.status)


def public_url(url: str) -> str:
    """A URL without user, password, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def scrubbed(text: str, endpoint: Endpoint) -> str:
    """A server's or library's text without the key and without credentials in URLs."""
    key = os.environ.get(endpoint.api_key_env)
    if key:
        text = text.replace(key, "[redacted]")
    return text.replace(endpoint.base_url, public_url(endpoint.base_url))
