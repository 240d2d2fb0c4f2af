"""Chat-completions replies, read into our records.

Replies are read from plain dicts: servers leave out fields, put null or numbers as text where the
specification has objects, and answer 200 with an error inside. What can be understood is; the rest
is an error that says whether trying again may help.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from agentgym.client import Completion
from agentgym.clients.written import Written
from agentgym.types import Message, Usage, clean_json

_NO_MONEY = re.compile(
    r"insufficient[_ ](quota|balance|credits?|funds)|billing_hard_limit", re.IGNORECASE
)
_DIED = ("abort", "error")  # finish reasons with which vLLM and gateways report their own failure
_OVERLOADED = (429, 503, 529)  # 529 is Anthropic's and its gateways'
_NOT_FINITE = re.compile(r"not JSON compliant|Out of range float", re.IGNORECASE)
"""How servers say that they can't write NaN or infinity, with one status or another."""
QUOTED = 10_000
"""Characters of a reply that go into an error. It is cut to size after secrets are taken out of it,
or a secret that is cut in the middle would stay."""
_THINK, _THOUGHT = "<think>", "</think>"
_BYTES_PER_TOKEN = 4  # the usual rule of thumb for English; for estimates, which are marked as such


class BadReply(Exception):
    """A reply that is no completion.

    Args:
        message: What is wrong with it, the server's own words included.
        retryable: Whether the same request may succeed later.
        status: The HTTP status, or the code inside a 200 reply.
        usage: What the reply was billed, if it says so.
        retry_after_s: How long the server asks to wait, seconds.
        unreachable: Whether nothing came back at all.
        out_of_money: Whether the account can't pay for any request.
        empty: Whether it is a reply in form, with no answer in it.
        unknown_bill: Whether it may have been billed all the same, and nobody knows how much.
        own_fault: Whether it is this process that can't send anything.
        not_finite: Whether the server had an answer, with numbers in it that JSON has no form for.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        status: int | None = None,
        usage: Usage | None = None,
        retry_after_s: float | None = None,
        unreachable: bool = False,
        out_of_money: bool = False,
        empty: bool = False,
        unknown_bill: bool = False,
        own_fault: bool = False,
        not_finite: bool = False,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.status = status
        self.usage = usage
        self.retry_after_s = retry_after_s
        self.unreachable = unreachable
        self.out_of_money = out_of_money
        self.empty = empty
        self.unknown_bill = unknown_bill
        self.own_fault = own_fault
        self.not_finite = not_finite

    @property
    def is_overload(self) -> bool:
        """Whether the server asks for fewer requests, rather than for money."""
        return self.status in _OVERLOADED and not self.out_of_money


def bad_reply(
    text: str,
    *,
    status: int | None,
    code: Any = None,
    kind: Any = None,
    usage: Usage | None = None,
    retry_after_s: float | None = None,
) -> BadReply:
    """Class an error that a server reports, by its status line or inside a 200 reply.

    Args:
        text: The server's words.
        status: The HTTP status, or the numeric code inside a 200 reply.
        code: The error's `code`, which says more than the status where it is a word.
        kind: The error's `type`.
        usage: What was billed.
        retry_after_s: How long the server asks to wait, seconds.
    """
    if isinstance(code, str) and not code.isdecimal() and code not in text:
        text = f"{text} ({code})"
    out_of_money = status == 402 or bool(_NO_MONEY.search(f"{text} {kind}"))
    not_finite = bool(_NOT_FINITE.search(text))
    return BadReply(
        text,
        retryable=not out_of_money and (not_finite or status is None or is_retryable(status)),
        status=status,
        usage=usage,
        retry_after_s=retry_after_s,
        out_of_money=out_of_money,
        not_finite=not_finite,
    )


def is_retryable(status: int) -> bool:
    """Whether the same request may succeed later, by its HTTP status."""
    return status in (408, 409, 425, 429) or status >= 500


def read_reply(body: Any, request: Mapping[str, Any]) -> Completion:
    """Read a chat-completions reply.

    Args:
        body: The decoded JSON.
        request: The request's body as it was sent, for its output limit and for estimates.

    Raises:
        BadReply: If it is an error, or has no choice.
    """
    choice, reported = choice_of(
        body, "message", lambda reported: read_usage(reported, request, None)
    )
    message, reasoning = _read_message(choice["message"])
    usage = read_usage(reported, request, {**message, "reasoning": reasoning})
    finish_reason = choice.get("finish_reason")
    check_finished(finish_reason, usage)
    spent = count_of(reported.get("completion_tokens"))
    return Completion(
        message=message,
        usage=usage,
        finish_reason=None if finish_reason is None else str(finish_reason),
        # Some servers report "tool_calls" for a call that the output limit cut (vLLM #58228).
        cut_off=finish_reason == "length" or (spent or 0) >= output_limit(request),
        reasoning=reasoning,
    )


def choice_of(
    body: Any, kind: str, billed: Callable[[Mapping[str, Any]], Usage]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The one choice of a reply, and the usage it reports.

    Args:
        body: The decoded JSON.
        kind: The field that a choice must have: an object as `message`, or a `text`.
        billed: What a reply without a choice was billed, by the usage that it reports.

    Raises:
        BadReply: If it is an error, or has no choice.
    """
    if not isinstance(body, Mapping):
        raise BadReply(f"the reply is no JSON object: {body!r:.{QUOTED}}", retryable=True)
    reported = body.get("usage")
    reported = reported if isinstance(reported, Mapping) else {}
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    error = body.get("error") or (isinstance(choice, Mapping) and choice.get("error"))
    wanted = str if kind == "text" else Mapping
    if error or not isinstance(choice, Mapping) or not isinstance(choice.get(kind), wanted):
        usage = billed(reported) if reported else None
        if error:
            raise _embedded_error(error, usage)
        text = "the reply has no choice in it"
        raise BadReply(text, retryable=True, usage=usage, empty=True)
    return choice, reported


