"""What servers and models do to a conversation, one test for each reported case.

An episode is played through `ChatClient` against a server that refuses what the strictest provider
refuses, so a history that one turn poisoned fails at the next.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from agentgym.cli import main
from agentgym.client import SamplingParams
from agentgym.core import AgentEnv
from agentgym.errors import EmptyReply, EndpointError
from agentgym.judge import Score
from agentgym.testing.messages import raw_call
from agentgym.testing.quirky import QuirkyServer, Stream, answer
from agentgym.tools import Tool
from agentgym.types import Task

SAMPLING = SamplingParams(max_tokens=64)
ASK = [{"role": "user", "content": "Hi"}]


class Free:
    inline = True

    async def score(self, episode):
        return Score(total=1.0, correct=True)


class Desk(AgentEnv):
    """Tools of every shape; text ends the episode."""

    def __init__(self, *more, **kwargs):
        self.log = []
        functions = (self.search, self.list_orders, self.cancel, self.lookup, self.write_note)
        super().__init__(tools=[*functions, *more], judge=Free(), **kwargs)

    def choose_task(self, options):
        return Task(task_id="desk/0")

    async def start(self, task):
        self.log = []
        return ({"role": "user", "content": "Help."},)

    def search(self, query: str) -> str:
        self.log.append(("search", query))
        return f"found {query}"

    def list_orders(self) -> list[int]:
        self.log.append(("list_orders",))
        return [7]

    def cancel(self, order_id: str, confirm: bool) -> str:
        self.log.append(("cancel", order_id, confirm))
        return "cancelled" if confirm else "kept"

    def lookup(self, zip_code: str) -> str:
        self.log.append(("lookup", zip_code))
        return "Boston"

    def write_note(self, path: str, text: str) -> str:
        self.log.append(("write_note", path, text))
        return "written"


def calling(*calls, content=None, **choice):
    return answer(content, message={"tool_calls": list(calls)}, **choice)


def call(name, arguments, call_id="c1"):
    return raw_call(name, arguments, call_id)


async def play(server, client, *turns, env=None):
    """An episode of these answers and "done"; the env afterwards, and the episode's record."""
    env = env or Desk()
    server.replies = [*turns, answer("done")]
    _, info = await env.areset(seed=0, options={"judging": "deferred"})
    while True:
        got = await client.complete(env.messages, info["tools"], SAMPLING, session="s")
        action = {
            **got.message,
            "cut_off": got.cut_off,
            "finish_reason": got.finish_reason,
            "usage": got.usage,
        }
        _, _, terminated, truncated, info = await env.astep(
            {key: value for key, value in action.items() if value is not None or key == "content"}
        )
        if terminated or truncated:
            assert server.refused == []
            return env, info["episode_record"]


def sent_calls(server, request=-1):
    messages = server.requests[request]["messages"]
    return [call for message in messages for call in message.get("tool_calls") or ()]


def results(episode):
    return [message for message in episode.messages if message["role"] == "tool"]


async def test_empty_arguments_of_a_tool_that_needs_some_are_answered_and_replayed_as_json(
    server, make_client
):
    """A01."""
    env, episode = await play(server, make_client(), calling(call("search", "")))
    assert (env.log, episode.terminated, episode.malformed_calls) == ([], True, 1)
    assert "query" in results(episode)[0]["content"]
    assert sent_calls(server)[0]["function"]["arguments"] == "{}"
    assert episode.turns[0].calls[0].raw_arguments == ""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("arguments", ["", " ", None, "{}", "null", {}, "missing"])
async def test_parameterless_tool_runs_whatever_stands_for_no_arguments(
    server, make_client, arguments, stream
):
    """A02: streamed or not."""
    function = {"name": "list_orders", "arguments": arguments}
    if arguments == "missing":
        del function["arguments"]
    entry = {"id": "c1", "type": "function", "function": function}
    turn = calling(entry)
    if stream:
        delta = {"tool_calls": [{"index": 0, **entry}]}
        turn = Stream(events=[{"choices": [{"delta": delta, "finish_reason": "tool_calls"}]}])
    env, episode = await play(server, make_client(dialect={"stream": stream}), turn)
    assert (env.log, episode.malformed_calls) == ([("list_orders",)], 0)


