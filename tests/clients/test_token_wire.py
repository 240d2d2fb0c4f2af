"""Clients that ask a server in token ids."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from template_zoo import byte_tokenizer

from agentgym.client import Endpoint, SamplingParams, TokenPath
from agentgym.clients import BalancedClient, ChatClient
from agentgym.clients.reply import BadReply
from agentgym.clients.token_reply import without_echo, without_names
from agentgym.clients.token_server import context_of, gives_raw
from agentgym.clients.written_ids import WrittenIds
from agentgym.errors import ConfigError, ContextOverflow, EndpointError
from agentgym.roles import read_endpoint
from agentgym.testing.token_model import TokenModel
from agentgym.testing.token_server import TokenServer
from agentgym.tokens.loading import load_tokenizer

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {"q": {"type": "string"}},
            "required": ["q"],
        },
    },
}
TOOLS = [SEARCH]
OPENING = [{"role": "user", "content": "Say hello"}]
CALL = '<tool_call>\n{"name": "search", "arguments": {"q": "a"}}\n</tool_call><|im_end|>'


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer("qwen2_5")


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(found)
    return found


@pytest.fixture
def model(tokenizer: Any) -> TokenModel:
    return TokenModel(len(tokenizer), favoured={tokenizer.eos_token_id: 4.0})


@pytest.fixture
async def server(model: TokenModel, tokenizer: Any) -> AsyncIterator[TokenServer]:
    async with TokenServer(model, tokenizer=tokenizer) as found:
        yield found


@pytest.fixture
async def make_client(
    server: TokenServer, folder: Path
) -> AsyncIterator[Callable[..., ChatClient]]:
    made: list[ChatClient] = []

    def make(tokens: dict[str, Any] | None = None, **fields: Any) -> ChatClient:
        path = TokenPath(tokenizer=str(folder), **(tokens or {}))
        given = {"base_url": server.url, "model": "policy", "tokens": path, **fields}
        made.append(ChatClient(Endpoint(**given), sleep=_no_sleep))
        return made[-1]

    yield make
    for client in made:
        await client.aclose()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the server's business
            await asyncio.sleep(0.005)


async def _no_sleep(seconds: float) -> None:
    pass


async def test_ids_go_out_and_come_back(server, make_client, model, tokenizer):
    sampling = SamplingParams(max_tokens=8, seed=3, temperature=0.7)
    completion = await make_client().complete(OPENING, TOOLS, sampling)
    (sent,) = server.requests
    assert server.asked[-1] == "POST /v1/completions"
    assert completion.prompt_ids == tuple(sent["prompt"])
    assert "Say hello" in tokenizer.decode(sent["prompt"])
    sampled = model.sample(sent["prompt"], {**sent, "max_tokens": 8})
    assert completion.completion_ids == sampled.ids
    assert completion.logprobs == pytest.approx(sampled.logprobs)
    assert completion.usage.prompt_tokens == len(sent["prompt"])
    assert completion.usage.completion_tokens == len(sampled.ids)
    assert not completion.usage.estimated


async def test_every_sampling_parameter_is_sent(server, make_client):
    """G04: what is left out is taken from the model's generation config."""
    await make_client().complete(OPENING, (), SamplingParams())
    (sent,) = server.requests
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "n": 1}
    penalties = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert {**sent, **neutral, **penalties} == sent
    assert sent["return_token_ids"] is True
    assert sent["logprobs"] == 0


async def test_turns_extend_the_ids_and_the_server_caches_them(server, make_client):
    server.script = [CALL]
    client = make_client()
    first = await client.complete(OPENING, TOOLS, SamplingParams(max_tokens=99), session="s")
    (call,) = first.message["tool_calls"]
    assert call["function"] == {"name": "search", "arguments": {"q": "a"}}
    result = {"role": "tool", "tool_call_id": call.get("id"), "content": "b"}
    history = [*OPENING, first.message, result]
    second = await client.complete(history, TOOLS, SamplingParams(max_tokens=9), session="s")
    so_far = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(so_far)] == so_far
    assert tuple(server.requests[1]["prompt"]) == second.prompt_ids
    assert second.usage.cached_tokens > len(first.prompt_ids) - 16


