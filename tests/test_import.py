"""`import agentgym` is light, and every public name is there."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import agentgym

HEAVY = {"torch", "transformers", "trl", "vllm", "openai", "aiohttp", "fastapi", "ray", "spacy"}


def run_fresh(program: str) -> str:
    """Run a program in a new interpreter, warnings as errors, and return what it printed."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_loads_nothing_heavy() -> None:
    program = "import agentgym, json, sys; print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(run_fresh(program)))
    assert loaded & HEAVY == set()
    # Not even our own rooms, beside the list of environments.
    ours = {name for name in loaded if name.split(".")[0] == "agentgym"}
    assert ours == {"agentgym", "agentgym.envs", "agentgym.envs.registration"}


def test_using_every_public_name_loads_no_trainer() -> None:
    program = (
        "import json, sys; from agentgym import *; import agentgym\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = set(json.loads(run_fresh(program)))
    assert loaded & {"torch", "transformers", "trl", "vllm", "fastapi", "ray"} == set()


def test_help_of_the_command_line_loads_nothing_heavy() -> None:
    program = (
        "import json, sys; from agentgym.cli import build_parser; build_parser().format_help()\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = set(json.loads(run_fresh(program)))
    assert loaded & (HEAVY | {"rich", "agentgym.rollout", "agentgym.train.grpo"}) == set()


@pytest.mark.parametrize("name", agentgym.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(agentgym, name) is not None


def test_public_names_are_listed_once_and_sorted() -> None:
    assert agentgym.__all__ == sorted(set(agentgym.__all__))
    assert set(agentgym.__all__) <= set(dir(agentgym))


def test_type_checkers_see_the_names_that_exist_at_run_time() -> None:
    tree = ast.parse(Path(agentgym.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (statement.module, alias.name)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen == {(module, name) for name, module in agentgym._HOME_OF.items()}
    assert {name for _, name in seen} | {"__version__"} == set(agentgym.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Agnet'"):
        agentgym.Agnet  # noqa: B018


def test_version_is_the_one_of_the_distribution() -> None:
    from importlib.metadata import version

    assert version("agentgym-envs") == agentgym.__version__
