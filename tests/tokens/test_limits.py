"""Tokens per turn, tokens per episode and the context: three limits, told before a server errs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from template_zoo import byte_tokenizer

from agentgym.client import Endpoint, SamplingParams, TokenPath
from agentgym.clients import ChatClient
from agentgym.core import AgentEnv
from agentgym.judge import Score
from agentgym.rollout import Engine, EpisodeRequest, Limits
from agentgym.testing.token_model import TokenModel
from agentgym.testing.token_server import TokenServer
from agentgym.tools import Tool
from agentgym.trace import Trace
from agentgym.train.rows import training_row
from agentgym.types import Episode, Message, Task

CONTEXT = 512
STOP = "<|im_end|>"


def page(size: int) -> str:
    """What a policy says to read a page of that size."""
    call = f'{{"name": "read", "arguments": {{"size": {size}}}}}'
    return f"<tool_call>\n{call}\n</tool_call>{STOP}"


class Answered:
    """Whether the episode came to an end of its own."""

    async def score(self, episode: Episode) -> Score:
        return Score(total=float(episode.terminated), correct=episode.terminated)


class PagesEnv(AgentEnv):
    """Reads pages of any size; a task's id is the size of its opening."""

    def __init__(self) -> None:
        super().__init__(tools=[Tool(self.read, inline=True)], judge=Answered(), max_turns=6)

    def task_ids(self) -> Sequence[str]:
        return ("20", "10000")

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        return Task(task_id=options.get("task_id") or "20")

    async def start(self, task: Task) -> Sequence[Message]:
        return ({"role": "user", "content": "." * int(task.task_id)},)

    def read(self, size: int) -> str:
        """Read.

        Args:
            size: How much.
        """
        return "#" * size


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer("qwen2_5", SHORT)


# Without the long text about tools, so that the figures below are the tests' own.
SHORT = (
    "{% if tools %}<tool_call></tool_call>{% endif %}{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


async def played(
    tokenizer: Any,
    folder: Path,
    script: Sequence[Any],
    *tasks: str,
    max_tokens: int = 80,
    limits: Mapping[str, Any] | None = None,
) -> tuple[list[Trace], TokenServer]:
    """The tasks' episodes, one after another, and the server they were played on."""
    tokenizer.save_pretrained(folder)
    model = TokenModel(len(tokenizer), favoured={tokenizer.eos_token_id: 4.0})
    server = TokenServer(model, script=script, tokenizer=tokenizer, max_model_len=CONTEXT)
    async with server:
        path = TokenPath(tokenizer=str(folder), max_context=CONTEXT)
        client = ChatClient(Endpoint(base_url=server.url, model="policy", tokens=path))
        engine = Engine(
            PagesEnv,
            client=client,
            sampling=SamplingParams(max_tokens=max_tokens),
            limits=Limits(concurrency=1, init_concurrency=1, **(limits or {})),
        )
        requests = [EpisodeRequest(task_id=task, seed=i) for i, task in enumerate(tasks or ("20",))]
        traces = [trace async for trace in engine.run(requests)]
        await engine.aclose()
        await client.aclose()
    return traces, server


async def test_overlong_result_ends_the_episode_before_the_server_errs(
    tokenizer: Any, tmp_path: Path
) -> None:
    """F08: two thousand tokens where 512 fit."""
    (trace,), server = await played(tokenizer, tmp_path, [page(50), page(2000)])
    assert server.refused == []
    assert len(server.requests) == 2
    assert trace.truncated
    assert trace.truncation_reason == "context"
    assert trace.failure_class in (None, "policy")
    row = training_row(trace, filler_id=0)
    said = tokenizer.decode(row.completion_ids)
    assert said.count("#" * 50) == 1
    assert "#" * 51 not in said
    assert said.endswith(page(2000))
    assert row.env_mask[-1] == 1


async def test_overlong_opening_is_left_out_and_the_run_goes_on(
    tokenizer: Any, tmp_path: Path
) -> None:
    """F20: ten thousand tokens where 512 fit."""
    traces, server = await played(tokenizer, tmp_path, ["ok" + STOP], "10000", "20")
    by_task = {trace.task_id: trace for trace in traces}
    assert server.refused == []
    assert len(server.requests) == 1
    long = by_task["10000"]
    assert long.truncation_reason == "context"
    assert long.turns == ()
    assert training_row(long, filler_id=0).fault == "the opening leaves no room in the context"
    assert by_task["20"].truncation_reason is None
    assert training_row(by_task["20"], filler_id=0).fault is None


async def test_the_last_token_that_fits_is_sampled_and_then_it_is_over(
    tokenizer: Any, tmp_path: Path
) -> None:
    (probe,), _ = await played(tokenizer, tmp_path, [page(10), "ok" + STOP])
    second = len(probe.turns[1].prompt_ids or ())
    room = CONTEXT - second
    # As many more characters as leave exactly one token, or none.
    for left, turns in ((1, 2), (0, 1)):
        script = [page(10 + room - left - 1), "aaa"]  # "10" and "3xx" differ by one digit
        (trace,), server = await played(tokenizer, tmp_path, script)
        assert server.refused == []
        assert trace.truncation_reason == "context"
        assert len(trace.turns) == turns
        if left:
            assert len(trace.turns[1].prompt_ids or ()) == CONTEXT - 1
            assert server.requests[1]["max_tokens"] == 1


async def test_every_request_asks_for_what_remains_of_all_three(
    tokenizer: Any, tmp_path: Path
) -> None:
    per_turn, per_episode = 70, 150
    script = [page(10), page(10), page(10), page(10)]
    (trace,), server = await played(
        tokenizer,
        tmp_path,
        script,
        max_tokens=per_turn,
        limits={"max_episode_tokens": per_episode},
    )
    assert server.refused == []
    sampled = 0
    for request, turn in zip(server.requests, trace.turns, strict=True):
        room = CONTEXT - len(request["prompt"])
        assert request["max_tokens"] == min(per_turn, per_episode - sampled, room)
        sampled += len(turn.completion_ids or ())
    assert sampled == per_episode
    assert trace.turns[-1].cut_off
    assert trace.truncation_reason == "tokens"


async def test_what_the_environment_says_is_no_part_of_the_episodes_tokens(
    tokenizer: Any, tmp_path: Path
) -> None:
    one_call = len(tokenizer(page(99), add_special_tokens=False)["input_ids"])
    (trace,), _ = await played(
        tokenizer,
        tmp_path,
        [page(99), page(99), "ok" + STOP],
        limits={"max_episode_tokens": 2 * one_call + 40},
    )
    assert len(trace.turns) == 3
    assert trace.truncation_reason is None


async def test_a_turn_that_is_too_long_is_cut_off_and_the_episode_goes_on(
    tokenizer: Any, tmp_path: Path
) -> None:
    (trace,), server = await played(
        tokenizer, tmp_path, [page(10), page(10), "ok" + STOP], max_tokens=20
    )
    first = trace.turns[0]
    assert server.requests[0]["max_tokens"] == 20
    assert first.cut_off
    assert len(first.completion_ids or ()) == 20
    assert len(trace.turns) > 1
