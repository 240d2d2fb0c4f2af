"""Calls that an environment's real tools answered, gathered by playing it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from agentgym.client import ModelClient, SamplingParams
from agentgym.core import AgentEnv
from agentgym.errors import ConfigError
from agentgym.simulator import SimulatedWorld
from agentgym.simulators.memory import Entry
from agentgym.types import Action, Episode, Turn

MAX_TURNS = 60
"""Turns of one episode."""
IDLE_EPISODES = 20
"""Episodes without a call, one after another, after which gathering gives up."""


@dataclass
class RealCall:
    """A call that real tools answered."""

    entry: Entry
    """As in `SimulatedWorld.log`."""
    world: SimulatedWorld | None
    """The env's own world before the call, where it has one and it is known."""

    @property
    def name(self) -> str:
        """The tool."""
        return str(self.entry["name"])


@dataclass
class RealEpisode:
    """The calls of one episode, in order."""

    calls: list[RealCall]
    tools: tuple[Mapping[str, Any], ...]
    background: str


async def gather_calls(
    env: AgentEnv, *, calls: int, policy: ModelClient | None = None, seed: int = 0
) -> list[RealEpisode]:
    """Play episodes until the real tools have answered enough calls.

    Raises:
        ConfigError: If the policy calls nothing.
    """
    env.action_space.seed(seed)
    found: list[RealEpisode] = []
    wanted, idle, number = calls, 0, 0
    while wanted > 0 and idle < IDLE_EPISODES:
        episode = await _play(
            env, policy, seed=seed + number, most=wanted, session=f"audit-{number}"
        )
        number += 1
        idle = 0 if episode.calls else idle + 1
        wanted -= len(episode.calls)
        if episode.calls:
            found.append(episode)
    if not found:
        raise ConfigError(
            f"{IDLE_EPISODES} episodes without a call that the env's tools answered; "
            "choose a policy that calls tools"
        )
    return found


async def _play(
    env: AgentEnv, policy: ModelClient | None, *, seed: int, most: int, session: str
) -> RealEpisode:
    messages, info = await env.areset(seed=seed, options={"judging": "deferred"})
    history, worlds, answered, over = list(messages), [_world_of(env)], 0, False
    while not over and answered < most and len(worlds) <= MAX_TURNS:
        action: Action = env.action_space.sample()
        if policy is not None:
            if (observe := getattr(policy, "observe", None)) is not None:  # scripted ones want it
                observe(session, info)
            sampling = SamplingParams(seed=seed + len(worlds))
            completion = await policy.complete(history, info["tools"], sampling, session=session)
            action = completion.message
        messages, _, terminated, truncated, info = await env.astep(action)
        over = terminated or truncated
        record = env.running.records[-1] if env.running else None
        if record is not None:
            history += [record.message, *messages]
            answered += sum(call.status in ("ok", "error") for call in record.calls)
        worlds.append(_world_of(env))
    if not over:
        *_, info = await env.atruncate("turns")
    if policy is not None:
        await policy.release(session)
    record_of_all = cast("Episode", info["episode_record"])
    return _real_episode(record_of_all, worlds, most)


def _world_of(env: AgentEnv) -> SimulatedWorld | None:
    world = getattr(env, "world", None)
    return copy.deepcopy(world) if isinstance(world, SimulatedWorld) else None


def _real_episode(
    episode: Episode, worlds: Sequence[SimulatedWorld | None], most: int
) -> RealEpisode:
    calls = [
        RealCall(entry, worlds[turn.index] if first else None)
        for turn in episode.turns
        for first, entry in _entries(turn)
    ]
    told = [m["content"] for m in episode.messages if m["role"] in ("system", "developer")]
    return RealEpisode(calls[:most], episode.tools, "\n\n".join(map(str, told)))


def _entries(turn: Turn) -> Iterator[tuple[bool, Entry]]:
    """The answered calls of a turn, each with whether it is the turn's first."""
    texts = {m.get("tool_call_id"): m["content"] for m in turn.replies if m["role"] == "tool"}
    if not texts and len(turn.calls) == 1 and turn.replies:  # a call in text, answered in text
        texts = {turn.calls[0].id: turn.replies[0]["content"]}
    for position, call in enumerate(turn.calls):
        if call.status not in ("ok", "error") or call.id not in texts:
            continue
        entry: Entry = {"name": call.name, "arguments": dict(call.arguments or {})}
        if call.status == "ok":
            entry["result"] = _value(texts[call.id])
        else:
            entry["error"] = texts[call.id]
        yield position == 0, entry


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