@pytest.mark.parametrize("arguments", [{"query": "x"}, '{"query": "x"}'])
async def test_arguments_come_as_object_or_text_and_go_back_as_text_once(
    server, make_client, arguments
):
    """A04."""
    env, _ = await play(server, make_client(), calling(call("search", arguments)))
    assert env.log == [("search", "x")]
    assert sent_calls(server)[0]["function"]["arguments"] == '{"query": "x"}'


@pytest.mark.parametrize("wanted", ["null", "text"])
async def test_content_beside_calls_is_what_the_server_wants(server, make_client, wanted):
    """A05: an episode with a turn of calls only and one of empty text passes on both kinds."""

    def strict(body):
        for message in body["messages"]:
            if message["role"] != "assistant":
                continue
            content, calls = message["content"], message.get("tool_calls")
            if calls and content != (None if wanted == "null" else ""):
                return 400, {"error": {"message": f"content is {content!r} beside calls"}}
            if not calls and content is None:
                return 400, {"error": {"message": "content is null without calls"}}
        return answer("fine")

    server.replies = [strict]
    client = make_client(dialect={"empty_content": wanted})
    tool = {"role": "tool", "tool_call_id": "c1", "content": ""}
    for content in (None, ""):
        turn = {"role": "assistant", "content": content}
        history = [*ASK, {**turn, "tool_calls": [call("search", "{}")]}, tool, turn, *ASK]
        assert (await client.complete(history, (), SAMPLING)).message["content"] == "fine"
    assert server.refused == []


@pytest.mark.parametrize("content", [None, "", "<think>hm</think>"])
async def test_message_of_calls_only_stays_with_its_results(server, make_client, content):
    """A07, A08: reasoning that is taken out of the text takes no calls with it."""
    turn = calling(call("search", '{"query": "x"}'), content=content)
    _, episode = await play(server, make_client(), turn, turn)
    roles = [message["role"] for message in server.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]
    assert all(not message["content"] for message in episode.messages[1::2][:2])


@pytest.mark.parametrize("reason", ["stop", None, "", "eos", "function_call", "tool-calls"])
async def test_calls_run_whatever_the_finish_reason(server, make_client, reason):
    """A10."""
    turn = calling(call("search", '{"query": "x"}'), finish_reason=reason)
    env, episode = await play(server, make_client(), turn)
    assert (env.log, len(episode.turns)) == ([("search", "x")], 2)


async def test_turn_that_used_up_the_output_limit_is_cut_off_whatever_the_finish_reason(
    server, make_client
):
    """A11."""
    turn = calling(
        call("search", '{"query": "x"}'),
        finish_reason="tool_calls",
        usage={"prompt_tokens": 9, "completion_tokens": 64},
    )
    env, episode = await play(server, make_client(), turn)
    first = episode.turns[0]
    assert (first.cut_off, first.finish_reason) == (True, "tool_calls")
    assert first.usage.completion_tokens == 64
    assert env.log == []


async def test_call_that_was_cut_off_has_no_effect_and_is_no_malformed_one(server, make_client):
    """A12."""
    half = call("write_note", '{"path": "a.txt", "text": "hel')
    env, episode = await play(server, make_client(), calling(half, finish_reason="length"))
    assert env.log == []
    assert (episode.cut_off_calls, episode.malformed_calls) == (1, 0)
    assert "output limit" in results(episode)[0]["content"]


async def test_repeated_and_missing_ids_become_unique_within_turn_and_episode(server, make_client):
    """A13."""
    calls = [
        call("search", f'{{"query": "{q}"}}', i)
        for q, i in zip("xyz", ("c1", "c1", None), strict=True)
    ]
    again = calling(call("search", '{"query": "w"}'))
    env, episode = await play(server, make_client(), calling(*calls), again)
    assert [query for _, query in env.log] == list("xyzw")
    ids = [entry["id"] for entry in sent_calls(server)]
    assert len(set(ids)) == 4
    assert [message["tool_call_id"] for message in results(episode)] == ids


async def test_the_same_tool_twice_in_a_turn_runs_twice_in_order(server, make_client):
    """A14."""
    calls = [call("search", f'{{"query": "{q}"}}', q) for q in "XY"]
    env, episode = await play(server, make_client(), calling(*calls))
    assert env.log == [("search", "X"), ("search", "Y")]
    assert [message["content"] for message in results(episode)] == ["found X", "found Y"]


