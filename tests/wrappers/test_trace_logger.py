"""TraceLogger: every episode once, whole, as strict JSON."""

from __future__ import annotations

import json
import os

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import Autoreset, RecordEpisodeStatistics

from agentgym.client import Endpoint
from agentgym.errors import ActionError, ConfigError, EnvFault, JudgeError, TraceError
from agentgym.metering import charge
from agentgym.testing.conversation import check_conversation
from agentgym.testing.envs import CounterEnv, QuizEnv, SlowCounterEnv
from agentgym.testing.messages import calling, tool_call
from agentgym.trace import Trace
from agentgym.types import Usage
from agentgym.wrappers import TextInTextOut, TraceLogger, TurnCap

ADD = calling(tool_call("add", amount=1))
SUBMIT = calling(tool_call("submit"))


@pytest.fixture
def traces():
    return []


@pytest.fixture
def env(traces):
    return TraceLogger(CounterEnv(), traces.append)


def test_an_episode_is_one_line_that_reads_back(tmp_path):
    path = tmp_path / "new" / "traces.jsonl"
    env = TraceLogger(CounterEnv(), path)
    for seed in (1, 2):
        env.reset(seed=seed)
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        env.step({**ADD, "usage": usage, "finish_reason": "tool_calls", "policy_s": 0.5})
        env.step({**SUBMIT, "usage": usage})
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    first, second = (Trace.model_validate_json(line) for line in lines)
    assert (first.seed, second.seed) == (1, 2)
    assert first.trace_id != second.trace_id
    assert [turn.usage.completion_tokens for turn in first.turns] == [5, 5]
    assert first.turns[0].policy_s == 0.5
    assert first.usage["policy"].prompt_tokens == 20
    assert first.task_id == json.loads(lines[0])["task_id"]
    assert [t["function"]["name"] for t in first.tools][:2] == ["add", "read"]
    assert (first.terminated, first.termination_reason) == (True, "submitted")
    assert first.verdict.components["nearness"] > 0
    assert set(first.stage_s) == {"init", "run"}
    check_conversation(first.messages)


class PaidQuiz(QuizEnv):
    """Its tasks' openings and its verdicts cost something."""

    def __init__(self, *, simulator: object = None) -> None:
        super().__init__()
        judge = self.scoring.judge

        class PaidJudge:
            inline = True

            async def score(self, episode):
                charge("judge", Usage(prompt_tokens=7))
                return await judge.score(episode)

        self.scoring = self.scoring.model_copy(update={"judge": PaidJudge()})

    async def start(self, task):
        charge("simulator", Usage(prompt_tokens=3))
        return await super().start(task)


def test_what_simulator_and_judge_cost_is_in_the_trace(traces):
    env = TraceLogger(PaidQuiz(), traces.append)
    env.reset(seed=1)
    env.step({"role": "assistant", "content": "?", "usage": {"prompt_tokens": 10}})
    (trace,) = traces
    spent = {role: usage.prompt_tokens for role, usage in trace.usage.items()}
    assert spent == {"policy": 10, "simulator": 3, "judge": 7}


def test_final_state_and_answer_are_in_the_trace(traces, env):
    env.reset(seed=1)
    env.step(ADD)
    env.step(SUBMIT)
    assert traces[0].outcome == {"value": 1}
    quiz = TraceLogger(QuizEnv(), traces.append)
    quiz.reset(seed=1)
    quiz.step("forty-two")
    assert traces[1].answer == "forty-two"


def test_endpoint_in_the_spec_is_without_its_secrets(traces, monkeypatch):
    spec = EnvSpec("PaidQuiz-v0", entry_point=PaidQuiz)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    given = {"base_url": "http://me:hunter22@h/v1", "model": "m"}
    for simulator in (given, Endpoint(**given)):
        env = TraceLogger(gymnasium.make("PaidQuiz-v0", simulator=simulator), traces.append)
        env.reset(seed=1)
        env.step("?")
        assert "hunter22" not in traces[-1].to_json_line()


