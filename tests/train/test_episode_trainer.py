from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentgym.train.episode_trainer import mend_model_card, renew_learning_rate

torch = pytest.importorskip("torch", reason="needs the training stack")


def linear(steps: int, *, rate: float = 0.1) -> tuple[Any, Any]:
    """An optimiser, and a schedule that takes its rate to 0 over so many steps."""
    from transformers import get_linear_schedule_with_warmup

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    return optimizer, get_linear_schedule_with_warmup(optimizer, 0, steps)


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_run_resumed_with_more_steps_does_not_begin_at_a_rate_of_zero() -> None:
    optimizer, schedule = linear(2)
    for _ in range(2):
        optimizer.step()
        schedule.step()
    saved, at_the_end = schedule.state_dict(), optimizer.state_dict()
    assert schedule.get_last_lr() == [0.0]
    longer, schedule = linear(4)
    longer.load_state_dict(at_the_end)
    schedule.load_state_dict(saved)
    assert longer.param_groups[0]["lr"] == 0.0
    renew_learning_rate(schedule)
    assert longer.param_groups[0]["lr"] == pytest.approx(0.1 * 2 / 4)
    assert schedule.get_last_lr() == [pytest.approx(0.1 * 2 / 4)]


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_the_same_schedule_keeps_its_rate() -> None:
    optimizer, schedule = linear(4)
    optimizer.step()
    schedule.step()
    before = schedule.get_last_lr()
    renew_learning_rate(schedule)
    assert schedule.get_last_lr() == before == [pytest.approx(0.075)]


def test_a_schedule_of_another_kind_is_left_alone() -> None:
    optimizer, _ = linear(4)
    other = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    renew_learning_rate(other)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_the_card_of_a_model_from_a_folder_names_the_folder(tmp_path: Path) -> None:
    from trl.trainer.utils import generate_model_card

    card = tmp_path / "README.md"
    given: dict[str, Any] = {
        "base_model": None, "model_name": "run", "hub_model_id": None, "dataset_name": None,
        "tags": [], "wandb_url": None, "trackio_url": None, "trainer_name": "GRPO",
        "template_file": "lm_model_card.md",
    }  # fmt: skip
    generate_model_card(**given).save(card)
    assert "None" in card.read_text()  # else TRL has mended it, and this can go
    mend_model_card(card, "/home/somebody/policy")
    text = card.read_text()
    assert "fine-tuned version of the model in the local folder `policy`." in text
    assert 'model="model"' in text
    assert "None" not in text
    assert "/home" not in text
    generate_model_card(**{**given, "base_model": "org/name", "hub_model_id": "org/run"}).save(card)
    before = card.read_text()
    mend_model_card(card, "org/name")
    assert card.read_text() == before
