"""Judging stored traces again: nothing is played, nothing is lost, no number is invented."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.clients import ScriptedClient
from agentgym.errors import ConfigError, JudgeError, TraceError
from agentgym.judge import Score, Scoring, resolve_gates
from agentgym.judges.rescore import (
    PREVIOUS_VERDICTS,
    Rescoring,
    episode_of,
    is_judgeable,
    rescore,
    summary_of,
    with_verdict,
)
from agentgym.metering import charge
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.testing.envs import CounterEnv, QuizEnv, ReachedTarget
from agentgym.testing.messages import calling, tool_call
from agentgym.trace import Trace
from agentgym.types import Task, Usage, Verdict


class Saying:
    """A judge that says what a function of the episode says."""

    inline = True

    def __init__(self, function):
        self.function = function
        self.seen = []

    async def score(self, episode):
        self.seen.append(episode)
        charge("judge", Usage(prompt_tokens=10))
        value = self.function(episode)
        if isinstance(value, Exception):
            raise value
        return Score(total=value, components={"quality": value}, correct=value == 1.0)


def play(make_env, script, n=3) -> list[Trace]:
    async def run():
        async with Engine(make_env, client=ScriptedClient(script)) as engine:
            return [trace async for trace in engine.run(EpisodeRequest(seed=k) for k in range(n))]

    return sorted(asyncio.run(run()), key=lambda trace: trace.seed)


def again(traces, judge, **options):
    return asyncio.run(rescore(traces, Scoring(judge=judge), **options))


@pytest.fixture(scope="module")
def answered() -> list[Trace]:
    """Three quiz episodes that ended with an answer, which is wrong at least twice."""
    return play(QuizEnv, ["Lima"])


def failed_by(trace: Trace, failure_class: str) -> Trace:
    verdict = Verdict(
        failure_class=failure_class,
        judge_failed=failure_class == "judge",
        masked=True,
        reward=None,
        reason="it broke",
    )
    return trace.model_copy(
        update={"verdict": verdict, "failure_class": failure_class, "error": "it broke"}
    )


def test_the_episode_of_a_trace_is_the_one_that_was_judged():
    """Whatever a judge may look at comes back equal, the hidden reference by its task."""
    kept = []

    class Keeping(ReachedTarget):
        async def score(self, episode):
            kept.append(episode)
            return await super().score(episode)

    class Env(CounterEnv):
        def __init__(self):
            super().__init__(targets=[2])
            self.scoring = Scoring(judge=Keeping(), gates=resolve_gates(None))

    script = [
        calling(tool_call("add", "c1", amount=1), {"id": "c2", "function": {"name": "nope"}}),
        calling(tool_call("add", "c3", amount=1)),
        calling(tool_call("submit", "c4")),
    ]
    (trace,) = play(Env, script, n=1)
    read_back = Trace.model_validate_json(trace.to_json_line())
    (played,) = kept
    found = episode_of(read_back, played.task)
    left_out = {"env_id", "spent", "turns"}
    assert found.model_dump(exclude=left_out) == played.model_dump(exclude=left_out)
    assert found.malformed_calls == played.malformed_calls == 1
    assert found.outcome == {"value": 2}
    assert found.task.reference == 2


def test_a_new_verdict_takes_the_place_of_the_old_one_which_is_kept(answered):
    before = [trace.model_dump_json() for trace in answered]
    results = again(answered, Saying(lambda episode: 1.0))
    assert [r.trace.trace_id for r in results] == [t.trace_id for t in answered]
    for old, result in zip(answered, results, strict=True):
        assert result.trace.reward == 1.0
        assert result.trace.metadata[PREVIOUS_VERDICTS] == [old.verdict.model_dump(mode="json")]
        assert result.trace.messages == old.messages
        assert result.trace.usage["judge"].prompt_tokens == 10
        assert result.before == old.verdict
    assert [trace.model_dump_json() for trace in answered] == before  # the originals are untouched


def test_a_third_judging_keeps_both_earlier_verdicts(answered):
    once = [r.trace for r in again(answered, Saying(lambda episode: 0.5))]
    twice = again(once, Saying(lambda episode: 0.25))
    rewards = [v["reward"] for v in twice[0].trace.metadata[PREVIOUS_VERDICTS]]
    assert rewards == [answered[0].reward, 0.5]
    assert twice[0].trace.usage["judge"].prompt_tokens == 20
    assert Trace.model_validate_json(twice[0].trace.to_json_line()) == twice[0].trace


def test_only_failed_leaves_the_others_alone(answered):
    traces = [answered[0], failed_by(answered[1], "judge"), answered[2]]
    judge = Saying(lambda episode: 1.0)
    results = again(traces, judge, only_failed=True)
    assert [r.judged for r in results] == [False, True, False]
    assert [r.trace for r in results][::2] == traces[::2]
    mended = results[1].trace
    assert (mended.reward, mended.failure_class, mended.error, mended.failed_stage) == (
        1.0,
        None,
        None,
        None,
    )
    assert len(judge.seen) == 1


def test_what_fails_again_stays_masked(answered):
    traces = [failed_by(answered[0], "judge")]
    (result,) = again(traces, Saying(lambda episode: JudgeError("still down")))
    assert (result.trace.reward, result.trace.verdict.masked) == (None, True)
    assert result.trace.failure_class == "judge"
    assert "still down" in result.trace.error
    assert result.trace.usage["judge"].prompt_tokens == 10  # failed judgements are paid for


def test_a_judgement_that_fails_now_does_not_bring_the_old_number_back(answered):
    (result,) = again([answered[0]], Saying(lambda episode: JudgeError("down")))
    assert result.before.reward is not None
    assert result.trace.reward is None
    assert not result.trace.scored


@pytest.mark.parametrize("failure_class", ["env", "infra", "simulator"])
def test_what_something_else_broke_is_not_judged(answered, failure_class):
    trace = failed_by(answered[0], failure_class)
    judge = Saying(lambda episode: 1.0)
    (result,) = again([trace], judge)
    assert (result.judged, result.trace, judge.seen) == (False, trace, [])
    assert not is_judgeable(trace)
    with pytest.raises(TraceError, match=rf"its episode failed \({failure_class}\)"):
        episode_of(trace)


def test_a_failed_policy_and_a_cap_are_judged():
    traces = play(CounterEnv, [calling(tool_call("read", "c"))] * 8, n=1)
    assert traces[0].truncated
    (result,) = again(traces, Saying(lambda episode: float(episode.truncated)))
    assert result.trace.reward == 1.0


def test_gates_are_applied_again():
    """A verdict is judge and gates: an empty answer trips one whatever the judge says."""
    (trace,) = play(QuizEnv, [""], n=1)
    scoring = Scoring(judge=Saying(lambda episode: 1.0), gates=resolve_gates(None))
    (result,) = asyncio.run(rescore([trace], scoring))
    assert result.trace.verdict.gates["no_answer"]
    assert result.trace.reward == 0.5


def test_the_task_comes_with_its_reference_and_one_that_is_gone_masks_the_trace(answered):
    def task_of(trace):
        if trace.seed == 1:
            raise KeyError(trace.task_id)
        return Task(task_id=trace.task_id, reference="Lima")

    judge = Saying(lambda episode: float(episode.answer == episode.task.reference))
    results = again(answered, judge, task_of=task_of)
    assert [r.trace.reward for r in results] == [1.0, None, 1.0]
    assert results[1].trace.failure_class == "judge"
    assert "its task can't be had again: KeyError" in results[1].trace.error


def test_groups_are_judged_together(answered):
    class Ranking:
        inline = True

        async def score_group(self, episodes):
            return [Score(total=k / 10) for k in range(len(episodes))]

    groups = ["a", "b", "a"]
    traces = [t.model_copy(update={"group": g}) for t, g in zip(answered, groups, strict=True)]
    assert [r.trace.reward for r in again(traces, Ranking())] == [0.0, 0.0, 0.1]


async def test_traces_are_taken_as_they_are_needed(answered):
    """A file may have more of them than memory holds."""
    taken = []

    def reading():
        for number in range(50):
            taken.append(number)
            yield answered[0].model_copy(update={"trace_id": str(number)})

    rescoring = Rescoring(Scoring(judge=Saying(lambda episode: 1.0)), concurrency=4)
    given = 0
    async for _ in rescoring.run(reading()):
        given += 1
        assert len(taken) <= given + 4
    assert given == 50


def test_the_summary_adds_up(answered):
    scored = answered[0].model_copy(update={"verdict": Verdict(reward=0.0, correct=False)})
    traces = [scored, failed_by(answered[1], "judge"), failed_by(answered[2], "env")]
    results = again(traces, Saying(lambda episode: 1.0))
    summary = summary_of(results)
    assert (summary.n, summary.judged, summary.not_judgeable) == (3, 2, 1)
    assert (summary.newly_scored, summary.still_failed, summary.newly_failed) == (1, 0, 0)
    assert (summary.changed, summary.solved_before, summary.solved_now) == (1, 0, 2)
    assert (summary.mean_reward_before, summary.mean_reward_now) == (0.0, 1.0)
    assert summary.spent["judge"].calls == 2
    failed = summary_of(again([scored], Saying(lambda episode: JudgeError("x"))))
    assert (failed.newly_failed, failed.mean_reward_now) == (1, None)


async def test_leaving_the_loop_early_cancels_what_runs(answered):
    started, cancelled = [], []

    class Hanging:
        inline = False

        async def score(self, episode):
            started.append(episode)
            if len(started) == 1:
                return Score(total=1.0)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(episode)
                raise

    results = Rescoring(Scoring(judge=Hanging())).run(answered)
    first = await anext(results)
    assert first.trace.reward == 1.0
    await results.aclose()
    assert len(cancelled) == len(started) - 1 == 2


async def test_no_more_than_allowed_are_judged_at_once(answered):
    running, most = 0, 0

    class Counting:
        inline = False

        async def score(self, episode):
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(5):
                await asyncio.sleep(0)
            running -= 1
            return Score(total=0.0)

    rescoring = Rescoring(Scoring(judge=Counting()), concurrency=2)
    assert len([r async for r in rescoring.run(answered * 4)]) == 12
    assert most == 2
    with pytest.raises(ConfigError, match="concurrency must be at least 1"):
        Rescoring(Scoring(judge=Counting()), concurrency=0)


def test_a_note_says_who_judged(answered):
    trace = with_verdict(answered[0], Verdict(reward=0.5), note={"judge": "m"})
    assert trace.metadata["rescored"] == {"judge": "m"}
