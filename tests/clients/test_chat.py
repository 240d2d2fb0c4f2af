"""ChatClient against a real server on the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from agentgym.client import Endpoint, ModelClient, SamplingParams
from agentgym.clients import ChatClient
from agentgym.errors import ConfigError, ContextOverflow, EmptyReply, EndpointError
from agentgym.testing.quirky import Reply, answer
from agentgym.types import Usage

ASK = [{"role": "user", "content": "Hi"}]
SAMPLING = SamplingParams(max_tokens=64)
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "search", "arguments": '{"query": "shoes"}'},
}
TOOL = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {}}},
}


async def ask(client, *, tools=(), sampling=SAMPLING, messages=ASK):
    return await client.complete(messages, tools, sampling, session="s")


async def test_is_a_model_client(make_client):
    assert isinstance(make_client(), ModelClient)


async def test_plain_answer(server, make_client, reply):
    server.replies = [reply("hello")]
    got = await ask(make_client())
    assert got.message == {"role": "assistant", "content": "hello"}
    assert got.usage == Usage(prompt_tokens=20, completion_tokens=5)
    assert (got.finish_reason, got.cut_off, got.attempts) == ("stop", False, 1)


async def test_every_sampling_parameter_is_sent(server, make_client, reply):
    server.replies = [reply()]
    sampling = SamplingParams(temperature=0.7, max_tokens=9, stop=("x",), seed=4)
    await ask(make_client(), tools=[TOOL], sampling=sampling)
    sent = server.requests[0]
    assert sent["tools"] == [TOOL]
    assert {key: sent[key] for key in sent if key not in ("messages", "tools")} == {
        "model": "m",
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": 9,
        "stop": ["x"],
        "seed": 4,
    }


async def test_tools_can_be_left_out(server, make_client, reply):
    server.replies = [reply()]
    await ask(make_client(dialect={"tools": False}), tools=[TOOL])
    await ask(make_client(), tools=())
    assert all("tools" not in sent for sent in server.requests)


async def test_seeds_can_be_left_out(server, make_client, reply):
    server.replies = [reply()]
    await ask(
        make_client(dialect={"seed": False}), sampling=SamplingParams(temperature=0.7, seed=4)
    )
    (sent,) = server.requests
    assert "seed" not in sent
    assert sent["temperature"] == 0.7


async def test_server_that_died_is_not_asked_about_its_url(server, make_client, reply):
    server.replies = [reply()]
    client = make_client(max_retries=1)
    await ask(client)
    await server.stop()
    with pytest.raises(EndpointError, match="no connection: .* after 2 attempts") as caught:
        await ask(client)
    assert "answered before" in str(caught.value)
    assert "base URL" not in str(caught.value)


async def test_extra_body_is_sent(server, make_client, reply):
    server.replies = [reply()]
    await ask(make_client(extra_body={"chat_template_kwargs": {"enable_thinking": False}}))
    assert server.requests[0]["chat_template_kwargs"] == {"enable_thinking": False}


async def test_neutral_field_that_a_server_refuses_is_left_out_from_then_on(
    server, make_client, reply
):
    def strict(body):
        for key in ("top_k", "min_p", "repetition_penalty"):
            if key in body:
                return 400, {"error": {"message": f"Unrecognized request argument: {key}"}}
        return reply()

    server.replies = [strict]
    client = make_client(max_retries=0)
    first = await ask(client)
    assert first.attempts == 4
    assert (await ask(client)).attempts == 1
    assert "top_k" not in server.requests[-1]
    assert server.requests[-1]["presence_penalty"] == 0.0


async def test_field_with_an_effect_is_never_left_out(server, make_client):
    server.replies = [(400, {"error": {"message": "Unrecognized request argument: top_k"}})]
    with pytest.raises(EndpointError, match="top_k"):
        await ask(make_client(), sampling=SamplingParams(top_k=20))
    assert len(server.requests) == 1


async def test_newer_name_of_max_tokens_is_learnt(server, make_client, reply):
    def newer(body):
        if "max_tokens" in body:
            text = "'max_tokens' is not supported. Use 'max_completion_tokens' instead."
            return 400, {"error": {"message": text}}
        return reply()

    server.replies = [newer]
    await ask(make_client())
    assert server.requests[-1]["max_completion_tokens"] == 64


async def test_history_goes_out_clean(server, make_client, reply):
    server.replies = [reply()]
    messages = [
        {"role": "user", "content": "a\ud83d"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "secret thoughts",
            "usage": {"x": 1},
            "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {"q": "é"}}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok", "name": "f"},
        {"role": "assistant", "content": None},
    ]
    await ask(make_client(), messages=messages)
    sent = server.requests[0]["messages"]
    assert sent[0] == {"role": "user", "content": "a\ufffd"}
    assert sent[1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "f", "arguments": '{"q": "é"}'},
            }
        ],
    }
    assert sent[2] == {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    assert sent[3] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("reason", ["stop", None, "", "eos", "function_call", "tool-calls"])
async def test_calls_are_found_whatever_the_finish_reason(server, make_client, reply, reason):
    """A10: sgl-project/sglang#2877."""
    server.replies = [reply(None, finish_reason=reason, message={"tool_calls": [CALL]})]
    got = await ask(make_client())
    assert got.message == {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert got.finish_reason == reason


async def test_legacy_function_call_becomes_a_tool_call(server, make_client, reply):
    server.replies = [reply(None, message={"function_call": CALL["function"]})]
    (call,) = (await ask(make_client())).message["tool_calls"]
    assert call["function"] == CALL["function"]


@pytest.mark.parametrize(("spent", "cut_off"), [(63, False), (64, True), (70, True)])
async def test_reaching_the_output_limit_is_cut_off_whatever_the_finish_reason(
    server, make_client, reply, spent, cut_off
):
    """A11: vllm-project/vllm#58228."""
    usage = {"prompt_tokens": 9, "completion_tokens": spent}
    server.replies = [
        reply(None, usage=usage, finish_reason="tool_calls", message={"tool_calls": [CALL]})
    ]
    got = await ask(make_client())
    assert got.cut_off is cut_off
    assert (got.finish_reason, got.usage.completion_tokens) == ("tool_calls", spent)


async def test_finish_reason_length_is_cut_off(server, make_client, reply):
    server.replies = [reply(finish_reason="length", usage=None)]
    assert (await ask(make_client())).cut_off


@pytest.mark.parametrize("usage", ["missing", None, {}, {"prompt_tokens": None}, [], "many"])
async def test_missing_usage_is_estimated_and_marked(server, make_client, reply, usage):
    """I01: SWE-agent#168."""
    server.replies = [reply("x" * 40, usage=usage)]
    got = await ask(make_client())
    assert got.usage.estimated
    assert got.usage.completion_tokens > 0
    assert got.usage.prompt_tokens > 0


async def test_half_a_usage_keeps_what_is_there(server, make_client, reply):
    server.replies = [reply("x" * 40, usage={"prompt_tokens": 5})]
    got = (await ask(make_client())).usage
    assert (got.prompt_tokens, got.estimated) == (5, True)
    assert got.completion_tokens > 0


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}])
async def test_cached_and_reasoning_tokens_are_parts_not_additions(
    server, make_client, reply, details
):
    """I02: Aider#5516."""
    usage = {
        "prompt_tokens": 2006,
        "completion_tokens": 300,
        "prompt_tokens_details": {"cached_tokens": 1920},
        "completion_tokens_details": {"reasoning_tokens": 200},
    }
    bare = {**usage, "prompt_tokens_details": details, "completion_tokens_details": details}
    server.replies = [reply(usage=usage), reply(usage=bare)]
    client = make_client()
    full = Usage(
        prompt_tokens=2006, cached_tokens=1920, completion_tokens=300, reasoning_tokens=200
    )
    assert (await ask(client)).usage == full
    assert (await ask(client)).usage == Usage(prompt_tokens=2006, completion_tokens=300)


