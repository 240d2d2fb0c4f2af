"""Recording and replay: exact, whatever the order, and a miss that says what differs."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.client import Completion, Endpoint, SamplingParams
from agentgym.clients import RecordingClient, ReplayClient, ScriptedClient, recording, replaying
from agentgym.clients.connect import connect
from agentgym.clients.record import Recording
from agentgym.clients.replay import Replay
from agentgym.errors import (
    BudgetExceeded,
    ConfigError,
    ContextOverflow,
    DataError,
    EmptyReply,
    EndpointError,
    ReplayMiss,
    TraceError,
)
from agentgym.metering import Meter, charge, metered
from agentgym.naming import episode_named
from agentgym.types import Usage

GREEDY = SamplingParams(temperature=0)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
FULL = Completion(
    message={"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]},
    usage=Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=2, cost_usd=0.25, retries=1),
    finish_reason="tool_calls",
    reasoning="Hm.",
    prompt_ids=(1, 2, 3),
    completion_ids=(4, 5),
    logprobs=(-0.1, -math.inf),
    attempts=2,
)


class ChargingClient(ScriptedClient):
    """Charges what it answers with, as a client of a hosted endpoint does."""

    async def complete(self, *args: Any, **kwargs: Any) -> Completion:
        try:
            completion = await super().complete(*args, **kwargs)
        except EndpointError:
            charge("policy", Usage(calls=1, failed_calls=1))
            raise
        if completion.usage is not None:
            charge("policy", completion.usage)
        return completion


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def ask(client: Any, text: str = "Hi", *, episode: str = "e", **fields: Any) -> Completion:
    with episode_named(episode):
        return await client.complete(
            fields.get("messages", user(text)),
            fields.get("tools", ()),
            fields.get("sampling", GREEDY),
            session="whatever",
        )


@pytest.fixture
def file(tmp_path):
    return tmp_path / "folder" / "calls.jsonl"


# --- exactness --------------------------------------------------------------------------------


async def test_replay_gives_the_recorded_completion_and_charges_what_it_cost(file):
    recorder = RecordingClient(ChargingClient([FULL]), file)
    assert await ask(recorder) == FULL
    await recorder.aclose()
    meter = Meter()
    with metered(meter):
        again = await ask(ReplayClient(file))
    assert again == FULL
    assert meter.by_role == {"policy": FULL.usage}


@pytest.mark.parametrize(
    "error",
    [
        EndpointError("down", retryable=True, status=503, usage=Usage(prompt_tokens=4)),
        EndpointError("no key", retryable=False, status=401),
        ContextOverflow("too long"),
        EmptyReply("nothing in it", retryable=False, status=200),
        BudgetExceeded("used up"),
    ],
)
async def test_replay_fails_as_the_recorded_call_did(file, error):
    recorder = RecordingClient(ChargingClient([error]), file)
    with pytest.raises(EndpointError):
        await ask(recorder)
    await recorder.aclose()
    meter = Meter()
    with metered(meter), pytest.raises(EndpointError) as caught:
        await ask(ReplayClient(file))
    again = caught.value
    assert (type(again), str(again), again.retryable, again.status, again.usage) == (
        (type(error), str(error), error.retryable, error.status, error.usage)
    )
    assert meter.by_role["policy"].failed_calls == 1


async def test_call_that_was_given_up_fails_in_the_replay(file):
    async def never(messages):
        await asyncio.get_running_loop().create_future()

    recorder = RecordingClient(ScriptedClient(never), file)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await ask(recorder)
    with pytest.raises(EndpointError, match="given up before its answer"):
        await ask(ReplayClient(file))


@given(content=st.text(st.characters()), deeper=st.lists(st.floats(allow_nan=False) | st.text()))
def test_any_text_comes_back_as_it_was(tmp_path_factory, content, deeper):
    file = tmp_path_factory.mktemp("r") / "calls.jsonl"
    completion = Completion(message={"role": "assistant", "content": content, "x": deeper})

    async def both() -> Completion:
        recorder = RecordingClient(ScriptedClient([completion]), file)
        await ask(recorder, content)
        await recorder.aclose()
        return await ask(ReplayClient(file), content)

    assert asyncio.run(both()) == completion


async def test_order_and_concurrency_do_not_matter(file):
    def answer(messages, info, sampling):
        return f"{messages[0]['content']}/{len(messages)}/{sampling.seed}"

    async def play(client: Any, name: int) -> list[str]:
        messages, answers = user(f"task {name % 3}"), []
        for turn in range(4):
            await asyncio.sleep(0)
            sampling = SamplingParams(seed=name * 10 + turn)
            reply = await ask(
                client, episode=f"e{name}", messages=list(messages), sampling=sampling
            )
            messages += [reply.message, *user("go on")]
            answers.append(reply.message["content"])
        return answers

    recorder = RecordingClient(ScriptedClient(answer), file)
    recorded = await asyncio.gather(*(play(recorder, n) for n in range(12)))
    order = list(range(12))
    random.Random(1).shuffle(order)
    client = ReplayClient(file)
    again = dict(zip(order, await asyncio.gather(*(play(client, n) for n in order)), strict=True))
    assert [again[n] for n in range(12)] == recorded


async def test_equal_requests_of_an_episode_are_answered_in_their_order(file):
    recorder = RecordingClient(ScriptedClient(["one", "two"]), file)
    for _ in range(2):
        await ask(recorder)
    client = ReplayClient(file)
    assert [(await ask(client)).message["content"] for _ in range(2)] == ["one", "two"]
    with pytest.raises(ReplayMiss, match="request 3: was recorded 2 times, and is asked for again"):
        await ask(client)


async def test_messages_changed_after_the_call_are_recorded_as_they_were(file):
    recorder = RecordingClient(ScriptedClient(["a"]), file)
    messages = user("before")
    await ask(recorder, messages=messages)
    messages[0]["content"] = "after"
    assert (await ask(ReplayClient(file), "before")).message["content"] == "a"


async def test_episode_recorded_again_supersedes_the_earlier_one(file):
    for answer, episodes in (("old", "ab"), ("new", "b")):
        recorder = RecordingClient(ScriptedClient([answer], repeat=True), file)
        for episode in episodes:
            await ask(recorder, episode=episode)
        await recorder.aclose()
    client = ReplayClient(file)
    assert (await ask(client, episode="a")).message["content"] == "old"
    assert (await ask(client, episode="b")).message["content"] == "new"


async def test_one_file_holds_every_role(file):
    with Recording(file) as kept:
        for role in ("policy", "judge"):
            await ask(RecordingClient(ScriptedClient([role]), kept, role=role))
    with pytest.raises(ConfigError, match="has judge, policy; say which role"):
        ReplayClient(file)
    for role in ("judge", "policy"):
        assert (await ask(ReplayClient(file, role=role))).message["content"] == role


async def test_session_names_the_episode_where_nothing_else_does(file):
    recorder = RecordingClient(ScriptedClient(["x"]), file)
    await recorder.complete(user("Hi"), (), GREEDY, session="s1")
    client = ReplayClient(file)
    with pytest.raises(ReplayMiss, match=r"that episode; there are 1: \['s1'\]"):
        await client.complete(user("Hi"), (), GREEDY, session="s2")
    assert (await client.complete(user("Hi"), (), GREEDY, session="s1")).message["content"] == "x"


# --- misses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"messages": [*user("Hi"), {"role": "assistant", "content": "Hello, bob"}]},
            r'request 1: .*nearest is request 2.*message 2 .*recorded "Hello, ada", asked "Hello,',
        ),
        (
            {"messages": [*user("Hi"), *user("Hi"), *user("Hi")]},
            "message 2|number of messages: recorded",
        ),
        ({"tools": [TOOL]}, "the tools: recorded none, asked add"),
        ({"sampling": SamplingParams(seed=3)}, "sampling.seed: recorded None, asked 3"),
        ({"episode": "f"}, r"of episode 'f', request 1: nothing is recorded of that episode"),
    ],
)
async def test_miss_names_episode_request_and_difference(file, change, message):
    recorder = RecordingClient(ScriptedClient(["a", "b"]), file)
    await ask(recorder)
    await ask(recorder, messages=[*user("Hi"), {"role": "assistant", "content": "Hello, ada"}])
    with pytest.raises(ReplayMiss, match=message) as caught:
        await ask(ReplayClient(file), **change)
    assert str(file) in str(caught.value)
    assert not caught.value.retryable


async def test_miss_shows_the_place_that_differs_in_a_long_message(file):
    recorder = RecordingClient(ScriptedClient(["a"]), file)
    await ask(recorder, "x" * 500 + "1" + "y" * 500)
    with pytest.raises(ReplayMiss, match=r'recorded "…x+1y+…", asked "…x+2y+…"$'):
        await ask(ReplayClient(file), "x" * 500 + "2" + "y" * 500)


async def test_other_model_than_the_recorded_one_is_a_miss(file):
    client = ScriptedClient(["a"])
    client.endpoint = Endpoint(base_url="http://h/v1", model="small")
    await ask(RecordingClient(client, file))
    with pytest.raises(ReplayMiss, match="was answered by 'small', and is to 'large'"):
        await ask(ReplayClient(file, model="large"))
    assert await ask(ReplayClient(file, model="small"))


async def test_role_that_was_not_recorded_is_a_miss_and_reported(file):
    await ask(RecordingClient(ScriptedClient(["a"]), file))
    meter = Meter()
    with metered(meter), pytest.raises(ReplayMiss, match=r"of that role; there are \['policy'\]"):
        await ask(ReplayClient(file, role="judge"))
    assert "judge" in meter.refused


# --- the file ---------------------------------------------------------------------------------


async def test_conversation_is_kept_in_linear_size(file):
    recorder = RecordingClient(ScriptedClient(["ok"], repeat=True), file)
    messages = user("x" * 1000)
    for turn in range(20):
        await ask(recorder, messages=messages, tools=[TOOL])
        messages = [*messages, *user(f"{turn}" + "y" * 1000)]
    assert file.stat().st_size < 50_000  # 210 messages of 1000 characters were sent


async def test_torn_line_costs_its_own_call_only(file, caplog):
    recorder = RecordingClient(ScriptedClient(["a"], repeat=True), file)
    await ask(recorder, "one")
    await recorder.aclose()
    with file.open("ab") as torn:
        torn.write(b'{"recording": 1, "run"')
    recorder = RecordingClient(ScriptedClient(["b"], repeat=True), file)
    await ask(recorder, "two", episode="f")
    client = ReplayClient(file)
    assert "line 2 is torn" in caplog.text
    assert (await ask(client, "one")).message["content"] == "a"
    assert (await ask(client, "two", episode="f")).message["content"] == "b"


@pytest.mark.parametrize("text", ["[]", '{"schema_version": 1}', '{"recording": 2}'])
def test_other_file_is_no_recording(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(DataError, match="line 1: not a recorded call of version 1"):
        Replay(tmp_path / "x")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="can't read .*none: No such file"):
        ReplayClient(tmp_path / "none")


def test_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(TraceError, match="can't open .*x/y.jsonl"):
        Recording(tmp_path / "x" / "y.jsonl")


async def test_no_key_and_no_password_gets_into_the_file(file, monkeypatch):
    monkeypatch.setenv("KEY_OF_TEST", "sk-very-secret")
    client = ScriptedClient(["your key is sk-very-secret"])
    client.endpoint = Endpoint(
        base_url="http://me:hunter2222@h/v1?key=sk-very-secret-too",
        model="m",
        api_key_env="KEY_OF_TEST",
        role="judge",
    )
    recorder = RecordingClient(client, file)
    assert recorder.role == "judge"
    await ask(recorder, "hunter2222, sk-very-secret-too")
    text = file.read_text()
    assert "-too" not in text  # what is left of one secret when another is taken out of it
    assert "sk-very-secret" not in text
    assert "hunter2222" not in text
    assert json.loads(text)["completion"]["message"]["content"] == "your key is [redacted]"


def told(text: str) -> list[dict[str, Any]]:
    """A conversation in which a tool has returned a text."""
    return [{"role": "user", "content": "Look."}, {"role": "tool", "content": text}]


async def test_keys_in_tool_results_stay_out_and_the_replay_finds_the_request(file, monkeypatch):
    """J10."""
    monkeypatch.setenv("OTHER_SERVICE_TOKEN", 'p"ssw0rd\\line')
    texts = [str(dict(os.environ)), json.dumps(dict(os.environ)), "hf_" + "a1B2" * 6]
    with Recording(file, secrets=["by-hand"]) as kept:
        client = RecordingClient(ScriptedClient(["1", "2", "hf_" + "c3D4" * 6, "4"]), kept)
        for text in (*texts, "by-hand"):
            await ask(client, messages=told(text))
    written = file.read_text()
    for secret in ("ssw0rd", "a1B2", "c3D4", "by-hand"):
        assert secret not in written
    client = ReplayClient(Replay(file, secrets=["by-hand"]))
    answers = [
        (await ask(client, messages=told(t))).message["content"] for t in (*texts, "by-hand")
    ]
    assert answers == ["1", "2", "[redacted]", "4"]


async def test_recording_is_replayed_where_the_key_is_another(file, monkeypatch):
    monkeypatch.setenv("SERVICE_API_KEY", "one-key-of-mine")
    await ask(RecordingClient(ScriptedClient(["1"]), file), "KEY=one-key-of-mine")
    monkeypatch.setenv("SERVICE_API_KEY", "another-key")
    assert (await ask(ReplayClient(file), "KEY=another-key")).message["content"] == "1"


async def test_replaying_knows_the_key_of_every_endpoint(server, reply, file, monkeypatch):
    monkeypatch.setenv("MINE_ALONE", "named-by-nothing-1")
    end = Endpoint(base_url=server.url, model="m", role="judge", api_key_env="MINE_ALONE")
    server.replies = [reply("from the server")]
    with recording(file):
        await ask(connect(end), "named-by-nothing-1")
    assert "named-by-nothing" not in file.read_text()
    with replaying(file):
        again = await ask(connect(end), "named-by-nothing-1")
    assert again.message["content"] == "from the server"


# --- every endpoint at once -------------------------------------------------------------------


async def test_replaying_answers_for_every_endpoint_without_a_server(file):
    with Recording(file) as kept:
        for role in ("simulator", "judge"):
            await ask(RecordingClient(ScriptedClient([role]), kept, role=role))
    with replaying(file):
        for role in ("judge", "simulator"):
            client = connect({"base_url": "http://127.0.0.1:9/v1", "model": "m"}, role=role)
            assert (await ask(client)).message["content"] == role
    assert not isinstance(
        connect({"base_url": "http://127.0.0.1:9/v1", "model": "m"}), ReplayClient
    )


async def test_recording_keeps_what_connected_clients_answer(server, reply, file):
    server.replies = [reply("from the server")]
    with recording(file):
        client = connect(Endpoint(base_url=server.url, model="m", role="judge", timeout_s=7))
        await ask(client)
    with replaying(file):
        again = await ask(connect(Endpoint(base_url=server.url, model="m", role="judge")))
    assert again.message["content"] == "from the server"
    assert again.usage.prompt_tokens == 20
    assert len(server.requests) == 1
