"""Gymnasium's own machinery on agent environments: make, vectors, wrappers, specs, pickling."""

from __future__ import annotations

import pickle

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import (
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TimeLimit,
    TransformReward,
)
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorRecordEpisodeStatistics

from agentgym.envs.registration import ENTRY_POINTS
from agentgym.testing import check_agent_env
from agentgym.testing.messages import calling, tool_call
from agentgym.trace import Trace
from agentgym.wrappers import TextInTextOut, TraceLogger, TurnCap

COUNTER, SLOW, QUIZ = (f"agentgym_tests/{name}-v0" for name in ("Counter", "Slow", "Quiz"))
CLASSES = {COUNTER: "CounterEnv", SLOW: "SlowCounterEnv", QUIZ: "QuizEnv"}
EVERY_ENV = [*CLASSES, *ENTRY_POINTS]

ADD = calling(tool_call("add", amount=1))
SUBMIT = calling(tool_call("submit"))


@pytest.fixture(autouse=True)
def registered():
    for env_id, name in CLASSES.items():
        gymnasium.register(env_id, f"agentgym.testing.envs:{name}")
    yield
    for env_id in CLASSES:
        del gymnasium.registry[env_id]


@pytest.fixture(params=["sync", pytest.param("async", marks=pytest.mark.thorough)])
def vectorization(request):
    """Arguments of make_vec; async workers are spawned, so they import everything afresh."""
    if request.param == "sync":
        return {"vectorization_mode": "sync"}
    spawned = {"shared_memory": False, "context": "spawn"}
    return {"vectorization_mode": "async", "vector_kwargs": spawned}


def with_autoreset(vectorization, mode):
    kwargs = {**vectorization.get("vector_kwargs", {}), "autoreset_mode": mode}
    return {**vectorization, "vector_kwargs": kwargs}


@pytest.mark.parametrize("env_id", EVERY_ENV)
def test_gymnasiums_checker_finds_nothing(env_id):
    """C02, C08; warnings are errors here."""
    check_env(gymnasium.make(env_id).unwrapped)


@pytest.mark.e2e
@pytest.mark.parametrize("env_id", EVERY_ENV)
def test_our_checker_finds_nothing(env_id):
    check_agent_env(env_id)


@pytest.mark.parametrize("env_id", EVERY_ENV)
def test_make_plays_an_episode_under_gymnasiums_default_wrappers(env_id):
    """C01, C02: the passive checker looks on and has nothing to say."""
    env = gymnasium.make(env_id, render_mode="ansi")
    env.action_space.seed(1)
    observation, _ = env.reset(seed=1)
    over = False
    while not over:
        assert observation in env.observation_space
        observation, _, terminated, truncated, info = env.step(env.action_space.sample())
        assert isinstance(env.render(), str)
        over = terminated or truncated
    assert info["verdict"].reward is not None
    env.close()


@pytest.mark.parametrize("env_id", EVERY_ENV)
def test_a_spec_survives_json_and_makes_the_same_env(env_id):
    spec = TurnCap(gymnasium.make(env_id, max_turns=9), human_turns=2).spec
    again = gymnasium.make(EnvSpec.from_json(spec.to_json()))
    assert again.spec == spec
    assert again.reset(seed=0)[1]["turns_left"] == 3
    assert gymnasium.make(pickle.loads(pickle.dumps(spec))).spec == spec


@pytest.mark.parametrize("env_id", EVERY_ENV)
def test_statistics_count_turns_and_the_verdicts_reward(env_id):
    env = RecordEpisodeStatistics(gymnasium.make(env_id))
    env.action_space.seed(0)
    env.reset(seed=0)
    turns, over = 0, False
    while not over:
        *_, terminated, truncated, info = env.step(env.action_space.sample())
        turns += 1
        over = terminated or truncated
    assert info["episode"]["l"] == turns
    assert info["episode"]["r"] == pytest.approx(info["verdict"].reward)