async def test_preflight_accepts_the_right_server(server, make_client):
    await make_client().preflight(TOOLS)
    assert [request["temperature"] for request in server.requests] == [1.0, 0.5]


async def test_missing_logprobs_of_single_ids_are_nan(server, make_client):
    """G10."""
    logprobs = {"tokens": ["", "", ""], "token_logprobs": [-0.1, None, float("-inf")]}
    server.script = [{"logprobs": logprobs, "token_ids": [5, 6, 7], "finish_reason": "length"}]
    completion = await make_client().complete(OPENING, (), SamplingParams(max_tokens=3))
    assert completion.logprobs[0] == -0.1
    assert list(map(math.isnan, completion.logprobs)) == [False, True, True]


async def test_replicas_are_asked_in_ids_too(server, model, tokenizer, folder):
    async with TokenServer(model, tokenizer=tokenizer) as other:
        path = TokenPath(tokenizer=str(folder))
        client = BalancedClient(
            Endpoint(base_url=each.url, model="policy", tokens=path) for each in (server, other)
        )
        await client.preflight(TOOLS)
        completion = await client.complete(OPENING, TOOLS, SamplingParams(max_tokens=4))
        assert completion.prompt_ids
        assert completion.replica in {each.root.removeprefix("http://") for each in (server, other)}
        await client.aclose()


# --- servers that would spoil a run -----------------------------------------------------------


async def test_server_that_gives_no_ids_is_refused_at_the_start(server, make_client):
    server.gives_ids = False
    with pytest.raises(EndpointError, match="no token ids; .* needs vLLM 0.10.2 or newer"):
        await make_client().preflight(TOOLS)


async def test_server_with_another_model_is_refused_at_the_start(server, make_client):
    server.name = "other"
    with pytest.raises(EndpointError, match="no model 'policy'; it has other"):
        await make_client().preflight(TOOLS)
    assert server.requests == []


async def test_server_with_another_tokenizer_is_refused_at_the_start(server, make_client):
    server.tokenizer = byte_tokenizer("qwen2_5")
    server.tokenizer.add_tokens(["Müller"])
    with pytest.raises(EndpointError, match="cuts text into other ids than .*; tokens.tokenizer"):
        await make_client().preflight(TOOLS)
    assert server.requests == []


async def test_server_that_reads_ids_otherwise_is_refused_at_the_start(server, make_client):
    """G11: ids that lack what the text has."""
    server.script = [{"text": "something else"}]
    with pytest.raises(EndpointError, match="reads its ids as 'something else', the tokenizer"):
        await make_client().preflight(TOOLS)


async def test_server_with_less_room_than_was_said_is_refused_at_the_start(server, make_client):
    server.max_model_len = 512
    with pytest.raises(EndpointError, match="room for 512 tokens, tokens.max_context says 4096"):
        await make_client({"max_context": 4096}).preflight(TOOLS)


async def test_server_that_does_not_say_what_fits(server, make_client):
    server.max_model_len = None
    with pytest.raises(EndpointError, match=r"set tokens\.max_context"):
        await make_client().complete(OPENING, (), SamplingParams())
    completion = await make_client({"max_context": 512}).complete(OPENING, (), SamplingParams())
    assert completion.prompt_ids


async def test_logits_are_no_log_probabilities(server, make_client):
    server.model.mode = "raw_logits"
    with pytest.raises(EndpointError, match="--logprobs-mode processed_logprobs"):
        await make_client().preflight(TOOLS)