async def test_reasoning_is_kept_apart(server, make_client, reply):
    server.replies = [
        reply("a", message={"reasoning_content": "hm"}),
        reply("a", message={"reasoning": "hm"}),
    ]
    client = make_client()
    for _ in range(2):
        got = await ask(client)
        assert got.reasoning == "hm"
        assert got.message == {"role": "assistant", "content": "a"}


async def test_content_parts_are_joined(server, make_client, reply):
    server.replies = [reply([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]
    assert (await ask(make_client())).message["content"] == "ab"


# --- failures ---------------------------------------------------------------------------------


async def test_error_inside_a_200_reply_is_retried_by_its_code(server, make_client, reply):
    """A16: inspect_ai#1534."""
    bad = {
        "id": None,
        "choices": None,
        "usage": None,
        "error": {"message": "Provider returned error", "code": 429},
    }
    server.replies = [bad, bad, reply("good")]
    got = await ask(make_client())
    assert (got.message["content"], got.attempts) == ("good", 3)


async def test_client_error_inside_a_200_reply_fails_fast(server, make_client):
    server.replies = [{"choices": None, "error": {"message": "no such thing", "code": "400"}}]
    with pytest.raises(EndpointError, match="no such thing") as caught:
        await ask(make_client())
    assert (caught.value.retryable, caught.value.status) == (False, 400)
    assert len(server.requests) == 1


@pytest.mark.parametrize("choices", [[], None, [None], [{"message": None}], "odd"])
async def test_empty_choices_are_retried_then_a_typed_error(server, make_client, choices):
    """A17: vercel/ai#20351."""
    server.replies = [{"choices": choices, "usage": {"prompt_tokens": 7, "completion_tokens": 1}}]
    client = make_client(max_retries=2)
    with pytest.raises(EmptyReply, match="no choice") as caught:
        await ask(client)
    assert caught.value.retryable
    assert len(server.requests) == 3
    assert client.usage == Usage(
        prompt_tokens=21, completion_tokens=3, calls=3, retries=2, failed_calls=1
    )
    assert caught.value.usage == client.usage


async def test_failed_attempts_that_were_billed_are_in_the_usage(server, make_client, reply):
    """I03: gsd-2#5668."""
    server.replies = [{"choices": [], "usage": {"prompt_tokens": 7}}, reply()]
    client = make_client()
    got = await ask(client)
    assert (got.usage.prompt_tokens, got.usage.calls) == (27, 2)
    assert client.usage == got.usage


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
async def test_passing_failures_are_retried(server, make_client, reply, status):
    server.replies = [(status, {"error": {"message": "busy"}}), reply("good")]
    client = make_client()
    assert (await ask(client)).message["content"] == "good"
    assert len(client.pauses) == 1


async def test_retry_after_is_honoured(server, make_client, reply):
    server.replies = [(429, {"error": {"message": "busy"}}, {"Retry-After": "7"}), reply()]
    client = make_client()
    await ask(client)
    assert client.pauses == [7.0]


async def test_pauses_grow_and_stay_bounded(server, make_client):
    server.replies = [(503, {"error": {"message": "busy"}})]
    client = make_client(max_retries=9)
    with pytest.raises(EndpointError, match="after 10 attempts: busy"):
        await ask(client)
    longest = [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    for pause, most in zip(client.pauses, longest, strict=True):
        assert most / 2 <= pause <= most


async def test_no_retry_past_the_deadline(server, make_client):
    server.replies = [(429, {"error": {"message": "busy"}}, {"Retry-After": "7"})]
    with pytest.raises(EndpointError, match="busy"):
        await ask(make_client(deadline_s=5.0))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        (429, {"error": {"message": "pay", "code": "insufficient_quota"}}),
        (429, {"error": {"message": "pay", "type": "insufficient_quota"}}),
        (200, {"error": {"message": "pay", "code": "insufficient_quota"}}),
        (402, {"error": {"message": "Insufficient Balance"}}),
        (402, "pay"),
    ],
)
async def test_empty_account_is_not_retried(server, make_client, refusal):
    """E11."""
    server.replies = [refusal]
    with pytest.raises(EndpointError, match="no credit left") as caught:
        await ask(make_client())
    assert (caught.value.retryable, caught.value.status) == (False, 402)
    assert len(server.requests) == 1


async def test_keeping_on_failing_is_said_once_in_a_while(server, make_client, caplog):
    """E19."""
    server.replies = [(503, {"error": {"message": "busy"}})]
    client = make_client()
    for _ in range(3):
        with pytest.raises(EndpointError):
            await ask(client)
    (record,) = [r for r in caplog.records if r.name.startswith("agentgym")]
    assert record.levelname == "WARNING"
    assert "busy" in record.message


async def test_busy_server_is_asked_again_before_a_run(server, make_client, reply):
    server.replies = [(503, {"error": {"message": "loading"}}), reply()]
    await make_client().preflight()
    assert len(server.requests) == 2


BROKEN = [Reply(cut_after=0), Reply(body=answer(), cut_after=20), Reply(hangs=True)]


@pytest.mark.parametrize("broken", BROKEN, ids=["lost", "cut", "silent"])
async def test_one_broken_connection_is_no_reason_against_a_run(server, make_client, reply, broken):
    server.replies = [broken, reply()]
    await make_client(timeout_s=0.2).preflight()
    assert len(server.requests) == 2


@pytest.mark.parametrize(("broken", "most"), [*zip(BROKEN, (4, 4, 2), strict=True)])
async def test_server_that_only_breaks_off_is_told_before_a_run(server, make_client, broken, most):
    server.replies = [broken]
    with pytest.raises(EndpointError, match=f"after {most} attempts"):
        await make_client(timeout_s=0.1, max_retries=10).preflight()
    assert len(server.requests) == most


async def test_answer_that_trickles_runs_into_the_time_out(make_client):
    gone = asyncio.Event()

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        with contextlib.suppress(OSError):
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        gone.set()

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = make_client(base_url=f"http://127.0.0.1:{port}/v1", timeout_s=0.2, max_retries=0)
    with pytest.raises(EndpointError, match="within the time-out"):
        await ask(client)
    await gone.wait()
    server.close()
    await server.wait_closed()


async def test_failure_inside_a_choice_is_no_answer(server, make_client, reply):
    died = {"error": {"message": "upstream died", "code": 502}, "message": {"content": ""}}
    server.replies = [
        {"choices": [died]},
        reply("", finish_reason="error"),
        reply("hal", finish_reason="abort"),
        reply(),
    ]
    got = await ask(make_client())
    assert (got.message["content"], got.attempts) == ("hello", 4)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"error": {"code": "' + "9" * 5000 + '"}}'])
