"""A model's tokenizer by name: loaded once per process, without its weights.

Clients that ask a server in token ids need what the server has: the tokenizer, its chat template
and the ids that end a turn. Loading takes a second or so and the tokenizer tens of megabytes, so
all clients of a process share one, and with it one lock: a tokenizer keeps settings of the text
that it is reading, which another thread must not change meanwhile.

Code that a repository brings along is never run.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentgym.errors import ConfigError, MissingExtraError

HIGHEST_ID = 2**31 - 1
"""No vocabulary is larger, and tokenizers can't decode what is."""
NEEDS_EXTRA = "asking in token ids needs transformers: pip install 'agentgym-envs[tokens]'"


@dataclass(slots=True)
class LoadedTokenizer:
    """A tokenizer, and what its model ends a turn with."""

    name: str
    """Folder or hub id."""
    tokenizer: Any
    """transformers' own; with a chat template."""
    stop_ids: tuple[int, ...]
    """The tokenizer's end of text first, then those of the model's generation config."""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)
    """To be held while the tokenizer is used."""


_loaded: dict[str, LoadedTokenizer] = {}
_lock = threading.Lock()


def _renew_locks() -> None:
    """In a forked process: a lock that another thread of the parent held is never let go of."""
    global _lock
    _lock = threading.Lock()
    for loaded in _loaded.values():
        loaded.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)


def load_tokenizer(name: str) -> LoadedTokenizer:
    """The process's tokenizer of a model.

    Args:
        name: Folder or hub id.

    Raises:
        ConfigError: If there is none, or it has no chat template or no end of text.
        MissingExtraError: If transformers isn't installed.
    """
    with _lock:
        if name not in _loaded:
            _loaded[name] = _load(name)
        return _loaded[name]


def _load(name: str) -> LoadedTokenizer:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError(NEEDS_EXTRA) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"can't load the tokenizer {name!r}: it must be a folder with a tokenizer's files, or "
            f"a model's id on the hub: {reason}"
        ) from error
    if not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer {name!r} has no chat template; set `tokenizer.chat_template` and save "
            "it beside the model, or name the tokenizer of the model's chat version"
        )
    stop_ids = tuple(dict.fromkeys(_stop_ids(name, tokenizer)))
    if not stop_ids:
        raise ConfigError(
            f"the tokenizer {name!r} has no end-of-text token, and the model's generation config "
            "none either; set `tokenizer.eos_token` and save it beside the model"
        )
    return LoadedTokenizer(name, tokenizer, stop_ids)


def _stop_ids(name: str, tokenizer: Any) -> Iterator[int]:
    if tokenizer.eos_token_id is not None:
        yield int(tokenizer.eos_token_id)
    declared = _generation_config(name).get("eos_token_id")
    for token in declared if isinstance(declared, list) else [declared]:
        if type(token) is int and 0 <= token <= HIGHEST_ID:
            yield token
        elif token is not None:
            raise ConfigError(
                f"generation_config.json of {name!r} has eos_token_id={declared!r}; it must be an "
                "id of the tokenizer, or a list of them"
            )


def _generation_config(name: str) -> dict[str, Any]:
    """The model's `generation_config.json`; empty where it has none."""
    from transformers.utils import cached_file

    try:
        path = cached_file(name, "generation_config.json")
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - None where there is none
            found = json.load(file)
    except (OSError, ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
