"""What of an environment may leave the service: strict JSON, bounded, and only what is listed.

An environment's `info` is a dictionary that anybody may put anything into: a wrapper its goal, a
debugger the reference. So nothing of it goes out but the keys on a list, and no message goes out
that is larger than a client and whatever stands between will carry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from agentgym.remote.wire import strict_json
from agentgym.types import Message

INFO_KEYS = frozenset(
    {
        *("task_id", "split", "turns_left", "termination_reason", "truncation_reason"),
        *("available_actions", "catalogue"),
    }
)
"""Keys of `info` that a policy may see, in the environments that come with agentgym."""


def public_info(info: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """The listed keys of an env's `info`, as JSON."""
    return {key: strict_json(info[key]) for key in sorted(keys) if key in info}


def json_bytes(value: Any) -> int:
    """Bytes of a value as JSON, with everything but ASCII escaped."""
    return len(json.dumps(value))


def least_bytes(value: Any) -> int:
    """Bytes that the arrays in a value have as JSON at the least, told without converting them."""
    if isinstance(value, np.ndarray):
        return 2 * value.size  # a digit and a comma
    if isinstance(value, Mapping):
        return sum(map(least_bytes, value.values()))
    return sum(map(least_bytes, value)) if isinstance(value, list | tuple) else 0


def bounded(messages: Sequence[Message], limit: int) -> tuple[list[Message], bool]:
    """Messages whose text fits into a number of bytes, and whether any was cut.

    Text is cut at its end and says how much is missing; whatever else a message holds stays whole
    as long as it fits. Every message stays, since each answers a call.

    Args:
        messages: What the environment answered, in order.
        limit: Most bytes of all their contents together.
    """
    left, cut, kept = limit, False, []
    for message in messages:
        public: Message = strict_json(message)
        content = public.get("content")
        if isinstance(content, str):
            size = len(content.encode())
            if size > left:
                public["content"], cut = _shortened(content, left), True
            left = max(0, left - size)
        elif content is not None:
            size = json_bytes(content)
            if size > left:
                public["content"], cut = _missing(size), True
            left = max(0, left - size)
        kept.append(public)
    return kept, cut


def _shortened(text: str, limit: int) -> str:
    data = text.encode()
    head = data[:limit].decode(errors="ignore")
    return f"{head}\n{_missing(len(data) - len(head.encode()))}" if head else _missing(len(data))


def _missing(size: int) -> str:
    return f"[truncated: {size} bytes left out]"
