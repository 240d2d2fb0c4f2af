"""What was spent on episodes that were cancelled: in no trace, but in every figure that says so."""

from __future__ import annotations

import asyncio
import io
from typing import Any

from agentgym.client import Completion
from agentgym.clients import ScriptedClient
from agentgym.metering import charge
from agentgym.rollout import Engine, Enough, EpisodeRequest, Limits
from agentgym.rollout.combined import combined, history_of
from agentgym.rollout.metric_families import COUNTERS
from agentgym.rollout.progress import LineProgress
from agentgym.rollout.status import EngineStatus
from agentgym.types import Usage
from tests.support.rolling import (
    SUBMIT,
    Judge,
    Maker,
    RankingJudge,
    groups,
    never,
    read,
    singles,
    until,
)

PAID = Usage(prompt_tokens=10, completion_tokens=2, cost_usd=0.5)
JUDGED = Usage(prompt_tokens=3, cost_usd=0.25)


class Paid(ScriptedClient):
    """A policy that charges each call."""

    def __init__(self) -> None:
        super().__init__([SUBMIT])
        self.asked = 0

    async def complete(self, *args: Any, **kwargs: Any) -> Completion:
        self.asked += 1
        charge("policy", PAID)
        return (await super().complete(*args, **kwargs)).model_copy(update={"usage": PAID})


def dollars(status: EngineStatus, role: str) -> float:
    """All that was spent on a role."""
    spent = (usage.get(role) for usage in (status.usage, status.dropped_usage))
    return sum(usage.cost_usd or 0.0 for usage in spent if usage is not None)


async def test_what_cancelled_episodes_had_cost_is_told_everywhere():
    judged = []

    async def hook(episode: Any) -> None:
        charge("judge", JUDGED)
        judged.append(episode)
        number = len(judged)
        await until(lambda: policy.asked == 8)
        if number > 3:
            await never()

    policy, stream = Paid(), io.StringIO()
    engine = Engine(
        Maker(judge=Judge(hook)),
        client=policy,
        limits=Limits(eval_concurrency=2),
        progress=LineProgress(stream),
    )
    traces = await read(engine, singles(8), enough=Enough(episodes=3))
    status = engine.status()
    assert (len(traces), policy.asked) == (3, 8)
    assert (status.episodes.finished, status.episodes.dropped) == (3, 5)
    assert dollars(status, "policy") == 8 * 0.5
    assert dollars(status, "judge") == len(judged) * 0.25
    assert status.dropped_usage["policy"].prompt_tokens == 50
    assert "dropped 5, which had cost: policy 50 in, 10 out, $2.5" in status.text()
    assert "dropped 5 (policy $2.5" in stream.getvalue().splitlines()[-1]
    told = {family.name: dict(family.values(status)) for family in COUNTERS}
    assert told["agentgym_episodes_dropped"] == {(): 5}
    assert told["agentgym_dropped_cost_dollars"]["policy",] == 2.5
    assert told["agentgym_cost_dollars"]["policy",] == 1.5


async def test_a_judgement_of_a_group_that_is_broken_off_is_paid_once():
    """Also where the last one to leave the group has failed, and so isn't among the judged."""
    judging = asyncio.Event()

    async def hook() -> None:
        charge("judge", JUDGED)
        judging.set()
        await never()

    def others_wait() -> bool:
        return any((w.waiting, w.episodes) == ("siblings", 2) for w in engine.status().waiting)

    began = 0

    async def start(env: Any) -> None:
        nonlocal began
        began += 1
        if began == 3:
            await until(others_wait)
            raise RuntimeError("broken")

    engine = Engine(Maker(judge=RankingJudge(hook), start=start), client=Paid())
    async with engine:
        reading = asyncio.create_task(read(engine, groups(1, 3)))
        await judging.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        status = engine.status()
    assert status.episodes.masked == {"env": 1}
    assert status.episodes.dropped == 2
    assert dollars(status, "judge") == 0.25
    assert dollars(status, "policy") == 2 * 0.5


async def test_what_is_carried_is_not_dropped_until_it_is_cancelled():
    played = 0

    async def step(env: Any) -> None:
        nonlocal played
        played += 1
        if played > 2:
            await never()

    policy = Paid()
    engine = Engine(Maker(step=step), client=policy)
    requests = [EpisodeRequest(seed=k) for k in range(4)]
    carries = Enough(episodes=2, unfinished="carry")
    async for _ in engine.run(requests, enough=carries):
        pass
    await until(lambda: policy.asked == 4)
    assert engine.status().episodes.dropped == 0
    await engine.aclose()
    assert engine.status().episodes.dropped == 2
    assert dollars(engine.status(), "policy") == 4 * 0.5


async def test_dropped_episodes_of_several_engines_add_up_and_stay():
    one = EngineStatus.model_validate(
        {
            "runs": 0,
            "elapsed_s": 1.0,
            "episodes": {"dropped": 2},
            "in_flight": 0,
            "dropped_usage": {"policy": PAID},
        }
    )
    both = combined([one, history_of(one)])
    assert both.episodes.dropped == 4
    assert both.dropped_usage["policy"].cost_usd == 1.0
