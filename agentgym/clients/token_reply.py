"""Completions in token ids, read into ids and log-probabilities.

What a trainer takes from here goes into its loss as it is, so nothing is guessed: ids that are
missing, that are no answer to the ids that were sent, or that have no log-probabilities are an
error that says what the server lacks. A single log-probability that is no number is no error; it
becomes NaN, and that token carries no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentgym.clients.reply import BadReply, check_finished, choice_of, count_of, detail_of
from agentgym.clients.written import Written
from agentgym.tokens.loading import HIGHEST_ID
from agentgym.types import Usage

_LOWEST = -9999.0
"""What vLLM writes for -inf."""
_ECHO = b'"prompt_token_ids":'
"""Nowhere else in JSON: inside a text, quotation marks are escaped."""
_NAMES = (b'"text_offset":[', b'"tokens":[', b'"top_logprobs":[')
_ROUNDING = 1e-3
"""By how much the logarithm of a probability may be above 0."""


@dataclass(frozen=True, slots=True)
class TokenReply:
    """What a server sampled."""

    ids: tuple[int, ...]
    """Shape `(C,)`."""
    logprobs: tuple[float, ...]
    """Shape `(C,)`; NaN where the server has none."""
    text: str
    """As the server decodes them, without the stop token."""
    finish_reason: str | None
    stop_reason: int | str | None
    usage: Usage
    likeliest: dict[str, float]
    """Log-probabilities of the first id's alternatives, by the server's names of ids."""


def without_echo(data: bytes, prompt: Written) -> bytes:
    """A reply's JSON with `true` in place of the prompt's ids, where they are those that were sent.

    Servers repeat the prompt, all of it in every turn. Most of the work on a long episode's replies
    would be to decode it, only to find what comparing bytes tells.

    Args:
        data: The reply.
        prompt: The ids as they were sent.
    """
    at = data.find(_ECHO)
    if at < 0:
        return data
    begin = at + len(_ECHO)
    end = begin
    for piece in prompt.pieces:
        if not data.startswith(piece, end):
            return data
        end += len(piece)
    return b"".join((data[:begin], b"true", data[end:]))


def without_names(data: bytes) -> bytes:
    """A reply's JSON without what servers say of each sampled id beside its log-probability.

    Its name, place in the text and alternatives are most of the reply, and nobody reads them.

    Args:
        data: The reply.
    """
    for key in _NAMES:
        begin = data.find(key) + len(key)
        if begin < len(key):
            continue
        end = data.find(b"]", begin)
        listed = data[begin : max(begin, end)]
        # Then the bracket is in no string, and closes this list. Texts of ids may hold anything.
        if not (b"\\" in listed or b"[" in listed or listed.count(b'"') % 2):
            data = b"".join((data[:begin], data[max(begin, end) :]))
    return data


def read_token_reply(body: Any, prompt: Sequence[int]) -> TokenReply:
    """Read the reply to a request in ids.

    Args:
        body: The decoded JSON.
        prompt: The ids that were sent, shape `(P,)`.

    Raises:
        BadReply: If it is an error, or not what was asked for.
    """
    choice, reported = choice_of(body, "text", lambda reported: _usage(reported, prompt, 0))
    ids: Any = choice.get("token_ids")
    spent = _count(ids, reported)
    usage = _usage(reported, prompt, spent)
    finish_reason = choice.get("finish_reason")
    check_finished(finish_reason, usage)
    if not _are_ids(ids):
        raise _wrong(
            "the reply has no token ids; a policy that is asked in ids needs vLLM 0.10.2 or newer, "
            "which takes `return_token_ids`",
            usage,
        )
    _check_prompt(choice.get("prompt_token_ids"), prompt, usage)
    given = choice.get("logprobs")
    given = given if isinstance(given, Mapping) else {}
    logprobs = given.get("token_logprobs")
    if not isinstance(logprobs, list) or len(logprobs) != len(ids):
        count = len(logprobs) if isinstance(logprobs, list) else "no"
        raise _wrong(f"the reply has {count} log-probabilities for {len(ids)} ids", usage)
    read = _read_logprobs(logprobs, usage)
    reason = choice.get("stop_reason")
    return TokenReply(
        ids=tuple(ids),
        logprobs=tuple(read.tolist()),
        text=choice["text"],
        finish_reason=None if finish_reason is None else str(finish_reason),
        stop_reason=reason if isinstance(reason, int | str) else None,
        usage=usage,
        likeliest=_likeliest(given.get("top_logprobs")),
    )


def _count(ids: Any, reported: Mapping[str, Any]) -> int:
    if isinstance(ids, list):
        return len(ids)
    return count_of(reported.get("completion_tokens")) or 0


def _usage(reported: Mapping[str, Any], prompt: Sequence[int], completion: int) -> Usage:
    cached = count_of(detail_of(reported, "prompt_tokens_details", "cached_tokens")) or 0
    return Usage(
        prompt_tokens=len(prompt),
        cached_tokens=min(cached, len(prompt)),
        completion_tokens=completion,
    )


def _are_ids(ids: Any) -> bool:
    if not isinstance(ids, list):
        return False
    return not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= HIGHEST_ID)


def _check_prompt(returned: Any, prompt: Sequence[int], usage: Usage) -> None:
    if returned is True:  # see `without_echo`
        return
    if not isinstance(returned, list):
        raise _wrong("the reply doesn't say which prompt it answers (`prompt_token_ids`)", usage)
    if tuple(returned) == tuple(prompt):
        return
    pairs = enumerate(zip(returned, prompt, strict=False))
    at = next((k for k, (a, b) in pairs if a != b), min(len(returned), len(prompt)))
    raise _wrong(
        f"the reply answers another prompt: {len(returned)} ids instead of {len(prompt)}, the "
        f"first difference at {at}; the server must neither truncate prompts nor add to them",
        usage,
    )


def _read_logprobs(given: list[Any], usage: Usage) -> NDArray[np.float64]:
    """Shape `(C,)`; NaN for null, and for what is no finite number or stands for none."""
    try:
        read = np.array(given, dtype=np.float64).reshape(len(given))
    except (TypeError, ValueError) as error:
        raise _wrong("the reply's log-probabilities are no numbers", usage) from error
    read[~(np.isfinite(read) & (read > _LOWEST))] = np.nan
    if (read > _ROUNDING).any():
        raise _wrong(
            f"the reply's log-probabilities are none ({np.nanmax(read):g} is above 0); start the "
            "server with --logprobs-mode processed_logprobs",
            usage,
        )
    return read


def _likeliest(top: Any) -> dict[str, float]:
    first = top[0] if isinstance(top, list) and top else None
    found = first if isinstance(first, Mapping) else {}
    return {
        str(name): float(logprob)
        for name, logprob in found.items()
        if isinstance(logprob, int | float) and math.isfinite(logprob) and logprob > _LOWEST
    }


def _wrong(text: str, usage: Usage) -> BadReply:
    return BadReply(text, retryable=False, usage=usage)
