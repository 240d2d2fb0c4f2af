"""The engine without cost, against cases worked by hand and against the real servers.

The episodes: a system prompt of 100 tokens and a task of 18; two turns, each with an answer of 20
tokens; a tool that takes 3 s and returns 16 tokens. The server: 10 tokens per second, both ways.
Alone, an episode takes 11.8 + 2 for its first turn, 3 for the tool, 1.6 + 2 for the second.
"""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from agentgym.testing.fleet import ReplicaSpec, SimulatedFleet, Workload
from agentgym.testing.fleet.model import Balanced, EqualAssignment, lower_bound, simulate

WORKLOAD = Workload(
    turns_median=2,
    turns_spread=0,
    completion_median=20,
    completion_spread=0,
    tool_median_s=3,
    tool_spread=0,
    observation_tokens=16,
    system_tokens=100,
)
SPEC = ReplicaSpec(slots=1, prefill_tokens_per_s=10, decode_tokens_per_s=10)


def played(n, episodes, concurrency, spec=SPEC):
    return simulate(
        WORKLOAD,
        [spec] * n,
        lambda: EqualAssignment(n),
        episodes=range(episodes),
        concurrency=concurrency,
    )


def test_one_episode_alone():
    run = played(1, episodes=1, concurrency=1)
    assert run.wall_s == pytest.approx(13.8 + 3.0 + 3.6)
    assert run.statistics.total("slot_s") == pytest.approx(17.4)
    assert run.statistics.total("cached_tokens") == 100 + 18 + 20


def test_two_episodes_share_a_slot():
    run = played(1, episodes=2, concurrency=2)
    # The second has the system prompt for free: 13.8 to 17.6. The first is back at 16.8 and waits,
    # until 21.2; the second is back at 20.6 and waits, until 24.8.
    assert run.wall_s == pytest.approx(24.8)
    assert run.statistics.total("waited_s") == pytest.approx(13.8 + 0.8 + 0.6)


def test_two_episodes_one_after_the_other():
    assert played(1, episodes=2, concurrency=1).wall_s == pytest.approx(20.4 + 3.8 + 3.0 + 3.6)


def test_two_servers_halve_the_work_but_both_compute_the_system_prompt():
    run = played(2, episodes=2, concurrency=2)
    assert run.wall_s == pytest.approx(20.4)
    assert run.statistics.hit_share == 1.0  # neither could know what the other was computing
    late = played(2, episodes=2, concurrency=1).statistics
    assert late.total("possible_tokens") - late.total("cached_tokens") == 100


def test_the_lower_bound_is_work_over_capacity_or_the_longest_episode():
    bound = lower_bound(WORKLOAD, [SPEC], episodes=range(2))
    assert bound.capacity_s == pytest.approx(10.0 + 2 * 7.4)
    assert bound.longest_s == pytest.approx(10.4)  # the system prompt may be there already
    assert bound.wall_s == bound.capacity_s
    wide = [SPEC.model_copy(update={"slots": 8})]
    assert lower_bound(WORKLOAD, wide, episodes=range(2)).wall_s == pytest.approx(10.4)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("routing", ["equal", "balanced"])
def test_no_routing_beats_the_lower_bound(n, routing):
    made = {"equal": lambda: EqualAssignment(n), "balanced": lambda: Balanced([4] * n)}
    workload, specs, episodes = Workload(), [ReplicaSpec(slots=4)] * n, range(100)
    run = simulate(workload, specs, made[routing], episodes=episodes, concurrency=50)
    assert run.wall_s >= lower_bound(workload, specs, episodes=episodes).wall_s
    assert run.statistics.total("completed") == sum(map(workload.turns, episodes))


def test_our_routing_leaves_no_slot_free_while_others_wait_and_keeps_the_prefixes():
    specs = [ReplicaSpec(slots=4)] * 8
    slow = [ReplicaSpec(slots=4, decode_tokens_per_s=50)] * 2
    for fleet in (specs, [*specs[:6], *slow]):
        run = simulate(
            Workload(), fleet, lambda: Balanced([4] * 8), episodes=range(256), concurrency=256
        )
        assert run.statistics.total("idle_while_queued_s") == pytest.approx(0.0)
        assert run.statistics.total("spare_slot_s") == pytest.approx(0.0)
        assert run.statistics.hit_share > 0.95


def test_our_routing_is_worth_most_where_servers_differ():
    fleet = [ReplicaSpec(slots=4)] * 6 + [ReplicaSpec(slots=4, decode_tokens_per_s=50)] * 2
    made = {"equal": lambda: EqualAssignment(8), "balanced": lambda: Balanced([4] * 8)}
    walls = {
        name: simulate(Workload(), fleet, make, episodes=range(256), concurrency=256).wall_s
        for name, make in made.items()
    }
    assert walls["balanced"] < 0.85 * walls["equal"]


async def play_on(url, workload, episode, http):
    """Play an episode on a real server."""
    messages = list(workload.opening(episode))
    for turn in range(workload.turns(episode)):
        body = {"model": "m", "messages": messages}
        async with http.post(f"{url}/chat/completions", json=body) as response:
            answer = (await response.json())["choices"][0]["message"]
        messages += [answer, {"role": "tool", "content": workload.observation(episode, turn)}]


def test_the_servers_count_the_same_tokens_as_the_model():
    workload, specs, episodes = Workload(), [ReplicaSpec(slots=4)] * 2, range(12)
    run = simulate(workload, specs, lambda: EqualAssignment(2), episodes=episodes, concurrency=1)

    async def really():
        async with (
            SimulatedFleet(2, replica=specs, workload=workload, speed=2000) as fleet,
            aiohttp.ClientSession() as http,
        ):
            for episode in episodes:
                await play_on(fleet.urls[episode % 2], workload, episode, http)
            return fleet.statistics()

    real = asyncio.run(really())
    for name in ("requests", "prompt_tokens", "cached_tokens", "completion_tokens"):
        modelled = [getattr(replica, name) for replica in run.statistics.replicas]
        assert [getattr(replica, name) for replica in real.replicas] == modelled
    assert real.total("completed") == sum(workload.turns(episode) for episode in episodes)


async def test_whoever_comes_first_the_answers_are_the_same():
    workload = Workload()

    async def answers(order):
        async with (
            SimulatedFleet(1, workload=workload, speed=5000) as fleet,
            aiohttp.ClientSession() as http,
        ):
            plays = [play_on(fleet.urls[0], workload, episode, http) for episode in order]
            await asyncio.gather(*plays)
            return fleet.statistics().total("completion_tokens")

    assert await answers(range(8)) == await answers(reversed(range(8)))
