"""What a failed request means: is it worth another try, and what the user should do.

openai's exceptions and servers' error texts come in; one line that names base URL and model comes
out. Keys and credentials in URLs never do.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import openai

from agentgym.client import Endpoint, public_url
from agentgym.clients.wire import BadReply, bad_reply
from agentgym.errors import ConfigError, ContextOverflow, EndpointError

_OVERFLOW = re.compile(
    r"context[_ ]length|maximum context|context window|context limit|context size|max_model_len"
    r"|maximum (model|prompt|input) length|prompt is too long|input is too long|reduce the length"
    r"|(inputs?|prompt)\b.{0,60}\btokens? .{0,40}(exceed|must be <=)"
    r"|inputs?\b.{0,9}must have less than"
    r"|tokens .{0,20}in the prompt cannot exceed|range of input length",
    re.IGNORECASE,
)
"""How servers say that a conversation is too long: vLLM, SGLang, llama.cpp, TGI, hosted ones."""
_NO_TOOL_PARSER = "requires --enable-auto-tool-choice"
_MAX_RETRY_AFTER_S = 120.0
_SHORTEST_SECRET = 8


def as_bad_reply(error: Exception) -> BadReply:
    """Class what openai's client raised: its own exceptions, and what slips through them."""
    if isinstance(error, openai.APITimeoutError):
        return BadReply("no answer within the time-out", retryable=True, status=408)
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        text = f"no connection: {str(cause) or type(cause).__name__}"
        return BadReply(text, retryable=True, unreachable=True)
    if isinstance(error, openai.APIStatusError):
        return _status_error(error)
    return BadReply(f"{type(error).__name__}: {error}", retryable=False)


def _status_error(error: openai.APIStatusError) -> BadReply:
    body: Any = error.body
    details = body if isinstance(body, dict) else {}
    text = details.get("message") or details.get("detail") or error.response.text.strip()
    return bad_reply(
        str(text or error.message),
        status=error.status_code,
        code=details.get("code"),
        kind=details.get("type"),
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
    if failure.unreachable or failure.status not in (None, 400, 413, 422):
        return False
    return bool(_OVERFLOW.search(str(failure)))


def as_error(
    failure: BadReply, endpoint: Endpoint, *, attempts: int, answered: bool = False
) -> EndpointError:
    """The error for the caller, in one line that says what to do.

    Args:
        failure: The last attempt's.
        endpoint: Which endpoint.
        attempts: How many there were.
        answered: Whether the endpoint has answered before, so that the URL isn't what is wrong.
    """
    text = " ".join(scrubbed(str(failure), endpoint).split())[:600]
    where = f"{public_url(endpoint.base_url)} (model {endpoint.model!r})"
    if is_overflow(failure):
        return ContextOverflow(f"{where}: {text}")
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    if failure.unreachable and answered:
        line = f"{where}: {text}{tried}; it has answered before, so the server died: see its log"
    elif failure.unreachable:
        line = f"{where}: {text}{tried}; is the server running, and is the base URL right?"
    elif failure.out_of_money:
        line = f"{where}: {text}; the account has no credit left"
    elif failure.status is None:
        line = f"{where}: {text}{tried}"
    elif failure.status in (401, 403):
        key = endpoint.api_key_env
        state = "has the wrong key" if os.environ.get(key) else "is not set"
        line = f"{where} answered {failure.status}: {text}; the environment variable {key} {state}"
    elif failure.status in (404, 405):
        line = (
            f"{where} answered {failure.status}: {text}; check the model's name, and that the base "
            "URL is the API's root (often ending in /v1)"
        )
    else:
        line = f"{where} answered {failure.status}{tried}: {text}"
    if _NO_TOOL_PARSER in text:
        line += "; or send no tools: --tool-calls text, ChatClient(…, send_tools=False)"
    # 402 is what an empty account is, whichever status the server has for it.
    status = 402 if failure.out_of_money else failure.status
    return EndpointError(line, retryable=failure.retryable, status=status)


def checked_url(url: str) -> str:
    """A base URL that a request can be sent to.

    Raises:
        ConfigError: If it can't be; the text doesn't show credentials.
    """
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:  # an unclosed bracket, a port that is none
        usable = False
    if usable and url.isprintable() and " " not in url:
        return url
    raise ConfigError(
        f"base_url {public_url(url)!r} is no usable URL; expected http://HOST:PORT/v1"
    )


def api_key(variable: str) -> str:
    """The key in an environment variable, as it can stand in a header; "" if there is none.

    Raises:
        EndpointError: If it can't stand there; the text doesn't show it.
    """
    key = os.environ.get(variable, "").strip()  # files and here-documents add a line feed
    if key.isascii() and key.isprintable():
        return key
    raise EndpointError(
        f"the environment variable {variable} holds no usable key: it has characters that can't "
        "be sent (typographic quotes, line feeds, accents); set it again",
        retryable=False,
        status=401,
    )


def secrets_of(endpoint: Endpoint) -> list[str]:
    """What must never be shown: the key, and the password and query values in the URL."""
    parts = urlsplit(endpoint.base_url)
    key = os.environ.get(endpoint.api_key_env, "")
    values = [key.strip(), parts.password or "", *(value for _, value in parse_qsl(parts.query))]
    values += [unquote(value) for value in values] + [quote(value) for value in values]
    # Shorter ones (EMPTY, none, an API version's v1) would blot out ordinary text.
    return sorted({value for value in values if len(value) >= _SHORTEST_SECRET}, key=len)[::-1]


def scrubbed(text: str, endpoint: Endpoint) -> str:
    """A server's or library's text without the key and without credentials in URLs."""
    text = text.replace(endpoint.base_url, public_url(endpoint.base_url))
    for secret in secrets_of(endpoint):
        text = text.replace(secret, "[redacted]")
    return text
