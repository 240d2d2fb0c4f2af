"""The examples in README.md, docs/ and the environments' cards run as they stand.

Python blocks run with the end-to-end tests: together they take a minute. One that needs the
training stack says so in its first line, `# requires: train`; one that other blocks of the page
import says which file it is, `# file: name.py`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import pytest
import yaml

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
    *sorted((ROOT / "agentgym" / "envs").glob("*/README.md")),
]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
TRAIN_MARK = "# requires: train"
FILE_MARK = re.compile(r"# file: (\w+\.py)\n")
"""First line of a block that the page's later blocks find as a file."""
KINDS = {
    "": "what something looks like: a diagram, output",
    "js": "another language's client",
    "python": "runs",
    "sh": "a command; our own are ones that the program takes",
    "text": "output",
    "toml": "a file; it parses",
    "yaml": "a file of another program; it parses",
}
"""Every kind of block there is."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    info: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(text: str, page: str) -> list[Block]:
    """Every fenced block of a page, indentation taken off, with the line its body begins on."""
    found = []
    for match in FENCE.finditer(text):
        indent = match["indent"]
        body = (
            re.sub(f"^{indent}", "", match["body"], flags=re.MULTILINE) if indent else match["body"]
        )
        line = text.count("\n", 0, match.start("body")) + 1
        found.append(Block(page, line, match["info"].strip(), body))
    return found


BLOCKS = [
    block
    for page in PAGES
    for block in blocks_of(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
]
PYTHON_BLOCKS = [block for block in BLOCKS if block.info == "python"]


@pytest.fixture
def registry() -> Iterator[None]:
    """What a block registers is gone after it, for another block may register it again."""
    before = dict(gymnasium.registry)
    yield
    for name in gymnasium.registry.keys() - before.keys():
        if not name.startswith("agentgym/"):  # those are registered once a process
            del gymnasium.registry[name]


@pytest.mark.e2e
@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=[block.place for block in PYTHON_BLOCKS])
def test_python_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for earlier in BLOCKS:
        if earlier.page == block.page and (named := FILE_MARK.match(earlier.text)):
            (tmp_path / named[1]).write_text(earlier.text, encoding="utf-8")
            monkeypatch.delitem(sys.modules, named[1].removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    if block.text.startswith(TRAIN_MARK):  # one vLLM engine a process
        script = tmp_path / "block.py"
        script.write_text(block.text, encoding="utf-8")
        subprocess.run([sys.executable, script.name], cwd=tmp_path, check=True, timeout=600)
        return
    monkeypatch.chdir(tmp_path)
    # Padded, so that a traceback names the page's own line.
    code = compile("\n" * (block.line - 1) + block.text, str(ROOT / block.page), "exec")
    exec(code, {"__name__": "__main__"})


def test_no_python_block_is_left_out() -> None:
    assert PYTHON_BLOCKS
    odd = [block.place for block in BLOCKS if re.match(r"py(thon)?\b.", block.info)]
    assert odd == [], "write ```python alone; a block that can't run is no example"


def test_every_block_is_of_a_known_kind() -> None:
    """What doesn't run is so on purpose."""
    assert {block.place: block.info for block in BLOCKS if block.info not in KINDS} == {}


@pytest.mark.parametrize(("kind", "parse"), [("toml", tomllib.loads), ("yaml", yaml.safe_load)])
def test_files_shown_parse(kind: str, parse: Callable[[str], object]) -> None:
    shown = [block for block in BLOCKS if block.info == kind]
    assert shown
    for block in shown:
        assert isinstance(parse(block.text), dict), block.place


def commands_of(blocks: list[Block]) -> list[list[str]]:
    """The words of every shell command shown, comments left out and continued lines joined."""
    lines = [
        line
        for block in blocks
        if block.info == "sh"
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def test_commands_are_ones_that_the_program_takes() -> None:
    from agentgym.cli import build_parser

    shown = [words[1:] for words in commands_of(BLOCKS) if words[0] == "agentgym"]
    assert shown
    parser = build_parser()
    for words in shown:
        parser.parse_args(words)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    shown = {words[1] for words in commands_of(BLOCKS) if words[0] == "make"}
    assert {"demo", "test"} <= shown
    assert {name for name in shown if not re.search(f"^{name}:", makefile, re.MULTILINE)} == set()


def test_links_to_files_lead_somewhere() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert dead == []


def test_reader_finds_blocks_and_their_lines() -> None:
    text = "# T\n\n```python\na = 1\n```\n\n- item\n\n  ```sh\n  ls\n  ```\n"
    assert blocks_of(text, "p.md") == [
        Block("p.md", 4, "python", "a = 1\n"),
        Block("p.md", 10, "sh", "ls\n"),
    ]
