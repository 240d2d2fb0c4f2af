"""Asking a model for one JSON object, checking it, and asking once more.

What a simulator's model says reaches the policy only if every check lets it through. A reply that
fails one is answered with what is wrong with it; a second failure is the simulator's fault, and the
episode is masked.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from agentgym.client import Completion, ModelClient, SamplingParams
from agentgym.errors import EndpointError, SimulatorError
from agentgym.simulators.prompts import again
from agentgym.types import MAX_NESTING, Message, clean_json, nests_too_deep

T = TypeVar("T")

ATTEMPTS = 2
"""Replies a model gets to give a usable one."""
LONGEST_QUOTE = 1_000
"""Characters of a refused reply, and of its fault, that go back to the model or into an error."""
LONGEST_REPLY = 100_000
"""Characters of a reply; whatever is in it may become a record, or part of later prompts."""

_FENCE, _LANGUAGE = "```", "json"

_BLANK = re.compile(
    r"^\W*<[^<>]*>\W*$|\[(your|insert|customer|agent|order|name|number|optional)\b[^\]\d]{0,40}\]",
    re.IGNORECASE,
)


class Unusable(Exception):
    """A reply can't be used; the text tells the model that gave it why."""


async def ask(
    client: ModelClient,
    messages: Sequence[Message],
    read: Callable[[Completion], T],
    *,
    sampling: SamplingParams,
    seed: str,
    session: str,
    faults: list[str],
    who: str,
) -> T:
    """Ask, check, and ask once more.

    Args:
        client: The simulator's model.
        messages: The prompt; a refused reply and its fault are added to a copy.
        read: Makes something of a reply, or raises `Unusable`.
        sampling: How to sample, its seed aside.
        seed: What the seeds of the attempts follow from.
        session: The episode; empty for none.
        faults: Where refused replies are listed.
        who: Whose reply it is, for the error.

    Raises:
        SimulatorError: If the second reply can't be used either, or there is none.
    """
    prompt, fault = list(messages), ""
    for attempt in range(ATTEMPTS):
        bits = random.Random(f"{seed}/{attempt}").getrandbits(31)
        try:
            completion = await client.complete(
                prompt,
                (),
                sampling.model_copy(update={"seed": bits}),
                session=session or None,
            )
        except EndpointError as error:
            raise SimulatorError(f"{who}: no reply: {error}") from error
        try:
            return read(completion)
        except Unusable as error:
            fault = str(error)[:LONGEST_QUOTE]
        said = str(completion.message.get("content") or "")[:LONGEST_QUOTE]
        faults.append(f"{fault} (reply: {said[:200]!r})")
        prompt += [
            {"role": "assistant", "content": said or "(nothing)"},
            again(fault),
        ]
    refused = "; then ".join(faults[-ATTEMPTS:])
    raise SimulatorError(f"{who}: no usable reply in {ATTEMPTS} attempts: {refused}")


def read_object(completion: Completion) -> dict[str, Any]:
    """The JSON object that a reply consists of.

    Lenient in form (a code fence around it, where a server can't be held to JSON), strict in
    substance: an object that merely occurs in a text may be quoted from somebody else.

    Raises:
        Unusable: If the reply is cut off, refused, or anything but one object.
    """
    message = completion.message
    if completion.cut_off or completion.finish_reason == "length":
        raise Unusable("it was cut off by the output limit; make it shorter")
    if completion.finish_reason == "content_filter" or message.get("refusal"):
        raise Unusable("it was a refusal")
    text = message.get("content")
    if message.get("tool_calls") or not isinstance(text, str):
        raise Unusable("it was not text")
    if len(text) > LONGEST_REPLY:
        raise Unusable(f"it had {len(text)} characters; {LONGEST_REPLY} are allowed")
    text = _unfenced(text.strip().removeprefix("\ufeff"))
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"it was not one JSON object ({error})") from error
    if not isinstance(found, Mapping):
        raise Unusable(f"it was a JSON {type(found).__name__}, not an object")
    if nests_too_deep(found):
        raise Unusable(f"it was nested more than {MAX_NESTING} levels deep")
    cleaned: dict[str, Any] = clean_json(found)
    return cleaned


def _unfenced(text: str) -> str:
    """A text without the code fence that it stands in."""
    if len(text) < 2 * len(_FENCE) or not (text.startswith(_FENCE) and text.endswith(_FENCE)):
        return text
    inside = text[len(_FENCE) : -len(_FENCE)]
    return inside[len(_LANGUAGE) :] if inside[: len(_LANGUAGE)].lower() == _LANGUAGE else inside


def is_blank(text: str) -> bool:
    """Whether a text is a placeholder ("<text>", "[Your Name]") that nobody filled in."""
    return _BLANK.search(text) is not None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field is given twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
