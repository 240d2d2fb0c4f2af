"""verifiers 0.4 (`pip install verifiers==0.4.0`): agents, as its evaluation runs them.

Its own programs run in a process per episode, of which a machine takes some dozens. A harness "may
run its loop in-process, as long as every model call goes through the endpoint", says its
documentation, and so does this one; all episodes borrow one runtime, so nothing is started for
them. What is measured is then what verifiers does about a model call: interception, relay, trace.
Its client speaks to one URL.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import aiohttp
import verifiers.v1 as vf
from contest import TOOLS, Contest, measured
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.configs.task import TaskConfig


class LookUpTask(vf.Task):
    """Scored by whether the policy answered."""

    @vf.reward
    async def answered(self, trace: vf.Trace) -> float:
        """1 if the last message is the policy's."""
        return float(trace.branches[-1].messages[-1].role == "assistant")


class LoopHarness(vf.Harness[HarnessConfig]):
    """Asks, calls the tool, asks again, in this process."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    contest: Contest
    session_: aiohttp.ClientSession

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        """Play one episode."""
        system, prompt = self.resolve_prompt(data)
        number = int(re.search(r"\d+", prompt)[0])
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": prompt},
        ]
        headers = {"Authorization": f"Bearer {secret}"}
        for turn in range(self.contest.workload.turns(number)):
            body = {"model": ctx.model, "messages": messages, "tools": TOOLS}
            url = f"{endpoint}/chat/completions"
            async with self.session_.post(url, json=body, headers=headers) as response:
                response.raise_for_status()
                message = (await response.json())["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls") or ():
                found = await self.contest.tool(number, turn)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def main() -> None:
    """Play all episodes at once."""
    contest = Contest.from_command_line()
    config = vf.AgentConfig(
        model="simulated",
        client=vf.EvalClientConfig(base_url=contest.url, api_key_var="NO_SUCH_KEY"),
        sampling={"max_tokens": contest.workload.max_completion},
        harness={"id": "null"},
        runtime={"type": "subprocess"},
    )
    agent = vf.Agent(config)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, agent:
        agent.harness = LoopHarness(agent.harness.config)
        LoopHarness.contest, LoopHarness.session_ = contest, session
        tasks = []
        for number in range(contest.episodes):
            system, user = contest.workload.opening(number)
            data = vf.TaskData(idx=number, system_prompt=system["content"], prompt=user["content"])
            tasks.append(LookUpTask(data, TaskConfig()))
        async with agent.provision() as runtime:
            with measured(contest):
                runs = (agent.run(task, runtime=runtime) for task in tasks)
                traces = await asyncio.gather(*runs)
    assert all(trace.ok for trace in traces), next(t.errors for t in traces if not t.ok)


asyncio.run(main())
