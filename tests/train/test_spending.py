"""A training run that its budget ends: at a step boundary, saved, and to be gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentgym.client import Completion
from agentgym.clients import ScriptedClient
from agentgym.errors import BudgetStop, ConfigError
from agentgym.judge import Score
from agentgym.metering import charge
from agentgym.rollout import Engine
from agentgym.types import Usage
from tests.support.rolling import SUBMIT, Maker, singles

pytest.importorskip("transformers")

from agentgym.rollout.spending import SPENT_FILE
from agentgym.train.config import TrainConfig
from agentgym.train.interrupt import stoppable
from agentgym.train.spending import require_paid, within_budget

BATCH = 4


class PaidJudge:
    """A judge that costs a cent per episode."""

    async def score(self, episode: Any) -> Score:
        charge("judge", Usage(completion_tokens=1, cost_usd=0.01))
        return Score(total=1.0)


class Run:
    """Steps of a batch each, as the trainer plays them, with the ledger that the run has."""

    def __init__(self, out: Path, **budget: Any) -> None:
        self.config = TrainConfig(env="X-v0", model="m", out=out, budget=budget or None)
        self.rollout: Any = SimpleNamespace(env_kwargs={}, listeners=[], ledger=None)
        self.saved: list[int] = []
        self.steps = 0

    def train(self, steps: int, *, processes: int = 1) -> None:
        trainer: Any = SimpleNamespace(
            state=SimpleNamespace(global_step=0),
            args=SimpleNamespace(output_dir=str(self.config.out)),
            rollout_func=self.rollout,
            model=None,
            add_callback=lambda callback: None,
            _save_checkpoint=lambda model, trial: self.saved.append(self.steps),
        )
        answer = Completion(message=SUBMIT, usage=Usage(prompt_tokens=90, completion_tokens=10))
        policy = ScriptedClient([answer], repeat=True)
        with within_budget(self.rollout, self.config, processes=processes), stoppable(trainer):
            engine = Engine(Maker(judge=PaidJudge()), client=policy, ledger=self.rollout.ledger)
            for _ in range(steps):
                if self.rollout.ledger is not None:
                    require_paid(self.rollout.ledger, BATCH)
                engine.run_blocking(singles(BATCH))
                self.steps += 1
                trainer.state.global_step = self.steps
                for listener in self.rollout.listeners:
                    listener(None)


def test_a_run_ends_before_the_step_it_would_not_pay_for(tmp_path):
    """Ten cents pay for two batches of four episodes, and half of a third."""
    run = Run(tmp_path, usd=0.10)
    with pytest.raises(BudgetStop, match=r"\$0\.0800 of \$0\.1000 are spent") as stop:
        run.train(5)
    assert (run.steps, run.saved) == (2, [2])
    assert len(stop.value.status.not_run) == BATCH
    assert f"`agentgym train --out {tmp_path} --resume --set budget.usd=…`" in str(stop.value)
    assert stop.value.status.done == 2 * BATCH
    spent = json.loads((tmp_path / SPENT_FILE).read_text())
    assert spent["billed"]["judge"]["cost_usd"] == pytest.approx(0.08)
    assert (
        spent["billed"]["policy"]["cost_usd"] is None
    )  # its own GPUs; nobody claims they are free


def test_what_was_spent_before_a_resume_is_spent(tmp_path):
    with pytest.raises(BudgetStop):
        Run(tmp_path, usd=0.10).train(5)
    again = Run(tmp_path, usd=0.13)
    with pytest.raises(BudgetStop, match=r"\$0\.1200 of \$0\.1300 are spent"):
        again.train(5)
    assert again.steps == 1
    Run(tmp_path, usd=1.0).train(5)


def test_tokens_of_the_policy_count(tmp_path):
    run = Run(tmp_path, roles={"policy": {"tokens": 900}})
    with pytest.raises(BudgetStop, match=r"of 900 tokens \(policy\) are spent"):
        run.train(5)
    assert run.steps == 2


def test_without_a_budget_nothing_is_kept(tmp_path):
    run = Run(tmp_path)
    run.train(2)
    assert (run.steps, run.rollout.ledger) == (2, None)
    assert not (tmp_path / SPENT_FILE).exists()


def test_what_cant_be_seen_in_one_place_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="several processes"):
        Run(tmp_path, usd=1).train(1, processes=2)
    unpriced = Run(tmp_path, usd=1)
    unpriced.rollout.env_kwargs = {"judge": {"base_url": "http://h/v1", "model": "j"}}
    with pytest.raises(ConfigError, match="judge 'j' at http://h/v1 has no prices"):
        unpriced.train(1)
    (tmp_path / SPENT_FILE).write_text("{torn")
    with pytest.raises(ConfigError, match=r"can't read .*spent\.json"):
        Run(tmp_path, usd=1).train(1)
