"""A plain TRL script with `environment_factory`, on real vLLM with a tiny policy."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from tiny_chat_policy import save_chat_policy, texts_of

import agentgym  # noqa: F401  # registers the environments
from agentgym.train.trl_environment import TrlEnvironment

SCRIPT = Path(__file__).parents[2] / "examples" / "trl_script.py"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("default"),  # TRL's and vLLM's own
]


def test_script_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("trl_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with gym.make(script.ENV, **script.ENV_KWARGS) as env:
        texts = list(texts_of(env, tasks=20))
    model = save_chat_policy(tmp_path / "model", texts, context=script.CONTEXT)
    started: list[tuple[int, str]] = []
    reset = TrlEnvironment.reset

    def noted(self: Any, task_id: str | None = None, **row: Any) -> str:
        started.append((id(self), str(task_id)))
        return reset(self, task_id, **row)

    monkeypatch.setattr(TrlEnvironment, "reset", noted)
    trainer = script.main(str(model), steps=2, out=str(tmp_path / "out"))
    assert trainer.state.global_step == 2
    assert len(started) == 2 * 8  # each rollout's environment once
    for batch in (started[:8], started[8:]):
        assert len({environment for environment, _ in batch}) == 8
        tasks = [task for _, task in batch]
        assert tasks[:4] == [tasks[0]] * 4  # a group plays one task
        assert tasks[4:] == [tasks[4]] * 4
    logs = [log for log in trainer.state.log_history if "reward" in log]
    assert len(logs) == 2
    for log in logs:
        assert log["rewards/WebShop/mean"] == log["reward"] < 0  # nobody bought anything
        assert math.isfinite(log["loss"])
