"""The canary: drift is seen, what isn't drift isn't, and the run never waits for it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import pytest

from agentgym.clients import ScriptedClient
from agentgym.errors import ConfigError, JudgeError, RolloutStopped
from agentgym.judge import Score
from agentgym.metering import charge
from agentgym.rollout import Canary, Engine, EpisodeRequest, Limits, summarize
from agentgym.rollout.progress import LineProgress
from agentgym.testing.envs import CounterEnv
from agentgym.trace import Trace
from agentgym.types import Episode, Task, Usage

SUBMIT = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "submit", "arguments": "{}"}}
    ],
}


def known(totals: list[float]) -> list[tuple[Episode, Score]]:
    return [
        (
            Episode(
                env_id="x",
                task=Task(task_id=f"gold/{n}"),
                messages=({"role": "user", "content": str(total)},),
                terminated=True,
                truncated=False,
                termination_reason="answered",
            ),
            Score(total=total, correct=total >= 0.5),
        )
        for n, total in enumerate(totals)
    ]


class DriftingJudge:
    """Knows the gold set's totals, and is `off` by an amount a test may change."""

    inline = False

    def __init__(self) -> None:
        self.off = 0.0
        self.broken = False
        self.gate: asyncio.Event | None = None

    async def score(self, episode: Episode) -> Score:
        if not episode.task.task_id.startswith("gold/"):
            return Score(total=1.0, correct=True)
        charge("judge", Usage(prompt_tokens=3))
        if self.gate is not None:
            await self.gate.wait()
        if self.broken:
            raise JudgeError("no JSON")
        total = float(episode.messages[0]["content"]) + self.off
        return Score(total=total, correct=total >= 0.5)


def env_of(judge: Any) -> Any:
    def make() -> CounterEnv:
        env = CounterEnv()
        env.scoring = env.scoring.model_copy(update={"judge": judge})
        return env

    return make


async def play(judge: Any, canary: Canary, count: int = 10, **fields: Any) -> list[Trace]:
    engine = Engine(
        env_of(judge),
        client=ScriptedClient([SUBMIT]),
        canary=canary,
        limits=Limits(concurrency=1),
        **fields,
    )
    async with asyncio.timeout(20), engine:
        return [t async for t in engine.run(EpisodeRequest(seed=k) for k in range(count))]


async def test_steady_judge_raises_nothing(caplog):
    canary = Canary(known([0.0, 1.0]), every=3)
    traces = await play(DriftingJudge(), canary)
    after = [check.after_episodes for check in canary.checks]
    assert after[0] == 3
    assert all(later - earlier >= 3 for earlier, later in itertools.pairwise(after))
    assert len(after) >= 2
    assert (canary.drifts, canary.checks[0].error, canary.checks[0].flipped) == (0, 0.0, 0)
    assert canary.checks[0].spent["judge"].prompt_tokens == 6
    assert "drift" not in caplog.text
    assert "canary" not in traces[0].metadata
    assert traces[-1].metadata["canary"]["checks"] >= 1
    assert summarize(traces).drifted == 0


@pytest.mark.parametrize(("off", "bias"), [(0.3, 0.3), (-0.3, -0.3)])
async def test_drift_is_logged_counted_and_in_the_traces(caplog, off, bias):
    judge, canary = DriftingJudge(), Canary(known([0.4, 0.6]), every=4, tolerance=0.2)
    judge.off = off
    with caplog.at_level(logging.WARNING):
        traces = await play(judge, canary)
    check = canary.checks[0]
    assert check.error == pytest.approx(0.3)
    assert check.bias == pytest.approx(bias)
    assert (check.flipped, check.drifted, canary.drifts) == (1, True, 2)
    assert "judge drift after 4 episodes: the judge is 0.300 off on 2 canary" in caplog.text
    assert traces[-1].metadata["canary"]["drifted"] is True
    assert 0 < summarize(traces).drifted < 10


async def test_judge_that_no_longer_scores_has_drifted():
    judge, canary = DriftingJudge(), Canary(known([0.0, 1.0]), every=5)
    judge.broken = True
    await play(judge, canary, 5)
    assert (canary.checks[0].judged, canary.checks[0].failed) == (0, 2)
    assert (canary.checks[0].error, canary.drifts) == (None, 1)
    assert "scored none of the 2" in str(canary.checks[0])


async def test_drift_may_stop_the_run():
    judge, canary = DriftingJudge(), Canary(known([0.0]), every=5, stop=True)
    judge.off = 0.5
    with pytest.raises(RolloutStopped, match="after 5 episodes: the judge is 0.500 off"):
        await play(judge, canary, 1000)


async def test_the_run_does_not_wait_for_a_check():
    judge, canary = DriftingJudge(), Canary(known([0.0]), every=2)
    judge.gate = asyncio.Event()
    finished = []
    engine = Engine(env_of(judge), client=ScriptedClient([SUBMIT]), canary=canary)
    async with asyncio.timeout(20), engine:
        async for trace in engine.run(EpisodeRequest(seed=k) for k in range(10)):
            finished.append(trace)
            if len(finished) == 10:  # all over, while the first check still hangs
                judge.gate.set()
    assert [check.after_episodes for check in canary.checks] == [2]


async def test_check_that_hangs_is_given_up():
    judge, canary = DriftingJudge(), Canary(known([0.0]), every=2, timeout_s=0.05)
    judge.gate = asyncio.Event()
    await play(judge, canary, 2)
    assert (canary.checks[0].judged, canary.checks[0].failed) == (0, 1)


async def test_progress_shows_drift(capsys):
    judge, canary = DriftingJudge(), Canary(known([0.0]), every=2)
    judge.off = 1.0
    await play(judge, canary, 4, progress=LineProgress())
    assert "judge drift ×" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"known": []}, "at least one episode"),
        ({"every": 0}, "every must be at least 1"),
        ({"tolerance": float("nan")}, "tolerance must be at least 0, got nan"),
        ({"tolerance": -1}, "tolerance must be at least 0, got -1"),
    ],
)
def test_nonsense_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Canary(**{"known": known([0.0]), **fields})


async def test_judge_of_its_own_is_asked_instead_of_the_envs():
    asked, other = DriftingJudge(), DriftingJudge()
    asked.off = 0.5
    canary = Canary(known([0.0]), every=2, judge=asked)
    await play(other, canary, 2)
    assert canary.checks[0].error == 0.5
    assert "1 checks, 1 found drift" in canary.summary()
