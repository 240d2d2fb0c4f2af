"""One session: its turns, what breaks in them, and what may be seen of them."""

from __future__ import annotations

import asyncio
import threading

import pytest
from session_stage import (
    AFFINE,
    ME,
    STAGE,
    Affine,
    StageEnv,
    asked,
    call,
    fresh_stage,
    playing,
    refused,
    register,
    with_limits,
)

from agentgym.remote.session_schema import CreateSession, CutEpisode, ResetEpisode, TakeTurn
from agentgym.remote.spaces import to_wire
from agentgym.serve import session_env
from agentgym.serve.faults import ServiceFault
from agentgym.serve.session_limits import SessionLimits
from agentgym.serve.sessions import Sessions

register()


@pytest.fixture(autouse=True)
def _fresh():
    yield from fresh_stage()


@pytest.fixture
async def sessions():
    made = Sessions(SessionLimits())
    yield made
    await made.aclose()


# --- turns --------------------------------------------------------------------------------------


async def test_a_repeated_turn_is_answered_and_not_played_again(sessions):
    """Case E17."""
    session = await playing(sessions)
    ask = TakeTurn(turn=0, action=call("note", text="a"))
    first = await session.step(ask)
    assert await session.step(ask) == first
    await session.step(TakeTurn(turn=1, action=call("note", text="b")))
    assert await session.step(ask) == first
    assert StageEnv.done == ["a", "b"]


async def test_a_client_that_hung_up_gets_the_answer_when_it_asks_again(sessions):
    """Case E17: the work belongs to the session, not to the connection."""
    session = await playing(sessions)
    ask = TakeTurn(turn=0, action=call("wait_at_gate", text="a"))
    first = asyncio.create_task(session.step(ask))
    await asked(session)
    first.cancel()
    await asyncio.wait({first})
    again = asyncio.create_task(session.step(ask))
    await asked(session)
    session.env.agent.gate.set()
    result = await again
    assert result.observation[0]["content"] == "through"
    assert StageEnv.done == ["a"]


@pytest.mark.parametrize(
    ("turn", "action", "code"),
    [
        (2, call("note", text="c"), "out_of_order"),
        (0, call("note", text="other"), "turn_taken"),
    ],
)
async def test_turns_out_of_order_are_refused(sessions, turn, action, code):
    session = await playing(sessions)
    await session.step(TakeTurn(turn=0, action=call("note", text="a")))
    fault = await refused(session.step(TakeTurn(turn=turn, action=action)))
    assert (fault.status, fault.code) == (409, code)
    assert StageEnv.done == ["a"]


async def test_another_request_beside_a_turn_is_refused(sessions):
    session = await playing(sessions)
    step = asyncio.create_task(
        session.step(TakeTurn(turn=0, action=call("wait_at_gate", text="a")))
    )
    await asked(session)
    for other in (
        session.step(TakeTurn(turn=0, action=call("note", text="b"))),
        session.reset(ResetEpisode()),
        session.truncate(CutEpisode(reason="time")),
    ):
        fault = await refused(other)
        assert (fault.status, fault.code) == (409, "busy")
    session.env.agent.gate.set()
    await step
    assert StageEnv.done == ["a"]


async def test_a_late_turn_of_the_last_episode_is_refused(sessions):
    session = await playing(sessions)
    late = TakeTurn(turn=0, episode=1, action=call("note", text="a"))
    await session.reset(ResetEpisode(seed=2))
    assert (await refused(session.step(late))).code == "out_of_order"
    assert StageEnv.done == []


async def test_a_repeated_reset_starts_no_second_episode(sessions):
    session = await sessions.create(STAGE, ME)
    ask = ResetEpisode(seed=3, episode=1)
    first = await session.reset(ask)
    assert await session.reset(ask) == first
    assert (await refused(session.reset(ResetEpisode(seed=4, episode=1)))).code == "episode_taken"
    assert (await refused(session.reset(ResetEpisode(episode=3)))).code == "out_of_order"
    assert (await session.reset(ResetEpisode(episode=2))).episode == 2


