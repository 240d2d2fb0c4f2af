"""What a vLLM server shows of itself: model, room, tokenizer, kind of log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from agentgym.clients.reply import BadReply, count_of
from agentgym.clients.transport import LoopSession
from agentgym.clients.wire import encoded
from agentgym.tokens.loading import LoadedTokenizer

_SAMPLE = 'Ein Müller said: "2+2=4", didn\'t he?\n\tdef f(x): return {"k": [x, 1.5e-3]}  # 日本 🙂'
"""Text that hardly two tokenizers cut into the same ids."""
_CLEAR = 0.1
"""Least gap between two log-probabilities that shows what temperature does to it."""
_MORE_THAN_ALL = 1.01
"""What probabilities can't add up to, rounding included."""


def context_of(listed: Any, model: str) -> int | None:
    """Tokens of prompt and answer that a model has room for, by the reply of `/v1/models`.

    Returns:
        None where the server doesn't tell.

    Raises:
        BadReply: If it has no such model.
    """
    cards = listed.get("data") if isinstance(listed, Mapping) else None
    cards = [card for card in cards if isinstance(card, Mapping)] if isinstance(cards, list) else []
    by_name = {str(card.get("id")): card for card in cards}
    card = by_name.get(model)
    if card is None:
        names = ", ".join(by_name) or "none"
        raise BadReply(f"the server has no model {model!r}; it has {names}", retryable=False)
    # An adapter has the room of the model that it belongs to.
    for each in (card, by_name.get(str(card.get("parent"))), *cards):
        if each is not None and (found := count_of(each.get("max_model_len"))):
            return found
    return None


async def check_tokenizer(session: LoopSession, model: str, loaded: LoadedTokenizer) -> None:
    """See that the server cuts a text into the same ids, where it has a route to ask.

    Raises:
        BadReply: If it doesn't.
    """
    body = {"model": model, "prompt": _SAMPLE, "add_special_tokens": False}
    try:
        reply = await session.ask("/tokenize", encoded(body), at_root=True)
    except BadReply as failure:
        if failure.status is None or failure.status not in (404, 405, 501):
            raise
        return
    theirs = reply.get("tokens") if isinstance(reply, Mapping) else None
    with loaded.lock:
        ours = list(loaded.tokenizer(_SAMPLE, add_special_tokens=False)["input_ids"])
    if theirs != ours:
        raise BadReply(
            f"the server's tokenizer cuts text into other ids than {loaded.name!r}; "
            "tokens.tokenizer must be that of the server's model",
            retryable=False,
        )


def gives_raw(warm: Mapping[str, float], cold: Mapping[str, float], *, ratio: float) -> bool | None:
    """Whether log-probabilities are from before temperature and cut-offs are applied.

    Temperature `T` divides logits, so the gap between two ids' processed log-probabilities is
    `1 / T` times the raw one.

    Args:
        warm: Of the likeliest next ids after a prompt, at temperature 1.
        cold: Of the likeliest after the same prompt, at temperature `ratio`.
        ratio: Below 1.

    Returns:
        None if the ids are too much alike to tell.

    Raises:
        BadReply: If they are logits.
    """
    if sum(math.exp(min(logprob, 1.0)) for logprob in warm.values()) > _MORE_THAN_ALL:
        raise BadReply(
            "the server gives logits in place of log-probabilities; start it with "
            "--logprobs-mode processed_logprobs",
            retryable=False,
        )
    gaps = [
        (warm[a] - warm[b], cold[a] - cold[b])
        for a, b in combinations(sorted(warm.keys() & cold.keys()), 2)
    ]
    found = [second / first for first, second in gaps if abs(first) > _CLEAR]
    halfway = (1 + 1 / ratio) / 2
    return all(each < halfway for each in found) if found else None
