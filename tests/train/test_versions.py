from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

from agentgym.cli import main
from agentgym.errors import MissingExtraError
from agentgym.train.versions import require_training_stack


def test_missing_extra_is_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "vllm" else find(name, *a)
    )
    assert main(["train", "--env", "agentgym/WebShop-v0", "--model", "m", "--out", "o"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert 'pip install "agentgym-envs[train]"' in line


@pytest.mark.parametrize(
    ("found", "fits"), [("1.15.9", False), ("1.16.3", True), ("1.17.0", False)]
)
def test_only_trl_versions_this_is_written_for(
    monkeypatch: pytest.MonkeyPatch, found: str, fits: bool
) -> None:
    """F10: an older one ignores the rollout function and trains on single answers."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    if fits:
        require_training_stack()
    else:
        with pytest.raises(MissingExtraError, match=r"trl>=1\.16,<1\.17"):
            require_training_stack()


def test_bad_setting_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["train", "--env", "e", "--model", "m", "--out", "o"]
    assert main([*base, "--set", "stepz=3"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "did you mean 'steps'" in line


def test_python_names_need_the_extra_too(monkeypatch: pytest.MonkeyPatch) -> None:
    import agentgym.train

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "trl" else find(name, *a)
    )
    monkeypatch.delitem(vars(agentgym.train), "make_trainer", raising=False)
    with pytest.raises(MissingExtraError, match="training needs trl: pip install"):
        agentgym.train.make_trainer  # noqa: B018  # the access is what is tested