async def test_calls_left_over_by_a_time_out_and_the_cap_are_answered(server, make_client):
    """A15: a strict server takes what is asked about the episode afterwards."""

    async def slow() -> str:
        await asyncio.get_running_loop().create_future()

    env = Desk(Tool(slow, timeout_s=0.02), max_turns=1)
    calls = [
        call("search", '{"query": "x"}', "a"),
        call("slow", "{}", "b"),
        call("search", '{"query": "y"}', "c"),
    ]
    client = make_client()
    _, episode = await play(server, client, calling(*calls), env=env)
    assert episode.truncation_reason == "turns"
    assert [message["tool_call_id"] for message in results(episode)] == ["a", "b", "c"]
    await client.complete([*episode.messages, *ASK], (), SAMPLING)
    assert server.refused == []


@pytest.mark.parametrize("answered", [[], ["c1", "c1"], ["other"]])
async def test_history_in_which_a_call_has_not_one_answer_is_not_sent(
    server, make_client, answered
):
    """A15."""
    turn = {"role": "assistant", "content": None, "tool_calls": [call("search", "{}")]}
    tools = [{"role": "tool", "tool_call_id": i, "content": ""} for i in answered]
    with pytest.raises(EndpointError, match="exactly one answer"):
        await make_client().complete([*ASK, turn, *tools, *ASK], (), SAMPLING)
    assert server.requests == server.refused == []


async def test_error_inside_a_200_reply_is_retried_by_its_code(server, make_client):
    """A16."""
    error = {"message": "Provider returned error", "code": 429}
    bad = {"id": None, "choices": None, "usage": None, "error": error}
    server.replies = [bad, bad, answer("good")]
    got = await make_client().complete(ASK, (), SAMPLING)
    assert (got.message["content"], got.usage.retries, got.usage.calls) == ("good", 2, 1)


async def test_error_inside_a_200_reply_that_stays_is_told_in_the_providers_words(
    server, make_client
):
    """A16."""
    server.replies = [{"choices": None, "error": {"message": "no such thing", "code": 404}}]
    with pytest.raises(EndpointError, match="no such thing"):
        await make_client().complete(ASK, (), SAMPLING)
    assert len(server.requests) == 1


async def test_reply_that_stays_without_choices_is_an_empty_reply(server, make_client):
    """A17."""
    server.replies = [{"choices": [], "usage": {"prompt_tokens": 7}}]
    with pytest.raises(EmptyReply) as caught:
        await make_client(max_retries=2).complete(ASK, (), SAMPLING)
    assert len(server.requests) == 3
    assert caught.value.usage.prompt_tokens == 21


async def test_lone_surrogates_are_mended_on_every_way_into_a_request(server, make_client):
    """A19: and pairs that were decoded one by one become one character."""

    def broken() -> str:
        return "ok \ud83d end"

    escaped = '{"query": "\\ud83c\\udf78"}'
    calls = [call("broken", "{}", "a"), call("search", escaped, "b")]
    turn = calling(*calls, content="text \udc00")
    env, episode = await play(server, make_client(), turn, env=Desk(broken))
    assert env.log == [("search", "🍸")]
    assert results(episode)[0]["content"] == "ok � end"
    assert "🍸" in sent_calls(server)[1]["function"]["arguments"]


async def test_what_utf8_has_no_form_for_is_replaced_wherever_it_stands(server, make_client):
    """A19: in schemas, stop strings and extra fields, too."""
    client = make_client(extra_body={"user": "a\ud800"})
    sampling = SamplingParams(stop=("\ud83c\udf78",), json_schema={"title": "\udfff"})
    await client.complete([{"role": "user", "content": "\ud83c\udf78"}], (), sampling)
    (sent,) = server.requests
    assert (sent["user"], sent["stop"], sent["messages"][0]["content"]) == ("a�", ["🍸"], "🍸")


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}])
async def test_request_that_cannot_be_encoded_is_not_tried_again(server, make_client, value):
    """A19."""
    client = make_client()
    with pytest.raises(EndpointError, match="can't be written as JSON") as caught:
        await client.complete(ASK, [{"type": "function", "x": value}], SAMPLING)
    assert not caught.value.retryable
    assert (server.requests, server.refused, client.pauses) == ([], [], [])


