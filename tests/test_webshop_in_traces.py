"""A WebShop score says which catalogue it was made on (case D08), whoever wrote the trace."""

from __future__ import annotations

import gymnasium

from agentgym.clients import ScriptedClient
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.trace import Trace
from agentgym.wrappers import TraceLogger

ENV = "agentgym/WebShop-v0"


async def _rolled_out(num_products: int) -> Trace:
    client = ScriptedClient(["search[shoes]"])
    kwargs = {"num_products": num_products, "max_turns": 1}
    async with Engine(ENV, env_kwargs=kwargs, client=client) as engine:
        [trace] = [trace async for trace in engine.run([EpisodeRequest(seed=0)])]
    return trace


async def test_catalogue_size_and_hash_are_in_rolled_out_traces() -> None:
    small, large = await _rolled_out(50), await _rolled_out(60)
    assert small.metadata["task"]["n_products"] == 50
    assert large.metadata["task"]["n_products"] == 60
    assert small.metadata["task"]["digest"] != large.metadata["task"]["digest"]


async def test_logged_and_rolled_out_traces_name_the_same_catalogue() -> None:
    traces: list[Trace] = []
    env = TraceLogger(gymnasium.make(ENV, num_products=50, max_turns=1), traces.append)
    env.reset(seed=0)
    env.step("search[shoes]")
    assert traces[0].metadata["task"] == (await _rolled_out(50)).metadata["task"]