async def test_a_turn_needs_an_episode(sessions):
    session = await sessions.create(STAGE, ME)
    assert (await refused(session.step(TakeTurn(turn=0, action="hello")))).code == "reset_needed"
    await session.reset(ResetEpisode())
    await session.step(TakeTurn(turn=0, action="bye"))
    for again in (
        session.step(TakeTurn(turn=1, action="bye")),
        session.truncate(CutEpisode(reason="time")),
    ):
        assert (await refused(again)).code == "episode_over"


@pytest.mark.parametrize("action", [None, 7, {"role": "user", "content": "x"}, {"tool_calls": 3}])
async def test_what_is_no_action_takes_no_turn(sessions, action):
    session = await playing(sessions)
    fault = await refused(session.step(TakeTurn(turn=0, action=action)))
    assert (fault.status, fault.code) == (422, "bad_action")
    assert (await session.step(TakeTurn(turn=0, action=call("note", text="a")))).turn == 1


async def test_wrong_annotations_take_no_turn(sessions):
    session = await playing(sessions)
    action = {**call("note", text="a"), "logprobs": "none"}
    fault = await refused(session.step(TakeTurn(turn=0, action=action)))
    assert fault.code == "bad_action"
    assert session.state == "running"


async def test_an_action_that_is_too_large_takes_no_turn():
    sessions = with_limits(max_action_bytes=2000)
    session = await playing(sessions)
    fault = await refused(session.step(TakeTurn(turn=0, action="x" * 3000)))
    assert (fault.status, fault.code) == (413, "action_too_large")
    assert session.view().turn == 0
    await sessions.aclose()


@pytest.mark.parametrize("asked", [None, 2, 5])
async def test_the_service_caps_the_turns(asked):
    sessions = with_limits(max_turns=3)
    session = await sessions.create(STAGE, ME)
    options = {} if asked is None else {"max_turns": asked}
    await session.reset(ResetEpisode(options=options))
    for turn in range(min(3, asked or 3)):
        result = await session.step(TakeTurn(turn=turn, action=call("note", text="a")))
    assert result.truncated
    assert result.info["truncation_reason"] == "turns"
    await sessions.aclose()


@pytest.mark.parametrize("asked", [0, "many", True])
async def test_a_cap_that_is_none_is_refused(sessions, asked):
    session = await sessions.create(STAGE, ME)
    fault = await refused(session.reset(ResetEpisode(options={"max_turns": asked})))
    assert fault.code == "bad_option"


@pytest.mark.parametrize("key", ["judging", "reference", "oracle"])
async def test_options_beyond_the_list_are_refused(sessions, key):
    session = await sessions.create(STAGE, ME)
    fault = await refused(session.reset(ResetEpisode(options={key: "deferred"})))
    assert (fault.status, fault.code) == (422, "bad_option")
    assert session.state == "new"


async def test_an_episodes_actions_are_bounded_together_and_it_can_still_be_ended():
    sessions = with_limits(max_action_bytes=1024, max_episode_bytes=2048)
    session = await playing(sessions)
    for turn in range(2):
        await session.step(TakeTurn(turn=turn, action=call("note", text="x" * 800)))
    fault = await refused(session.step(TakeTurn(turn=2, action=call("note", text="x" * 800))))
    assert (fault.status, fault.code) == (413, "episode_too_large")
    again = TakeTurn(turn=1, action=call("note", text="x" * 800))
    assert (await session.step(again)).turn == 2
    assert (await session.truncate(CutEpisode(reason="context"))).truncated
    await session.reset(ResetEpisode())
    assert (await session.step(TakeTurn(turn=0, action=call("note", text="x" * 800)))).turn == 1
    await sessions.aclose()


async def test_an_unknown_task_leaves_the_session_as_it_was(sessions):
    session = await playing(sessions, CreateSession(env="stage/Counter-v0"))
    ask = ResetEpisode(options={"task_id": "counter/none"})
    assert (await refused(session.reset(ask))).code == "unknown_task"
    assert session.state == "running"
    assert (await session.reset(ResetEpisode(options={"task_id": "counter/3"}))).episode == 2


