"""Our worker for TRL's asynchronous trainer, against a server that answers in token ids."""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_policy
from played import played

from agentgym.client import Endpoint, TokenPath
from agentgym.errors import ConfigError
from agentgym.testing.token_model import TokenModel
from agentgym.testing.token_server import TokenServer
from agentgym.train.async_rows import group_metrics, rows_of_group
from agentgym.train.async_worker import EpisodeLoop, EpisodeSettings, EpisodeWorker
from agentgym.train.batch import PlayedBatch
from agentgym.train.metrics import batch_metrics
from agentgym.train.rows import training_row
from agentgym.types import Verdict

pytestmark = pytest.mark.filterwarnings("default")  # TRL's own


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tokenizer")
    tiny_policy.make_tokenizer().save_pretrained(found)
    return found


@pytest.fixture
def server() -> Iterator[TokenServer]:
    tokenizer = tiny_policy.make_tokenizer()
    model = TokenModel(len(tokenizer), favoured={tokenizer.eos_token_id: 3.0})
    with TokenServer(model, tokenizer=tokenizer, max_model_len=96) as found:
        yield found


def settings_for(server_url: str, folder: Path, **changes: Any) -> EpisodeSettings:
    endpoint = Endpoint(
        base_url=server_url, model="policy", tokens=TokenPath(tokenizer=str(folder))
    )
    values: dict[str, Any] = {
        "env": tiny_policy.ENV_ID,
        "env_kwargs": {"unscored": ["guess/1"]},
        "tasks": ("guess/0", "guess/1", "guess/2"),
        "endpoints": (endpoint,),
        "group_size": 3,
        "concurrency": 6,
        "max_turn_tokens": 8,
        **changes,
    }
    return EpisodeSettings(**values)


class Running:
    """A loop on a thread, as it runs in the worker's process."""

    def __init__(self, settings: EpisodeSettings, *, maxsize: int = 0, **kwargs: Any) -> None:
        self.buffer: queue.Queue[Any] = queue.Queue(maxsize)
        self.version = SimpleNamespace(value=0)
        self.heartbeat = SimpleNamespace(value=0.0)
        self.failed = threading.Event()
        self.failure: queue.Queue[Any] = queue.Queue(1)
        self.metrics: queue.Queue[Any] = queue.Queue()
        self.loop = EpisodeLoop(
            settings=settings,
            rollout_buffer=self.buffer,
            model_version_value=self.version,
            heartbeat_value=self.heartbeat,
            failed_event=self.failed,
            exception_info_queue=self.failure,
            metrics_queue=self.metrics,
            **kwargs,
        )
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception as error:
            self.error = error

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.thread.is_alive():
            self.loop._loop.call_soon_threadsafe(self.loop._stop_event.set)
        self.thread.join(30)
        assert not self.thread.is_alive()

    def take(self, count: int) -> list[Any]:
        return [self.buffer.get(timeout=30) for _ in range(count)]


def test_rows_are_what_the_server_sampled(server: TokenServer, folder: Path) -> None:
    with Running(settings_for(server.url, folder)) as running:
        rows = running.take(6)
        assert running.heartbeat.value > 0
    sampled = {tuple(body["prompt"]) for body in server.requests}
    for row in rows:
        first = int(np.argmax(row.completion_mask))
        assert tuple(row.input_ids[:first]) in sampled  # its first prompt, id by id
        assert len(row.input_ids) == len(row.completion_mask) == len(row.old_log_probs)
        assert (row.old_log_probs[row.completion_mask == 0] == 0).all()
        assert (row.old_log_probs[row.completion_mask == 1] < 0).all()
        last = int(np.flatnonzero(row.completion_mask)[-1])
        assert last == len(row.input_ids) - 1
        assert row.prompt[0]["role"] == "system"
        assert row.completion[0]["role"] == "assistant"
        assert row.model_version == 0
        assert row.enqueued_at > 0
    # The second task's episodes can't be judged: they make no rows.
    assert {row.group_id % 3 for row in rows} <= {0, 2}
    groups = {row.group_id for row in rows}
    for group in groups:
        of_it = [row for row in rows if row.group_id == group]
        if len(of_it) == 3:
            assert sum(row.advantage for row in of_it) == pytest.approx(0, abs=1e-5)
            rewards = [row.metrics["reward"] for row in of_it]
            assert {row.metrics["reward_std"] for row in of_it} == {float(np.std(rewards))}


def test_rows_say_which_weights_they_began_with(server: TokenServer, folder: Path) -> None:
    settings = settings_for(server.url, folder, tasks=("guess/0",), concurrency=3)
    with Running(settings, maxsize=4) as running:
        assert running.take(1)[0].model_version == 0
        running.version.value = 7
        assert any(running.take(1)[0].model_version == 7 for _ in range(100))


def test_full_queue_holds_the_episodes_back(server: TokenServer, folder: Path) -> None:
    settings = settings_for(server.url, folder, tasks=("guess/0",))
    with Running(settings, maxsize=2) as running:
        running.take(1)
        seen = -1
        while seen != len(server.requests):  # until nothing moves any more
            seen = len(server.requests)
            threading.Event().wait(0.3)
        assert running.buffer.qsize() == 2
        assert len(running.take(6)) == 6  # and goes on


