"""The nouns of a product name, by which the reward tells what kind of thing was bought.

The original asks a spaCy model. Its answers differ from version to version and the model is a
download, so the default is a rule: every word with a letter in it, less a few that are never nouns.
On 1,000 products the rule gives the same type reward in about 97 % of cases, and always for the
goal's own product. ``spacy`` and a file of recorded nouns are there for exact comparison.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from agentgym.errors import ConfigError, DataError, MissingExtraError

NounFinder: TypeAlias = Callable[[str], tuple[str, ...]]
"""Product name to its lower-cased nouns, repeats kept."""

SPACY_MODEL = "en_core_web_sm"

_WORD = re.compile(r"[^\W_]+(?:['’.][^\W_]+)*")
_NEVER_NOUN_LIST = """
    a an the and or but nor for of in on at to from by with without into onto over under as is are
    be that this these those its it your our my his her their all any each every more most new non
    not no up off out free very you we i s
"""
_NEVER_NOUNS = frozenset(_NEVER_NOUN_LIST.split())


@lru_cache(maxsize=1 << 13)
def rule_nouns(name: str) -> tuple[str, ...]:
    """Find nouns by rule: words with a letter, less about 50 that are never nouns."""
    return tuple(
        word
        for word in _WORD.findall(name.lower())
        if word not in _NEVER_NOUNS and not word.replace(".", "").isdigit()
    )


class RecordedNouns:
    """Nouns looked up in a table; names that are not in it go to the rule."""

    def __init__(self, table: Mapping[str, list[str]]) -> None:
        self._table = {name: tuple(nouns) for name, nouns in table.items()}

    def __deepcopy__(self, memo: Any) -> "RecordedNouns":
        return self

    def __call__(self, name: str) -> tuple[str, ...]:
        """Return the recorded nouns of a product name."""
        found = self._table.get(name)
        return rule_nouns(name) if found is None else found


@lru_cache(maxsize=1)
def _spacy_nouns() -> NounFinder:
    try:
        import spacy

        model: Any = spacy.load(SPACY_MODEL)
    except (ImportError, OSError) as error:
        raise MissingExtraError(
            f"nouns='spacy' needs spaCy and its model: pip install spacy && python -m spacy "
            f"download {SPACY_MODEL}; or use nouns='rule'"
        ) from error

    @lru_cache(maxsize=1 << 13)
    def find(name: str) -> tuple[str, ...]:
        return tuple(t.text.lower() for t in model(name) if t.pos_ in {"NOUN", "PROPN"})

    return find


@lru_cache(maxsize=8)
def _recorded_nouns(path: Path, changed_ns: int) -> NounFinder:
    """Read a file of nouns; ``changed_ns`` makes a changed file a new one to the cache."""
    try:
        table = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: broken JSON: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error
    if not isinstance(table, dict):
        raise DataError(f"{path}: an object from product name to its list of nouns is needed")
    for name, nouns in table.items():
        if not isinstance(nouns, list) or not all(isinstance(noun, str) for noun in nouns):
            raise DataError(f"{path}: product {name!r}: a list of strings is needed")
    return RecordedNouns(table)


def noun_finder(nouns: str) -> NounFinder:
    """Return the noun finder a parameter value names.

    Args:
        nouns: ``"rule"``, ``"spacy"``, or the path of a JSON file from product name to nouns.

    Raises:
        ConfigError: If the value is none of these.
        DataError: If the file is not of that form.
        MissingExtraError: If spaCy or its model is not installed.
    """
    if nouns == "rule":
        return rule_nouns
    if nouns == "spacy":
        return _spacy_nouns()
    try:
        path = Path(nouns).expanduser()
    except RuntimeError:  # "~name" of a user there is not
        path = Path(nouns)
    if not path.is_file():
        raise ConfigError(f"nouns={nouns!r}: use 'rule', 'spacy' or the path of a JSON file")
    return _recorded_nouns(path, path.stat().st_mtime_ns)
