"""The fleet as one server that is asked by token ids: `/v1/completions` as TRL uses it.

Servers, slots, prefix cache and virtual time are those of the simulated fleet. Which episode and
turn a prompt is in is read from its ids, and every answer is tokenised before the contest begins.
The first line it prints is its URL; it ends with standard input.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any

from aiohttp import web
from contest import TOOLS
from tokens import make_tokenizer

from agentgym.testing.fleet.prefix import Prompt
from agentgym.testing.fleet.replica import Job, Replicas, ReplicaSpec
from agentgym.testing.fleet.simulated_time import LoopTimers
from agentgym.testing.fleet.workload import Workload


class TokenServer:
    """Answers prompts of ids with ids.

    Args:
        workload: The episodes.
        episodes: How many.
        slots: Of the one server.
        speed: Virtual seconds per second.
    """

    def __init__(self, workload: Workload, *, episodes: int, slots: int, speed: float) -> None:
        self._workload = workload
        self._tokenizer = make_tokenizer(workload)
        timers = LoopTimers(asyncio.get_running_loop(), speed)
        self._replica = Replicas([ReplicaSpec(slots=slots)], timers).each[0]
        self._start, self._end = self._tokenizer.convert_tokens_to_ids(
            ["<|im_start|>", "<|im_end|>"]
        )
        self._marker = self._tokenizer.encode("This is episode ")
        self._stop = self._tokenizer.encode(".")[0]
        self._assistant = self._tokenizer.encode("assistant\n")[0]
        self._answers = {
            (number, turn): self._ids(number, turn)
            for number in range(episodes)
            for turn in range(workload.turns(number))
        }

    def _ids(self, number: int, turn: int) -> list[int]:
        answer = self._workload.answer(number, turn)
        text = answer["content"]
        for call in answer.get("tool_calls") or ():
            arguments = json.loads(call["function"]["arguments"])
            body = json.dumps({"name": call["function"]["name"], "arguments": arguments})
            text += f"\n<tool_call>\n{body}\n</tool_call>"
        return [*self._tokenizer.encode(text, add_special_tokens=False), self._end]

    def _where(self, ids: list[int]) -> tuple[int, int]:
        """The episode and the turn of a prompt."""
        marker = self._marker
        at = next(k for k in range(len(ids)) if ids[k : k + len(marker)] == marker) + len(marker)
        number = int(self._tokenizer.decode(ids[at : ids.index(self._stop, at)]))
        asked = sum(
            first == self._start and second == self._assistant
            for first, second in itertools.pairwise(ids)
        )
        return number, asked - 1

    async def _answer(self, ids: list[int]) -> dict[str, Any]:
        number, turn = self._where(ids)
        messages = list(self._workload.opening(number))
        for past in range(turn):
            observation = {"role": "tool", "content": self._workload.observation(number, past)}
            messages += [self._workload.answer(number, past), observation]
        done: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        job = Job(Prompt(messages, TOOLS), self._workload.answer(number, turn), done.set_result)
        self._replica.submit(job)
        await done
        answer = self._answers[number, turn]
        logprobs = [-0.5] * len(answer)
        names = [f"token_id:{token}" for token in answer]
        return {
            "token_ids": answer,
            "prompt_token_ids": ids,
            "logprobs": {"tokens": names, "token_logprobs": logprobs, "top_logprobs": logprobs},
            "finish_reason": "stop",
        }

    async def completions(self, request: web.Request) -> web.Response:
        """Answer one prompt, or a batch of them when all are done."""
        body = json.loads(await request.read())
        prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
        choices = await asyncio.gather(*map(self._answer, prompts))
        if len(prompts) > 1 or body.get("return_tokens_as_token_ids"):
            for choice in choices:
                choice["logprobs"]["top_logprobs"] = [None] * len(choice["token_ids"])
        return web.json_response({"choices": choices})


async def main() -> None:
    """Serve until standard input ends."""
    fields = json.loads(sys.argv[1])
    server = TokenServer(Workload(**fields.pop("workload")), **fields)
    app = web.Application(client_max_size=2**30)
    app.router.add_post("/v1/completions", server.completions)
    app.router.add_get("/health", lambda _: web.json_response({}))
    models = {"data": [{"id": "simulated"}]}
    app.router.add_get("/v1/models", lambda _: web.json_response(models))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    port = runner.addresses[0][1]
    print(f"http://127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


asyncio.run(main())
