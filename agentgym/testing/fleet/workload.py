"""What episodes look like to a policy fleet: turns, lengths of answers, latencies of tools.

Everything about a turn follows from the seed, the episode and the turn, whatever the order in which
they are played and by whom. So the servers, the environment and the model of an engine without cost
each work it out for themselves and agree.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from pydantic import Field

from agentgym.testing.fleet.prefix import CHARACTERS_PER_TOKEN, MESSAGE_TOKENS
from agentgym.types import Finite, Message, Record

TOOL = "look_up"
"""The one tool of a `WorkloadEnv`."""
_NORMAL = NormalDist()
_EPISODE = re.compile(r"[Ee]pisode (\d+)")
_FILLER = " The quick brown fox jumps over the lazy dog." * 400


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """One turn of an episode."""

    completion_tokens: int
    tool_s: float
    """How long the tool takes; 0 on the last turn, which calls none."""
    observation_tokens: int


class Workload(Record):
    """Synthetic episodes: a policy that looks something up, turn after turn, then answers.

    Turns and lengths are log-normal, which is about what agents' are: most episodes are short, and
    a few take longer than all others together.
    """

    seed: int = 0
    turns_median: Finite = Field(default=3.1, gt=0)
    """Turns of the middle episode; they are rounded up and kept within `max_turns`."""
    turns_spread: Finite = Field(default=0.75, ge=0)
    """Standard deviation of the logarithm of the turns."""
    max_turns: int = Field(default=12, ge=1)
    completion_median: Finite = Field(default=120.0, gt=0)
    """Tokens of the middle answer."""
    completion_spread: Finite = Field(default=0.8, ge=0)
    max_completion: int = Field(default=2048, ge=16)
    """Tokens of the longest answer."""
    tool_median_s: Finite = Field(default=0.5, ge=0)
    """Virtual seconds that the tool takes in the middle turn."""
    tool_spread: Finite = Field(default=1.0, ge=0)
    observation_tokens: int = Field(default=100, ge=16)
    """Tokens of a tool's result."""
    system_tokens: int = Field(default=400, ge=16)
    """Tokens of the system prompt, which all episodes share."""
    judge_median_s: Finite = Field(default=0.0, ge=0)
    """Virtual seconds that judging the middle episode takes."""
    judge_spread: Finite = Field(default=0.5, ge=0)

    def turns(self, episode: int) -> int:
        """Assistant messages of an episode."""
        (normal,) = _normals(f"{self.seed}/{episode}", 1)
        drawn = self.turns_median * math.exp(self.turns_spread * normal)
        return min(self.max_turns, max(1, math.ceil(drawn - 0.5)))

    def turn(self, episode: int, turn: int) -> TurnPlan:
        """What happens in one turn, counted from 0."""
        length, latency = _normals(f"{self.seed}/{episode}/{turn}", 2)
        drawn = self.completion_median * math.exp(self.completion_spread * length)
        tool_s = self.tool_median_s * math.exp(self.tool_spread * latency)
        last = turn + 1 >= self.turns(episode)
        return TurnPlan(
            completion_tokens=min(self.max_completion, max(16, round(drawn))),
            tool_s=0.0 if last else tool_s,
            observation_tokens=self.observation_tokens,
        )

    def judge_s(self, episode: int) -> float:
        """How long judging an episode takes, virtual seconds."""
        (normal,) = _normals(f"{self.seed}/{episode}/judge", 1)
        return float(self.judge_median_s * math.exp(self.judge_spread * normal))

    def opening(self, episode: int) -> tuple[Message, ...]:
        """The messages that an episode begins with."""
        system = _padded("You look things up until you can answer.", self.system_tokens)
        task = f"This is episode {episode}. Look up what you need, then answer."
        return (
            {"role": "system", "content": system},
            {"role": "user", "content": task},
        )

    def answer(self, episode: int, turn: int) -> Message:
        """The policy's message of a turn: a call, or the final answer."""
        tokens = self.turn(episode, turn).completion_tokens
        where = f"Episode {episode}, turn {turn}."
        if turn + 1 >= self.turns(episode):
            return {"role": "assistant", "content": _padded(where, tokens)}
        arguments = json.dumps({"query": f"{episode}/{turn}"})
        call = {"name": TOOL, "arguments": arguments}
        used = len(TOOL) + len(arguments)
        return {
            "role": "assistant",
            "content": _padded(where, tokens, used),
            "tool_calls": [{"id": f"call_{episode}_{turn}", "type": "function", "function": call}],
        }

    def observation(self, episode: int, turn: int) -> str:
        """What the tool returns."""
        return _padded(f"Found for {episode}/{turn}:", self.observation_tokens)

    def policy(self, body: Mapping[str, Any]) -> Message:
        """Answer a chat-completions request: which episode and turn it is can be read from it.

        A conversation whose opening names no episode is one of its own, by its text.
        """
        messages = body.get("messages") or ()
        turn = sum(message.get("role") == "assistant" for message in messages)
        return self.answer(episode_of(messages), turn)


def episode_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """The episode that a conversation belongs to."""
    opening = next((m.get("content") for m in messages if m.get("role") == "user"), "")
    text = opening if isinstance(opening, str) else json.dumps(opening)
    found = _EPISODE.search(text)
    return int(found[1]) if found else int.from_bytes(_digest(text, 4))


def _normals(name: str, count: int) -> tuple[float, ...]:
    """Standard normal numbers that follow from a name; cheaper than seeding a generator."""
    digest = _digest(name, 8 * count)
    words = (int.from_bytes(digest[at : at + 8]) for at in range(0, 8 * count, 8))
    return tuple(_NORMAL.inv_cdf(((word >> 12) + 0.5) / 2**52) for word in words)


def _digest(name: str, size: int) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=size).digest()


def _padded(text: str, tokens: int, used: int = 0) -> str:
    """A text that makes a message of so many tokens, or itself if it is longer.

    Args:
        text: How it begins.
        tokens: Of the message.
        used: Characters that the message has beside it.
    """
    length = (tokens - MESSAGE_TOKENS) * CHARACTERS_PER_TOKEN - used
    return text + _FILLER[: max(0, length - len(text))]
