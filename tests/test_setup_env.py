"""The set-up script: what it decides before pip is called, and what it does when pip can't work."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "setup_env.py"


@pytest.fixture
def setup(tmp_path: Path) -> ModuleType:
    """The script as a module, on a copy of the project's inputs in a folder with a space."""
    spec = importlib.util.spec_from_file_location("setup_env", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path / "a checkout"
    for name in ("pyproject.toml", *(f"scripts/{p.name}" for p in SCRIPT.parent.iterdir())):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes((ROOT / name).read_bytes())
    module.ROOT = str(root)
    module.VENV = str(root / ".venv")
    module.PYTHON = str(root / ".venv" / "bin" / "python")
    module.STAMP = str(root / ".venv" / "stamp")
    module.LOG = str(root / ".venv" / "log")
    return module


def change(setup: ModuleType, name: str, old: str, new: str) -> None:
    path = Path(setup.ROOT) / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_fingerprint_changes_with_what_is_installed(setup: ModuleType) -> None:
    before = setup.fingerprint("cpu")
    assert setup.fingerprint("cpu") == before
    assert setup.fingerprint("gpu") != before
    change(setup, "pyproject.toml", '"rich>=', '"rich>=14,>=')
    after = setup.fingerprint("cpu")
    assert after != before
    change(setup, "scripts/constraints-cpu.txt", "torch==2.13.0", "torch==2.13.1")
    assert setup.fingerprint("cpu") != after


def test_fingerprint_ignores_the_settings_of_the_tools(setup: ModuleType) -> None:
    before = setup.fingerprint("cpu")
    change(setup, "pyproject.toml", "line-length = 100", "line-length = 99")
    assert setup.fingerprint("cpu") == before


def test_only_a_finished_set_up_is_current(setup: ModuleType) -> None:
    wanted = setup.fingerprint("cpu")
    Path(setup.PYTHON).parent.mkdir(parents=True)
    Path(setup.PYTHON).symlink_to(sys.executable)
    assert not setup.is_current(wanted)
    Path(setup.STAMP).write_text(wanted + "\n")
    assert setup.is_current(wanted)
    assert not setup.is_current(setup.fingerprint("gpu"))
    Path(setup.PYTHON).unlink()
    assert not setup.is_current(wanted)


def test_a_package_that_an_interrupted_pip_left_is_undone(setup: ModuleType) -> None:
    site = Path(setup.VENV) / "lib" / "python3.11" / "site-packages"
    for name, finished in (("whole-1.0.dist-info", True), ("half-1.0.dist-info", False)):
        (site / name).mkdir(parents=True)
        (site / name / "METADATA").touch()
        if finished:
            (site / name / "INSTALLER").write_text("pip\n")
    setup.remove_half_installed()
    assert [path.name for path in site.iterdir()] == ["whole-1.0.dist-info"]


def test_alias_wheel_is_taken_by_pip_and_reads_as_a_cpu_build(
    setup: ModuleType, tmp_path: Path
) -> None:
    path = setup.write_alias_wheel(str(tmp_path))
    with zipfile.ZipFile(path) as wheel:
        assert all(".dist-info/" in name for name in wheel.namelist())
    target = tmp_path / "target"
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "-q", path]
    subprocess.run([*command, "--target", str(target)], check=True, timeout=120)
    program = (
        f"import importlib.metadata as m, sys; sys.path.insert(0, {str(target)!r})\n"
        "print(m.version('vllm'))"
    )
    text = subprocess.check_output([sys.executable, "-S", "-c", program], text=True)
    assert text.strip() == "0.31.0+cpu"


def test_requirement_names_are_normalized(setup: ModuleType) -> None:
    assert setup.requirement_name("Prometheus_Client>=0.18") == "prometheus-client"
    assert setup.requirement_name("fastapi[standard]<0.137") == "fastapi"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  Downloading torch-2.13.0-cp311-none-linux.whl (1.2 GB)", "downloading torch (1.2 GB)"),
        ("  Downloading pyarrow-24.0.0-cp311.whl (55.0 MB)", "downloading pyarrow (55.0 MB)"),
        ("  Downloading six-1.17.0-py2.py3-none-any.whl (11 kB)", ""),
        ("  Downloading rich-15.0.0-py3-none-any.whl (1.0 MB)", ""),
        ("Installing collected packages: a, b, c", "unpacking 3 packages"),
    ],
)
def test_long_waits_are_shown(
    setup: ModuleType, capsys: pytest.CaptureFixture[str], line: str, shown: str
) -> None:
    setup.show_progress(line)
    assert shown in capsys.readouterr().out


def test_a_python_that_is_too_old_names_the_remedy(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "MIN_PYTHON", (3, 99))
    monkeypatch.setattr(setup, "MAX_PYTHON", (3, 100))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(setup.SetupError, match="make PYTHON="):
        setup.rerun_under_a_python_that_will_do()


def test_a_shim_that_does_not_run_is_no_python(setup: ModuleType, tmp_path: Path) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert setup.python_version(str(shim)) is None
    assert setup.python_version(str(tmp_path / "absent")) is None
    assert setup.python_version(sys.executable) == sys.version_info[:2]


def test_pip_that_reaches_no_index_is_explained(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(setup.VENV).mkdir(parents=True)
    setup.PYTHON = sys.executable
    # Port 9 on this machine: nothing answers there, so pip fails as it does with no network.
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    arguments = ["--retries", "0", "--index-url", "http://127.0.0.1:9/simple"]
    with pytest.raises(setup.SetupError, match="could not reach its package index"):
        setup.pip("--target", str(tmp_path / "t"), *arguments, "no-such-distribution-agentgym")
    assert not Path(setup.STAMP).exists()


def test_script_parses_under_an_old_python() -> None:
    import ast

    ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 6))