def test_gymnasiums_wrappers_compose_with_ours_in_any_order(tmp_path):
    env = gymnasium.make(COUNTER, disable_env_checker=True).unwrapped
    for wrap in (
        lambda e: TurnCap(e, 6),
        PassiveEnvChecker,
        lambda e: TraceLogger(e, tmp_path / "t.jsonl"),
        OrderEnforcing,
        RecordEpisodeStatistics,
        TextInTextOut,
        lambda e: TransformReward(e, lambda r: 2 * r),
        lambda e: TimeLimit(e, 99),
    ):
        env = wrap(env)
    env.reset(seed=0, options={"task_id": "counter/1"})
    env.step('<tool_call>{"name": "add", "arguments": {"amount": 1}}</tool_call>')
    _, reward, terminated, truncated, info = env.step('<tool_call>{"name": "submit"}</tool_call>')
    assert (reward, terminated, truncated) == (2.0, True, False)
    assert (info["episode"]["r"], info["episode"]["l"]) == (1.0, 2)
    trace = Trace.model_validate_json((tmp_path / "t.jsonl").read_text())
    assert (trace.reward, len(trace.turns)) == (1.0, 2)
    env.close()


@pytest.mark.parametrize("env_id", EVERY_ENV)
def test_vectors_run_random_episodes(env_id, vectorization):
    """C11: spawned workers make envs that only this process registered."""
    envs = gymnasium.make_vec(env_id, num_envs=2, **vectorization)
    try:
        observations, infos = envs.reset(seed=3)
        assert len(observations) == 2
        assert infos["task_id"].shape == (2,)
        envs.action_space.seed(3)
        verdicts = []
        for _ in range(12):
            observations, rewards, *_, infos = envs.step(envs.action_space.sample())
            assert np.isfinite(rewards).all()
            verdicts += [v for v in infos.get("verdict", ()) if v is not None]
        assert observations in envs.observation_space
        assert verdicts or env_id in ENTRY_POINTS
    finally:
        envs.close()


def test_an_id_with_its_package_works_in_spawned_workers():
    """C11: the form to use where a worker can't be expected to have imported agentgym."""
    env_id = f"agentgym:{next(iter(ENTRY_POINTS))}"
    envs = gymnasium.make_vec(
        env_id,
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"shared_memory": False, "context": "spawn"},
    )
    try:
        assert len(envs.reset(seed=0)[0]) == 2
    finally:
        envs.close()


@pytest.mark.parametrize("env_id", EVERY_ENV)
def test_functions_that_make_envs_can_be_sent_to_workers(env_id):
    """C11."""
    sent = cloudpickle.dumps(lambda: gymnasium.make(env_id, max_turns=3))
    assert pickle.loads(sent)().reset(seed=0)[1]["turns_left"] == 3


def test_next_step_autoreset_ignores_one_action_and_adds_nothing(vectorization, tmp_path):
    """C04: whoever pays for generations skips the envs that have just ended."""

    class Policy:
        calls = 0

        def __call__(self, action):
            self.calls += 1
            return action

    policy, sink = Policy(), str(tmp_path / "traces.jsonl")
    envs = gymnasium.make_vec(
        COUNTER,
        num_envs=2,
        wrappers=[_Logged(sink)],
        **with_autoreset(vectorization, AutoresetMode.NEXT_STEP),
    )
    try:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        envs.reset(seed=0, options={"task_id": "counter/1"})
        over = np.array([False, False])
        returns = np.zeros(2)
        for plan in ((SUBMIT, ADD), (ADD, ADD), (ADD, SUBMIT)):
            actions = tuple(
                "" if ended else policy(action) for ended, action in zip(over, plan, strict=True)
            )
            _, rewards, terminated, truncated, infos = envs.step(actions)
            if over[0]:
                assert (rewards[0], terminated[0]) == (0.0, False)
                assert infos["turns_left"].tolist() == [8, 6]
            over = terminated | truncated
            returns += rewards
        assert policy.calls == 5
        assert over.tolist() == [False, True]
        assert returns.tolist() == [0.0, 0.0]
    finally:
        envs.close()
    lines = (tmp_path / "traces.jsonl").read_text().splitlines()
    traces = [Trace.model_validate_json(line) for line in lines]
    ended = [len(t.turns) for t in traces if t.terminated]
    assert sorted(ended) == [1, 3]
    assert sum(len(t.turns) for t in traces) == policy.calls