async def test_reply_that_json_chokes_on_is_retried(server, make_client, reply, text):
    server.replies = [text, reply()]
    assert (await ask(make_client())).attempts == 2


async def test_output_limit_is_the_one_that_was_sent(server, make_client, reply):
    usage = {"prompt_tokens": 5, "completion_tokens": 100}
    server.replies = [reply(usage=usage)]
    assert (await ask(make_client())).cut_off
    client = make_client(extra_body={"max_tokens": 200})
    got = await ask(client)
    assert not got.cut_off


@pytest.mark.parametrize("body", ["Method Not Allowed", {"detail": "Method Not Allowed"}])
async def test_wrong_path_is_named_in_the_servers_words(server, make_client, body):
    server.replies = [(405, body)]
    with pytest.raises(EndpointError, match="405: Method Not Allowed; .*API's root"):
        await make_client().preflight()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "no", "type": "x"}}, "no"),
        ({"error": "no"}, "no"),
        ({"error": {"error": {"message": "no"}}}, "no"),
        ({"detail": {"error": "no"}}, "no"),
        ({"object": "error", "message": "no"}, "no"),
        ({"detail": [{"loc": ["body", "stop"], "msg": "wrong"}]}, "body.stop: wrong"),
        ({"error": None, "message": "no"}, "no"),
        ({"odd": 1}, "{.odd.: 1}"),
        ([1], r"\[1\]"),
        ("", "no reason given"),
    ],
)
async def test_servers_words_are_found_wherever_they_stand(server, make_client, body, words):
    server.replies = [(400, body)]
    with pytest.raises(EndpointError, match=f"answered 400: {words}$"):
        await ask(make_client())


