"""What models cost, from a dated book that users can add to.

A price typed into a config is wrong a month later and nobody sees it. A row of the book says when
it was read and where, and three books lie over each other: the one that comes with the package, the
user's own (`~/.config/agentgym/prices.toml`), and a file for one command. A model that none of them
knows is an error that shows the line to add: never a price of zero, which no budget would notice.

Roles files refer to the book (`prices = "book"`), so it is here among the contracts, and not in
`cost/`, which plans with it.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator

from agentgym.client import MAX_PRICE, Prices
from agentgym.errors import ConfigError
from agentgym.types import Finite, Record, in_one_line

SHIPPED = Path(__file__).with_name("prices.toml")

BY_MODEL: Literal["book"] = "book"
"""As an endpoint's `prices`: those of the row with the endpoint's own model."""


class PriceEntry(Record):
    """One row: what a model costs at one provider, since when, and who says so."""

    input: Finite = Field(ge=0, le=MAX_PRICE)
    """Input tokens that no cache held, US dollars per million."""
    cached: Finite | None = Field(default=None, ge=0, le=MAX_PRICE)
    """Cached input tokens, US dollars per million; None: they cost as much as the others."""
    output: Finite = Field(ge=0, le=MAX_PRICE)
    """Output tokens, reasoning included, US dollars per million."""
    as_of: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    """When the price was read: `2026-08` or `2026-08-14`, with or without quotes."""
    source: str = Field(pattern=r"\S")
    """Where it was read: a URL, a contract."""
    provider: str | None = None
    """Who asks that price."""
    host: str | None = None
    """The provider's API host. An endpoint elsewhere doesn't get this price by its model's name."""
    note: str | None = None
    """What else to know of the model."""

    @field_validator("as_of", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return value.isoformat()[:10] if isinstance(value, date) else value  # TOML has dates

    @field_validator("as_of")
    @classmethod
    def _is_a_date(cls, value: str) -> str:
        date.fromisoformat(value if len(value) == len("2026-08-14") else f"{value}-01")
        return value


class PricedModel(Record):
    """A row of the book, found."""

    name: str
    """As the row calls it."""
    entry: PriceEntry
    file: str
    """The book it stands in."""

    @property
    def prices(self) -> Prices:
        """What a client counts with; it remembers the row."""
        entry = self.entry
        return Prices(input=entry.input, cached=entry.cached, output=entry.output, book=self.name)

    @property
    def origin(self) -> str:
        """Where the price is from, for a table."""
        at = f"{self.entry.provider}, " if self.entry.provider else ""
        return f"{at}{self.entry.as_of}"


class PriceBook:
    """Rows by model name, from one or more files.

    A later file wins over an earlier one. In each, an exact name comes first, and case doesn't
    count. A row without an organisation is for everybody's: `zai-org/GLM-4.7-Flash` finds
    `GLM-4.7-Flash`. A row with one is found by the bare name, too, but not by another's.

    Args:
        *rows: Models; a later one replaces an earlier one of the same name.
    """

    def __init__(self, *rows: PricedModel) -> None:
        self._rows = {_plain(row.name): row for row in rows}
        self._files: dict[str, dict[str, PricedModel]] = {}
        for row in rows:
            self._files.setdefault(row.file, {})[_plain(row.name)] = row

    @classmethod
    def load(cls, *files: str | os.PathLike[str]) -> PriceBook:
        """The shipped book, the user's own where there is one, and these, later ones first.

        Raises:
            ConfigError: If a file can't be read or a row is wrong; it names file, row and field.
        """
        own = user_file()
        paths = [SHIPPED, *([own] if own.is_file() else []), *map(Path, files)]
        return cls(*(row for path in paths for row in _rows_of(path)))

    def __iter__(self) -> Iterator[PricedModel]:
        return iter(self._rows.values())

    def find(self, model: str, *, base_url: str | None = None) -> PricedModel:
        """The row of a model.

        Args:
            model: Its name, with or without an organisation.
            base_url: Where it is asked. Given, rows of another provider are refused: the same
                model costs something else there.

        Raises:
            ConfigError: If there is none; the message shows the line to add, and to which file.
                Or if a bare name is that of several organisations' rows in one file.
        """
        rows = list(self._matching(model))
        if not rows:
            raise ConfigError(
                f"no price for the model {model!r} in the price book; {self._hint(model)}"
                f"{_how_to_add(model)}"
            )
        if base_url is None:
            return rows[0]
        host = _host(base_url)
        for row in rows:
            if row.entry.host is None or row.entry.host.casefold() == host:
                return row
        raise ConfigError(
            f"the price book has {rows[0].name!r} at {rows[0].entry.host}, and "
            f"{host or 'this base_url'} may ask another price; say prices = {rows[0].name!r} if it "
            f"is the same there, or {_how_to_add(model)}"
        )

    def _matching(self, model: str) -> Iterator[PricedModel]:
        """The rows that a name may mean, the best first."""
        asked, bare = _plain(model), _bare(model)
        for rows in reversed(self._files.values()):
            if found := rows.get(asked) or rows.get(bare):
                yield found
            elif asked == bare:
                of_somebody = [row for row in rows.values() if _bare(row.name) == bare]
                if len(of_somebody) > 1:
                    names = ", ".join(repr(row.name) for row in of_somebody)
                    raise ConfigError(f"{model!r} may be any of {names}; say which")
                yield from of_somebody

    def row_of(self, prices: Prices) -> PricedModel | None:
        """The row that prices are from, if they are in this book as they are."""
        rows = (row for rows in self._files.values() for row in rows.values())
        return next((row for row in rows if row.prices == prices), None)

    def _hint(self, model: str) -> str:
        names = {_bare(row.name): row.name for row in self}
        close = difflib.get_close_matches(_bare(model), names, n=1, cutoff=0.7)
        return f"did you mean {names[close[0]]!r}? If not, " if close else ""


def resolve_prices(
    named: str, *, model: Any, base_url: Any, book: PriceBook | None = None
) -> Prices:
    """What an endpoint whose `prices` are a name costs.

    Args:
        named: `book` for the endpoint's own model, or the name of a row.
        model: The endpoint's model.
        base_url: The endpoint's address; it must be the row's provider's if the row wasn't named.
        book: Default: the user's.

    Raises:
        ConfigError: If the book has no such row, or can't be read.
    """
    if named == BY_MODEL and not isinstance(model, str):
        raise ConfigError(f"{BY_MODEL!r} is the row of the endpoint's model; set model, too")
    book = PriceBook.load() if book is None else book
    if named != BY_MODEL:
        return book.find(named).prices
    return book.find(model, base_url=base_url if isinstance(base_url, str) else None).prices


def user_file() -> Path:
    """The user's own price book, whether there is one or not."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(folder or _home() / ".config") / "agentgym" / "prices.toml"


def _home() -> Path:
    """The user's folder; `~` as it is where the system knows of none, and Path.home() raises."""
    return Path(os.path.expanduser("~"))  # noqa: PTH111


def _plain(name: str) -> str:
    return "-".join(name.casefold().split())


def _bare(name: str) -> str:
    """A name without its organisation."""
    return _plain(name.rpartition("/")[2])


def _host(url: str) -> str:
    """The host of a URL; empty where it has none, which whoever takes URLs complains about."""
    with suppress(ValueError):
        return urlsplit(url).hostname or ""
    return ""


def _how_to_add(model: str) -> str:
    shown = user_file()
    if shown.is_relative_to(_home()):
        shown = Path("~") / shown.relative_to(_home())
    return (
        f"add a line to {shown}, in dollars per million tokens: "
        f"{json.dumps(model, ensure_ascii=False)} = "
        '{input = …, cached = …, output = …, as_of = "YYYY-MM-DD", source = "…"}'
    )


def _rows_of(path: Path) -> list[PricedModel]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"can't read the prices in {path}: {error.strerror or error}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    rows: dict[str, PricedModel] = {}
    for name, values in tables.items():
        row = _row(path, name, values)
        if twin := rows.get(_plain(name)):
            raise ConfigError(f"{path}: {twin.name!r} and {name!r} are one model; leave one out")
        rows[_plain(name)] = row
    return list(rows.values())


def _row(path: Path, name: str, values: Any) -> PricedModel:
    if not isinstance(values, Mapping):
        raise ConfigError(
            f'{path}: {name!r} must be a row: "{name}" = {{input = …, output = …, …}}'
        )
    if values and all(isinstance(value, Mapping) for value in values.values()):
        raise ConfigError(
            f"{path}: {name!r} holds tables and no prices; quote a name that has a dot or a slash: "
            f'["{name}.{next(iter(values))}"]'
        )
    try:
        return PricedModel(name=name, entry=PriceEntry.model_validate(values), file=str(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {name!r}: {in_one_line(error)}") from error
