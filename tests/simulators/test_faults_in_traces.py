"""Refused replies of simulators reach the traces of their own episodes, mended or not."""

from __future__ import annotations

import asyncio
import json

import pytest

from agentgym.client import Completion
from agentgym.clients import ScriptedClient
from agentgym.judge import Score
from agentgym.metering import charge
from agentgym.rollout import Engine, EpisodeRequest, summarize
from agentgym.simulator import FAULTS
from agentgym.types import Usage

EPISODES = 90


class Slipping:
    """A model that slips once before its last reply, twice, or never, by turns of episodes.

    All episodes share it, and its answers cross each other. A slip names its episode.
    """

    def __init__(self, *good):
        *self._first, self._last = map(json.dumps, good)
        self.asked = {}

    async def complete(self, messages, tools, sampling, *, session=None):
        self.asked[session] = count = self.asked.get(session, 0) + 1
        slips = list(self.asked).index(session) % 3
        await asyncio.sleep(0)
        usage = Usage(prompt_tokens=10)
        charge("simulator", usage)
        place = count - 1 - len(self._first)
        text = self._first[count - 1] if place < 0 else self._last
        if 0 <= place < slips:
            text = f"slip of {session}"
        return Completion(message={"role": "assistant", "content": text}, usage=usage)

    async def release(self, session): ...

    async def aclose(self): ...


class Half:
    inline = True

    async def score(self, episode):
        return Score(total=0.5)


def farewell(messages):
    return "All is done, goodbye."


def one_call(messages):
    if messages[-1]["role"] == "tool":
        return "Answer: nobody"
    function = {"name": "find_members", "arguments": '{"team": "docs"}'}
    calls = [{"id": "c", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize(
    ("task_id", "policy", "good", "more"),
    [
        (
            "supportdesk/cancel/0",
            farewell,
            [{"say": "Hello.", "end": "no"}, {"say": "", "end": "done"}],
            {},
        ),
        (
            "toolworld/tracker/root_blocker/0",
            one_call,
            [{"answer": {"error": "Nothing was found."}, "changes": []}],
            {"judge": Half()},
        ),
    ],
)
async def test_every_refused_reply_is_listed_in_its_own_episode_and_counted(
    task_id, policy, good, more
):
    model = Slipping(*good)
    env_id = {"supportdesk": "agentgym/SupportDesk-v0", "toolworld": "agentgym/ToolWorld-v0"}[
        task_id.partition("/")[0]
    ]
    kwargs = {"simulator": model, **more}
    async with Engine(env_id, env_kwargs=kwargs, client=ScriptedClient(policy)) as engine:
        requests = [EpisodeRequest(seed=n, task_id=task_id) for n in range(EPISODES)]
        traces = [trace async for trace in engine.run(requests)]
    assert len(model.asked) == EPISODES
    listed = {}
    for trace in traces:
        faults = trace.outcome.get(FAULTS, [])
        sessions = {fault.split("slip of ")[1] for fault in faults}
        assert len(sessions) == min(len(faults), 1)
        listed |= dict.fromkeys(sessions, len(faults))
        if len(faults) == 2:
            assert (trace.failure_class, trace.reward) == ("simulator", None)
            assert trace.truncation_reason == "fault"
            assert trace.usage["simulator"].calls == len(good) + 1
        else:
            assert trace.failure_class is None
            assert trace.usage["simulator"].calls == len(good) + len(faults)
    slips = {f"{session}'": n % 3 for n, session in enumerate(model.asked)}
    assert {s.rstrip(")"): n for s, n in listed.items()} == {s: n for s, n in slips.items() if n}
    found = summarize(traces)
    assert found.simulator_faults == EPISODES
    assert found.failures == {"simulator": EPISODES // 3}
    assert found.usage["simulator"].calls == sum(model.asked.values())