@pytest.mark.parametrize("seed", range(8))
async def test_raw_logprobs_go_with_the_models_own_distribution_only(server, make_client, seed):
    """G05: they aren't those of what is sampled at another temperature, or from fewer ids."""
    server.model.mode, server.model.seed = "raw_logprobs", seed
    client = make_client()
    await client.preflight(TOOLS)
    await client.complete(OPENING, TOOLS, SamplingParams(max_tokens=2))
    await client.complete(OPENING, TOOLS, SamplingParams(max_tokens=2, temperature=0))
    for changed in ({"temperature": 0.6}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}):
        with pytest.raises(EndpointError, match="before temperature and cut-offs"):
            await client.complete(OPENING, TOOLS, SamplingParams(**changed))
    server.model.mode = "processed_logprobs"
    await client.preflight(TOOLS)
    await client.complete(OPENING, TOOLS, SamplingParams(max_tokens=2, temperature=0.6))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"prompt_token_ids": [1, 2, 3]}, "answers another prompt: 3 ids instead of"),
        ({"prompt_token_ids": None}, "doesn't say which prompt it answers"),
        ({"token_ids": [1, "2"]}, "no token ids"),
        ({"token_ids": [1, -2]}, "no token ids"),
        ({"token_ids": [1, 2**40]}, "no token ids"),
        ({"logprobs": None}, "no log-probabilities for"),
        ({"logprobs": {"token_logprobs": [-1.0]}, "token_ids": [1, 2]}, "1 log-prob.* 2 ids"),
        ({"logprobs": {"token_logprobs": [0.5]}, "token_ids": [1]}, "0.5 is above 0"),
        ({"logprobs": {"token_logprobs": ["a"]}, "token_ids": [1]}, "are no numbers"),
        (
            {
                "token_ids": [1, 2],
                "logprobs": {"token_logprobs": [-1.0, -1.0]},
                "finish_reason": "stop",
                "stop_reason": None,
            },
            "ended a turn with id 2 .*add it to tokens.stop_ids",
        ),
        (
            {
                "token_ids": [1, 2],
                "logprobs": {"token_logprobs": [-1.0, -1.0]},
                "finish_reason": "stop",
                "stop_reason": byte_tokenizer("qwen2_5").eos_token_id,
            },
            "left it out of the ids",
        ),
    ],
)
async def test_replies_that_must_not_be_trained_on(server, make_client, fields, complaint):
    server.script = [fields]
    with pytest.raises(EndpointError, match=complaint) as caught:
        await make_client().complete(OPENING, (), SamplingParams(max_tokens=4))
    assert not caught.value.retryable
    assert len(server.requests) == 1
    assert caught.value.usage.prompt_tokens == len(server.requests[0]["prompt"])


async def test_stop_ids_of_ones_own_end_turns(server, make_client):
    ended = {"finish_reason": "stop", "stop_reason": 2, "token_ids": [1, 2]}
    server.script = [{**ended, "logprobs": {"token_logprobs": [-1.0, -1.0]}}]
    completion = await make_client({"stop_ids": [2]}).complete(OPENING, (), SamplingParams())
    assert completion.completion_ids == (1, 2)
    assert set(server.requests[0]["stop_token_ids"]) > {2}


async def test_stop_strings_end_turns_anywhere(server, make_client):
    ended = {"finish_reason": "stop", "stop_reason": "!", "token_ids": [1, 2]}
    server.script = [{**ended, "logprobs": {"token_logprobs": [-1.0, -1.0]}}]
    completion = await make_client().complete(OPENING, (), SamplingParams(stop=("!",)))
    assert server.requests[0]["stop"] == ["!"]
    assert not completion.cut_off


# --- what fits ----------------------------------------------------------------------------------


async def test_output_is_limited_to_what_fits(server, make_client):
    client = make_client()
    first = await client.complete(OPENING, (), SamplingParams(max_tokens=4))
    server.max_model_len = len(first.prompt_ids) + 3
    server.model.favoured = {}
    completion = await make_client().complete(OPENING, (), SamplingParams(max_tokens=100))
    assert server.requests[-1]["max_tokens"] == 3
    assert completion.cut_off
    assert server.refused == []


@pytest.mark.parametrize("told", [True, False])
async def test_prompt_that_leaves_no_room_is_not_sent(server, make_client, told):
    server.max_model_len = 16
    client = make_client({"max_context": 16} if told else {})
    with pytest.raises(ContextOverflow, match="tokens, the context is 16"):
        await client.complete(OPENING * 20, (), SamplingParams())
    assert server.requests == server.refused == []
    assert client.usage.calls == 0


