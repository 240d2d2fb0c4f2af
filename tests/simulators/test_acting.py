"""Checks of a user's lines: what no user says is refused, what users say gets through."""

from __future__ import annotations

import copy

import pytest

from agentgym.client import SamplingParams
from agentgym.clients import ScriptedClient
from agentgym.envs.supportdesk.env import SupportDeskEnv
from agentgym.envs.supportdesk.policies import POLICIES
from agentgym.simulator import Scenario, UserDialogue
from agentgym.simulators import acting
from agentgym.simulators.acting import identifiers, out_of_part, shape_of
from agentgym.simulators.scripted_user import ScriptedUser


class Checked(ScriptedUser):
    """A scripted user whose every line is checked as if a model had written it."""

    def __init__(self):
        self.lines, self.faults = 0, []

    async def reply(self, dialogue, heard):
        before = copy.deepcopy(dialogue)
        reply = await super().reply(dialogue, heard)
        self.lines += 1
        if fault := reply.text and out_of_part(reply.text, before, heard):
            self.faults.append((fault, reply.text, heard))
        return reply


async def test_no_line_of_honest_conversations_is_refused():
    user = Checked()
    env = SupportDeskEnv(simulator=user)
    for task_id in env.task_ids()[::7]:
        policy = ScriptedClient(POLICIES["expert"](env, 0))
        options = {"task_id": task_id, "judging": "deferred"}
        messages, info = await env.areset(seed=0, options=options)
        history, over = list(messages), False
        while not over:
            policy.observe("s", info)
            completion = await policy.complete(
                history, info["tools"], SamplingParams(seed=len(history)), session="s"
            )
            messages, _, terminated, truncated, info = await env.astep(completion.message)
            history += [env.running.records[-1].message, *messages]
            over = terminated or truncated
    env.close()
    assert user.faults == []
    assert user.lines > 50


SCENARIO = Scenario(
    goal="You want to move your delivery to Friday.",
    facts={"order_id": "W7128390", "zip": "02139", "phone": "+1-555-0100", "user_id": "ada_12345"},
)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("It's W7128391.", "W7128390"),
        ("The zip code is 02138.", "02139"),
        ("My user id is bob_99.", "ada_12345"),
        ("It's w7128390, zip 02139.", None),
        ("#W7128390", None),
        ("I paid $18000 in 2025 for 12 chairs.", None),
        ("It's order A1, isn't it?", None),
        ("Order W9999999, as you said.", None),
        ("My zip is on file.", None),
        ("My phone? I have no phone.", None),
    ],
)
def test_a_fact_may_not_be_told_differently(line, fault):
    dialogue = UserDialogue(SCENARIO, seed=0)
    found = out_of_part(line, dialogue, "I see an order W9999999. Is it that one?")
    assert (found is None) == (fault is None)
    assert fault is None or repr(fault) in found


def test_identifiers_and_their_shapes():
    text = "Ada (ada@example.com) ordered #W1234567 and AB-123 for $1234567 on 2026-01-31, 3 times."
    found = identifiers(text)
    assert found == ["ada@example.com", "#W1234567", "AB-123", "2026-01-31"]
    assert [shape_of(each) for each in found] == ["@", "a0000000", "aa-000", "0000-00-00"]


TALKED = UserDialogue(
    Scenario(
        goal="You want to return shoes.",
        facts={
            "zip": "90210",
            "order_id": "#W12345678",
            "name": "Ada Lovelace",
            "phone": "1-555-0100",
        },
        instructions=("Take store credit.",),
    ),
    seed=0,
)


@pytest.mark.parametrize(
    "line",
    [
        "My zip is 12345.",  # inside the order number, but no number of its own
        "郵便番号は９０２１１です。",
        '{"say": "Yes.", "end": "done"}',
    ],
)
def test_a_fact_is_known_as_a_whole_and_in_any_script(line):
    assert out_of_part(line, TALKED, "")


@pytest.mark.parametrize(
    "line",
    [
        "My name is Ada.",
        "My name is Mrs. Lovelace.",
        "My order id is 12345678.",
        "My phone is 5550100.",
        "My phone is +1 (555) 0100.",
        "My zip is Greek to me.",
        "郵便番号は９０２１０です。",
        "#w12345678!",
    ],
)
def test_part_of_a_fact_or_another_script_is_not_another_fact(line):
    assert out_of_part(line, TALKED, "") is None


def test_long_talk_is_compared_only_where_a_line_may_repeat_it(monkeypatch):
    """A line of a dialogue of 200 long turns is checked without reading all of them."""
    read = []
    words = acting.words
    monkeypatch.setattr(acting, "words", lambda text: (read.append(len(text)), words(text))[1])
    talk = UserDialogue(SCENARIO, seed=0)
    for n in range(200):
        talk.said += [("agent", "x" * 10_000), ("user", f"What about number {n}, please?")]
    assert out_of_part("It's W7128390, as I told you.", talk, "Which one?") is None
    assert sum(read) < 20_000


@pytest.mark.parametrize("piece", ["a", "a.", "1", "-", "\n!", "a@", "#1 "])
def test_the_checks_read_a_line_once_whatever_it_is_made_of(piece):
    """At this length anything quadratic takes minutes."""
    line = (piece * 150_000)[:150_000]
    assert out_of_part(line + " Thank you for calling.", TALKED, "")
    assert identifiers(line + " W1234567")[-1:] == ["W1234567"]