@pytest.mark.parametrize(
    "value",
    [{"a": 1}, None, b"\xff\x00", iter([1, 2]), object(), 7, ["x"]],
    ids=["dict", "None", "bytes", "iterator", "object", "int", "list"],
)
async def test_whatever_a_tool_returns_is_text_in_the_next_request(server, make_client, value):
    """A20."""

    def odd():
        return value

    _, episode = await play(server, make_client(), calling(call("odd", "{}")), env=Desk(odd))
    (result,) = results(episode)
    assert isinstance(result["content"], str)
    if value == {"a": 1}:
        assert json.loads(result["content"]) == value


@pytest.mark.parametrize(
    ("confirm", "seen"), [('"false"', False), ('"true"', True), ('"maybe"', None), ("false", False)]
)
async def test_a_boolean_as_text_is_read_by_its_word(server, make_client, confirm, seen):
    """A22."""
    arguments = f'{{"order_id": "7", "confirm": {confirm}}}'
    env, episode = await play(server, make_client(), calling(call("cancel", arguments)))
    assert env.log == ([] if seen is None else [("cancel", "7", seen)])
    assert episode.malformed_calls == (seen is None)


@pytest.mark.parametrize(("given", "seen"), [('"01234"', ["01234"]), ("1234", ["1234"])])
async def test_a_text_parameter_never_becomes_a_number(server, make_client, given, seen):
    """A23."""
    turn = calling(call("lookup", f'{{"zip_code": {given}}}'))
    env, _ = await play(server, make_client(), turn)
    assert [zip_code for _, zip_code in env.log] in (seen, [])


@pytest.mark.parametrize("status", [401, 403, 404, 405])
@pytest.mark.parametrize("body", ["", {"error": {"message": "tool calling not supported"}}])
async def test_wrong_set_up_is_told_before_anything_is_played(
    server, make_client, status, body, monkeypatch
):
    """A26: base URL and model are named, and nothing is tried again."""
    monkeypatch.delenv("SOME_KEY", raising=False)
    server.replies = [(status, body)]
    client = make_client(api_key_env="SOME_KEY")
    with pytest.raises(EndpointError) as caught:
        await client.preflight()
    text = str(caught.value)
    assert server.url in text
    assert "model 'm'" in text
    assert ("SOME_KEY is not set" in text) == (status in (401, 403))
    assert ("API's root" in text) == (status in (404, 405))
    assert (caught.value.retryable, len(server.requests)) == (False, 1)


def test_wrong_set_up_ends_the_command_before_any_episode(tmp_path, capsys):
    """A26: one line, and no trace that could be taken for a score."""
    with QuirkyServer((405, "")) as server:
        command = ["rollout", "--env", "agentgym/WebShop-v0", "--model", "m", "-n", "2"]
        code = main([*command, "--base-url", server.url, "--out", str(tmp_path / "run")])
        assert len(server.requests) == 1
    said = capsys.readouterr().err
    assert code != 0
    assert "405" in said
    assert server.url in said
    assert "Traceback" not in said
    assert not (tmp_path / "run" / "traces.jsonl").exists()


def test_the_server_is_as_strict_as_these_tests_need():
    """Each history that a case above would leave behind without its mending is refused."""
    turn = {"role": "assistant", "content": None, "tool_calls": [call("search", "{}")]}
    tool = {"role": "tool", "tool_call_id": "c1", "content": ""}
    poisoned = [
        [*ASK, {**turn, "tool_calls": [call("search", "")]}, tool],
        [*ASK, {**turn, "tool_calls": [call("search", {"q": 1})]}, tool],
        [*ASK, {**turn, "tool_calls": [call("search", '"{}"')]}, tool],
        [*ASK, {"role": "assistant", "content": None}],
        [*ASK, tool],
        [*ASK, turn, tool, tool],
        [*ASK, turn, *ASK],
        [*ASK, {**turn, "tool_calls": turn["tool_calls"] * 2}, tool, tool],
        [*ASK, turn, {**tool, "content": {"a": 1}}],
    ]
    with QuirkyServer(answer()) as server:
        for history in poisoned:
            asyncio.run(_post(server.url, history))
        assert len(server.refused) == len(poisoned)
        assert server.requests == []


async def _post(url, messages):
    import aiohttp

    async with aiohttp.ClientSession() as http:
        body = {"model": "m", "messages": messages}
        async with http.post(f"{url}/chat/completions", json=body) as response:
            assert response.status == 400