async def test_field_that_fastapi_refuses_is_learnt(server, make_client, reply):
    refusal = {"detail": [{"loc": ["body", "top_k"], "msg": "Extra inputs are not permitted"}]}
    server.replies = [(422, refusal), reply()]
    await ask(make_client(max_retries=0))
    assert "top_k" not in server.requests[-1]


@pytest.mark.parametrize(
    "url", ["http://", "http://[::1", "http://h:port/v1", "http://h:99999/v1", "http://a b/v1"]
)
def test_url_that_cannot_be_asked_is_refused(url):
    with pytest.raises(ConfigError, match="no usable URL"):
        ChatClient(Endpoint(base_url=url, model="m"))


def test_refused_url_shows_no_credentials():
    with pytest.raises(ConfigError) as caught:
        ChatClient(Endpoint(base_url="http://user:pa55word@h:port/v1?key=s3cret", model="m"))
    assert "pa55word" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_silent_server_runs_into_the_time_out(server, make_client):
    server.replies = [{}]
    server.gate = asyncio.Event()
    with pytest.raises(EndpointError, match="no answer within") as caught:
        await ask(make_client(timeout_s=0.4, max_retries=1))
    assert caught.value.retryable
    assert len(server.requests) == 2


async def test_silent_server_runs_into_the_deadline(server, make_client):
    server.replies = [{}]
    server.gate = asyncio.Event()
    with pytest.raises(EndpointError, match="deadline"):
        await ask(make_client(timeout_s=50, deadline_s=0.05))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "This model's maximum context length is 512 tokens. However, you requested 600"),
        (400, "prompt is too long"),
        (400, "the request exceeds the available context size"),
        (413, "context_length_exceeded"),
        (400, "The decoder prompt (length 600) is longer than the maximum model length of 512."),
        (
            422,
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 512. Given: 9",
        ),
        (422, "Input validation error: `inputs` must have less than 512 tokens. Given: 600"),
        (400, "The input token count (600) exceeds the maximum number of tokens allowed (512)."),
        (400, "This model's maximum prompt length is 512 but the request contains 600 tokens."),
        (400, "input length and `max_tokens` exceed context limit: 500 + 50 > 512"),
        (400, "too many tokens: total number of tokens in the prompt cannot exceed 512"),
        (400, "Range of input length should be [1, 512]"),
        (200, {"message": "The maximum context length is 512", "code": "context_length_exceeded"}),
    ],
)
async def test_conversation_that_is_too_long_is_an_overflow(server, make_client, status, text):
    error = {"message": text} if isinstance(text, str) else text
    server.replies = [(status, {"error": error})]
    with pytest.raises(ContextOverflow):
        await ask(make_client())
    assert len(server.requests) == 1