async def test_parallel_acts_are_taken_in_the_order_in_which_they_came(sessions):
    session = await playing(sessions)
    texts = [f"{number}" for number in range(10)]
    results = await asyncio.gather(*(session.act(call("note", text=t)) for t in texts))
    assert StageEnv.done == texts
    assert [result.turn for result in results] == list(range(1, 11))


async def test_a_truncated_episode_is_judged_and_the_request_may_be_repeated(sessions):
    session = await playing(sessions)
    await session.step(TakeTurn(turn=0, action=call("note", text="a")))
    result = await session.truncate(CutEpisode(reason="context"))
    assert result.truncated
    assert not result.terminated
    assert result.info["truncation_reason"] == "context"
    assert result.verdict.gates["truncated"]
    assert await session.truncate(CutEpisode(reason="context")) == result
    assert session.trace().truncation_reason == "context"


# --- what breaks --------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["stage/Stage-v0", "stage/Threaded-v0"])
@pytest.mark.parametrize(
    ("tool", "blamed"), [("crash", "env"), ("lose_user", "simulator"), ("hang", "infra")]
)
async def test_a_broken_episode_is_masked_and_the_next_one_plays(env, tool, blamed):
    sessions = with_limits()
    session = await playing(sessions, CreateSession(env=env))
    await session.step(TakeTurn(turn=0, action=call("note", text="a")))
    if tool == "hang":  # only now, since a busy machine may take its time for the first turn
        session._player._limits = SessionLimits(step_timeout_s=0.05)
    result = await session.step(TakeTurn(turn=1, action=call(tool)))
    assert result.truncated
    assert result.masked
    assert result.reward is None
    assert result.failure_class == blamed
    assert result.info["truncation_reason"] in ("fault", "simulator_abort")
    assert "SECRET" not in result.model_dump_json()
    assert await session.step(TakeTurn(turn=1, action=call(tool))) == result
    trace = session.trace()
    assert trace.verdict.masked
    assert trace.failure_class == blamed
    roles = [message["role"] for message in trace.messages]
    assert roles[:4] == ["user", "assistant", "tool", "assistant"]
    assert trace.messages[3]["tool_calls"][0]["function"]["name"] == tool
    assert "SECRET" not in trace.to_json_line()
    session._player._limits = sessions.limits
    await session.reset(ResetEpisode())
    assert (await session.step(TakeTurn(turn=0, action=call("note", text="b")))).reward == 0.0
    assert StageEnv.done == ["a", "b"]
    await sessions.aclose()


async def test_a_reset_that_breaks_leaves_a_session_that_can_be_reset(sessions):
    ask = CreateSession(env="stage/Stage-v0", env_kwargs={"opens": False})
    session = await sessions.create(ask, ME)
    env = session.env.agent
    fault = await refused(session.reset(ResetEpisode()))
    assert (fault.status, fault.code) == (500, "env_broke")
    assert env in StageEnv.closed
    assert (await refused(session.reset(ResetEpisode()))).code == "env_broke"
    assert len(StageEnv.made) == 2


async def test_a_judge_that_never_answers_masks():
    class Mute:
        inline = False

        async def score(self, episode):
            await asyncio.Event().wait()

    sessions = with_limits(judge_timeout_s=0.05)
    session = await playing(sessions)
    session.env.agent.scoring = session.env.agent.scoring.model_copy(update={"judge": Mute()})
    result = await session.step(TakeTurn(turn=0, action="done"))
    assert result.terminated
    assert result.masked
    assert result.reward is None
    assert result.failure_class == "judge"
    assert session.trace().failed_stage == "eval"
    await sessions.aclose()


# --- envs of other packages ---------------------------------------------------------------------


async def test_a_thread_bound_env_is_made_stepped_and_closed_by_one_thread(sessions):
    """Case E16."""
    session = await playing(sessions, AFFINE)
    rewards = [(await session.step(TakeTurn(turn=n, action=n))).reward for n in range(3)]
    assert rewards == [0.0, 1.0, 2.0]
    assert session.state == "over"
    assert session.view().spaces.action == {"type": "Discrete", "n": 5, "start": 0}
    with pytest.raises(ServiceFault, match="AgentEnv"):
        session.trace()
    await sessions.close(session.session_id, "me")
    assert Affine.closed == [True]


