"""Between rolling out and the verdict: on disk, and judged later without being played again."""

from __future__ import annotations

import asyncio
import json

import pytest

from agentgym.clients import ScriptedClient
from agentgym.errors import JudgeError, TraceError
from agentgym.judge import Score
from agentgym.metering import charge
from agentgym.rollout import Engine, EpisodeRequest, Limits
from agentgym.rollout.journal import Journal
from agentgym.rollout.plan import plan_requests
from agentgym.rollout.summary import summarize_file
from agentgym.testing.envs import CounterEnv
from agentgym.traces import TraceWriter, read_traces
from agentgym.types import Usage

SPENT = Usage(prompt_tokens=10, completion_tokens=2, cost_usd=0.5)
JUDGED = Usage(prompt_tokens=100, completion_tokens=1, cost_usd=0.01)


def submit():
    call = {"id": "c", "type": "function", "function": {"name": "submit", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


class Policy(ScriptedClient):
    """Submits at once, and is paid for it."""

    def __init__(self):
        super().__init__(lambda messages: submit())
        self.asked = 0

    async def complete(self, *args, **kwargs):
        self.asked += 1
        charge("policy", SPENT)
        completion = await super().complete(*args, **kwargs)
        return completion.model_copy(update={"usage": SPENT})


class PaidJudge:
    """Gives what it is told to; hangs or fails where told so."""

    inline = False

    def __init__(self, *, hangs=False, fails=False):
        self.hangs, self.fails = hangs, fails
        self.asked = asyncio.Event()
        self.episodes = []

    async def score(self, episode):
        self.episodes.append(episode)
        self.asked.set()
        charge("judge", JUDGED)
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.fails:
            raise JudgeError("the judge is out")
        return Score(total=episode.task.reference / 100, correct=True)


class GroupJudge(PaidJudge):
    """Ranks the rollouts of a task."""

    score = None

    async def score_group(self, episodes):
        self.asked.set()
        self.episodes.extend(episodes)
        charge("judge", JUDGED)
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return [Score(total=number / 10) for number in range(len(episodes))]


def judged_by(judge, *, digest="then"):
    """A counter whose tasks say what data they are of."""

    class JudgedCounter(CounterEnv):
        def __init__(self):
            super().__init__()
            self.scoring = self.scoring.model_copy(update={"judge": judge})
            self._needs_loop = True

        def choose_task(self, options):
            task = super().choose_task(options)
            return task.model_copy(update={"metadata": {"data_digest": digest}})

    return JudgedCounter


class Folder:
    """The files of a run, and running it."""

    def __init__(self, path):
        self.traces, self.unjudged = path / "traces.jsonl", path / "unjudged.jsonl"

    def kept(self):
        return list(read_traces(self.unjudged)) if self.unjudged.exists() else []

    async def play(self, env, requests, policy, *, until=None):
        """Play; cancelled once `until` is set, as a kill would."""

        async def run():
            with TraceWriter(self.traces) as writer, Journal(self.unjudged) as journal:
                async with Engine(env, client=policy, writer=writer, journal=journal) as engine:
                    return [trace async for trace in engine.run(requests)]

        task = asyncio.create_task(run())
        if until is None:
            return await task
        await until.wait()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return []


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def requests(count=2, *, samples=1):
    tasks = [f"counter/{number + 1}" for number in range(count)]
    return plan_requests(tasks, samples=samples, seed=3)


def test_episode_is_on_disk_before_its_judge_is_asked(folder):
    found = []

    class Looking(PaidJudge):
        async def score(self, episode):
            found.append([trace.task_id for trace in folder.kept()])
            return await super().score(episode)

    asyncio.run(folder.play(judged_by(Looking()), requests(1), Policy()))
    assert found == [["counter/1"]]


def test_what_was_being_judged_is_only_judged_when_the_run_goes_on(folder):
    async def main():
        hung = PaidJudge(hangs=True)
        await folder.play(judged_by(hung), requests(), Policy(), until=hung.asked)
        kept = {trace.task_id: trace for trace in folder.kept()}
        policy, judge = Policy(), PaidJudge()
        traces = await folder.play(judged_by(judge), requests(), policy)
        return kept, policy, judge, {trace.task_id: trace for trace in traces}

    kept, policy, judge, traces = asyncio.run(main())
    assert kept
    assert policy.asked == 2 - len(kept)
    assert {trace.reward for trace in traces.values()} == {0.01, 0.02}
    for task_id, before in kept.items():
        now = traces[task_id]
        assert (now.trace_id, now.turns, now.started_at) == (
            *(before.trace_id, before.turns, before.started_at),
        )
        assert now.usage == {"policy": SPENT, "judge": JUDGED}
        assert now.stage_s.keys() == {"init", "run", "eval"}
    assert {e.task.reference for e in judge.episodes} == {1, 2}  # which no trace holds


def test_recalled_episode_is_judged_as_it_would_have_been(folder):
    async def main():
        hung = PaidJudge(hangs=True)
        await folder.play(judged_by(hung), requests(1), Policy(), until=hung.asked)
        judge = PaidJudge()
        await folder.play(judged_by(judge), requests(1), Policy())
        return hung.episodes[0], judge.episodes[0]

    before, after = asyncio.run(main())
    assert after == before.model_copy(update={"spent": after.spent})


def test_a_verdict_that_failed_is_had_again_without_playing_and_both_are_paid(folder):
    async def main():
        await folder.play(judged_by(PaidJudge(fails=True)), requests(1), Policy())
        policy = Policy()
        await folder.play(judged_by(PaidJudge()), requests(1), policy)
        return policy

    assert asyncio.run(main()).asked == 0
    first, second = read_traces(folder.traces)
    assert (first.reward, first.failure_class, second.reward) == (None, "judge", 0.01)
    summary = summarize_file(folder.traces)
    assert (summary.n_total, summary.n_scored, summary.reruns) == (1, 1, 1)
    assert summary.usage["policy"] == SPENT
    assert summary.usage["judge"].calls == 2
    assert summary.rerun_usage == {"judge": JUDGED}


def test_verdict_that_costs_nothing_needs_no_journal(folder):
    asyncio.run(folder.play(CounterEnv, requests(), Policy()))
    assert folder.kept() == []


def test_what_failed_before_its_verdict_is_not_kept(folder):
    class Breaking(judged_by(PaidJudge())):
        async def start(self, task):
            raise RuntimeError("no start")

    (trace,) = asyncio.run(folder.play(Breaking, requests(1), Policy()))
    assert (trace.failure_class, trace.reward) == ("env", None)
    assert folder.kept() == []


def test_group_is_judged_again_whole_without_playing_those_that_are_kept(folder):
    async def main():
        hung = GroupJudge(hangs=True)
        await folder.play(judged_by(hung), requests(1, samples=3), Policy(), until=hung.asked)
        lines = folder.unjudged.read_text().splitlines(keepends=True)
        folder.unjudged.write_text("".join(lines[:2]))  # as if the third had been cut in its turns
        policy, judge = Policy(), GroupJudge()
        traces = await folder.play(judged_by(judge), requests(1, samples=3), policy)
        return policy, judge, traces

    policy, judge, traces = asyncio.run(main())
    assert policy.asked == 1
    assert len(judge.episodes) == 3
    assert {trace.sample: trace.reward for trace in traces} == {0: 0.0, 1: 0.1, 2: 0.2}


@pytest.mark.parametrize("change", ["seed", "data", "torn"])
def test_what_does_not_belong_to_the_request_is_played_again(folder, change):
    async def main():
        hung = PaidJudge(hangs=True)
        await folder.play(judged_by(hung), requests(1), Policy(), until=hung.asked)
        asked, digest = requests(1), "then"
        if change == "seed":
            asked = [asked[0].model_copy(update={"seed": 99})]
        if change == "data":
            digest = "now"
        if change == "torn":
            folder.unjudged.write_bytes(folder.unjudged.read_bytes()[:-20])
        policy = Policy()
        (trace,) = await folder.play(judged_by(PaidJudge(), digest=digest), asked, policy)
        return policy, trace

    policy, trace = asyncio.run(main())
    assert (policy.asked, trace.reward) == (1, 0.01)


def test_journal_gives_each_episode_once(folder):
    async def main():
        hung = PaidJudge(hangs=True)
        await folder.play(judged_by(hung), requests(1), Policy(), until=hung.asked)

    asyncio.run(main())
    (request,) = requests(1)
    with Journal(folder.unjudged) as journal:
        assert journal.recall(EpisodeRequest(seed=request.seed)) is None
        assert journal.recall(request).task_id == "counter/1"
        assert journal.recall(request) is None


def test_journal_that_cannot_be_written_stops_the_run_and_scores_nothing(folder):
    class Full(Journal):
        def rolled(self, trace):
            raise TraceError("can't write: No space left on device")

    async def main():
        with Full(folder.unjudged) as journal, TraceWriter(folder.traces) as writer:
            env = judged_by(PaidJudge())
            limits = Limits(concurrency=2)
            async with Engine(
                env, client=Policy(), writer=writer, journal=journal, limits=limits
            ) as engine:
                async for _ in engine.run(requests(8)):
                    pass

    with pytest.raises(TraceError, match="No space left"):
        asyncio.run(main())
    assert list(read_traces(folder.traces)) == []


def test_journal_is_strict_json_without_a_number_for_what_has_no_verdict(folder):
    async def main():
        hung = PaidJudge(hangs=True)
        await folder.play(judged_by(hung), requests(1), Policy(), until=hung.asked)

    asyncio.run(main())
    (line,) = folder.unjudged.read_text().splitlines()
    verdict = json.loads(line, parse_constant=pytest.fail)["verdict"]
    assert (verdict["reward"], verdict["masked"]) == (None, True)
