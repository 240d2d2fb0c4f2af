"""What servers don't take: left out, replaced by the next weaker form, or told."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.client import SamplingParams
from agentgym.errors import EndpointError
from agentgym.testing.quirky import Reply, answer

ASK = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "number"}},
    "required": ["score"],
    "additionalProperties": False,
}
STRUCTURED = SamplingParams(max_tokens=64, json_schema=SCHEMA)


async def ask(client, sampling=STRUCTURED, messages=ASK, session=None):
    return await client.complete(messages, (), sampling, session=session)


def form_of(body):
    return (body.get("response_format") or {"type": "none"})["type"]


def refusing(*forms, text="response_format of type {} is not supported"):
    def script(body):
        if form_of(body) in forms:
            return 400, {"error": {"message": text.format(form_of(body))}}
        return answer('{"score": 1}')

    return script


# --- structured answers -----------------------------------------------------------------------


async def test_schema_is_sent_where_the_server_takes_it(server, make_client):
    await ask(make_client())
    assert server.requests[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
    }


@pytest.mark.parametrize(
    "loose",
    [
        {"type": "object"},
        {**SCHEMA, "required": []},
        {**SCHEMA, "properties": {"score": {"type": "object", "properties": {}}}},
        {**SCHEMA, "properties": {"score": {"anyOf": [{"type": "object"}]}}},
    ],
)
async def test_strictness_is_asked_for_only_where_the_schema_allows_it(server, make_client, loose):
    await ask(make_client(), SamplingParams(json_schema=loose))
    assert server.requests[0]["response_format"]["json_schema"]["strict"] is False


@pytest.mark.parametrize("text", ["response_format is not supported", "Unknown field: json_schema"])
async def test_refused_form_costs_one_request_over_a_hundred_calls_at_once(
    server, make_client, text
):
    """A25: one failed probe, also where every call starts before the first is answered."""
    refused = ["json_schema", "json_object"] if "format" in text else ["json_schema"]
    server.replies = [refusing(*refused, text=text)]
    client = make_client()
    got = await asyncio.gather(*(ask(client) for _ in range(100)))
    assert {completion.message["content"] for completion in got} == {'{"score": 1}'}
    assert len(server.requests) == 101
    assert sum(completion.usage.retries for completion in got) == 1


async def test_server_that_knows_one_form_is_asked_in_that_form(server, make_client):
    server.replies = [refusing("json_schema")]
    client = make_client()
    await ask(client)
    await ask(client)
    assert [form_of(body) for body in server.requests] == ["json_schema"] + ["json_object"] * 2
    assert client.dialect.structured_output == "json_object"


@pytest.mark.parametrize(
    "text",
    [
        "This model does not support structured outputs",
        "'response_format.type' must be one of text, json_object",
        "guided_json is not available",
    ],
)
async def test_refusal_of_schemas_leaves_plain_json_to_be_tried(server, make_client, text):
    server.replies = [refusing("json_schema", text=text)]
    assert (await ask(make_client())).attempts == 2
    assert form_of(server.requests[-1]) == "json_object"


async def test_server_that_names_each_form_is_asked_down_to_none(server, make_client):
    server.replies = [refusing("json_schema", "json_object")]
    client = make_client(max_retries=0)
    assert (await ask(client)).attempts == 3
    assert (await ask(client)).attempts == 1
    assert form_of(server.requests[-1]) == "none"


async def test_unrelated_400_is_told_and_teaches_nothing(server, make_client):
    """A25."""
    server.replies = [(400, {"error": {"message": "model not found"}}), answer()]
    client = make_client()
    with pytest.raises(EndpointError, match="model not found") as caught:
        await ask(client)
    assert not caught.value.retryable
    assert len(server.requests) == 1
    assert client.dialect.structured_output == "json_schema"


async def test_form_that_was_taken_before_is_not_given_up(server, make_client):
    server.replies = [answer(), (400, {"error": {"message": "bad json_schema"}})]
    client = make_client()
    await ask(client)
    with pytest.raises(EndpointError, match="bad json_schema"):
        await ask(client)
    assert client.dialect.structured_output == "json_schema"


@pytest.mark.parametrize("form", ["json_schema", "json_object", "none"])
async def test_configured_form_is_kept(server, make_client, form):
    server.replies = [answer(), refusing(form)]
    client = make_client(dialect={"structured_output": form})
    await ask(client)
    assert form_of(server.requests[0]) == form
    if form != "none":
        with pytest.raises(EndpointError, match="not supported"):
            await ask(client)


async def test_failing_scout_hands_on_its_turn(server, make_client):
    server.replies = [(500, "down"), refusing("json_schema", text="no response_format here")]
    client = make_client(max_retries=0)
    got = await asyncio.gather(*(ask(client) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(error, EndpointError) for error in got) == 1
    assert len(server.requests) == 11


async def test_scout_that_waits_for_a_slot_does_not_use_up_the_others_time(server, make_client):
    client = make_client(max_concurrency=1, deadline_s=1.0)
    async with client.limiter.slot(client.limiter.ticket()):
        asked = [asyncio.create_task(ask(client)) for _ in range(5)]
        await asyncio.sleep(1.2)
    assert len(await asyncio.gather(*asked)) == 5


async def test_silent_server_holds_nobody_longer_than_the_deadline(server, make_client):
    server.replies = [Reply(hangs=True)]
    client = make_client(timeout_s=0.3, deadline_s=0.6, max_retries=0)
    got = await asyncio.gather(*(ask(client) for _ in range(20)), return_exceptions=True)
    assert all(isinstance(error, EndpointError) for error in got)
    assert any("deadline" in str(error) for error in got)


# --- other fields -----------------------------------------------------------------------------


async def test_fields_learnt_meanwhile_are_left_out_of_calls_already_in_flight(server, make_client):
    def strict(body):
        if "top_k" in body:
            return 400, {"error": {"message": "Unrecognized request argument: top_k"}}
        return answer()

    server.replies = [strict]
    client = make_client(max_retries=0)
    got = await asyncio.gather(*(ask(client, SamplingParams()) for _ in range(20)))
    assert len(got) == 20


async def test_field_that_the_endpoint_insists_on_is_told_once(server, make_client):
    text = "'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    server.replies = [(400, {"error": {"message": text}})]
    with pytest.raises(EndpointError, match="max_completion_tokens"):
        await ask(make_client(extra_body={"max_tokens": 5}), SamplingParams())
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Unsupported value: 'temperature' does not support 0.7", "dialect.temperature = false"),
        ("seed is not supported by this model", "dialect.seed = false"),
        ("Tool calling is not supported for this model", "dialect.tools = false"),
    ],
)
async def test_refused_field_with_an_effect_is_told_with_the_way_out(
    server, make_client, text, hint
):
    server.replies = [(400, {"error": {"message": text}})]
    with pytest.raises(EndpointError, match=hint):
        await ask(make_client(), SamplingParams(temperature=0.7))
    assert len(server.requests) == 1


async def test_temperature_can_be_left_out(server, make_client):
    await ask(make_client(dialect={"temperature": False}), SamplingParams(temperature=0.7))
    assert "temperature" not in server.requests[0]


# --- reasoning --------------------------------------------------------------------------------


async def play_two_turns(client, server, content="an answer"):
    server.replies = [answer(content, message={"reasoning_content": "because"}), answer("more")]
    messages = [*ASK]
    first = await ask(client, SamplingParams(), messages, "s")
    messages += [{**first.message}, {"role": "user", "content": "And then?"}]
    await ask(client, SamplingParams(), messages, "s")
    return messages


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_goes_back_where_the_server_wants_it(server, make_client, field):
    client = make_client(dialect={"replay_reasoning": field})
    messages = await play_two_turns(client, server)
    assert server.requests[1]["messages"][1] == {**messages[1], field: "because"}
    assert field not in messages[1]


async def test_reasoning_does_not_go_back_by_default(server, make_client):
    await play_two_turns(make_client(), server)
    assert set(server.requests[1]["messages"][1]) == {"role", "content"}


async def test_reasoning_is_another_sessions_secret_and_forgotten_at_release(server, make_client):
    client = make_client(dialect={"replay_reasoning": "reasoning"})
    messages = await play_two_turns(client, server)
    await ask(client, SamplingParams(), messages, "other")
    await ask(client, SamplingParams(), messages, None)
    await client.release("s")
    await ask(client, SamplingParams(), messages, "s")
    assert all("reasoning" not in body["messages"][1] for body in server.requests[2:])


async def test_reasoning_is_not_put_beside_another_answer(server, make_client):
    client = make_client(dialect={"replay_reasoning": "reasoning"})
    messages = await play_two_turns(client, server)
    changed = [messages[0], {"role": "assistant", "content": "something else"}, messages[2]]
    await ask(client, SamplingParams(), changed, "s")
    assert "reasoning" not in server.requests[-1]["messages"][1]


@pytest.mark.parametrize(
    ("content", "text", "reasoning"),
    [
        ("<think>hm</think>\n\nyes", "yes", "hm"),
        ("hm</think>yes", "yes", "hm"),
        ("<think>hm, that is long", "", "hm, that is long"),
        ("<think></think>yes", "yes", None),
        ("say <think>hm</think> aloud", "say <think>hm</think> aloud", None),
    ],
)
async def test_reasoning_left_in_the_text_is_taken_out_of_it(
    server, make_client, content, text, reasoning
):
    server.replies = [answer(content)]
    got = await ask(make_client(), SamplingParams())
    assert (got.message["content"], got.reasoning) == (text, reasoning)