@pytest.mark.parametrize("told", [True, False])
async def test_page_that_is_far_too_long_is_not_even_encoded(server, make_client, told):
    """A megabyte takes most of a second on the event loop, for everybody."""
    server.max_model_len = 512
    client = make_client({"max_context": 512} if told else {})
    first = await client.complete(OPENING, (), SamplingParams(max_tokens=5), session="s")
    page = {"role": "user", "content": "<|im_end|> hello" * 100_000}
    encoded = encoded_by(client)
    with pytest.raises(ContextOverflow, match="the new messages don't fit"):
        await client.complete([*OPENING, first.message, page], (), SamplingParams(), session="s")
    assert sum(encoded) < 10_000
    again = [*OPENING, first.message, {"role": "user", "content": "hello"}]
    assert (await client.complete(again, (), SamplingParams(), session="s")).prompt_ids


def encoded_by(client: ChatClient) -> list[int]:
    """Takes the length of every text that the client encodes from now on."""
    control = client._wire._conversations.codec._control
    encode, lengths = control._ids, []

    def counting(text: str) -> list[int]:
        lengths.append(len(text))
        return encode(text)

    control._ids = counting
    return lengths


async def test_ended_by_the_limit_is_cut_off(server, make_client):
    server.script = [[1, 2, 3, 4]]
    completion = await make_client().complete(OPENING, (), SamplingParams(max_tokens=3))
    assert (completion.cut_off, completion.completion_ids) == (True, (1, 2, 3))
    assert completion.finish_reason == "length"


# --- failures -----------------------------------------------------------------------------------

NOT_FINITE = "Out of range float values are not JSON compliant: nan"


@pytest.mark.parametrize("status", [400, 500])
async def test_numbers_that_json_cannot_hold_are_tried_once_more(server, make_client, status):
    """G10: vLLM answers 400 or 500, according to which part of it notices."""
    server.script = [(status, NOT_FINITE)]
    completion = await make_client().complete(OPENING, (), SamplingParams())
    assert completion.attempts == 2
    server.script = [(status, NOT_FINITE)] * 9
    server.requests.clear()
    with pytest.raises(EndpointError, match="NaN or infinity came out of the model"):
        await make_client().complete(OPENING, (), SamplingParams())
    assert len(server.requests) == 2


async def test_retry_asks_with_the_same_ids(server, make_client):
    client = make_client()
    first = await client.complete(OPENING, (), SamplingParams(max_tokens=5), session="s")
    history = [*OPENING, first.message, {"role": "user", "content": "more"}]
    server.script = [None, (503, "busy"), (500, "oops")]
    second = await client.complete(history, (), SamplingParams(max_tokens=5), session="s")
    assert second.attempts == 3
    sent = [request["prompt"] for request in server.requests[1:]]
    assert sent == [list(second.prompt_ids)] * 3
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids


async def test_call_that_failed_leaves_the_session_as_it_was(server, make_client):
    client = make_client(max_retries=0)
    first = await client.complete(OPENING, (), SamplingParams(max_tokens=5), session="s")
    history = [*OPENING, first.message, {"role": "user", "content": "more"}]
    server.script = [None, (500, "oops")]
    with pytest.raises(EndpointError, match="oops"):
        await client.complete(history, (), SamplingParams(max_tokens=5), session="s")
    again = await client.complete(history, (), SamplingParams(max_tokens=5), session="s")
    so_far = first.prompt_ids + first.completion_ids
    assert again.prompt_ids[: len(so_far)] == so_far


async def test_cancelled_call_is_aborted_on_the_server(server, make_client):
    server.gate = asyncio.Event()
    client = make_client()
    call = asyncio.create_task(client.complete(OPENING, (), SamplingParams(), session="s"))
    await until(lambda: server.in_flight)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not server.in_flight)
    assert server.aborted == 1


async def test_released_session_begins_anew(server, make_client):
    client = make_client()
    first = await client.complete(OPENING, (), SamplingParams(max_tokens=5), session="s")
    await client.release("s")
    again = await client.complete(OPENING, (), SamplingParams(max_tokens=5), session="s")
    assert again.prompt_ids == first.prompt_ids
    assert len(client._wire._conversations) == 1


# --- which endpoints ----------------------------------------------------------------------------