async def test_unknown_model_is_named_with_the_address(server, make_client):
    server.replies = [(404, {"error": {"message": "The model `m` does not exist."}})]
    with pytest.raises(EndpointError, match="check the model's name") as caught:
        await make_client().preflight()
    assert server.url in str(caught.value)
    assert "'m'" in str(caught.value)


async def test_web_page_instead_of_an_api_is_named(server, make_client):
    server.replies = ["<html>Welcome</html>"]
    with pytest.raises(EndpointError, match="is the base URL the API's root"):
        await make_client().preflight()
    assert len(server.requests) == 1


async def test_nobody_there_is_one_line(make_client):
    client = make_client(base_url="http://127.0.0.1:9/v1")
    with pytest.raises(EndpointError, match="is the server running") as caught:
        await client.preflight()
    assert "127.0.0.1:9" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_server_without_tool_parser_says_what_to_do(server, make_client):
    """G08."""
    text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    server.replies = [(400, {"error": {"message": text}})]
    with pytest.raises(EndpointError, match="--tool-calls text"):
        await make_client().preflight([TOOL])
    assert server.requests[0]["tools"] == [TOOL]


async def test_calls_that_the_server_left_in_the_text_are_told_once(server, make_client, reply,
                                                                    caplog):  # fmt: skip
    """G08: a server with the wrong parser, or none."""
    server.replies = [reply('I look. <tool_call>{"name": "f", "arguments": {}}</tool_call>')]
    client = make_client()
    await client.preflight()
    assert not caplog.records  # nobody offered tools
    await client.preflight([TOOL])
    await client.preflight([TOOL])
    (record,) = caplog.records
    assert "--enable-auto-tool-choice and the --tool-call-parser" in record.message


# --- keys -------------------------------------------------------------------------------------


async def test_key_is_read_at_call_time(server, make_client, reply, monkeypatch):
    server.replies = [reply()]
    client = make_client(api_key_env="SOME_KEY")
    await ask(client)
    monkeypatch.setenv("SOME_KEY", "sk-test-123")
    await ask(client)
    got = [headers["Authorization"] for headers in server.headers]
    assert got == ["Bearer EMPTY", "Bearer sk-test-123"]


async def test_missing_key_is_named_when_the_server_wants_one(server, make_client):
    server.replies = [(401, {"error": {"message": "no key"}})]
    with pytest.raises(EndpointError, match="variable SOME_KEY is not set"):
        await ask(make_client(api_key_env="SOME_KEY"))