class _Logged:
    """A wrapper argument that can be sent to a spawned worker."""

    def __init__(self, sink):
        self.sink = sink

    def __call__(self, env):
        return TraceLogger(env, self.sink)


def test_same_step_autoreset_keeps_the_end(vectorization):
    """C05: the finished episode's messages, reward, gates and components are all there."""
    envs = gymnasium.make_vec(
        COUNTER, num_envs=2, **with_autoreset(vectorization, AutoresetMode.SAME_STEP)
    )
    try:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        envs.reset(seed=0, options={"task_id": "counter/1"})
        envs.step((ADD, ADD))
        observations, rewards, terminated, _, infos = envs.step((SUBMIT, ADD))
        assert rewards.tolist() == [1.0, 0.0]
        assert terminated.tolist() == [True, False]
        assert observations[0][1]["content"].startswith("Bring the counter from 0")
        assert infos["final_obs"][0][0]["content"] == "Submitted 1."
        verdict = infos["final_info"]["verdict"][0]
        assert (verdict.reward, verdict.components["reached"]) == (1.0, 1.0)
        assert verdict.gates == {"truncated": False, "malformed_call": False, "no_answer": False}
        assert infos["final_info"]["termination_reason"][0] == "submitted"
        assert infos["final_info"]["_verdict"].tolist() == [True, False]
        assert "verdict" not in infos
    finally:
        envs.close()


def test_vector_statistics_see_our_episodes():
    envs = VectorRecordEpisodeStatistics(gymnasium.make_vec(COUNTER, 2, "sync"))
    envs.reset(seed=0, options={"task_id": "counter/1"})
    envs.step((ADD, ADD))
    *_, infos = envs.step((SUBMIT, ADD))
    assert infos["episode"]["r"].tolist() == [1.0, 0.0]
    assert infos["episode"]["l"].tolist() == [2, 0]
    envs.close()


def test_options_reach_every_env_of_a_vector():
    """C10: knobs are options, as attributes set through wrappers may stay on the wrapper."""
    envs = gymnasium.make_vec(COUNTER, 2, "sync", wrappers=[lambda e: TurnCap(e, 5)])
    _, infos = envs.reset(seed=0, options={"task_id": "counter/7", "max_turns": 2})
    assert infos["task_id"].tolist() == ["counter/7", "counter/7"]
    assert infos["turns_left"].tolist() == [2, 2]
    envs.close()


def test_text_wrapped_vectors_speak_text(vectorization):
    envs = gymnasium.make_vec(COUNTER, num_envs=2, wrappers=[TextInTextOut], **vectorization)
    try:
        observations, _ = envs.reset(seed=0)
        assert all("<tools>" in text for text in observations)
        call = '<tool_call>{"name": "add", "arguments": {"amount": 3}}</tool_call>'
        observations, *_ = envs.step((call, call))
        assert all("stands at 3" in text for text in observations)
    finally:
        envs.close()


@pytest.mark.parametrize("env_id", EVERY_ENV)
def test_ids_carry_no_time_limit_of_gymnasiums(env_id):
    """C07: TimeLimit would flag an answer on the last turn as truncated."""
    assert gymnasium.spec(env_id).max_episode_steps is None


def test_an_unknown_version_or_name_is_gymnasiums_error():
    with pytest.raises(gymnasium.error.NameNotFound, match="WebShop"):
        gymnasium.make("agentgym/Webshop-v0")
    with pytest.raises(gymnasium.error.VersionNotFound):
        gymnasium.make("agentgym/WebShop-v99")
