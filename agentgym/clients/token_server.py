"""What a vLLM server says about itself: its models, how much fits, how it reads text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym.clients.reply import BadReply, count_of
from agentgym.clients.transport import LoopSession
from agentgym.clients.wire import encoded
from agentgym.tokens.loading import LoadedTokenizer

_SAMPLE = 'Ein Müller said: "2+2=4", didn\'t he?\n\tdef f(x): return {"k": [x, 1.5e-3]}  # 日本 🙂'
"""Text that hardly two tokenizers cut into the same ids."""


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
