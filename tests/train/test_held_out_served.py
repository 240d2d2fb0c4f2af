"""Held-out evaluations of a policy on servers, on a trainer that does nothing else."""

from __future__ import annotations

import _thread
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_policy
from fake_policy import FakePolicyServer, FakeSync

from agentgym.traces import read_traces
from agentgym.train.config_reading import read_config
from agentgym.train.monitors.scores import read_scores

held_out = pytest.importorskip("agentgym.train.held_out", reason="needs the training stack")
served = pytest.importorskip("agentgym.train.served", reason="needs the training stack")

TASKS = tuple(f"guess/{n}" for n in range(6))


class Run:
    """A trainer with a policy on a server, as far as an evaluation knows one."""

    def __init__(self, server: FakePolicyServer, tokenizer: Any, out: Path, **changes: Any) -> None:
        values = {"env": tiny_policy.ENV_ID, "model": "m", "out": out, "eval.every": 2,
                  "eval.samples": 2, "steps": 5, "sampling.max_turn_tokens": 8,
                  **changes}  # fmt: skip
        config = read_config(values)
        self.policy = served.ServedPolicy([server.url], sync=FakeSync(), max_context=96)
        self.policy.connect(SimpleNamespace(is_main_process=True, num_processes=1))
        self.lines: list[str] = []
        self.state = SimpleNamespace(
            global_step=0, max_steps=config.steps, is_world_process_zero=True, best_metric=None,
            best_global_step=None, best_model_checkpoint=None,
        )  # fmt: skip
        self.control = SimpleNamespace(should_save=False, should_training_stop=False)
        self.trainer = SimpleNamespace(
            accelerator=SimpleNamespace(process_index=0, num_processes=1),
            rollout_func=object(),
            vllm_generation=SimpleNamespace(sync_weights=lambda: None, policy_source=self.policy),
            vllm_mode="server",
            processing_class=tokenizer,
            eos_token_ids=[tokenizer.eos_token_id],
            args=SimpleNamespace(chat_template_kwargs=None),
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            min_p=None,
            repetition_penalty=1.0,  # TRL's
            model=SimpleNamespace(name_or_path="tiny"),
            state=self.state,
            log=lambda values: None,
            _metrics={"train": defaultdict(list)},
        )
        self.callback = held_out.HeldOut(
            self.trainer, config, held_out.HeldOutTasks({}, TASKS),
            tell=self.lines.append, listener=lambda score: None,
        )  # fmt: skip

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc: object) -> None:
        self.policy.close()

    def begin(self, step: int = 0) -> None:
        self.state.global_step = step
        self.callback.on_train_begin(None, self.state, self.control)

    def step(self, step: int) -> None:
        self.state.global_step = step
        self.callback.on_step_end(None, self.state, self.control)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    from transformers import AutoTokenizer

    tiny_policy.make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    return AutoTokenizer.from_pretrained(tmp_path / "tokenizer")


@pytest.fixture
def server(tokenizer: Any) -> Iterator[FakePolicyServer]:
    with FakePolicyServer(tokenizer) as running:
        yield running


def test_servers_are_asked_in_ids_by_the_weights_name(
    server: FakePolicyServer, tokenizer: Any, tmp_path: Path
) -> None:
    with Run(server, tokenizer, tmp_path / "out") as run:
        run.begin()
        run.step(2)
    scores = read_scores(tmp_path / "out" / "evaluations.jsonl")
    assert [(score.step, score.n_episodes) for score in scores] == [(0, 12), (2, 12)]
    assert scores[0].tasks == scores[1].tasks  # the same weights, tasks and seeds
    traces = list(read_traces(tmp_path / "out" / "traces-held-out000002.jsonl"))
    turns = [turn for trace in traces for turn in trace.turns]
    assert turns
    assert {turn.weight_version for turn in turns} == {"2"}
    assert all(turn.completion_ids and turn.logprobs for turn in turns)


def test_servers_that_are_away_cost_an_evaluation_and_not_the_run(
    server: FakePolicyServer, tokenizer: Any, tmp_path: Path
) -> None:
    with Run(server, tokenizer, tmp_path / "out") as run:
        run.begin()
        server.script = [(400, "the engine is dead")] * 1000
        run.step(2)
        server.script = []
        run.step(4)
    assert "held-out evaluation at step 2 failed: 0 of 12" in run.lines[1]
    assert "the engine is dead" in run.lines[1]
    scores = read_scores(tmp_path / "out" / "evaluations.jsonl")
    assert [score.step for score in scores] == [0, 4]


def test_interrupt_leaves_no_score_and_a_resume_evaluates_again(
    server: FakePolicyServer, tokenizer: Any, tmp_path: Path
) -> None:
    asked = 0

    def interrupt(body: Any) -> None:
        if len(server.requests) == asked + 5:
            _thread.interrupt_main()

    with Run(server, tokenizer, tmp_path / "out") as run:
        run.begin()
        asked = len(server.requests)
        server.script = [interrupt] * (asked + 100)
        with pytest.raises(KeyboardInterrupt):
            run.step(5)  # the last one, which no later step makes up for
        server.script = []
    scores = read_scores(tmp_path / "out" / "evaluations.jsonl")
    assert [score.step for score in scores] == [0]
    with Run(server, tokenizer, tmp_path / "out") as resumed:
        resumed.begin(5)
    scores = read_scores(tmp_path / "out" / "evaluations.jsonl")
    assert [(score.step, score.n_episodes) for score in scores] == [(0, 12), (5, 12)]
    traces = list(read_traces(tmp_path / "out" / "traces-held-out000005.jsonl"))
    assert len(traces) == 12