async def test_key_and_credentials_never_show(server, make_client, monkeypatch):
    """J10."""
    monkeypatch.setenv("SOME_KEY", "sk-test-123")
    server.replies = [(401, {"error": {"message": "Incorrect API key provided: sk-test-123"}})]
    client = make_client(api_key_env="SOME_KEY")
    with pytest.raises(EndpointError, match="wrong key") as caught:
        await ask(client)
    assert "sk-test-123" not in f"{caught.value}{caught.value!r}{caught.value.__cause__}{client!r}"
    secret_url = "http://user:pa55@127.0.0.1:9/v1?key=k3y"
    client = make_client(base_url=secret_url)
    with pytest.raises(EndpointError) as caught:
        await ask(client, sampling=SAMPLING)
    assert not {"pa55", "k3y"} & set(f"{caught.value}{client!r}".replace("=", ":").split(":"))
    assert "pa55" not in f"{caught.value}{client!r}"


@pytest.mark.parametrize("key", ["sk-test-123\n", "  sk-test-123 "])
async def test_blanks_around_a_key_do_no_harm(server, make_client, reply, monkeypatch, key):
    monkeypatch.setenv("SOME_KEY", key)
    server.replies = [reply()]
    await ask(make_client(api_key_env="SOME_KEY"))
    assert server.headers[0]["Authorization"] == "Bearer sk-test-123"


@pytest.mark.parametrize("key", ["sk-\nsecret-1", "sk-s\u00e4cret-1", "\u201csk-secret-1\u201d"])
async def test_key_that_cannot_be_sent_is_named_and_not_shown(
    server, make_client, reply, monkeypatch, key
):
    monkeypatch.setenv("SOME_KEY", key)
    server.replies = [reply()]
    with pytest.raises(EndpointError, match="SOME_KEY holds no usable key") as caught:
        await ask(make_client(api_key_env="SOME_KEY"))
    assert "cret" not in f"{caught.value}{caught.value.__cause__}"
    assert server.requests == []


async def test_query_of_the_url_is_sent_and_never_shown(server, make_client, reply):
    server.replies = [lambda body: (500, f"no such thing: {server.queries[-1]}"), reply()]
    client = make_client(base_url=f"{server.url}?api-version=2&key=s3cret%2Fvalue", max_retries=0)
    with pytest.raises(EndpointError) as caught:
        await ask(client)
    assert server.queries == [{"api-version": "2", "key": "s3cret/value"}]
    assert "redacted" in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_password_in_the_url_is_sent_and_not_logged(server, make_client, reply, caplog):
    server.replies = [reply()]
    with caplog.at_level("DEBUG"):
        await ask(make_client(base_url=server.url.replace("//", "//user:pa55word@")))
    assert server.headers[0]["Authorization"] == "Basic dXNlcjpwYTU1d29yZA=="
    assert "pa55word" not in caplog.text


# --- loops and slots --------------------------------------------------------------------------


async def test_no_more_requests_than_slots(server, make_client, reply):
    server.replies = [reply()]
    client = make_client(max_concurrency=3)
    await asyncio.gather(*(ask(client) for _ in range(20)))
    assert server.most_in_flight <= 3


async def test_slots_come_back_after_failures(server, make_client, reply):
    bad = (400, {"error": {"message": "no"}})
    server.replies = [bad] * 4 + [reply()]
    client = make_client(max_concurrency=2)
    got = await asyncio.gather(*(ask(client) for _ in range(4)), return_exceptions=True)
    assert all(isinstance(error, EndpointError) for error in got)
    assert (await ask(client)).message["content"] == "hello"


async def test_cancelled_call_frees_its_slot(server, make_client, reply):
    server.replies = [reply()]
    server.gate = asyncio.Event()
    client = make_client(max_concurrency=1)
    first = asyncio.create_task(ask(client))
    await server.asked.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    server.gate.set()
    assert (await ask(client)).message["content"] == "hello"


async def test_one_client_works_from_several_loops_one_after_another(server, reply):
    """E10: openai-python#769."""
    server.replies = [reply()]
    client = ChatClient(Endpoint(base_url=server.url, model="m"))

    def in_its_own_loop() -> str:
        async def call() -> str:
            got = await ask(client)
            await client.aclose()
            return got.message["content"]

        return asyncio.run(call())

    for _ in range(2):
        assert await asyncio.to_thread(in_its_own_loop) == "hello"
    many = [asyncio.to_thread(in_its_own_loop) for _ in range(4)]
    assert await asyncio.gather(*many) == ["hello"] * 4
    gc.collect()
