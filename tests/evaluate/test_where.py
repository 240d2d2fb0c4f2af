"""Evaluations whose calls are recorded or replayed, or that a service plays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from serving import config_for_tests, serving

from agentgym.client import SamplingParams
from agentgym.errors import AgentGymError, ConfigError
from agentgym.evaluate.columns import model_column, scripted_column
from agentgym.evaluate.harness import Evaluation
from agentgym.evaluate.setting import EvaluationSetting
from agentgym.evaluate.where import Where
from agentgym.rollout import Limits, RunBudget
from agentgym.serve.allowed import Allowed
from agentgym.testing.quirky import QuirkyServer, answer
from agentgym.traces import TraceFile

ENV = "agentgym/WebShop-v0"
NOWHERE = "http://127.0.0.1:9/v1"


def columns(*servers: QuirkyServer | str):
    """Models that play the same episodes; their names differ, and what they say."""
    urls = [each if isinstance(each, str) else each.url for each in servers]
    return [
        model_column(f"{name}=m@{url}", sampling=SamplingParams(max_tokens=32))
        for name, url in zip(("one", "a/b"), urls, strict=False)
    ]


def evaluation(out: Path, played, where: Where, **options) -> Evaluation:
    limits = options.pop("limits", Limits(max_turns=2, concurrency=2, init_concurrency=2))
    setting = EvaluationSetting(ENV, n=3)
    return Evaluation(setting, played, out=out, limits=limits, where=where, **options)


async def play(one: Evaluation):
    await one.play()
    return one.write()


def told(result):
    return {
        column.name: [(a.task_id, a.reward, a.turns, a.usage) for a in column.attempts]
        for column in result.columns
    }


@pytest.mark.parametrize("at_once", [False, True])
async def test_what_was_recorded_is_replayed_without_a_server(tmp_path: Path, at_once: bool):
    """Both columns play the same tasks, seeds and samples: in one file, one would be the other."""
    record = Where(record=tmp_path / "calls")
    async with (
        QuirkyServer(answer("search[lamp]")) as first,
        QuirkyServer(answer("search[a much longer wish]")) as second,
    ):
        who = columns(first, second)
        recorded = await play(evaluation(tmp_path / "x", who, record, at_once=at_once))
        asked = len(first.requests) + len(second.requests)
        assert asked >= 2 * 3 * 2
        again = await play(evaluation(tmp_path / "x", who, record, at_once=at_once))
        assert len(first.requests) + len(second.requests) == asked, "nothing was missing"
        assert told(again) == told(recorded)
    assert sorted(f.name for f in (tmp_path / "calls").iterdir()) == ["a_b.jsonl", "one.jsonl"]
    replay = Where(replay=tmp_path / "calls")
    played = await play(evaluation(tmp_path / "y", who, replay, at_once=at_once))
    assert told(played) == told(recorded)
    files = [tmp_path / "y" / column.trace_file for column in played.columns]
    said = [str([trace.messages for trace in TraceFile(file)]) for file in files]
    assert ["longer wish" in text for text in said] == [False, True]


async def test_calls_of_an_episode_that_was_lost_are_not_paid_for_again(tmp_path: Path):
    where = Where(record=tmp_path / "calls")
    async with QuirkyServer(answer("search[lamp]")) as server:
        who = columns(server)
        result = await play(evaluation(tmp_path / "x", who, where))
        asked = len(server.requests)
        file = tmp_path / "x" / result.columns[0].trace_file
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:1]))  # as by a kill
        again = await play(evaluation(tmp_path / "x", who, where))
        preflight = 1
        assert len(server.requests) == asked + preflight
        assert len(again.columns[0].attempts) == 3


async def test_a_recording_that_is_not_there_is_named_before_anything_is_played(tmp_path: Path):
    (tmp_path / "calls").mkdir()
    who = columns(NOWHERE, NOWHERE)
    with pytest.raises(ConfigError, match=r"there is no one.jsonl, the recording of column one"):
        await evaluation(tmp_path / "x", who, Where(replay=tmp_path / "calls")).play()


async def test_a_service_plays_the_columns_that_are_models(tmp_path: Path):
    scripted = scripted_column("rule")
    config = config_for_tests(allowed=Allowed(envs=(ENV,)))
    async with (
        serving(config) as service,
        QuirkyServer(answer("search[lamp]")) as first,
        QuirkyServer(answer("search[sofa]")) as second,
    ):
        who = [scripted, *columns(first, second)]
        by_service = Where(service=service.url)
        with pytest.raises(ConfigError, match=r"column rule is a policy of the env's own"):
            await evaluation(tmp_path / "x", who, by_service).play()
        assert not first.requests
        await play(evaluation(tmp_path / "x", [scripted], Where()))
        result = await play(evaluation(tmp_path / "x", who, by_service, at_once=True))
        here = await play(evaluation(tmp_path / "y", who[1:], Where()))
    assert [len(column.attempts) for column in result.columns] == [3, 3, 3]
    assert all(attempt.scored for column in result.columns for attempt in column.attempts)
    facts = [(a.task_id, a.external, a.reward, a.turns) for a in result.columns[1].attempts]
    assert facts == [(a.task_id, a.external, a.reward, a.turns) for a in here.columns[0].attempts]


async def test_a_service_keeps_no_budget_of_all_columns(tmp_path: Path):
    limits = Limits(budget=RunBudget(tokens=100), concurrency=1, init_concurrency=1)
    where = Where(service="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="a budget is for all columns together"):
        await evaluation(tmp_path / "x", columns(NOWHERE), where, limits=limits).play()


def test_a_service_that_is_not_there_is_one_line(tmp_path: Path):
    where = Where(service="http://127.0.0.1:9")
    with pytest.raises(AgentGymError, match="is the service running there"):
        asyncio.run(evaluation(tmp_path / "x", columns(NOWHERE), where).play())


def test_one_way_at_a_time(tmp_path: Path):
    with pytest.raises(ConfigError, match="give one of --record and --service"):
        Where(record=tmp_path, service="http://x")
