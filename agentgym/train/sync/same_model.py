"""Whether a server was started with a model of the same shape as the one that is trained.

Weights of another shape fail to load, and only when the trainer's own model is there; the server
then has to be started again. Where the server says what it was started with, and the configs of
both models are at hand, that is known at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentgym.train.sync.info import ServerInfo

_SHAPE = (
    "model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size",
)  # fmt: skip
"""Fields of a config in which two models differ if one can't have the other's weights."""


def other_shapes(trained: str, infos: Iterable[ServerInfo]) -> list[str]:
    """Servers whose model can't have the trained one's weights, one line each with the remedy.

    Args:
        trained: Folder or hub id of the model that is trained.
        infos: What the servers say of themselves.
    """
    ours = _shape(trained)
    found = []
    for info in infos:
        theirs = _shape(info.model) if info.model and info.model != trained else {}
        differ = [name for name in _SHAPE if name in ours.keys() & theirs and
                  ours[name] != theirs[name]]  # fmt: skip
        if differ:
            told = ", ".join(f"{n} {theirs[n]} instead of {ours[n]}" for n in differ)
            found.append(
                f"{info.root} was started with {info.model!r}, another model than {trained!r} that "
                f"is trained ({told}): start it with `vllm serve {trained}`"
            )
    return found


def _shape(model: str) -> dict[str, object]:
    """A model's shape by its config, as far as it is at hand; nothing is downloaded."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True).get_text_config()
    except (OSError, ValueError):
        return {}
    known = {name: getattr(config, name, None) for name in _SHAPE}
    return {name: value for name, value in known.items() if value is not None}