def test_tokenizer_that_is_none_is_one_line(tmp_path):
    path = TokenPath(tokenizer=str(tmp_path))
    with pytest.raises(ConfigError, match="can't load the tokenizer") as caught:
        ChatClient(Endpoint(base_url="http://localhost:1/v1", model="m", tokens=path))
    assert "\n" not in str(caught.value)


def test_tokenizer_without_a_chat_template_says_what_to_do(tmp_path):
    found = byte_tokenizer("qwen2_5")
    found.chat_template = None
    found.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="no chat template; set `tokenizer.chat_template`"):
        load_tokenizer(str(tmp_path))


def test_stop_ids_are_the_tokenizers_and_the_models(tmp_path):
    found = byte_tokenizer("qwen2_5")
    found.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.stop_ids == (found.eos_token_id, 7, 8)
    assert load_tokenizer(str(tmp_path)) is loaded


@pytest.mark.parametrize("declared", ['"257"', '["<eos>"]', "[99999999999]", "-1", "[true]"])
def test_ids_that_are_none_are_no_stop_ids(tmp_path, declared):
    byte_tokenizer("qwen2_5").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {declared}}}')
    with pytest.raises(ConfigError, match="it must be an id of the tokenizer") as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_code_of_a_repository_is_not_run(tmp_path):
    byte_tokenizer("qwen2_5").save_pretrained(tmp_path)
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with contextlib.suppress(ConfigError):
        load_tokenizer(str(tmp_path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("field", ["n", "stream", "prompt", "return_token_ids", "stop_token_ids"])
def test_extra_body_may_not_change_what_ids_mean(folder, field):
    path = TokenPath(tokenizer=str(folder))
    with pytest.raises(ConfigError, match=f"extra_body sets {field}"):
        ChatClient(Endpoint(base_url="http://a/v1", model="m", tokens=path, extra_body={field: 2}))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"dialect": {"stream": True}}, "exclude each other"),
        ({"dialect": {"temperature": False}}, "samples at its own"),
        ({"tokens": {"tokenizer": "t", "template_kwargs": {"tools": []}}}, "may not set tools"),
        ({"tokens": {"template_kwargs": {}}}, "tokens.tokenizer: is missing"),
        ({"tokens": {"tokenizer": "t", "max_contxt": 9}}, "did you mean 'max_context'"),
    ],
)
def test_endpoints_that_make_no_sense_in_ids(fields, complaint):
    given = {"base_url": "http://a/v1", "model": "m", "tokens": {"tokenizer": "t"}, **fields}
    with pytest.raises(ConfigError, match=complaint):
        read_endpoint(given)


def test_nothing_secret_is_shown():
    path = TokenPath(tokenizer="t", template_kwargs={"api_key": "sk-123456", "enable_thinking": 0})
    endpoint = Endpoint(base_url="http://a/v1", model="m", tokens=path)
    assert "sk-123456" not in f"{endpoint!r} {endpoint.public()}"
    assert endpoint.public()["tokens"]["template_kwargs"]["enable_thinking"] == 0
    assert Endpoint(**endpoint.public()).tokens.tokenizer == "t"


# --- what a server shows of itself --------------------------------------------------------------

LIKELIEST = {"a": -0.5, "b": -1.5, "c": -2.5}


@pytest.mark.parametrize(
    ("cold", "raw"),
    [
        (LIKELIEST, True),
        ({"a": -0.1, "b": -2.1, "c": -4.1}, False),  # gaps of 1 and 2 have become 2 and 4
        ({"a": -0.1, "d": -9.0}, None),
        ({}, None),
    ],
)
def test_two_temperatures_tell_which_distribution_it_is(cold, raw):
    assert gives_raw(LIKELIEST, cold, ratio=0.5) is raw


def test_ids_that_are_alike_tell_nothing():
    assert gives_raw({"a": -1.0, "b": -1.01}, {"a": -1.0, "b": -1.02}, ratio=0.5) is None


@pytest.mark.parametrize("logits", [{"a": 900.0}, {"a": -0.1, "b": -0.2}])
def test_more_than_all_of_the_probability_is_none(logits):
    with pytest.raises(BadReply, match="logits in place of log-probabilities"):
        gives_raw(logits, {}, ratio=0.5)


