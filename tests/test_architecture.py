"""Imports point one way: contracts ← implementations ← engines ← command line.

Every import in the package is read from the source, also those inside functions and under
`TYPE_CHECKING`, and held against the table below. The checker itself is tried on small trees with
one wrong arrow each, so that it can't pass by seeing nothing.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import agentgym

PACKAGE = Path(agentgym.__file__).parent

IMPLEMENTATIONS = frozenset(
    {"envs", "wrappers", "simulators", "judges", "clients", "tokens", "traces"}
)
CONTRACTS = "contracts"  # the files at the root
FACE = "face"  # agentgym/__init__.py

# Room -> rooms it may import, beside its own and the contracts.
MAY_IMPORT: dict[str, frozenset[str]] = {
    CONTRACTS: frozenset(),
    **dict.fromkeys(IMPLEMENTATIONS, frozenset()),
    # An environment is put together: tasks and tools of its own, a simulator, a judge, and the
    # clients of the endpoints it is given. None of those knows an environment.
    "envs": frozenset({"clients", "judges", "simulators"}),
    # Endpoints may be asked in token ids.
    "clients": frozenset({"tokens"}),
    "testing": frozenset({"clients", "judges", "simulators"}),
    "rollout": IMPLEMENTATIONS,
    "cost": IMPLEMENTATIONS,
    # Pages of any kind of run. Of train/ only what needs no training stack (tests/report).
    "report": IMPLEMENTATIONS | {"cost", "evaluate", "rollout", "train"},
    # The engine's and an environment's twins that ask a service; the service speaks their words.
    "remote": IMPLEMENTATIONS | {"rollout"},
    "serve": IMPLEMENTATIONS | {"remote", "rollout"},
    "train": IMPLEMENTATIONS | {"remote", "rollout"},
    "evaluate": IMPLEMENTATIONS | {"remote", "rollout"},
}
# Formulas alone, on numbers: every room but the contracts may use them.
STATISTICS = "statistics"
MAY_IMPORT = {
    room: rooms if room == CONTRACTS else rooms | {STATISTICS} for room, rooms in MAY_IMPORT.items()
}
MAY_IMPORT[STATISTICS] = frozenset()
MAY_IMPORT["cli"] = frozenset(MAY_IMPORT)

CONTRACTS_THIRD_PARTY = frozenset({"gymnasium", "jsonschema", "numpy", "pydantic"})
TRAINING_STACK = frozenset(
    {"accelerate", "datasets", "peft", "safetensors", "tokenizers", "torch", "transformers"}
    | {"trl", "vllm"}
)
# The plain install, by import name. More than that is imported where it is used, in a function.
CORE_THIRD_PARTY = CONTRACTS_THIRD_PARTY | {"aiohttp", "jsonschema", "rich", "yarl"}
# Rooms of which importing a module already says that its extra is installed.
OWN_THIRD_PARTY = {
    "serve": frozenset(
        {"aiohttp", "anyio", "fastapi", "mcp", "mcp_types", "prometheus_client", "starlette"}
        | {"uvicorn"}
    ),
    "testing": frozenset({"aiohttp", "hypothesis"}),
    "tokens": frozenset({"jinja2"}),
    "train": TRAINING_STACK | {"jinja2", "tqdm"},
}
# The token path is given a tokenizer, or loads one by name; no weights.
TOKENIZERS = frozenset({"tokenizers", "transformers"})


@dataclass(frozen=True)
class Import:
    """One imported module, as a source file names it."""

    module: str
    line: int
    in_function: bool
    for_types: bool

    @property
    def at_load(self) -> bool:
        """Whether importing the file runs this import."""
        return not (self.in_function or self.for_types)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


IMPORTS_BY_NAME = frozenset({"import_module", "__import__"})
HOLDS_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


def _imports_by_name(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in IMPORTS_BY_NAME


@dataclass(frozen=True)
class Tree:
    """The modules of a package on disk."""

    root: Path

    def modules(self) -> dict[str, Path]:
        """Every module's dotted name and file."""
        found = {}
        for path in sorted(self.root.rglob("*.py")):
            parts = path.relative_to(self.root.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return found

    def exists(self, module: str) -> bool:
        path = self.root.parent.joinpath(*module.split("."))
        return path.is_dir() or path.with_suffix(".py").is_file()

    def imports(self, module: str, path: Path) -> list[Import]:
        """Every import of a file, wherever in it."""
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        found: list[Import] = []
        written = path.read_text(encoding="utf-8")
        source = ast.parse(written)
        by_name = any(word in written for word in IMPORTS_BY_NAME) and any(
            _imports_by_name(node) for node in ast.walk(source)
        )
        ours = f"{self.root.name}."
        # Expressions import by name, or use the face; in most files there are statements alone.
        whole = by_name or f"import {self.root.name}" in written

        def visit(node: ast.AST, in_function: bool, for_types: bool) -> None:
            targets: list[str] = []
            match node:
                case ast.Import():
                    # The face under another name could no longer be followed, below.
                    renamed = {a.name for a in node.names if a.asname} & {self.root.name}
                    targets = [a.name + ".*" if a.name in renamed else a.name for a in node.names]
                case ast.Attribute(value=ast.Name(id=self.root.name)):
                    targets = [f"{self.root.name}.{node.attr}"]
                case ast.ImportFrom():
                    base = node.module or ""
                    if node.level:
                        parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                        base = ".".join([*parents, base]) if base else ".".join(parents)
                    for alias in node.names:
                        inner = f"{base}.{alias.name}"
                        is_module = base.split(".")[0] == self.root.name and self.exists(inner)
                        # A name that is no module is kept whole for the face, whose names have
                        # a home elsewhere.
                        keep = is_module or base == self.root.name
                        targets.append(inner if keep else base)
                case ast.Call(args=[ast.Constant(value=str(target)), *_]) if by_name:
                    by_call = _imports_by_name(node) and not target.startswith(ours)
                    targets = [target] if by_call else []
                case ast.Constant(value=str(text)) if by_name and text.startswith(ours):
                    # A table of names for `import_module`, as the lazy faces have.
                    in_function = True
                    targets = [text] if self.exists(text) else []
            line = getattr(node, "lineno", 0)
            found.extend(Import(target, line, in_function, for_types) for target in targets)
            if isinstance(node, ast.If) and _is_type_checking(node.test):
                for child in node.body:
                    visit(child, in_function, True)
                for child in node.orelse:
                    visit(child, in_function, for_types)
                return
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                if whole or isinstance(child, HOLDS_STATEMENTS):
                    visit(child, in_function or inside, for_types)

        visit(source, False, False)
        return found

    def room(self, module: str) -> str:
        """The room of a module: a folder's name, or the contracts for the files at the root."""
        parts = module.split(".")
        if len(parts) == 1:
            return FACE
        if parts[1] == "__main__":
            return "cli"
        return parts[1] if (self.root / parts[1]).is_dir() else CONTRACTS


def _is_command(module: str) -> bool:
    """Whether the command line loads a module just to show its help: the part that has to be light.

    `agentgym.cli._table` and the like are loaded by a command that runs.
    """
    parts = module.split(".")
    private = parts[-1].startswith("_") and parts[-1] != "__main__"
    return parts[1:2] in (["cli"], ["__main__"]) and not private


def _fault(tree: Tree, module: str, found: Import) -> str | None:
    """What is wrong with one import, or None."""
    room = tree.room(module)
    top = found.module.split(".")[0]
    if room != FACE and room not in MAY_IMPORT:
        return f"unknown room '{room}'; add it to MAY_IMPORT with what it may import"
    if top == tree.root.name:
        return _fault_inside(tree, module, found)
    if top in sys.stdlib_module_names:
        return None
    if room in {FACE, CONTRACTS}:
        allowed = CONTRACTS_THIRD_PARTY if room == CONTRACTS else frozenset()
        return None if top in allowed else f"'{top}' in {room}"
    if top in TOKENIZERS and room == "tokens" and found.in_function:
        return None
    if top in TRAINING_STACK and room != "train":
        return f"'{top}' belongs in train/ only"
    if found.for_types or found.in_function:
        return None
    if _is_command(module) and top not in CONTRACTS_THIRD_PARTY:
        return f"'{top}' at load time; the command line imports inside its functions"
    if top in CORE_THIRD_PARTY | OWN_THIRD_PARTY.get(room, frozenset()):
        return None
    return f"'{top}' is not in the plain install; import it inside the function that needs it"


def _fault_inside(tree: Tree, module: str, found: Import) -> str | None:
    room = tree.room(module)
    if room == FACE:
        light = {f"{tree.root.name}.envs.registration"}
        if not found.at_load or found.module in light:
            return None
        return f"'{found.module}' at load time of the face; list it in _HOMES instead"
    if found.module in {tree.root.name, f"{tree.root.name}.__version__"}:
        return None
    if not tree.exists(found.module):
        if found.module.count(".") > 1:
            return f"'{found.module}' does not exist"
        return f"'{found.module}' through the face; import it from the module that defines it"
    target = tree.room(found.module)
    if target not in MAY_IMPORT[room] | {room, CONTRACTS}:
        return f"{room} imports {target} ('{found.module}')"
    private = found.module.rpartition(".")[2].startswith("_")
    if _is_command(module) and found.at_load and (private or target not in {"cli", CONTRACTS}):
        return f"'{found.module}' at load time; the command line imports inside its functions"
    return None


def violations(root: Path) -> list[str]:
    """Every import of the package at `root` that points the wrong way, as `file:line: fault`."""
    tree = Tree(root)
    found = []
    for module, path in tree.modules().items():
        for each in tree.imports(module, path):
            fault = _fault(tree, module, each)
            if fault:
                found.append(f"{path.relative_to(root.parent)}:{each.line}: {fault}")
    return found


def _parents(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def load_graph(root: Path) -> dict[str, set[str]]:
    """What each module needs loaded before its own body can finish."""
    tree = Tree(root)
    modules = tree.modules()
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        needs: set[str] = set()
        for each in tree.imports(module, path):
            if each.at_load:
                target = each.module if each.module in modules else each.module.rpartition(".")[0]
                # Importing a module runs its packages too; those around both are running already.
                needs |= {target, *_parents(target)} - {*_parents(module)}
        graph[module] = (needs & set(modules)) - {module}
    return graph


def find_cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """A cycle in the graph as a path that ends where it began, or None."""
    finished: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in finished:
            return None
        for following in sorted(graph[node]):
            cycle = walk(following, [*path, node])
            if cycle:
                return cycle
        finished.add(node)
        return None

    for node in sorted(graph):
        cycle = walk(node, [])
        if cycle:
            return cycle
    return None


def test_every_import_points_the_right_way() -> None:
    assert violations(PACKAGE) == []


def test_no_import_cycle_at_load_time() -> None:
    assert find_cycle(load_graph(PACKAGE)) is None


def test_the_reader_sees_the_whole_package() -> None:
    tree = Tree(PACKAGE)
    modules = tree.modules()
    assert {"agentgym", "agentgym.core", "agentgym.envs.registration"} <= set(modules)
    in_core = {each.module for each in tree.imports("agentgym.core", modules["agentgym.core"])}
    assert {"gymnasium", "agentgym.types"} <= in_core


def make_tree(folder: Path, files: dict[str, str]) -> Path:
    """Write a package `agentgym` with the given files, and empty `__init__.py` where missing."""
    root = folder / "agentgym"
    for name, text in {"__init__.py": "", "types.py": "", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    for path in list(root.rglob("*.py")):
        (path.parent / "__init__.py").touch()
    return root


LEGAL = {
    "__init__.py": """
        from typing import TYPE_CHECKING
        from agentgym.envs.registration import register_envs
        if TYPE_CHECKING:
            from agentgym.rollout import Engine
        """,
    "types.py": "import json\nfrom pydantic import BaseModel",
    "core.py": "import gymnasium\nfrom agentgym.types import Task",
    "envs/registration.py": "import gymnasium",
    "envs/shop/env.py": "from agentgym.core import AgentEnv\nfrom agentgym.envs.shop import pages",
    "envs/shop/pages.py": "def nouns():\n    import spacy",
    "clients/chat.py": "import aiohttp\nfrom agentgym.types import Message",
    "testing/checks.py": "from agentgym.clients.chat import ChatClient",
    "rollout/__init__.py": "from agentgym.rollout.engine import Engine",
    "rollout/engine.py": "from agentgym import __version__\nfrom agentgym.traces import jsonl",
    "judges/health.py": "from agentgym.statistics import means",
    "statistics/means.py": "import numpy\nfrom agentgym.types import Task",
    "traces/jsonl.py": "",
    "train/grpo.py": "import torch, trl\nfrom agentgym.rollout import Engine",
    "cli/__init__.py": "import agentgym\nprint(agentgym.__version__)",
    "__main__.py": "from agentgym.cli import run",
    "cli/run.py": "def main():\n    from agentgym.cli import _table\n    import agentgym.train",
    "cli/_table.py": "import rich\nfrom agentgym.rollout import Engine",
}


def test_checker_accepts_a_legal_tree(tmp_path: Path) -> None:
    root = make_tree(tmp_path, LEGAL)
    assert violations(root) == []
    assert find_cycle(load_graph(root)) is None


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("core.py", "from agentgym.envs.shop import pages", "contracts imports envs"),
        ("core.py", "import aiohttp", "'aiohttp' in contracts"),
        ("core.py", "def f():\n    import agentgym.rollout.engine", "contracts imports rollout"),
        ("judge.py", "from agentgym import Task", "through the face"),
        ("judge.py", "import agentgym\nTASK = agentgym.Task", "through the face"),
        ("judge.py", "import agentgym\nE = agentgym.rollout", "contracts imports rollout"),
        ("judge.py", "import agentgym as ours", "through the face"),
        ("judge.py", "from agentgym.statistics import means", "contracts imports statistics"),
        ("statistics/a.py", "from agentgym.judges import b", "statistics imports judges"),
        ("judges/a.py", "from agentgym.clients.chat import ChatClient", "judges imports clients"),
        ("simulators/a.py", "import agentgym.rollout", "simulators imports rollout"),
        ("clients/a.py", "import agentgym.judges", "clients imports judges"),
        ("envs/a.py", "import agentgym.rollout", "envs imports rollout"),
        ("envs/a.py", "from ..rollout import engine", "envs imports rollout"),
        ("envs/a.py", "class A:\n    import spacy", "'spacy' is not in the plain install"),
        ("envs/a.py", "def f():\n    import torch", "'torch' belongs in train/ only"),
        ("tokens/a.py", "def f():\n    import trl", "'trl' belongs in train/ only"),
        ("tokens/a.py", "import transformers", "'transformers' belongs in train/ only"),
        (
            "envs/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import transformers",
            "'transformers' belongs in train/ only",
        ),
        (
            "envs/a.py",
            "import typing\nif typing.TYPE_CHECKING:\n    pass\nelse:\n    import spacy",
            "'spacy' is not in the plain install",
        ),
        (
            "clients/a.py",
            "async def f():\n    return __import__('agentgym.judges.b')",
            "clients imports judges",
        ),
        (
            "clients/a.py",
            "import importlib\nH = {'x': 'agentgym.judges.b'}\nimportlib.import_module(H[y])",
            "clients imports judges",
        ),
        ("clients/a.py", "from agentgym.traces.gone import x", "does not exist"),
        ("rollout/a.py", "from agentgym.train.grpo import train", "rollout imports train"),
        ("rollout/a.py", "from agentgym.testing import checks", "rollout imports testing"),
        ("train/a.py", "from agentgym.evaluate.b import c", "train imports evaluate"),
        ("train/a.py", "from agentgym.cli import run", "train imports cli"),
        ("testing/a.py", "from agentgym.envs.shop import env", "testing imports envs"),
        ("cli/a.py", "from agentgym.rollout.engine import Engine", "at load time"),
        ("cli/a.py", "import rich", "at load time"),
        ("cli/a.py", "from agentgym.cli._table import table", "at load time"),
        ("cli/_table.py", "import spacy", "'spacy' is not in the plain install"),
        ("cli/a.py", "def f():\n    import torch", "'torch' belongs in train/ only"),
        ("cli/a.py", "def f():\n    __import__('torch')", "'torch' belongs in train/ only"),
        ("misc/a.py", "import json", "unknown room 'misc'"),
        ("__init__.py", "from agentgym.core import AgentEnv", "at load time of the face"),
        ("__init__.py", "import numpy", "'numpy' in face"),
    ],
)
def test_checker_catches_a_wrong_arrow(tmp_path: Path, file: str, text: str, fault: str) -> None:
    stubs = {"judges/b.py": "", "evaluate/b.py": ""}
    root = make_tree(tmp_path, {**LEGAL, **stubs, file: text})
    found = violations(root)
    assert len(found) == 1, found
    assert found[0].startswith(f"agentgym/{file}:")
    assert fault in found[0]


@pytest.mark.parametrize(
    "files",
    [
        {"a.py": "from agentgym import b", "b.py": "import agentgym.a"},
        {"a.py": "import agentgym.c", "b.py": "import agentgym.a", "c.py": "import agentgym.b"},
        # Through a package: loading rollout.low runs rollout/__init__, which needs judge.
        {
            "judge.py": "from agentgym.rollout.low import x",
            "rollout/__init__.py": "import agentgym.judge",
            "rollout/low.py": "",
        },
        {"envs/__init__.py": "from agentgym.envs.x import y", "envs/x.py": "import agentgym.envs.z",
         "envs/z.py": "from agentgym.envs.x import y"},
    ],
)  # fmt: skip
def test_checker_catches_a_cycle(tmp_path: Path, files: dict[str, str]) -> None:
    assert find_cycle(load_graph(make_tree(tmp_path, files))) is not None


def test_an_import_for_types_or_inside_a_function_makes_no_cycle(tmp_path: Path) -> None:
    files = {
        "a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import agentgym.b",
        "b.py": "import agentgym.a\nimport agentgym.c",
        "c.py": "def f():\n    import agentgym.b",
    }
    assert find_cycle(load_graph(make_tree(tmp_path, files))) is None
