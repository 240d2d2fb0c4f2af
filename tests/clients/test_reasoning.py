"""Reasoning that a client keeps for the conversations in progress."""

from __future__ import annotations

from agentgym.client import Completion, Dialect
from agentgym.clients import reasoning
from agentgym.clients.reasoning import KeptReasoning

ASK = [{"role": "user", "content": "Hi"}]
ANSWER = {"role": "assistant", "content": "an answer"}


def test_sessions_that_nobody_releases_are_forgotten_the_longest_silent_first(monkeypatch):
    monkeypatch.setattr(reasoning, "_MOST_SESSIONS", 3)
    kept = KeptReasoning(Dialect(replay_reasoning="reasoning"))

    def is_known(session):
        return "reasoning" in kept.put_back(session, [*ASK, ANSWER])[1]

    for session in ("a", "b", "c", "a", "d"):
        kept.keep(session, ASK, Completion(message=ANSWER, reasoning="because"))
    assert {s: is_known(s) for s in "abcd"} == {"a": True, "b": False, "c": True, "d": True}