async def test_a_long_episode_of_another_package_keeps_only_the_latest_answers(sessions):
    ask = CreateSession(env="stage/Affine-v0", env_kwargs={"length": 200})
    session = await playing(sessions, ask)
    for turn in range(200):
        await session.step(TakeTurn(turn=turn, action=1))
    assert (await session.step(TakeTurn(turn=199, action=1))).terminated
    assert (await refused(session.step(TakeTurn(turn=5, action=1)))).code == "turn_taken"
    assert len(session.episode._answers) == 64


async def test_hundred_thread_bound_envs_at_once():
    sessions = with_limits(max_sessions=100)
    opened = await asyncio.gather(*(playing(sessions, AFFINE) for _ in range(100)))
    for turn in range(3):
        await asyncio.gather(*(s.step(TakeTurn(turn=turn, action=1)) for s in opened))
    await sessions.aclose()
    assert Affine.closed == [True] * 100


async def test_an_env_that_is_refused_is_not_counted_as_left_behind(sessions):
    for _ in range(20):
        asked_for = CreateSession(env="stage/Stage-v0", env_kwargs={"nonsense": 1})
        assert (await refused(sessions.create(asked_for, ME))).code == "bad_env"
    assert sessions.status().abandoned == 0


async def test_a_stuck_env_is_left_behind_counted_and_closed_when_it_returns():
    sessions = with_limits(step_timeout_s=0.05, max_stuck=1)
    before = {*threading.enumerate()}
    session = await playing(sessions, AFFINE)
    result = await session.step(TakeTurn(turn=0, action=4))
    assert result.masked
    assert result.reward is None
    assert (sessions.status().stuck, sessions.status().abandoned) == (1, 1)
    assert (await session.reset(ResetEpisode())).episode == 2  # in another thread
    await session.step(TakeTurn(turn=0, action=4))
    assert sessions.status().stuck == 2
    for asked_for in (sessions.create(AFFINE, ME), session.reset(ResetEpisode())):
        assert (await refused(asked_for)).code == "envs_stuck"
    Affine.block.set()
    for stuck in {*threading.enumerate()} - before:
        await asyncio.to_thread(stuck.join, 10)
    assert sessions.status().stuck == 0
    assert Affine.closed == [True, True]
    assert sessions.status().abandoned == 2
    await sessions.aclose()


async def test_a_picture_that_is_too_large_is_refused_without_being_written_out(monkeypatch):
    """Turning 48 million numbers into JSON takes most of a minute and gigabytes."""
    sessions = with_limits()
    session = await sessions.create(CreateSession(env="stage/Picture-v0"), ME)
    monkeypatch.setattr(session_env, "to_wire", None)
    fault = await refused(session.reset(ResetEpisode()))
    assert fault.code == "env_broke"
    assert "max_observation_bytes" in fault.message
    await sessions.aclose()


async def test_what_another_packages_env_returns_is_converted_in_its_own_thread(
    sessions, monkeypatch
):
    threads = set()

    def noted(space, sample):
        threads.add(threading.current_thread().name)
        return to_wire(space, sample)

    monkeypatch.setattr(session_env, "to_wire", noted)
    session = await playing(sessions, AFFINE)
    await session.step(TakeTurn(turn=0, action=1))
    assert threads == {"session-env"}


@pytest.mark.parametrize("turn", [1, 3])
async def test_a_reward_that_is_no_number_is_no_score(sessions, turn):
    ask = CreateSession(env="stage/Affine-v0", env_kwargs={"nan_at": turn})
    session = await playing(sessions, ask)
    for number in range(turn):
        result = await session.step(TakeTurn(turn=number, action=1))
    assert result.truncated
    assert result.masked
    assert result.reward is None
    assert result.failure_class == "env"
    assert (await session.reset(ResetEpisode())).episode == 2


