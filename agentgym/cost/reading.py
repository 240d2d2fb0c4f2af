"""How many tokens a conversation makes its readers read: the arithmetic, per episode of T turns.

With S tokens of setup, A per output and R per reply, the prompt of turn t (from 0) has
S + t·(A + R) tokens. Whoever answers each turn reads T·S + (A + R)·T(T−1)/2 over an episode;
whoever reads it once, at the end, reads S + T·A + (T−1)·R. The two are confused often enough to
have a price: a judge charged for the first costs three times what it should at five turns.

What of it a prefix cache could hold, at best, is all that the same reader has read before: of
prompts that extend one another, everything but what is new in each.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.cost.workload import EpisodeTokens


@dataclass(frozen=True)
class Read:
    """Tokens read over an episode."""

    tokens: float
    """All of them."""
    repeated: float
    """Those of them that the reader had read before, in the same order from the first on."""

    def __add__(self, other: Read) -> Read:
        return Read(self.tokens + other.tokens, self.repeated + other.repeated)


NOTHING = Read(0.0, 0.0)


def prompt_tokens(tokens: EpisodeTokens, turn: float) -> float:
    """The prompt of a turn, counted from 0."""
    return tokens.setup + turn * (tokens.output + tokens.reply)


def prompts(tokens: EpisodeTokens, turns: float) -> Read:
    """What the policy reads: every turn the whole conversation so far."""
    grown = (tokens.output + tokens.reply) * turns * (turns - 1) / 2
    total = turns * tokens.setup + grown
    return Read(total, total - prompt_tokens(tokens, turns - 1))


def transcript(tokens: EpisodeTokens, turns: float) -> float:
    """The finished conversation, read once."""
    return tokens.setup + turns * tokens.output + (turns - 1) * tokens.reply


def during(tokens: EpisodeTokens, turns: float, *, last: bool) -> Read:
    """What is read by someone asked after every output of the policy.

    Args:
        tokens: Of the episode.
        turns: T.
        last: Whether also after the last one, which has no reply.
    """
    calls = turns if last else turns - 1
    if calls <= 0:
        return NOTHING
    pairs = calls * (calls - 1) / 2
    total = calls * (tokens.setup + tokens.output) + pairs * (tokens.output + tokens.reply)
    final = tokens.setup + calls * tokens.output + (calls - 1) * tokens.reply
    # Between one and two calls (a scaled number of turns), the second reads a part of the first.
    return Read(total, max(0.0, total - final))


def several(one: Read, calls: float) -> Read:
    """The same read so many times in a row, of which a cache holds all but the first."""
    if calls <= 0:
        return NOTHING
    again = max(0.0, calls - 1) * one.tokens
    return Read(calls * one.tokens, min(calls, 1.0) * one.repeated + again)
