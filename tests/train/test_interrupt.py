"""What a run that ends early keeps; Ctrl-C in real runs is in the end-to-end tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentgym.errors import AgentGymError, EndpointError, TrainingError

pytest.importorskip("transformers")

from agentgym.train.interrupt import stoppable


def trainer_at(step: int, out: Path) -> Any:
    trainer = SimpleNamespace(
        state=SimpleNamespace(global_step=step),
        args=SimpleNamespace(output_dir=str(out)),
        rollout_func=None,
        model=None,
        saved=[],
        add_callback=lambda callback: None,
    )
    trainer._save_checkpoint = lambda model, trial: trainer.saved.append(trainer.state.global_step)
    return trainer


@pytest.mark.parametrize(
    "error", [TrainingError("no server"), EndpointError("gone", retryable=False)]
)
def test_run_whose_servers_are_gone_keeps_its_last_whole_step(
    tmp_path: Path, error: AgentGymError
) -> None:
    trainer = trainer_at(7, tmp_path)
    with pytest.raises(type(error)), stoppable(trainer):
        raise error
    assert trainer.saved == [7]


def test_checkpoint_that_is_there_is_not_written_again_nor_one_of_no_steps(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-7").mkdir()
    for step in (0, 7):
        trainer = trainer_at(step, tmp_path)
        with pytest.raises(TrainingError), stoppable(trainer):
            raise TrainingError("no server")
        assert trainer.saved == []


def test_fault_of_the_trainer_itself_saves_nothing(tmp_path: Path) -> None:
    trainer = trainer_at(7, tmp_path)
    with pytest.raises(RuntimeError), stoppable(trainer):
        raise RuntimeError("half an update")
    assert trainer.saved == []