@pytest.mark.parametrize("action", ["two", 17, None, [1]])
async def test_what_is_no_action_of_a_foreign_space_takes_no_turn(sessions, action):
    session = await playing(sessions, AFFINE)
    fault = await refused(session.step(TakeTurn(turn=0, action=action)))
    assert fault.code == "bad_action"
    assert session.view().turn == 0


# --- what may be seen ---------------------------------------------------------------------------


async def test_a_large_observation_is_cut_and_says_so(sessions):
    """Case E16: 5 MB."""
    session = await playing(sessions)
    result = await session.step(TakeTurn(turn=0, action=call("shout", size=2_500_000)))
    text = result.observation[0]["content"]
    assert result.observation_truncated
    assert len(text.encode()) < sessions.limits.max_observation_bytes + 100
    assert text.endswith(
        f"[truncated: {5_000_000 - sessions.limits.max_observation_bytes} bytes left out]"
    )
    await session.step(TakeTurn(turn=1, action="done"))
    trace = session.trace()
    assert trace.turns[0].replies[0]["content"] == text  # what the policy saw
    assert trace.messages[2]["content"] == text


async def test_a_large_opening_is_cut_too(sessions):
    ask = CreateSession(env="stage/Stage-v0", env_kwargs={"bulk": 3 << 20})
    session = await sessions.create(ask, ME)
    started = await session.reset(ResetEpisode())
    assert started.observation_truncated
    assert len(started.model_dump_json()) < (1 << 20) + 10_000


async def test_info_is_a_list_of_keys_and_strict_json(sessions):
    session = await playing(sessions)
    started = session.view().started
    assert started.info["available_actions"] == {"nan": "NaN"}
    assert "goal" not in started.info
    result = await session.step(TakeTurn(turn=0, action="done"))
    assert result.verdict.reward == result.reward == 1.0
    seen = result.model_dump_json() + session.view().model_dump_json()
    assert "SECRET" not in seen
    assert "SECRET" not in session.trace().to_json_line()


async def test_outcomes_and_remarks_are_shown_where_the_service_says_so():
    sessions = with_limits(reveal_outcomes=True)
    session = await playing(sessions)
    result = await session.step(TakeTurn(turn=0, action="done"))
    assert result.verdict.reason == "it was SECRET-REFERENCE"
    assert session.trace().verdict.reason == "it was SECRET-REFERENCE"
    await sessions.aclose()


async def test_the_conversation_is_the_one_the_policy_had(sessions):
    session = await playing(sessions)
    await session.step(TakeTurn(turn=0, action=call("note", "same", text="a")))
    await session.step(TakeTurn(turn=1, action=call("note", "same", text="b")))
    await session.step(TakeTurn(turn=2, action={"role": "assistant", "content": "bad \ud800"}))
    view = session.view()
    assert list(view.messages) == list(session.trace().messages)
    ids = [m["tool_calls"][0]["id"] for m in view.messages if m.get("tool_calls")]
    assert ids == ["same", "same_2"]
    assert [m["role"] for m in view.messages] == ["user"] + ["assistant", "tool"] * 2 + [
        "assistant"
    ]
    assert view.model_dump_json().encode()


async def test_a_trace_has_what_a_trainer_needs(sessions):
    session = await sessions.create(STAGE, ME)
    await session.reset(ResetEpisode())
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    action = {**call("note", text="a"), "usage": usage, "completion_ids": [1, 2]}
    await session.step(TakeTurn(turn=0, action=action))
    with pytest.raises(ServiceFault, match="end"):
        session.trace()
    await session.step(TakeTurn(turn=1, action="done"))
    trace = session.trace()
    assert trace.reward == 1.0
    assert trace.seed is not None  # drawn here, so that the episode can be repeated
    assert trace.usage["policy"].completion_tokens == 2
    assert trace.turns[0].completion_ids == (1, 2)
    assert trace.task_id == "stage/1"
    assert {"init", "run", "eval"} <= trace.stage_s.keys()
    assert session.trace() == trace