def test_credentials_of_the_environment_stay_out_of_the_file(tmp_path, monkeypatch):
    """J10."""
    monkeypatch.setenv("SERVICE_API_KEY", "key-of-mine-1")
    env = TraceLogger(QuizEnv(), tmp_path / "t.jsonl")
    env.reset(seed=1)
    env.step(f"{dict(os.environ)} and AKIA{'B2' * 8}")
    (line,) = (tmp_path / "t.jsonl").read_text().splitlines()
    trace = Trace.model_validate_json(line)
    assert "'SERVICE_API_KEY': '[redacted]'" in trace.answer
    assert trace.answer.endswith(" and [redacted]")
    assert "key-of-mine-1" not in line


def test_what_the_caller_gets_is_unchanged(env):
    plain = CounterEnv()
    assert env.reset(seed=1) == plain.reset(seed=1)
    assert env.step(ADD) == plain.step(ADD)
    assert env.step(SUBMIT) == plain.step(SUBMIT)


def test_a_truncated_episode_says_which_limit(env, traces):
    env.reset(seed=0, options={"max_turns": 1})
    env.step(ADD)
    env.reset(seed=0)
    env.step(ADD)
    env.truncate("context")
    assert [t.truncation_reason for t in traces] == ["turns", "context"]
    assert [t.truncated for t in traces] == [True, True]
    assert [len(t.turns) for t in traces] == [1, 1]


@pytest.mark.parametrize("leave", ["reset", "close", "reset twice"])
def test_an_abandoned_episode_is_written_masked(env, traces, leave):
    """Neither terminated nor truncated, nobody's failure but the infrastructure's; once."""
    env.reset(seed=4)
    env.step(ADD)
    if leave == "close":
        env.close()
    else:
        env.reset()
        if leave == "reset twice":
            env.reset()
    env.close()
    (trace,) = traces
    assert (trace.verdict.masked, trace.reward, trace.failure_class) == (True, None, "infra")
    assert (trace.terminated, trace.truncated) == (False, False)
    assert "abandoned" in trace.error
    assert (trace.seed, len(trace.turns), trace.failed_stage) == (4, 1, "run")


def test_an_episode_without_a_turn_is_not_written(env, traces):
    env.reset(seed=0)
    env.reset(seed=1)
    env.close()
    assert traces == []


def test_a_crash_is_written_and_goes_on(env, traces):
    def crash(amount):
        raise ZeroDivisionError("1/0")

    env.reset(seed=0)
    env.step(ADD)
    env.unwrapped.toolbox.find("add").function = crash
    with pytest.raises(EnvFault):
        env.step(ADD)
    env.reset()
    (trace,) = traces
    assert (trace.failure_class, trace.failed_stage, trace.reward) == ("env", "run", None)
    assert "ZeroDivisionError: 1/0" in trace.error
    assert len(trace.turns) == 1


def test_a_failed_set_up_is_written(traces):
    class Broken(CounterEnv):
        async def start(self, task):
            raise EnvFault("no database")

    env = TraceLogger(Broken(), traces.append)
    with pytest.raises(EnvFault):
        env.reset(seed=9)
    (trace,) = traces
    assert (trace.failed_stage, trace.failure_class, trace.seed) == ("init", "env", 9)
    assert "no database" in trace.error


def test_the_callers_mistakes_end_no_episode(env, traces):
    env.reset(seed=0)
    with pytest.raises(ActionError):
        env.step(3)
    env.step(SUBMIT)
    with pytest.raises(ConfigError):
        env.reset(options={"nonsense": 1})
    assert [t.termination_reason for t in traces] == ["submitted"]


def test_a_failed_judgement_is_written_masked(env, traces):
    class Broken:
        inline = True

        async def score(self, episode):
            raise JudgeError("no verdict in the reply")

    base = env.unwrapped
    base.scoring = base.scoring.model_copy(update={"judge": Broken()})
    env.reset(seed=0)
    assert env.step(SUBMIT)[1] == 0.0
    (trace,) = traces
    assert (trace.reward, trace.failure_class, trace.failed_stage) == (None, "judge", "eval")
    assert trace.terminated


def test_deferred_episodes_are_left_to_whoever_judges_them(env, traces):
    env.reset(seed=0, options={"judging": "deferred"})
    env.step(ADD)
    env.step(SUBMIT)
    env.reset(seed=0, options={"judging": "deferred"})
    env.step(ADD)
    env.close()
    assert traces == []


