"""The table of chat templates that have a form for training.

Many models' templates render a message differently once others follow: thinking is dropped, an
empty `<think>` block goes. TRL bundles, beside copies of the original templates, forms that don't.
They are read as files where TRL is installed; nothing of TRL is imported, so whoever only serves a
model needs no training stack.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path


def training_form(template: str) -> str | None:
    """The form for training of a chat template; None if it has none that is known here.

    Args:
        template: The template's text; compared as a whole, but for white space at its ends.
    """
    return _table().get(template.strip())


def templates_folder() -> Path | None:
    """Where TRL keeps its templates, as of TRL 1.16; None if it isn't installed."""
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "chat_templates"
    return folder if folder.is_dir() else None


@functools.cache
def _table() -> dict[str, str]:
    folder = templates_folder()
    if folder is None:
        return {}
    table = {}
    for form in folder.glob("*_training.jinja"):
        original = form.with_name(form.name.replace("_training", ""))
        if original.is_file():
            table[original.read_text("utf-8").strip()] = form.read_text("utf-8")
    return table
