"""Real TRL on real vLLM, on the environments that are played with tool calls and a conversation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from tiny_chat_policy import save_chat_policy, texts_of

import agentgym  # noqa: F401  # registers the environments
from agentgym.traces import read_traces
from agentgym.train import make_trainer
from agentgym.train.config_reading import read_config
from agentgym.train.invariant import FLOAT32_TOLERANCE

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("default"),  # TRL's and vLLM's own
]

CONTEXT = 4096
STEPS = 2


@pytest.mark.parametrize("name", ["SupportDesk", "ToolWorld"])
def test_trains_for_a_few_steps(name: str, tmp_path: Path) -> None:
    env_id = f"agentgym/{name}-v0"
    with gym.make(env_id, split="train") as env:
        model = save_chat_policy(tmp_path / "model", texts_of(env, tasks=20), context=CONTEXT)
    values: dict[str, Any] = {
        "env": env_id,
        "env_kwargs": {"split": "train", "max_turns": 2},
        "model": str(model),
        "out": tmp_path / "run",
        "steps": STEPS,
        "tasks_per_step": 2,
        "group_size": 2,
        "micro_batch": 2,
        "learning_rate": 1e-3,
        "sampling.max_turn_tokens": 24,
        "sampling.max_context": CONTEXT,
        "policy.check_every": 1,
    }
    trainer = make_trainer(read_config(values))
    rows: list[dict[str, Any]] = []
    rollout = trainer.rollout_func

    def recording(prompts: list[str], trainer: Any) -> dict[str, Any]:
        rows.append(rollout(prompts, trainer))
        return rows[-1]

    trainer.rollout_func = recording
    trainer.train()
    assert trainer.state.global_step == STEPS
    for step, batch in enumerate(rows):
        traces = {
            (trace.group, trace.sample): trace
            for trace in read_traces(tmp_path / "run" / f"traces-step{step:06d}.jsonl")
        }
        assert len(traces) == len(batch["prompt_ids"]) == 4
        assert len({trace.task_id for trace in traces.values()}) == 2
        for i, key in enumerate(sorted(traces)):
            trace = traces[key]
            assert trace.scored, trace.error
            assert batch["reward"][i] == trace.reward
            assert trace.tools
            sampled = [t for turn in trace.turns for t in turn.completion_ids or ()]
            ids = zip(batch["completion_ids"][i], batch["env_mask"][i], strict=True)
            assert [t for t, mask in ids if mask] == sampled
            assert len(trace.turns) == 1 or 0 in batch["env_mask"][i]  # what was answered to it
    logs = [log for log in trainer.state.log_history if "reward" in log]
    assert len(logs) == STEPS
    for log in logs:
        assert math.isfinite(log["loss"])
        assert log["agentgym/masked"] == 0
        assert log["sampling/sampling_logp_difference/max"] < FLOAT32_TOLERANCE
