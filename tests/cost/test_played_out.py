"""The planner's formulas against conversations that are really built, token by token.

Tokens are numbered objects; a prefix cache is literally the longest common prefix with what the
same reader read before. Nothing of the planner's arithmetic is used.
"""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.cost.turns import HistogramTurns
from agentgym.cost.volumes import policy_volume, role_volume
from agentgym.cost.workload import EpisodeTokens, RoleLoad, Workload


class Reader:
    """Counts what it reads, and what of it a perfect prefix cache would hold."""

    def __init__(self) -> None:
        self.calls = self.read = self.cached = 0
        self.before: list[list[tuple]] = []

    def call(self, prompt: list[tuple]) -> None:
        self.calls += 1
        self.read += len(prompt)
        self.cached += max((_common(prompt, old) for old in self.before), default=0)
        self.before.append(prompt)


def _common(one, other):
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def play(tokens, turns, readers):
    """One episode: the policy each turn, whoever hears each reply or turn, the judge at the end."""
    history = [("setup", i) for i in range(int(tokens.setup))]
    for turn in range(turns):
        readers["policy"].call(list(history))
        history += [("output", turn, i) for i in range(int(tokens.output))]
        readers["turn"].call(list(history))
        if turn < turns - 1:
            readers["reply"].call(list(history))
            history += [("reply", turn, i) for i in range(int(tokens.reply))]
    for _ in range(2):  # a panel of two
        readers["judges"].call(list(history))


LOADS = {
    "turn": RoleLoad(calls_per_turn=1, reads="transcript"),
    "reply": RoleLoad(calls_per_reply=1, reads="transcript"),
    "judges": RoleLoad(calls_per_episode=2, reads="transcript"),
}
lengths = st.integers(1, 12)


@settings(max_examples=50)
@given(lengths, lengths, lengths, st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_volumes_are_those_of_played_out_episodes(setup, output, reply, episodes):
    tokens = EpisodeTokens(setup=setup, output=output, reply=reply)
    counts = {float(turns): episodes.count(turns) for turns in set(episodes)}
    workload = Workload(
        groups=1, group_size=1, steps=1, turns=HistogramTurns(counts=counts), tokens=tokens
    )
    calls, read, cached = (dict.fromkeys(("policy", *LOADS), 0) for _ in range(3))
    for turns in episodes:
        readers = {name: Reader() for name in calls}  # no cache from episode to episode
        play(tokens, turns, readers)
        for name, reader in readers.items():
            calls[name] += reader.calls
            read[name] += reader.read
            cached[name] += reader.cached
    planned = {name: role_volume(workload, load) for name, load in LOADS.items()}
    planned["policy"] = policy_volume(workload)
    for name, volume in planned.items():
        assert volume.calls * len(episodes) == pytest.approx(calls[name])
        assert volume.input_tokens * len(episodes) == pytest.approx(read[name])
        assert volume.cacheable_tokens * len(episodes) == pytest.approx(cached[name])


def test_a_group_that_shares_its_setup():
    """Four rollouts of one task: three of the four first prompts are in the cache already."""
    tokens = EpisodeTokens(setup=10, output=3, reply=2)
    workload = Workload(groups=1, group_size=4, steps=1, turns=3, tokens=tokens)
    sharing = workload.policy.model_copy(update={"shared_setup": True})
    volume = policy_volume(workload.model_copy(update={"policy": sharing})).times(4)
    reader = Reader()
    for rollout in range(4):
        history = [("setup", i) for i in range(10)]
        for turn in range(3):
            reader.call(list(history))
            history += [("said", rollout, turn, i) for i in range(5)]
    assert volume.input_tokens == reader.read
    assert volume.cacheable_tokens == pytest.approx(reader.cached)
