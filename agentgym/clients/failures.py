"""What a failed request means: is it worth another try, and what the user should do.

The HTTP library's exceptions and servers' error texts come in; one line that names base URL and
model comes out. Keys and credentials in URLs never do.
"""

from __future__ import annotations

import base64
import errno
import json
import math
import os
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urljoin, urlsplit

import aiohttp

from agentgym.client import Endpoint, named_secrets, public_url
from agentgym.clients.reply import BadReply, bad_reply
from agentgym.errors import ConfigError, ContextOverflow, EmptyReply, EndpointError
from agentgym.redaction import REDACTED, SHORTEST_SECRET

_OVERFLOW = re.compile(
    r"context[_ ]length|maximum context|context window|context limit|context size|max_model_len"
    r"|maximum (model|prompt|input) length|prompt is too long|input is too long|reduce the length"
    r"|(inputs?|prompt)\b.{0,60}\btokens? .{0,40}(exceed|must be <=)"
    r"|inputs?\b.{0,9}must have less than"
    r"|tokens .{0,20}in the prompt cannot exceed|range of input length",
    re.IGNORECASE,
)
"""How servers say that a conversation is too long: vLLM, SGLang, llama.cpp, TGI, hosted ones."""
_NOT_TAKEN = r".{0,80}(support|allow|unknown|recogni|only the default)"
_HINTS = (
    (
        re.compile(
            "requires --enable-auto-tool-choice|tool.{0,40}not (supported|available)",
            re.IGNORECASE,
        ),
        "send no tools: --tool-calls text, or dialect.tools = false",
    ),
    (
        re.compile(rf"\btemperature\b{_NOT_TAKEN}", re.IGNORECASE),
        "send no temperature: dialect.temperature = false",
    ),
    (
        re.compile(rf"\bseed\b{_NOT_TAKEN}", re.IGNORECASE),
        "send no seed: --no-request-seed, or dialect.seed = false",
    ),
)
"""What a server doesn't take, by its words, and how to leave it out."""
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)


def as_bad_reply(error: Exception) -> BadReply:
    """Class what the HTTP library raised: its own exceptions, and what slips through them."""
    cause = getattr(error, "os_error", None) or error
    if isinstance(cause, OSError) and cause.errno in _TOO_MANY_FILES:
        text = "no more connections: this process has too many open files; raise `ulimit -n`"
        return BadReply(text, retryable=True, unreachable=True, own_fault=True)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return BadReply("no connection within the time-out", retryable=True, unreachable=True)
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return BadReply(f"no secure connection: {error}", retryable=False, unreachable=True)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        text = f"the proxy refuses the connection: {error.status} {error.message}"
        return BadReply(text, retryable=error.status >= 500, unreachable=True)
    if isinstance(error, aiohttp.ClientConnectorError):
        return BadReply(f"no connection: {error}", retryable=True, unreachable=True)
    if isinstance(error, aiohttp.ClientPayloadError):
        text = f"the connection was cut in the middle of the reply: {error}"
        return BadReply(text, retryable=True, unknown_bill=True)
    if isinstance(error, aiohttp.ClientResponseError):
        return BadReply(f"the reply is not HTTP: {error.message}", retryable=True)
    if isinstance(error, aiohttp.ClientConnectionError | OSError):
        text = f"no connection: {str(error) or type(error).__name__}"
        return BadReply(text, retryable=True, unreachable=True, unknown_bill=True)
    return BadReply(f"{type(error).__name__}: {error}", retryable=False)


def status_error(status: int, headers: Mapping[str, str], data: bytes, url: object) -> BadReply:
    """Class a reply whose status is no success.

    Args:
        status: The HTTP status.
        headers: The reply's.
        data: Its body.
        url: Where the request went, to tell where the server sends it instead.
    """
    text = data.decode("utf-8", "replace").strip()
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    details: Any = (body.get("error") or body) if isinstance(body, dict) else None
    if isinstance(details, str):
        text, details = details, {}
    elif not isinstance(details, dict):
        details = {}
    if 300 <= status < 400:
        target = public_url(urljoin(str(url), headers.get("Location", "")))
        text = f"the server sends requests on to {target}; set base_url accordingly"
    return bad_reply(
        _words_of(details) or text or "no reason given",
        status=status,
        code=details.get("code"),
        kind=details.get("type"),
        retry_after_s=retry_after_s(headers),
    )


