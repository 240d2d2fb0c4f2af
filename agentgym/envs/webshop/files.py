"""WebShop's data files: products, attributes with one written instruction each, human instructions.

The full release and the 1,000-product release differ only in names. The product file is read one
product at a time, so that the full set need not fit in memory twice.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym.envs.webshop.products import RawData, kind_of
from agentgym.errors import DataError

PRODUCT_FILES = ("items_shuffle.json", "items_shuffle_1000.json")
ATTRIBUTE_FILES = (
    "items_ins.json",
    "items_ins_v2.json",
    "items_ins_v2_1000.json",
)
HUMAN_FILES = ("items_human_ins.json",)

_CHUNK = 1 << 20
_GAP = re.compile(r"[\s,]*")


def iterate_json_list(path: Path) -> Iterator[Any]:
    """Yield the entries of a JSON list in a file without holding the whole list.

    Raises:
        DataError: If the file is not one JSON list.
    """
    try:
        yield from _entries(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error


def _entries(path: Path) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8-sig") as file:
        text = file.read(_CHUNK).lstrip()
        if not text.startswith("["):
            raise DataError(f"{path}: not a JSON list of products")
        at, count = 1, 0
        while True:
            at = _end_of_gap(text, at)
            if at < len(text) and text[at] == "]":
                return
            try:
                entry, end = decoder.raw_decode(text, at)
                reason = "the list has no end"
            except json.JSONDecodeError as error:
                entry, end, reason = None, len(text), error.msg
            except (ValueError, RecursionError) as error:  # a number or a nesting beyond Python
                raise DataError(f"{path}: product number {count + 1}: {error}") from error
            if end == len(text):  # perhaps cut: "12" may be the head of "123"
                more = file.read(max(_CHUNK, len(text)))
                if more:
                    text, at = text[at:] + more, 0
                    continue
                raise DataError(f"{path}: broken JSON in product number {count + 1}: {reason}")
            at = end
            count += 1
            yield entry


def _end_of_gap(text: str, at: int) -> int:
    match = _GAP.match(text, at)
    return match.end() if match else at


def find_file(folder: Path, names: tuple[str, ...]) -> Path:
    """Return the first of ``names`` that is in ``folder``.

    Raises:
        DataError: If none is.
    """
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder}: has no {' or '.join(names)}; put WebShop's data file there")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: broken JSON: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: is {kind_of(value)}; an object keyed by asin is needed")
    return value


def data_files(folder: Path) -> tuple[Path, Path, Path]:
    """Find the three data files of a folder, full or 1,000-product names.

    Raises:
        DataError: If the folder or a file is missing.
    """
    try:
        where = folder.expanduser().resolve()
    except (RuntimeError, ValueError, OSError):  # no such user, a null byte, links in a circle
        where = None
    if where is None or not where.is_dir():
        what = "is not a folder" if where is not None and where.exists() else "does not exist"
        raise DataError(
            f"data folder {str(folder)!r} {what}; give a folder with WebShop's three files "
            "or leave `data` out to use the embedded catalogue"
        )
    folder = where
    return (
        find_file(folder, PRODUCT_FILES),
        find_file(folder, ATTRIBUTE_FILES),
        find_file(folder, HUMAN_FILES),
    )


def read_folder(folder: Path) -> RawData:
    """Open the three data files of a folder.

    Raises:
        DataError: If the folder or a file is missing or not JSON of the right shape.
    """
    products, attributes, human = data_files(folder)
    return RawData(
        products=iterate_json_list(products),
        attributes=_read_object(attributes),
        human_instructions=_read_object(human),
        source=(str(products), str(attributes), str(human)),
    )
