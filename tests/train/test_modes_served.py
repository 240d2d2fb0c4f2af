"""The policy on servers, over servers without vLLM; the real ones are in test_modes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_policy
from fake_policy import FakePolicyServer, FakeSync
from serving import serving

from agentgym.client import SamplingParams, TokenPath
from agentgym.errors import AgentGymError, ConfigError, TrainingError
from agentgym.rollout import EpisodeRequest, Limits
from agentgym.serve.allowed import Allowed
from agentgym.sync import run_on_background_loop
from agentgym.tokens.codec import ChatCodec
from agentgym.trace import Trace
from agentgym.train.evaluation import evaluate
from agentgym.train.objective import Objective
from agentgym.train.policy_source import EngineSettings
from agentgym.train.rollout import Rollout
from agentgym.train.served import ServedPolicy
from agentgym.train.sync import Weights

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

ONE_PROCESS: Any = SimpleNamespace(is_main_process=True, num_processes=1)
WEIGHTS = Weights(None, lambda: ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tiny_policy.make_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def codec(folder: Path) -> ChatCodec:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return ChatCodec(tokenizer, stop_ids=[tokenizer.eos_token_id])


@pytest.fixture
def servers(codec: ChatCodec) -> Iterator[list[FakePolicyServer]]:
    with FakePolicyServer(codec.tokenizer) as one, FakePolicyServer(codec.tokenizer) as other:
        yield [one, other]


def policy_of(servers: list[FakePolicyServer], **kwargs: Any) -> ServedPolicy:
    return ServedPolicy([s.root for s in servers], sync=FakeSync(), **kwargs)


def connected(servers: list[FakePolicyServer], **kwargs: Any) -> ServedPolicy:
    policy = policy_of(servers, **kwargs)
    policy.connect(ONE_PROCESS)
    policy.push(WEIGHTS)
    return policy


def play(policy: ServedPolicy, codec: ChatCodec, *, count: int = 12) -> list[Trace]:
    settings = EngineSettings(
        tiny_policy.ENV_ID,
        env_kwargs={},
        sampling=SamplingParams(max_tokens=8),
        limits=Limits(concurrency=count),
    )
    engine = policy.engine(settings, codec)
    try:
        return engine.run_blocking([EpisodeRequest(seed=k) for k in range(count)])
    finally:
        engine.close()


def test_episodes_are_played_in_ids_on_every_server_and_say_with_which_weights(
    servers: list[FakePolicyServer], codec: ChatCodec
) -> None:
    policy = connected(servers)
    turns = [turn for trace in play(policy, codec) for turn in trace.turns]
    assert all(turn.completion_ids and turn.logprobs for turn in turns)
    assert {turn.replica for turn in turns} == {s.root.removeprefix("http://") for s in servers}
    assert {turn.weight_version for turn in turns} == {"0"}
    policy.step = lambda: 7
    policy.push(WEIGHTS)
    assert {t.weight_version for trace in play(policy, codec) for t in trace.turns} == {"7"}
    versions = policy.sync.versions  # type: ignore[attr-defined]
    assert len(set(versions)) == 2
    assert versions[1].endswith("step7")
    policy.close()
    assert policy.sync.closed  # type: ignore[attr-defined]


def test_server_that_took_no_weights_is_not_asked_until_it_takes_some(
    servers: list[FakePolicyServer], codec: ChatCodec
) -> None:
    policy = connected(servers)
    play(policy, codec)  # its client is there when the server is lost
    sync: Any = policy.sync
    sync.fails_at = {servers[0].root: "disk full"}
    policy.push(WEIGHTS)
    asked = len(servers[0].requests)
    play(policy, codec)
    assert len(servers[0].requests) == asked
    sync.fails_at = {}
    policy.push(WEIGHTS)
    play(policy, codec)
    assert len(servers[0].requests) > asked
    policy.close()


def test_requests_name_the_adapter_of_the_last_sync(
    servers: list[FakePolicyServer], codec: ChatCodec
) -> None:
    policy = connected(servers)
    sync: Any = policy.sync
    for version in (1, 2):
        sync.adapter = f"policy@{version}"
        policy.push(WEIGHTS)
        for server in servers:
            server.name = sync.adapter
        traces = play(policy, codec)
        assert all(trace.turns and not trace.error for trace in traces)
    assert not [server.refused for server in servers if server.refused]
    policy.close()


def test_probe_asks_every_server_and_leaves_out_one_that_is_gone(
    servers: list[FakePolicyServer], codec: ChatCodec
) -> None:
    policy = connected(servers)
    answers = policy.probe([4, 5, 6], tokens=5, temperature=0.7)
    assert len({answer.replica for answer in answers}) == 2
    for answer, server in zip(answers, servers, strict=True):
        (sent,) = server.requests
        assert (sent["temperature"], sent["seed"], sent["ignore_eos"]) == (0.7, 0, True)
        assert answer.float32
        context = [4, 5, 6]
        for token, logprob in zip(answer.ids, answer.logprobs, strict=True):
            given = server.model.logprobs(context, sent)
            assert logprob == pytest.approx(given[token])
            context.append(token)
    servers[0].dtype = "torch.bfloat16"
    policy.check_servers()
    assert [a.float32 for a in policy.probe([4], tokens=2, temperature=1.0)] == [False, True]
    servers[0].name = "other"
    assert [a.float32 for a in policy.probe([4], tokens=2, temperature=1.0)] == [True]
    servers[1].name = "other"
    with pytest.raises(TrainingError, match="does not exist"):
        policy.probe([4], tokens=2, temperature=1.0)


def test_episodes_of_a_server_that_came_back_with_old_weights_have_no_vote(
    servers: list[FakePolicyServer], codec: ChatCodec
) -> None:
    policy = connected(servers)
    traces = play(policy, codec)
    sync: Any = policy.sync
    rollout = Rollout(
        tiny_policy.ENV_ID, env_kwargs={}, max_turn_tokens=8, seed=0, traces=None, check_every=1,
        limits=None, template_kwargs={}, seeded_sampling=True,
    )  # fmt: skip
    rollout._source = policy
    settled = [Objective().settle(trace, filler_id=3) for trace in traces]
    assert rollout._without_stale(settled) == settled
    sync.stale_ones = {servers[0].root: "it started anew"}
    gone = servers[0].root.removeprefix("http://")
    kept = rollout._without_stale(settled)
    assert {s.masked_by for s in kept} == {None, "stale"}
    for s in kept:
        assert (s.masked_by == "stale") == any(t.replica == gone for t in s.trace.turns)
        assert (s.reward is None) == (s.masked_by == "stale")
    asked = len(servers[0].requests)
    play(policy, codec)
    assert len(servers[0].requests) == asked
    policy.close()


def test_evaluation_leaves_out_what_a_server_with_old_weights_played(
    servers: list[FakePolicyServer], codec: ChatCodec
) -> None:
    policy = policy_of(servers)
    policy.connect(ONE_PROCESS)
    sync: Any = policy.sync
    generation = SimpleNamespace(policy_source=policy, sync_weights=lambda: policy.push(WEIGHTS))
    trainer: Any = SimpleNamespace(
        vllm_generation=generation, state=SimpleNamespace(global_step=3), temperature=1.0,
        top_p=1.0, top_k=0, min_p=None, repetition_penalty=1.0,
        processing_class=codec.tokenizer, eos_token_ids=[codec.tokenizer.eos_token_id],
        args=SimpleNamespace(chat_template_kwargs=None), model=SimpleNamespace(name_or_path="m"),
    )  # fmt: skip
    tasks = ["guess/0", "guess/1", "guess/2"]
    assert all(t.scored for t in evaluate(trainer, tiny_policy.ENV_ID, tasks=tasks, samples=4))
    sync.stale_ones = {servers[0].root: "it started anew"}
    gone = servers[0].root.removeprefix("http://")
    played = evaluate(trainer, tiny_policy.ENV_ID, tasks=tasks, samples=4)
    assert {t.scored for t in played} == {True, False}
    for trace in played:
        assert trace.scored != any(turn.replica == gone for turn in trace.turns)
    policy.close()


@pytest.mark.parametrize(
    ("changes", "kwargs", "message"),
    [
        ({"dev_mode": False}, {}, "VLLM_SERVER_DEV_MODE=1"),
        ({"context": 32}, {"max_context": 64}, "--max-model-len 64"),
    ],
)
def test_server_that_can_not_be_trained_with_is_one_line_with_the_remedy(
    codec: ChatCodec, changes: dict[str, Any], kwargs: dict[str, Any], message: str
) -> None:
    with (
        FakePolicyServer(codec.tokenizer, **changes) as server,
        pytest.raises(TrainingError, match=message) as caught,
    ):
        policy_of([server], **kwargs).check_servers()
    assert "\n" not in str(caught.value)


def test_server_of_another_model_with_the_same_tokenizer_is_refused_before_anything_is_loaded(
    servers: list[FakePolicyServer], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    policy = tiny_policy.save_policy(tmp_path / "policy")
    tokenizer = AutoTokenizer.from_pretrained(policy)
    larger = tmp_path / "larger"
    larger.mkdir()
    config = json.loads((policy / "config.json").read_text())
    (larger / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    alike = tmp_path / "alike"
    alike.mkdir()
    (alike / "config.json").write_text(json.dumps(config))
    for started_with in (policy, alike, tmp_path / "unknown", None):
        servers[1].started_with = None if started_with is None else str(started_with)
        policy_of(servers).check_servers(tokenizer=tokenizer)
    servers[1].started_with = str(larger)
    message = rf"{servers[1].root} was .*num_hidden_layers 3 instead of 2.*`vllm serve {policy}`"
    with pytest.raises(TrainingError, match=message) as caught:
        policy_of(servers).check_servers(tokenizer=tokenizer)
    assert "\n" not in str(caught.value)


def test_server_that_is_down_and_a_url_that_is_none_are_named() -> None:
    with pytest.raises(TrainingError, match=r"127\.0\.0\.1:9.*is it running"):
        ServedPolicy(["http://127.0.0.1:9"], sync=FakeSync()).check_servers()
    with pytest.raises(ConfigError, match="policy server 'gpu1:8000'"):
        ServedPolicy(["gpu1:8000"], sync=FakeSync())
    with pytest.raises(TrainingError, match="at least one"):
        ServedPolicy([], sync=FakeSync())


def test_servers_get_their_own_key_and_a_service_is_named_none_that_is_not_set(
    servers: list[FakePolicyServer], codec: ChatCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    policy = connected(servers)
    path = TokenPath(tokenizer=codec.tokenizer.name_or_path)
    assert {e.api_key_env for e in policy.endpoints} == {"VLLM_API_KEY"}
    for endpoint in policy.asked_in_ids(path, seeded=False):
        assert "api_key_env" not in endpoint.model_fields_set
        assert endpoint.tokens == path
        assert not endpoint.dialect.seed
    monkeypatch.setenv("VLLM_API_KEY", "k")
    named = {e.api_key_env for e in policy.asked_in_ids(path, seeded=True)}
    assert named == {"VLLM_API_KEY"}


def test_service_that_is_none_is_refused_before_anything_is_loaded(
    servers: list[FakePolicyServer],
) -> None:
    for url, message in (
        ("http://127.0.0.1:9", "start one with `agentgym serve`"),
        (servers[0].root, "HTTP 404 for /readyz"),
        ("rollouts:8800", "no rollout service answers"),
    ):
        with pytest.raises(TrainingError, match=message) as caught:
            policy_of(servers, service=url).check_servers()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("allows", "kwargs", "message"),
    [
        ({}, {}, "Guess-v0"),
        ({"envs": (tiny_policy.ENV_ID,)}, {}, "--allow-tokenizer"),
        ({"envs": (tiny_policy.ENV_ID,), "tokenizers": None}, {"tasks": "many"}, "tasks"),
        ({"envs": (tiny_policy.ENV_ID,), "tokenizers": None}, {"tasks": 3}, None),
    ],
)
async def test_service_is_asked_before_anything_is_loaded_whether_it_plays_this(
    servers: list[FakePolicyServer],
    codec: ChatCodec,
    allows: dict[str, Any],
    kwargs: dict[str, Any],
    message: str | None,
) -> None:
    if "tokenizers" in allows:
        allows = {**allows, "tokenizers": (codec.tokenizer.name_or_path,)}
    async with serving(allowed=Allowed(**allows)) as service:
        policy = policy_of(servers, service=service.url)

        def check() -> None:
            policy.check_servers(
                tokenizer=codec.tokenizer, env_id=tiny_policy.ENV_ID, env_kwargs=kwargs
            )

        if message is None:
            await asyncio.to_thread(check)
            return
        with pytest.raises(AgentGymError, match=message) as caught:
            await asyncio.to_thread(check)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("through_service", [False, True])
def test_ctrl_c_takes_back_what_is_in_flight(
    servers: list[FakePolicyServer], codec: ChatCodec, through_service: bool
) -> None:
    allowed = Allowed(envs=(tiny_policy.ENV_ID,), tokenizers=(codec.tokenizer.name_or_path,))

    stack = AsyncExitStack()
    service = run_on_background_loop(stack.enter_async_context(serving(allowed=allowed)))
    for server in servers:
        server.gate = asyncio.Event()

    def press() -> None:
        _until(lambda: sum(server.in_flight for server in servers) == 12)
        os.kill(os.getpid(), signal.SIGINT)

    try:
        policy = connected(servers, service=service.url if through_service else None)
        pressing = threading.Thread(target=press)
        pressing.start()
        with pytest.raises(KeyboardInterrupt):
            play(policy, codec)
        pressing.join()
        _until(lambda: sum(server.aborted for server in servers) == 12)
        assert sum(server.in_flight for server in servers) == 0
        for server in servers:
            server.gate = None
        assert all(trace.turns and not trace.error for trace in play(policy, codec))
        policy.close()
    finally:
        run_on_background_loop(stack.aclose())


def _until(holds: Callable[[], bool]) -> None:
    deadline, pause = time.monotonic() + 60, threading.Event()
    while not holds():
        assert time.monotonic() < deadline
        pause.wait(0.001)


def test_server_that_a_killed_run_left_paused_is_not_waited_for(
    servers: list[FakePolicyServer], codec: ChatCodec
) -> None:
    servers[0].paused = True
    policy = policy_of(servers)
    policy.check_servers(tokenizer=codec.tokenizer)
    assert not servers[0].requests
    assert servers[1].requests


def test_any_error_of_the_first_process_reaches_the_others(
    servers: list[FakePolicyServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    import accelerate.utils

    told: list[Any] = []

    def broadcast(objects: list[Any], *, from_process: int) -> None:
        if told:
            objects[:] = told
        else:
            told.extend(objects)

    monkeypatch.setattr(accelerate.utils, "broadcast_object_list", broadcast)
    first, other = policy_of(servers), policy_of(servers)
    first.connect(SimpleNamespace(is_main_process=True, num_processes=2))
    other.connect(SimpleNamespace(is_main_process=False, num_processes=2))

    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of memory")

    first.sync.push = fails  # type: ignore[method-assign, assignment]
    other.sync.take_part = lambda weights: None  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of memory"):
        first.push(WEIGHTS)
    with pytest.raises(TrainingError, match="out of memory"):
        other.push(WEIGHTS)


def test_policy_whose_servers_are_all_lost_says_so(
    servers: list[FakePolicyServer], codec: ChatCodec
) -> None:
    policy = connected(servers)
    sync: Any = policy.sync
    sync.stale_ones = {s.root: f"{s.root} was started anew" for s in servers}
    assert len(policy.stale()) == 2
    with pytest.raises(TrainingError, match="no policy server has the trainer's weights.*anew"):
        policy.probe([4], tokens=2, temperature=1.0)
    sync.stale_ones = {}
    policy.push(WEIGHTS)
    assert len(play(policy, codec)) == 12
    policy.close()


def test_ids_and_tokenizer_are_looked_at_before_the_first_episode(
    servers: list[FakePolicyServer], codec: ChatCodec
) -> None:
    policy = connected(servers)
    policy.check(codec, [4] * 10)
    with pytest.raises(TrainingError, match="larger --max-model-len"):
        policy.check(codec, [4] * 96)
    servers[1].gives_ids = False
    with pytest.raises(TrainingError, match="ids"):
        policy_of(servers).check_servers(tokenizer=codec.tokenizer)
    with pytest.raises(TrainingError, match="ids") as caught:
        policy.check(codec, [4] * 10)
    assert "\n" not in str(caught.value)


def test_tokenizer_that_was_changed_in_memory_is_refused(
    servers: list[FakePolicyServer], folder: Path
) -> None:
    from transformers import AutoTokenizer

    changed = AutoTokenizer.from_pretrained(folder)
    changed.chat_template = changed.chat_template + " "
    codec = ChatCodec(changed, stop_ids=[changed.eos_token_id])
    with pytest.raises(TrainingError, match="chat template.*save it to a folder"):
        connected(servers).check(codec, [4] * 10)


def test_batch_of_which_nothing_could_be_played_ends_the_run_with_the_reason(
    servers: list[FakePolicyServer], codec: ChatCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = connected(servers)
    for server in servers:
        server.script = [(400, "no such luck")] * 100
    traces = play(policy, codec, count=2)
    assert {trace.failure_class for trace in traces} == {"infra"}
    rollout = Rollout(
        tiny_policy.ENV_ID, env_kwargs={}, max_turn_tokens=8, seed=0, traces=None, check_every=1,
        limits=None, template_kwargs={}, seeded_sampling=True,
    )  # fmt: skip
    rollout._engine = SimpleNamespace(run_blocking=lambda requests: traces)  # type: ignore[assignment]
    requests = [
        EpisodeRequest(seed=k, group=t.group, sample=t.sample) for k, t in enumerate(traces)
    ]
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True), accelerator=SimpleNamespace(process_index=0)
    )
    with pytest.raises(TrainingError, match=r"none of the 2 episodes.*no such luck") as caught:
        rollout._play(requests, trainer)
    assert "\n" not in str(caught.value)
    policy.close()


def test_printed_command_starts_a_server_that_fits_the_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from agentgym.train.config_reading import read_config
    from agentgym.train.served_setup import command_for_servers

    values = {"env": "e/E-v0", "model": "m", "out": tmp_path, "sampling.max_context": 512}
    command = command_for_servers(read_config(values))
    assert command.startswith("VLLM_SERVER_DEV_MODE=1 ")
    assert " vllm serve m " in command
    assert "--max-model-len 512" in command
    adapters = read_config({**values, "lora": {"rank": 20}, "policy.sync": "lora"})
    assert "--max-lora-rank 32" in command_for_servers(adapters)