def _words_of(said: Any) -> str:
    """The text in an error's body: OpenAI's and its imitators', FastAPI's with the field's name."""
    if isinstance(said, str):
        return said
    if isinstance(said, list):
        return "; ".join(filter(None, map(_words_of, said)))
    if not isinstance(said, dict):
        return ""
    texts = (_words_of(said.get(key)) for key in ("message", "msg", "detail", "error"))
    text = next(filter(None, texts), "")
    place = said.get("loc")
    return f"{'.'.join(map(str, place))}: {text}" if isinstance(place, list) and text else text


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long a server asks to wait, seconds: `Retry-After` as a number or as a date.

    Source: RFC 9110, section 10.2.3. A date is read by the server's own clock where it tells.
    """
    value = headers.get("Retry-After", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        until = _timestamp(value)
        if until is None:
            return None
        now = _timestamp(headers.get("Date", ""))
        seconds = until - (time.time() if now is None else now)
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _timestamp(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
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
    line = f"{where}{_what_happened(failure, text, endpoint, attempts, answered)}"
    if failure.status in (400, 404, 405, 422):
        hints = [hint for pattern, hint in _HINTS if pattern.search(text)]
        line = "; ".join((line, *hints))
    if failure.not_finite:
        line += "; NaN or infinity came out of the model: look at its weights and data type"
    # 402 is what an empty account is, whichever status the server has for it.
    status = 402 if failure.out_of_money else failure.status
    kind = EmptyReply if failure.empty else EndpointError
    return kind(line, retryable=failure.retryable, status=status)


NEVER_ASKED = BadReply("was not asked", retryable=True)


def words_of(failure: BadReply, endpoint: Endpoint) -> str:
    """What a server said, in one line without secrets."""
    text = " ".join(scrubbed(str(failure), endpoint).split())
    has_answered = failure.status is not None and not failure.unknown_bill
    return f"{f'answered {failure.status}: ' if has_answered else ''}{text}"[:200]


def as_error_of_all(
    model: str, failures: Mapping[str, BadReply], words: Mapping[str, str], *, attempts: int
) -> EndpointError:
    """The error for the caller where no server of several answers.

    Args:
        model: What they serve.
        failures: What became of the last request to each, by its name.
        words: The same for people to read.
        attempts: Requests there were for this call.
    """
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    said = "; ".join(f"{name}: {text}" for name, text in words.items())
    each = list(failures.values())
    status = None
    if each and all(failure.out_of_money or failure.status in (401, 402) for failure in each):
        status = 402 if any(failure.out_of_money for failure in each) else 401
    return EndpointError(
        f"no replica of model {model!r} answers{tried}: {said or 'there is none, add one'}",
        retryable=status is None,
        status=status,
    )


def _what_happened(
    failure: BadReply, text: str, endpoint: Endpoint, attempts: int, answered: bool
) -> str:
    """What comes after the endpoint's name."""
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    if failure.unreachable and answered:
        return f": {text}{tried}; it has answered before, so the server died: see its log"
    if failure.unreachable:
        return f": {text}{tried}; is the server running, and is the base URL right?"
    if failure.out_of_money:
        return f": {text}; the account has no credit left"
    if failure.status is None or (
        failure.status == 408 and failure.unknown_bill
    ):  # nobody answered
        return f": {text}{tried}"
    if failure.status in (401, 403):
        key = endpoint.api_key_env
        state = "has the wrong key" if os.environ.get(key) else "is not set"
        return f" answered {failure.status}: {text}; the environment variable {key} {state}"
    if failure.status in (404, 405):
        return (
            f" answered {failure.status}: {text}; check the model's name, and that the base URL is "
            "the API's root (often ending in /v1)"
        )
    return f" answered {failure.status}{tried}: {text}"


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
    """What must never be shown.

    The key, credentials and query values in the URL, and what stands in `extra_body` under a name
    like a secret's.
    """
    parts = urlsplit(endpoint.base_url)
    key = os.environ.get(endpoint.api_key_env, "")
    values = [key.strip(), *(value for _, value in parse_qsl(parts.query))]
    if parts.username is not None:  # without a password, the name is the secret
        values += [parts.password or parts.username, basic_credentials(parts)]
    values += named_secrets(endpoint.extra_body)
    if endpoint.tokens is not None:
        values += named_secrets(endpoint.tokens.template_kwargs)
    values += [unquote(value) for value in values] + [quote(value) for value in values]
    return sorted({value for value in values if len(value) >= SHORTEST_SECRET}, key=len)[::-1]


def basic_credentials(url: SplitResult) -> str:
    """User and password of a URL as they stand in an Authorization header (RFC 7617)."""
    pair = f"{unquote(url.username or '')}:{unquote(url.password or '')}"
    return base64.b64encode(pair.encode()).decode()


def scrubbed(text: str, endpoint: Endpoint) -> str:
    """A server's or library's text without the key and without credentials in URLs."""
    text = text.replace(endpoint.base_url, public_url(endpoint.base_url))
    for secret in secrets_of(endpoint):
        text = text.replace(secret, REDACTED)
    return text