def test_no_group_begins_that_would_be_too_old(server: TokenServer, folder: Path) -> None:
    settings = settings_for(
        server.url, folder, tasks=("guess/0",), group_size=2, concurrency=12, max_staleness=1
    )
    with Running(settings) as running:
        assert all(row.model_version == 0 for row in running.take(4))  # a training step
        running.version.value = 1
        idle = 0
        for _ in range(300):  # until nothing plays and nothing begins
            idle = 0 if running.loop._begun else idle + 1
            if idle == 5:
                break
            threading.Event().wait(0.1)
        assert idle == 5
        # Two versions of 4 rows, or what had begun before the trainer's pace was known.
        assert 2 <= running.buffer.qsize() <= 12
        running.take(running.buffer.qsize())
        running.version.value = 2
        assert any(running.take(1)[0].model_version == 2 for _ in range(20))
        held = [running.metrics.get(timeout=30)["agentgym/held_back_s"] for _ in range(8)]
    assert max(seconds for seconds, _ in held) > 0.2


def test_resumed_run_goes_on_with_the_next_task(server: TokenServer, folder: Path) -> None:
    tasks = ("guess/5", "guess/6", "guess/7")
    settings = settings_for(server.url, folder, tasks=tasks, concurrency=3)
    with Running(settings, dataset_start_index=2) as running:
        first = running.take(1)[0]
        while first.group_id != 0:
            first = running.take(1)[0]
    assert first.prompt[-1]["content"] == "w7 w8"


def test_metrics_are_rates_that_the_trainer_can_sum(server: TokenServer, folder: Path) -> None:
    with Running(settings_for(server.url, folder, tasks=("guess/1", "guess/0"))) as running:
        found = [running.metrics.get(timeout=30) for _ in range(4)]
    masked = {metrics["agentgym/masked"] for metrics in found}
    assert masked == {(3.0, 3.0), (0.0, 3.0)}
    assert all(0 < metrics["agentgym/turns"][0] <= 9 for metrics in found)
    assert any("agentgym/completed" in metrics for metrics in found)


def test_metrics_are_those_that_the_monitors_know() -> None:
    by_judge = Verdict(reward=None, masked=True, failure_class="judge")
    group = [played(1.0), played(0.5, cut="turns"), played(0.0, cut="context"),
             played(None, verdict=by_judge)]  # fmt: skip
    found = {name.removeprefix("agentgym/"): v for name, v in group_metrics(group).items()}
    assert found["masked"] == found["masked/judge"] == (1.0, 4.0)
    assert found["masked/env"] == (0.0, 4.0)
    assert found["truncated/context"] == (1.0, 3.0)
    rows = [training_row(trace, filler_id=0) for trace in group]
    rewards = [trace.reward for trace in group]
    ours = batch_metrics(PlayedBatch(0, True, group, rows, rewards, seconds=1.0))
    for name, (total, count) in found.items():
        assert total / count == pytest.approx(ours[name]), name


def test_failure_is_told_to_the_trainer(folder: Path) -> None:
    with Running(settings_for("http://127.0.0.1:9/v1", folder)) as running:
        assert running.failed.wait(60)
    name, message, trace = running.failure.get_nowait()
    assert name == "EndpointError"
    assert "127.0.0.1:9" in message
    assert "Traceback" in trace


def test_masked_and_lone_episodes_make_no_rows() -> None:
    group = [played(None), played(1.0), played(0.0)]
    rows = rows_of_group(group, group_id=4, version=2)
    assert [row.metrics["reward"] for row in rows] == [1.0, 0.0]
    assert [row.advantage for row in rows] == pytest.approx([0.7070, -0.7070], abs=1e-3)
    assert {(row.group_id, row.model_version) for row in rows} == {(4, 2)}
    assert rows[0].input_ids.tolist() == [2, 7, 9, 3]
    assert rows[0].completion_mask.tolist() == [0, 0, 1, 1]
    assert rows[0].old_log_probs.tolist() == [0, 0, -1, -1]
    assert rows_of_group([played(None), played(1.0)], group_id=0, version=0) == []


def test_episodes_lose_their_vote_by_the_same_rules_as_elsewhere() -> None:
    group = [played(1.0), played(0.0), played(0.5, cut="turns"), played(0.5, cut="time")]
    rows = rows_of_group(group, group_id=0, version=0)
    assert [row.metrics["reward"] for row in rows] == [1.0, 0.0, 0.5]
    no_float32 = Verdict.model_construct(reward=1e39, masked=False, components={})
    group = [played(1.0), played(0.0), played(None, verdict=no_float32)]
    assert len(rows_of_group(group, group_id=0, version=0)) == 2


def test_episode_with_a_break_is_several_rows_of_one_advantage() -> None:
    whole = played(1.0)
    (turn,) = whole.turns
    other = turn.model_copy(update={"index": 1, "prompt_ids": (5, 5, 5)})
    broken = whole.model_copy(update={"turns": (turn, other)})
    rows = rows_of_group([broken, played(0.0)], group_id=0, version=0)
    assert [row.input_ids.tolist() for row in rows] == [[2, 7, 9, 3], [5, 5, 5, 9, 3], [2, 7, 9, 3]]
    assert rows[0].advantage == rows[1].advantage > 0 > rows[2].advantage


def test_worker_refuses_what_cannot_work(folder: Path) -> None:
    good = settings_for("http://127.0.0.1:9/v1", folder)
    with pytest.raises(ConfigError, match="'guess/O'; did you mean 'guess/"):
        EpisodeWorker(good.model_copy(update={"tasks": ("guess/O",)}))
    bare = Endpoint(base_url="http://127.0.0.1:9/v1", model="policy")
    with pytest.raises(ConfigError, match="tokens=TokenPath"):
        EpisodeWorker(good.model_copy(update={"endpoints": (bare,)}))


def test_settings_can_be_pickled(folder: Path) -> None:
    settings = settings_for("http://127.0.0.1:9/v1", folder)
    assert pickle.loads(pickle.dumps(settings)) == settings
