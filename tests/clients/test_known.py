"""Going on with a recording: what is in it isn't asked again, and everything is charged once."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.client import Endpoint, SamplingParams
from agentgym.clients import RecordingClient, ReplayClient, ScriptedClient, recording
from agentgym.clients.known import KnownCalls
from agentgym.clients.record import Recording
from agentgym.errors import DataError, EndpointError
from agentgym.metering import Meter, charge, metered
from agentgym.naming import episode_named
from agentgym.types import Usage

GREEDY = SamplingParams(temperature=0)
SPENT = Usage(prompt_tokens=7, completion_tokens=2, cost_usd=0.25)
EPISODE = "task@1.0"


class Server(ScriptedClient):
    """Answers with the number of the call; fails or hangs where the script says so."""

    def __init__(self, *script, model="m") -> None:
        super().__init__(lambda messages: "unused")
        self.endpoint = Endpoint(base_url="http://localhost/v1", model=model)
        self.script = script
        self.asked: list[str] = []

    async def complete(self, messages, tools, sampling, *, session=None):
        number = len(self.asked)
        self.asked.append(messages[-1]["content"])
        if number < len(self.script) and self.script[number] is not None:
            charge("policy", Usage(calls=1, failed_calls=1))
            raise self.script[number]
        charge("policy", SPENT)
        completion = await super().complete(messages, tools, sampling, session=session)
        message = {"role": "assistant", "content": f"answer to {messages[-1]['content']}"}
        return completion.model_copy(update={"message": message, "usage": SPENT})


def said(*texts):
    return [{"role": "user", "content": text} for text in texts]


async def ask(client, *texts, episode=EPISODE, release=True):
    """One request per text: the answers, and what was charged."""
    meter, answers = Meter(), []
    with episode_named(episode), metered(meter):
        for text in texts:
            try:
                completion = await client.complete(said(text), (), GREEDY, session="s")
            except EndpointError as error:
                answers.append(error)
            else:
                answers.append(completion.message["content"])
        if release:
            await client.release("s")
    return answers, meter.by_role.get("policy", Usage(calls=0))


def recorded(path, client, *, known=None, **options):
    if known is None and options:
        known = KnownCalls(path, **options)
    return RecordingClient(client, Recording(path, known=known), role="policy")


async def cut_after(path, *texts, script=()):
    """A run that is killed after some calls."""
    return await ask(recorded(path, Server(*script)), *texts, release=False)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "calls.jsonl"


def test_what_is_recorded_is_not_asked_again_and_charged_to_the_one_who_goes_on(file):
    asyncio.run(cut_after(file, "a", "b"))
    server = Server()
    client = recorded(file, server, known=KnownCalls(file))
    answers, charged = asyncio.run(ask(client, "a", "b", "c"))
    assert answers == ["answer to a", "answer to b", "answer to c"]
    assert server.asked == ["c"]
    assert (charged.calls, charged.cost_usd) == (3, 0.75)


def test_each_recorded_answer_is_given_once(file):
    asyncio.run(cut_after(file, "a"))
    server = Server()
    client = recorded(file, server, known=KnownCalls(file))
    asyncio.run(ask(client, "a", "a"))
    assert server.asked == ["a"]


@pytest.mark.parametrize(
    ("sampling", "episode", "role", "model"),
    [
        (SamplingParams(temperature=0.7), EPISODE, "policy", "m"),
        (GREEDY, "task@1.1", "policy", "m"),
        (GREEDY, EPISODE, "simulator", "m"),
        (GREEDY, EPISODE, "policy", "another"),
    ],
    ids=["sampling", "episode", "role", "model"],
)
def test_another_request_is_asked(file, sampling, episode, role, model):
    asyncio.run(ask(recorded(file, Server(model="m")), "a", release=False))
    server = Server(model=model)
    client = RecordingClient(server, Recording(file, known=KnownCalls(file)), role=role)

    async def main():
        with episode_named(episode):
            await client.complete(said("a"), (), sampling)

    asyncio.run(main())
    assert server.asked == ["a"]


def test_what_is_in_a_trace_already_is_given_and_not_charged_again(file):
    asyncio.run(cut_after(file, "a", "b"))
    known = KnownCalls(file, counted={EPISODE: {"policy": 1}})
    server = Server()
    answers, charged = asyncio.run(ask(recorded(file, server, known=known), "a", "b"))
    assert (answers, server.asked) == (["answer to a", "answer to b"], [])
    assert (charged.calls, charged.cost_usd) == (1, 0.25)


def test_failed_call_is_made_again_and_charged_with_the_new_one(file):
    failure = EndpointError("gone", retryable=True)
    asyncio.run(cut_after(file, "a", "b", script=(None, failure)))
    server = Server()
    client = recorded(file, server, known=KnownCalls(file))
    answers, charged = asyncio.run(ask(client, "a", "b"))
    assert answers == ["answer to a", "answer to b"]
    assert server.asked == ["b"]
    assert (charged.calls, charged.failed_calls) == (3, 1)


def test_what_nobody_asks_for_any_more_is_charged_when_the_turns_are_over(file):
    asyncio.run(cut_after(file, "a", "elsewhere"))
    server = Server()
    client = recorded(file, server, known=KnownCalls(file))
    _, charged = asyncio.run(ask(client, "a"))
    assert (charged.calls, charged.cost_usd) == (2, 0.5)
    _, again = asyncio.run(ask(client))
    assert again.calls == 0


def test_run_cut_several_times_charges_every_call_once(file):
    asyncio.run(cut_after(file, "a"))
    asyncio.run(ask(recorded(file, Server(), known=KnownCalls(file)), "a", "b", release=False))
    server = Server()
    _, charged = asyncio.run(ask(recorded(file, server, known=KnownCalls(file)), "a", "b", "c"))
    assert server.asked == ["c"]
    assert charged.calls == 3


def test_whole_recording_replays_the_continued_run(file):
    failure = EndpointError("gone", retryable=True)
    asyncio.run(cut_after(file, "a", "b", script=(None, failure)))
    asyncio.run(ask(recorded(file, Server(), known=KnownCalls(file)), "a", "b", "c"))
    replayed, _ = asyncio.run(ask(ReplayClient(file), "a", "b", "c"))
    assert replayed == ["answer to a", "answer to b", "answer to c"]


def test_continued_run_may_be_continued_past_a_replaced_failure(file):
    failure = EndpointError("gone", retryable=True)
    asyncio.run(cut_after(file, "a", script=(failure,)))
    asyncio.run(ask(recorded(file, Server(), known=KnownCalls(file)), "a", release=False))
    server = Server()
    _, charged = asyncio.run(ask(recorded(file, server, known=KnownCalls(file)), "a", "b"))
    assert server.asked == ["b"]
    assert (charged.calls, charged.failed_calls) == (3, 1)


def test_episode_recorded_anew_is_known_as_the_last_time(file):
    asyncio.run(cut_after(file, "a", "b"))
    asyncio.run(cut_after(file, "a"))  # another run from the start, without going on
    known = KnownCalls(file)
    assert known.made_for(EPISODE) == {"policy": 1}


def test_only_wanted_episodes_are_kept(file):
    asyncio.run(cut_after(file, "a"))
    assert KnownCalls(file, wanted=lambda name: name == "other").made_for(EPISODE) == {}


def test_recording_counts_the_calls_of_earlier_runs(file):
    asyncio.run(cut_after(file, "a", "b"))
    file_again = Recording(file, known=KnownCalls(file))
    assert file_again.calls(EPISODE) == {"policy": 2}
    assert file_again.calls("other") == {}


def test_torn_last_line_is_asked_again(file):
    asyncio.run(cut_after(file, "a", "b"))
    file.write_bytes(file.read_bytes()[:-10])
    server = Server()
    answers, _ = asyncio.run(ask(recorded(file, server, known=KnownCalls(file)), "a", "b"))
    assert (answers, server.asked) == (["answer to a", "answer to b"], ["b"])
    replayed, _ = asyncio.run(ask(ReplayClient(file), "a", "b"))
    assert replayed == answers


def test_missing_file_knows_nothing_and_another_file_is_refused(tmp_path):
    assert KnownCalls(tmp_path / "none").made_for(EPISODE) == {}
    other = tmp_path / "traces.jsonl"
    other.write_text('{"schema_version": 1}\n')
    with pytest.raises(DataError, match="line 1: not a recorded call"):
        KnownCalls(other)


def test_connected_clients_of_a_continued_recording_share_it(file, monkeypatch):
    asyncio.run(cut_after(file, "a"))
    with recording(file, known=KnownCalls(file)) as shared:
        assert shared.calls(EPISODE) == {"policy": 1}


async def test_what_is_told_in_part_is_charged_for_the_rest_once(tmp_path):
    path = tmp_path / "calls.jsonl"
    await cut_after(path, "a", "b")
    part = SPENT.model_copy(update={"prompt_tokens": 9, "completion_tokens": 0, "cost_usd": 0.3})
    client = recorded(path, Server(), told={EPISODE: {"policy": part}})
    _, rest = await ask(client, "a", "b")
    assert (rest.prompt_tokens, rest.completion_tokens, rest.calls) == (5, 4, 1)
    assert rest.cost_usd == pytest.approx(0.2)
