"""The reference part of the documentation site: which names are public, and the page of each.

Public is what a package's `__all__` exports, and whatever an example of the documentation imports:
an example is a promise. Everything is read from the sources, so that building the site imports no
trainer and no server.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "agentgym"
_PYTHON = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_COMMANDS = "agentgym.cli"  # reference/cli.md has them


@dataclass
class Room:
    """The public part of a package, or of the contracts at the root.

    Attributes:
        name: The package's dotted name.
        exported: The names in its `__all__` and the module that defines each.
        modules: The modules of this room that have public names, and these names; none listed
            where all of the module is shown.
    """

    name: str
    exported: dict[str, str] = field(default_factory=dict)
    modules: dict[str, set[str]] = field(default_factory=dict)


def pages_with_examples() -> list[Path]:
    """Every page whose examples make names public."""
    cards = (ROOT / PACKAGE / "envs").glob("*/README.md")
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(cards)]


def imported_by_examples(pages: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Module and name of everything that Python examples import from the package.

    The name is empty where a module is imported whole.
    """
    for page in pages:
        for block in _PYTHON.finditer(page.read_text(encoding="utf-8")):
            code = re.sub(f"^{block[1]}", "", block[2], flags=re.MULTILINE)
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and _ours(node.module or ""):
                    for alias in node.names:
                        yield node.module or "", alias.name
                elif isinstance(node, ast.Import):
                    yield from ((a.name, "") for a in node.names if _ours(a.name))


def _ours(module: str) -> bool:
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


@cache
def file_of(module: str) -> Path | None:
    """The source of a module; None if there is no such module."""
    base = ROOT.joinpath(*module.split("."))
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None


@dataclass(frozen=True)
class _Source:
    about: str
    exported: tuple[str, ...]
    defined: frozenset[str]
    imported: dict[str, tuple[str, str]]


@cache
def _source(module: str) -> _Source:
    path = file_of(module)
    if path is None:
        raise LookupError(f"no module {module}")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined, exported = set(), ()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            defined.update(names)
            if names == ["__all__"] and node.value is not None:
                exported = tuple(ast.literal_eval(node.value))
    imported = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and _ours(node.module or "")
        for alias in node.names
    }
    return _Source(ast.get_docstring(tree) or "", exported, frozenset(defined), imported)


def home_of(module: str, name: str) -> str:
    """The module that defines a name which `module` has, imported or its own.

    Raises:
        LookupError: If it has no such name.
    """
    source = _source(module)
    if name in source.defined:
        return module
    if name in source.imported:
        return home_of(*source.imported[name])
    raise LookupError(f"{module} has no name {name}")


def rooms() -> list[Room]:
    """The public names by room: the contracts first, then the packages by name."""
    found: dict[str, Room] = {PACKAGE: Room(PACKAGE)}
    public: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / PACKAGE).rglob("__init__.py")):
        package = ".".join(path.relative_to(ROOT).parent.parts)
        if _room_of(package) == _COMMANDS:
            continue
        for name in _source(package).exported:
            if not name.startswith("__"):
                home = home_of(package, name)
                public[home].add(name)
                room = found.setdefault(_room_of(package), Room(_room_of(package)))
                room.exported[name] = home
    for module, name in imported_by_examples(pages_with_examples()):
        if not name or file_of(f"{module}.{name}"):
            continue  # a module, of which the example says itself what it uses
        home = home_of(module, name)
        if _room_of(home) != _COMMANDS:
            public[home].add(name)
    for module, names in sorted(public.items()):
        room = found.setdefault(_room_of(module), Room(_room_of(module)))
        room.modules[module] = set() if room.name == PACKAGE else names
    return [found[name] for name in sorted(found)]


def _room_of(module: str) -> str:
    parts = module.split(".")
    if len(parts) > 1 and (ROOT / PACKAGE / parts[1]).is_dir():
        return ".".join(parts[:2])
    return PACKAGE


def reference_pages() -> dict[str, str]:
    """Every generated page of the reference: uri on the site to markdown."""
    found = {"reference/index.md": _index(rooms())}
    for room in rooms():
        if room.name == PACKAGE:
            for module in room.modules:
                found[_uri(module)] = f"# {module}\n\n::: {module}\n"
        else:
            found[_uri(room.name)] = _room_page(room)
    return found


def reference_menu() -> list[str | dict[str, object]]:
    """The navigation of the reference."""
    all_rooms = rooms()
    contracts = next(room for room in all_rooms if room.name == PACKAGE)
    packages = [room for room in all_rooms if room.name != PACKAGE]
    return [
        "reference/index.md",
        {"agentgym": [{module: _uri(module)} for module in contracts.modules]},
        *({room.name: _uri(room.name)} for room in packages),
        {"Commands": "reference/cli.md"},
    ]


def _uri(module: str) -> str:
    return f"reference/{module.removeprefix(PACKAGE + '.').replace('.', '/')}.md"


def _name_table(exported: dict[str, str]) -> list[str]:
    lines = ["| name | defined in |", "|---|---|"]
    for name, home in sorted(exported.items()):
        lines.append(f"| [`{name}`][{home}.{name}] | `{home}` |")
    return lines


def _index(all_rooms: list[Room]) -> str:
    contracts = next(room for room in all_rooms if room.name == PACKAGE)
    lines = [
        "# Reference",
        "",
        "Made from the docstrings. Listed is what a package exports, and whatever an example on",
        "these pages imports; other modules may change without notice.",
        "",
        "Names of `agentgym` itself, imported at first use:",
        "",
        *_name_table(contracts.exported),
        "",
        "The packages:",
        "",
        "| package | what is there |",
        "|---|---|",
    ]
    for room in all_rooms:
        if room.name != PACKAGE:
            about = _source(room.name).about.split("\n\n", 1)[0].replace("\n", " ")
            page = _uri(room.name).removeprefix("reference/")
            lines.append(f"| [`{room.name}`]({page}) | {about} |")
    return "\n".join(lines) + "\n"


def _room_page(room: Room) -> str:
    lines = [f"# {room.name}", "", _source(room.name).about, ""]
    if room.exported:
        lines += [f"What `{room.name}` exports:", "", *_name_table(room.exported), ""]
    for module, names in room.modules.items():
        if module != room.name:
            lines += [f"## {module}", "", _source(module).about.split("\n\n", 1)[0], ""]
        for name in sorted(names):
            lines += [f"::: {module}.{name}", "    options:", "      heading_level: 3", ""]
    return "\n".join(lines)


def command_page() -> str:
    """The page of the command line, from the parsers' own help."""
    import argparse

    from agentgym.cli import build_parser

    lines = ["# Commands", "", "What `agentgym COMMAND --help` prints.", ""]

    def add(parser: argparse.ArgumentParser, depth: int) -> None:
        lines.extend([f"{'#' * depth} {parser.prog}", "", "````text", parser.format_help(), "````"])
        lines.append("")
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    add(command, min(depth + 1, 4))

    add(build_parser(), 2)
    return "\n".join(lines)
