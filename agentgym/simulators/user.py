"""A user played by a language model.

The model gets the scenario, its own lines as its own, and the agent's as quoted data; it answers
with what it says and, in a field of its own, whether it leaves. So no text, whoever typed it, ends
the conversation, and the agent's reasoning, calls and tool results are never in the prompt.

Two habits of simulating models would be charged to the policy if they were let through. They leave
in the very message with which they agree, before the agent could act: a leave takes effect only
after the agent's next message, and not if that asks again. And they fall out of their part (start
over, recite their instructions, speak as the agent, tell another order number than theirs): such a
reply is asked for again once, and then the episode is masked (`agentgym.simulators.acting`).
"""

from __future__ import annotations

import functools
import re
from typing import Any

from agentgym.client import Completion, ModelClient, SamplingParams
from agentgym.errors import SimulatorAbort
from agentgym.simulator import UserDialogue, UserReply
from agentgym.simulators.acting import out_of_part
from agentgym.simulators.asking import Unusable, ask, is_blank, read_object
from agentgym.simulators.prompts import user_prompt

LONGEST_SAID = 4_000
"""Characters of one line of a user."""

DEFAULT_SAMPLING = SamplingParams(temperature=0.7)
REPLY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "say": {"type": "string"},
        "end": {"type": "string", "enum": ["no", "done", "abort"]},
    },
    "required": ["say", "end"],
    "additionalProperties": False,
}

_THINKING = re.compile(r"<think>.*?(</think>|\Z)|\A((?!<think>).)*?</think>", re.DOTALL)
_EXPECTS_AN_ANSWER = re.compile(
    r"[?？؟]|\b(please|confirm|reply|let me know|tell me|could you|can you|would you|provide|type"
    r"|shall i|should i|may i|i need|proceed|ready|one moment|let me|i will|i'll|i am going to)\b",
    re.IGNORECASE,
)


class HostedUser:
    """Plays users with a model.

    `UserDialogue.notes["leaving"]` says that the user has said goodbye and the agent has a turn
    left.

    Args:
        client: The model.
        sampling: How it samples; its `seed` and `json_schema` are set per reply.
    """

    inline = False

    def __init__(self, client: ModelClient, *, sampling: SamplingParams | None = None) -> None:
        self._client = client
        given = sampling or DEFAULT_SAMPLING
        self._sampling = given.model_copy(update={"json_schema": REPLY_SCHEMA})

    async def open(self, dialogue: UserDialogue) -> UserReply:
        """The scenario's opening as it stands, or one by the model.

        Raises:
            SimulatorAbort: If the model gives up its part.
            SimulatorError: If it gives no usable line.
        """
        text = dialogue.scenario.opening
        if text is None:
            text = (await self._ask(dialogue, None)).text
        dialogue.said.append(("user", text))
        return UserReply(text=text)

    async def reply(self, dialogue: UserDialogue, heard: str) -> UserReply:
        """Answer what the agent said; see `UserSimulator.reply`.

        Raises:
            SimulatorAbort: If the model gives up its part.
            SimulatorError: If it gives no usable line.
        """
        heard = visible(heard)
        if dialogue.notes.get("leaving") and not expects_an_answer(heard):
            dialogue.said.append(("agent", heard))
            return UserReply(ended="done")
        reply = await self._ask(dialogue, heard)
        dialogue.said.append(("agent", heard))
        if reply.text:
            dialogue.said.append(("user", reply.text))
        dialogue.notes["leaving"] = reply.ended == "done"
        # With words to answer, the agent gets its turn first.
        return UserReply(text=reply.text) if reply.text else reply

    async def _ask(self, dialogue: UserDialogue, heard: str | None) -> UserReply:
        reply = await ask(
            self._client,
            user_prompt(dialogue, heard),
            functools.partial(_read, dialogue, heard),
            sampling=self._sampling,
            seed=f"user/{dialogue.seed}/{len(dialogue.said)}",
            session=dialogue.session,
            faults=dialogue.faults,
            who="user simulator",
        )
        if reply.ended == "abort":
            raise SimulatorAbort(f"user simulator gave up its part: {reply.text[:300]!r}")
        return reply


def _read(dialogue: UserDialogue, heard: str | None, completion: Completion) -> UserReply:
    """Check a model's reply.

    Raises:
        Unusable: If it isn't a line of this user in this dialogue.
    """
    found = read_object(completion)
    text, end = found.get("say"), found.get("end")
    if not isinstance(text, str) or end not in ("no", "done", "abort"):
        raise Unusable('it needs "say", a text, and "end", one of "no", "done" and "abort"')
    text = text.strip()
    if end == "abort":
        return UserReply(text=text, ended="abort")
    if end == "done" and heard is None:
        raise Unusable("nobody can leave before having said what they want")
    may_go_silently = dialogue.notes.get("leaving") or not expects_an_answer(heard or "")
    if not text and not (end == "done" and may_go_silently):
        raise Unusable('"say" is empty, and the agent is waiting for an answer')
    if len(text) > LONGEST_SAID:
        raise Unusable(f'"say" has {len(text)} characters; be brief')
    if is_blank(text):
        raise Unusable("it has a blank that should have been filled in")
    if fault := out_of_part(text, dialogue, heard or ""):
        raise Unusable(fault)
    return UserReply(text=text, ended="done" if end == "done" else None)


def visible(heard: str) -> str:
    """What an agent's text says to others: without thoughts that a server left in it."""
    return _THINKING.sub("", heard).strip()


def expects_an_answer(heard: str) -> bool:
    """Whether an agent's text asks for something or announces more, as far as its wording shows."""
    return _EXPECTS_AN_ANSWER.search(heard) is not None