def check_finished(finish_reason: Any, usage: Usage) -> None:
    """Tell an answer from what was left when a server gave up.

    Raises:
        BadReply: If it gave up; that isn't the policy's doing, whatever text there is.
    """
    if finish_reason in _DIED:
        text = f"the server gave up (finish_reason {finish_reason!r})"
        raise BadReply(text, retryable=True, usage=usage)


def output_limit(request: Mapping[str, Any]) -> float:
    """Tokens the request allowed, over all its choices.

    An endpoint's own fields may have changed or dropped the limit; 0 and -1 are none to some
    servers.
    """
    limits = [request.get(key) for key in ("max_tokens", "max_completion_tokens")]
    least = min((n for n in limits if isinstance(n, int) and n > 0), default=math.inf)
    choices = request.get("n")
    return least * (choices if isinstance(choices, int) and choices > 1 else 1)


def _embedded_error(error: Any, usage: Usage | None) -> BadReply:
    """An error inside a 200 reply, classed like the HTTP status of its code."""
    details = error if isinstance(error, Mapping) else {}
    text = str(details.get("message") or error)
    code = details.get("code") or details.get("status")
    status = int(str(code)) if re.fullmatch("[0-9]{3}", str(code)) else None
    return bad_reply(text, status=status, code=code, kind=details.get("type"), usage=usage)


def _read_message(given: Mapping[str, Any]) -> tuple[Message, str | None]:
    """The assistant message and its reasoning text."""
    content = text_of(given.get("content"))
    reasoning = given.get("reasoning_content") or given.get("reasoning")
    reasoning = reasoning if isinstance(reasoning, str) else None
    if reasoning is None and content is not None:
        content, reasoning = _without_reasoning(content)
    message: Message = {"role": "assistant", "content": content}
    calls = given.get("tool_calls")
    calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    legacy = given.get("function_call")
    if not calls and isinstance(legacy, Mapping) and legacy.get("name"):
        calls = [{"id": None, "type": "function", "function": dict(legacy)}]
    if calls:
        message["tool_calls"] = calls
        message["content"] = content or None
    elif content is None:
        message["content"] = ""
    if given.get("refusal"):
        message["refusal"] = str(given["refusal"])
    return clean_json(message), clean_json(reasoning)


def text_of(content: Any) -> str | None:
    """The text of a content field, given as text or as a list of parts."""
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, Mapping))
        return "".join(part for part in parts if isinstance(part, str))
    return content if content is None else str(content)


def _without_reasoning(content: str) -> tuple[str, str | None]:
    """Text without the reasoning block at its start, and that block's text.

    Servers without a reasoning parser leave it in the text; where the prompt opens the block, only
    its end is there. One that never ends was cut off, and nothing follows it.
    """
    opened = content.lstrip().startswith(_THINK)
    if not opened and (_THINK in content or _THOUGHT not in content):
        return content, None
    reasoning, _, answer = content.partition(_THOUGHT)
    reasoning = reasoning.lstrip().removeprefix(_THINK).strip()
    return answer.lstrip(), reasoning or None


def read_usage(
    reported: Mapping[str, Any], request: Mapping[str, Any], answer: Mapping[str, Any] | None
) -> Usage:
    """Tokens of one call; what the server leaves out is estimated, and marked so.

    Args:
        reported: The reply's `usage`, perhaps empty.
        request: The request's body, to estimate its tokens.
        answer: The answer, to estimate its tokens; None if there was none.
    """
    prompt = count_of(reported.get("prompt_tokens"))
    completion = count_of(reported.get("completion_tokens"))
    estimated = prompt is None or completion is None
    if prompt is None:
        prompt = _estimate(request["messages"], request.get("tools", ()))
    if completion is None:
        completion = _estimate(answer) if answer else 0
    cached = count_of(detail_of(reported, "prompt_tokens_details", "cached_tokens"))
    reasoning = count_of(detail_of(reported, "completion_tokens_details", "reasoning_tokens"))
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=min(cached or 0, prompt),
        completion_tokens=completion,
        reasoning_tokens=min(reasoning or 0, completion),
        estimated=estimated,
    )


def detail_of(reported: Mapping[str, Any], group: str, key: str) -> Any:
    """One field of a group inside a reply's `usage`; None where there is none."""
    details = reported.get(group)
    return details.get(key) if isinstance(details, Mapping) else None


def count_of(value: Any) -> int | None:
    """A token count, or None where the server gave none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        return None  # also what NaN and infinity are
    return int(value)


def estimated_tokens(size: int) -> int:
    """Tokens of text in UTF-8 of so many bytes, by the rule of thumb.

    A language's longer characters cost more.
    """
    return -(-size // _BYTES_PER_TOKEN)


def _estimate(*values: Any) -> int:
    """Tokens of values, those that are JSON already among them."""
    return estimated_tokens(len(b",".join(map(_text, values))))


def _text(value: Any) -> bytes:
    if isinstance(value, Written):
        return b"".join(value.pieces)
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace")
