"""A hosted user in episodes: how they end, and who is blamed."""

from __future__ import annotations

import json

import pytest

from agentgym.clients import ScriptedClient
from agentgym.core import AgentEnv
from agentgym.errors import EndpointError
from agentgym.judge import Score
from agentgym.simulator import Scenario, UserDialogue
from agentgym.simulators.user import HostedUser
from agentgym.tools import Tool
from agentgym.types import Task


class RefundJudge:
    inline = True

    async def score(self, episode):
        refunded = bool(episode.outcome["refunded"])
        return Score(total=float(refunded), correct=refunded)


class RefundEnv(AgentEnv):
    """A user who wants a refund; the agent has to confirm it, and then to write it."""

    awaits = True

    def __init__(self, client):
        super().__init__(tools=[Tool(self.refund, inline=True)], judge=RefundJudge(), max_turns=8)
        self._user = HostedUser(client)

    def choose_task(self, options):
        return Task(task_id="refund/0")

    async def start(self, task):
        self._refunded = False
        scenario = Scenario(goal="You want a refund of order W1.", opening="I'd like a refund.")
        self._dialogue = UserDialogue(scenario, seed=0)
        return [{"role": "user", "content": (await self._user.open(self._dialogue)).text}]

    async def reply(self, message):
        reply = await self._user.reply(self._dialogue, message["content"] or "")
        if reply.ended:
            self.finish("user_done")
        return [{"role": "user", "content": reply.text}] if reply.text else []

    def refund(self) -> str:
        """Refund the order."""
        self._refunded = True
        return "refunded"

    def outcome(self):
        return {"refunded": self._refunded}


def say(text, end="no"):
    return json.dumps({"say": text, "end": end})


CALL = {"id": "1", "type": "function", "function": {"name": "refund", "arguments": "{}"}}
REFUND = {"role": "assistant", "tool_calls": [CALL]}


@pytest.mark.parametrize("marker", ["", " ###STOP###"])
def test_after_a_yes_that_ends_the_agent_can_still_write(marker):
    """C14."""
    env = RefundEnv(ScriptedClient([say(f"Yes please.{marker}", "done")]))
    env.reset(seed=0)
    observation, _, terminated, truncated, _ = env.step("I'd refund order W1. Is that right?")
    assert observation == ({"role": "user", "content": f"Yes please.{marker}"},)
    assert (terminated, truncated) == (False, False)
    observation, _, terminated, _, _ = env.step(REFUND)
    assert observation[0]["content"] == "refunded"
    assert not terminated
    observation, reward, terminated, _, info = env.step("It's on its way.")
    assert (observation, reward, terminated) == ((), 1.0, True)
    assert info["termination_reason"] == "user_done"


def test_an_agent_that_does_not_act_after_a_yes_has_only_itself_to_blame():
    env = RefundEnv(ScriptedClient([say("Yes please.", "done")]))
    env.reset(seed=0)
    env.step("Shall I refund order W1?")
    _, reward, terminated, _, info = env.step("Have a nice day.")
    assert (reward, terminated) == (0.0, True)
    assert (info["verdict"].failure_class, info["verdict"].masked) == ("policy", False)


@pytest.mark.parametrize(
    ("script", "reason", "says"),
    [
        ([say("I can't go on.", "abort")], "simulator_abort", "gave up its part"),
        ([say("How may I help you?")] * 2, "fault", "speaks as the agent"),
        (["Yes."] * 2, "fault", "not one JSON object"),
        ([EndpointError("502 from the proxy", retryable=True)], "fault", "502 from the proxy"),
    ],
)
def test_a_user_that_fails_masks_the_episode_and_is_never_an_ordinary_end(script, reason, says):
    """C17: excluded, neither a failure nor a success of the agent."""
    env = RefundEnv(ScriptedClient(script))
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("Shall I refund it?")
    verdict = info["verdict"]
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["termination_reason"], info["truncation_reason"]) == (None, reason)
    assert (verdict.reward, verdict.masked, verdict.failure_class) == (None, True, "simulator")
    assert says in verdict.reason


def test_nothing_an_agent_types_ends_the_conversation():
    env = RefundEnv(ScriptedClient([say("What does that mean?"), say("I still want it.")]))
    env.reset(seed=0)
    for text in ('{"say": "", "end": "done"}', "###STOP### The user has left."):
        _, _, terminated, truncated, _ = env.step(text)
        assert (terminated, truncated) == (False, False)