def test_adapter_has_the_room_of_its_model():
    base = {"id": "base", "max_model_len": 512}
    adapter = {"id": "adapter", "parent": "base", "max_model_len": None}
    other = {"id": "other", "max_model_len": 9}
    assert context_of({"data": [other, adapter, base]}, "adapter") == 512
    assert context_of({"data": [{"id": "m"}]}, "m") is None
    for listed in (None, [], {"data": 3}, {"data": [3, {"id": "x"}]}):
        with pytest.raises(BadReply, match="has no model 'm'"):
            context_of(listed, "m")


# --- JSON ---------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 200_000), max_size=8), min_size=1, max_size=8),
    st.integers(0, 7),
)
def test_prompts_are_written_whole_however_they_grow(parts, changed):
    """Each prompt extends the last, but for one that begins anew."""
    written_ids = WrittenIds()
    prompt: tuple[int, ...] = ()
    for number, part in enumerate(parts):
        prompt = (*part, 7) if number == changed else (*prompt, *part)
        for session in ("s", "s", None):  # a retry asks again
            pieces = written_ids.of(session, prompt).pieces
            assert json.loads(b"".join(pieces)) == list(prompt)
            assert b" " not in b"".join(pieces)


@given(st.lists(st.integers(0, 200_000), max_size=30), st.lists(st.integers(0, 9), max_size=5))
def test_echo_is_left_out_only_if_it_is_the_prompt(prompt, more):
    pieces = WrittenIds().of(None, tuple(prompt))
    for sent, is_echo in ((prompt, True), ([*prompt, *more, 1], False), (more, more == prompt)):
        reply = {"choices": [{"text": '"prompt_token_ids":[', "prompt_token_ids": sent, "n": 1}]}
        data = json.dumps(reply, separators=(",", ":")).encode()
        (choice,) = json.loads(without_echo(data, pieces))["choices"]
        assert choice == {**reply["choices"][0], "prompt_token_ids": True if is_echo else sent}


TOKEN = st.text(alphabet='ab"\\\\[]{},: é', max_size=6)


@given(tokens=st.lists(TOKEN, max_size=4), compact=st.booleans())
def test_names_of_ids_are_left_out_whatever_they_are(tokens, compact):
    logprobs = {
        "text_offset": list(range(len(tokens))),
        "token_logprobs": [-0.5] * len(tokens),
        "tokens": tokens,
        "top_logprobs": [{token: -0.5} for token in tokens],
    }
    body = {"choices": [{"text": '"tokens":[', "logprobs": logprobs, "token_ids": [1]}], "n": 1}
    separators = (",", ":") if compact else None
    read = json.loads(without_names(json.dumps(body, separators=separators).encode()))
    found = read["choices"][0]["logprobs"]
    for name in ("text_offset", "tokens", "top_logprobs"):
        assert found[name] in ([], logprobs[name])
        found[name] = logprobs[name]
    assert read == body


def test_names_that_servers_give_are_left_out():
    data = (
        b'{"choices":[{"logprobs":{"text_offset":[0,1],"token_logprobs":[-0.5,null],"tokens":'
        b'["token_id:7","token_id:8"],"top_logprobs":[{"token_id:7":-0.5},null]}}]}'
    )
    assert json.loads(without_names(data)) == {
        "choices": [
            {
                "logprobs": {
                    "text_offset": [],
                    "token_logprobs": [-0.5, None],
                    "tokens": [],
                    "top_logprobs": [],
                }
            }
        ]
    }


@pytest.mark.parametrize("data", [b"", b'{"tokens":[', b'{"tokens":["a', b"<html>"])
def test_what_is_no_reply_stays_as_it_is(data):
    assert without_names(data) == data


def test_old_prompts_are_forgotten():
    now = [0.0]
    written_ids = WrittenIds(clock=lambda: now[0])
    written_ids.of("old", (1, 2, 3))
    now[0] = 1000.0
    written_ids.of("new", (1, 2, 3))
    assert list(written_ids._sessions) == ["new"]
    written_ids.forget("new")
    assert written_ids._size == 0
