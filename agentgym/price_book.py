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
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from agentgym.client import Prices
from agentgym.errors import ConfigError
from agentgym.types import Finite, Record, in_one_line

SHIPPED = Path(__file__).with_name("prices.toml")

BY_MODEL: Literal["book"] = "book"
"""As an endpoint's `prices`: those of the row with the endpoint's own model."""


class PriceEntry(Record):
    """One row: what a model costs at one provider, since when, and who says so."""

    input: Finite = Field(ge=0)
    """Input tokens that no cache held, US dollars per million."""
    cached: Finite | None = Field(default=None, ge=0)
    """Cached input tokens, US dollars per million; None: they cost as much as the others."""
    output: Finite = Field(ge=0)
    """Output tokens, reasoning included, US dollars per million."""
    as_of: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    """When the price was read: `2026-08` or `2026-08-14`."""
    source: str = Field(min_length=1)
    """Where it was read: a URL, a contract."""
    provider: str | None = None
    """Who asks that price."""
    host: str | None = None
    """The provider's API host. An endpoint elsewhere doesn't get this price by its model's name."""
    note: str | None = None
    """What else to know of the model."""


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

    Names are compared without case and without the organisation in front:
    `zai-org/GLM-4.7-Flash` finds `GLM-4.7-Flash`. An exact name comes first.

    Args:
        *rows: Models; a later one replaces an earlier one of the same name.
    """

    def __init__(self, *rows: PricedModel) -> None:
        self._rows = {_plain(row.name): row for row in rows}

    @classmethod
    def load(cls, *files: str | os.PathLike[str]) -> PriceBook:
        """The shipped book, the user's own where there is one, and these, later ones first.

        Raises:
            ConfigError: If a file can't be read or a row is wrong; it names file, row and field.
        """
        own = user_file()
        paths = [SHIPPED, *([own] if own.is_file() else []), *map(Path, files)]
        return cls(*(row for path in paths for row in _rows_of(path)))

    def __iter__(self) -> Any:
        return iter(self._rows.values())

    def find(self, model: str, *, base_url: str | None = None) -> PricedModel:
        """The row of a model.

        Args:
            model: Its name, with or without an organisation.
            base_url: Where it is asked. Given, a row of another provider is refused: the same
                model costs something else there.

        Raises:
            ConfigError: If there is none; the message shows the line to add, and to which file.
        """
        row = self._rows.get(_plain(model)) or self._rows.get(_plain(model.rpartition("/")[2]))
        if row is None:
            raise ConfigError(
                f"no price for the model {model!r} in the price book; {self._hint(model)}"
                f"{_how_to_add(model)}"
            )
        host = (urlsplit(base_url).hostname or "") if base_url else ""
        if base_url and row.entry.host and host != row.entry.host:
            raise ConfigError(
                f"the price book has {row.name!r} at {row.entry.host}, and {host} may ask another "
                f"price; say prices = {row.name!r} if it is the same there, or {_how_to_add(model)}"
            )
        return row

    def _hint(self, model: str) -> str:
        asked = _plain(model.rpartition("/")[2])
        close = difflib.get_close_matches(asked, self._rows, n=1, cutoff=0.7)
        return f"did you mean {self._rows[close[0]].name!r}? If not, " if close else ""


def resolve_prices(named: str, *, model: Any, base_url: Any) -> Prices:
    """What an endpoint whose `prices` are a name costs, by the user's book.

    Args:
        named: `book` for the endpoint's own model, or the name of a row.
        model: The endpoint's model.
        base_url: The endpoint's address; it must be the row's provider's if the row wasn't named.

    Raises:
        ConfigError: If the book has no such row, or can't be read.
    """
    book = PriceBook.load()
    if named != BY_MODEL:
        return book.find(named).prices
    return book.find(str(model), base_url=base_url if isinstance(base_url, str) else None).prices


def user_file() -> Path:
    """The user's own price book, whether there is one or not."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(folder or Path.home() / ".config") / "agentgym" / "prices.toml"


def _plain(name: str) -> str:
    return "-".join(name.casefold().split())


def _how_to_add(model: str) -> str:
    shown = user_file()
    if shown.is_relative_to(Path.home()):
        shown = Path("~") / shown.relative_to(Path.home())
    return (
        f"add a line to {shown}, in dollars per million tokens: "
        f'"{model}" = {{input = …, cached = …, output = …, as_of = "YYYY-MM-DD", source = "…"}}'
    )


def _rows_of(path: Path) -> list[PricedModel]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"can't read the prices in {path}: {error.strerror or error}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return [_row(path, name, values) for name, values in tables.items()]


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