async def test_the_async_face_is_logged_too(traces):
    env = TraceLogger(SlowCounterEnv(), traces.append)
    await env.areset(seed=0)
    await env.astep(ADD)
    await env.atruncate("time")
    assert [t.truncation_reason for t in traces] == ["time"]


def test_composes_with_other_wrappers(traces):
    env = RecordEpisodeStatistics(
        TraceLogger(TextInTextOut(TurnCap(CounterEnv(), 2)), traces.append)
    )
    env.reset(seed=0)
    env.step('<tool_call>{"name": "add", "arguments": {"amount": 1}}</tool_call>')
    *_, info = env.step("well")
    assert "episode" in info
    (trace,) = traces
    assert trace.turns[0].calls[0].arguments == {"amount": 1}
    assert trace.termination_reason == "answered"


def test_inside_autoreset_every_episode_is_written(traces):
    """C04: the reset that follows an end is no turn of either episode."""
    env = Autoreset(TraceLogger(CounterEnv(), traces.append))
    env.reset(seed=0)
    for _ in range(3):
        env.step(SUBMIT)
        env.step(SUBMIT)  # this one resets
    assert [len(t.turns) for t in traces] == [1, 1, 1]


def test_the_spec_in_the_trace_makes_the_env_again(tmp_path):
    gymnasium.register("agentgym_tests/Logged-v0", "agentgym.testing.envs:CounterEnv")
    try:
        path = tmp_path / "t.jsonl"
        made = gymnasium.make("agentgym_tests/Logged-v0", targets=[3], disable_env_checker=True)
        env = TraceLogger(TurnCap(made, 2), path)
        env.reset(seed=0)
        env.step(SUBMIT)
        trace = Trace.model_validate_json(path.read_text())
        again = gymnasium.make(EnvSpec.from_json(trace.env_spec))
        assert again.reset(seed=0)[1]["task_id"] == trace.task_id == "counter/3"
        assert again.reset(seed=0)[1]["turns_left"] == 2
        assert gymnasium.make(EnvSpec.from_json(env.spec.to_json())).reset()
    finally:
        del gymnasium.registry["agentgym_tests/Logged-v0"]


def test_nothing_hidden_is_written(tmp_path):
    """J08."""
    env = TraceLogger(QuizEnv(), tmp_path / "t.jsonl")
    env.reset(options={"task_id": "quiz/Peru"})
    env.step("Cusco")
    assert "Lima" not in (tmp_path / "t.jsonl").read_text()


def test_surrogates_and_not_a_number_are_written_as_strict_json(tmp_path):
    """A19."""
    path = tmp_path / "t.jsonl"
    env = TraceLogger(CounterEnv(), path)
    env.reset(seed=0)
    wild = {"x\ud83d": float("nan")}
    env.step(calling({"function": {"name": "add\ud83d", "arguments": wild}}, content="\ud83d"))
    env.step(SUBMIT)

    def refuse(name):
        raise AssertionError(name)

    json.loads(path.read_text(), parse_constant=refuse)


def play_to(path):
    env = TraceLogger(CounterEnv(), path)
    env.reset(seed=0)
    env.step(SUBMIT)


def test_an_episode_after_a_torn_line_is_on_a_line_of_its_own(tmp_path):
    """H04: what a killed process left behind costs one episode, not two."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"schema_version": 1, "trace_')
    play_to(path)
    _, line = path.read_text().splitlines()
    assert json.loads(line)["schema_version"] == 1


def test_short_writes_are_completed_and_failed_ones_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "t.jsonl"
    whole = os.write
    monkeypatch.setattr("os.write", lambda file, data: whole(file, bytes(data)[:100]))
    play_to(path)
    before = path.read_text()
    json.loads(before)

    def full(file, data):
        whole(file, bytes(data)[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(TraceError, match="No space left"):
        play_to(path)
    assert path.read_text() == before


def test_an_unwritable_file_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    env = TraceLogger(CounterEnv(), tmp_path / "file" / "t.jsonl")
    env.reset(seed=0)
    with pytest.raises(TraceError, match="can't write the trace"):
        env.step(SUBMIT)


def test_other_envs_are_refused():
    with pytest.raises(ConfigError, match="needs an agentgym AgentEnv, got CartPoleEnv"):
        TraceLogger(gymnasium.make("CartPole-v1"), print)
