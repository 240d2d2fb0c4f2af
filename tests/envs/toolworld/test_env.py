"""The environment: tools per episode, simulators and their faults, snapshots, nothing leaks."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from agentgym.client import Completion, Endpoint
from agentgym.clients.scripted import ScriptedClient
from agentgym.envs.toolworld import answers
from agentgym.envs.toolworld.domains import CATALOGUES
from agentgym.envs.toolworld.env import ToolWorldEnv
from agentgym.envs.toolworld.judge import AnswerVerifier
from agentgym.envs.toolworld.policies import POLICIES, ExpertPolicy, call
from agentgym.envs.toolworld.templates import Catalogue, Posed, Template
from agentgym.errors import (
    ConfigError,
    EndpointError,
    ResetNeeded,
    SimulatorAbort,
    SimulatorError,
    UnknownTaskError,
)
from agentgym.json_schema import JsonSchema
from agentgym.judge import Score
from agentgym.judges.compose import Weighted
from agentgym.judges.rubric_judge import RubricJudge
from agentgym.metering import charge
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.simulators.actions import Find
from agentgym.simulators.domain import Domain
from agentgym.simulators.records import COUNT, TEXT, Entity
from agentgym.simulators.state_machine import FixtureTools, StateMachineTools
from agentgym.testing import check_agent_env
from agentgym.types import Usage

TASK = "toolworld/tracker/root_blocker/0"
expert = ExpertPolicy()


class FaultyTools:
    """The embedded backend, except that its n-th call goes wrong."""

    inline = True
    fabricates = False

    def __init__(self, fault, *, at):
        self._tools = StateMachineTools(*(c.domain for c in CATALOGUES.values()))
        self._fault = fault
        self._at = at
        self.turns = []

    async def call(self, world, name, arguments):
        self.turns.append(name)
        if len(self.turns) == self._at:
            raise self._fault
        return await self._tools.call(world, name, arguments)


class MadeUpTools:
    """Answers anything with what it is given: a simulator that makes its results up."""

    inline = False

    def __init__(self, *results):
        self._results = list(results)
        self.worlds = []

    async def call(self, world, name, arguments):
        await asyncio.sleep(0)
        self.worlds.append(copy.deepcopy(world))
        result = self._results[len(self.worlds) - 1]
        if isinstance(result, Exception):
            raise result
        return result


class Paid:
    """A model that answers as simulator or judge, and costs something."""

    def __init__(self, role):
        self._role = role

    async def complete(self, messages, tools, sampling, *, session=None):
        charge(self._role, Usage(prompt_tokens=7))
        verdict = json.dumps({"reason": "fine", "task_solved": 1, "grounded": 1})
        text = reply(result=members("Ada")) if self._role != "judge" else verdict
        return Completion(message={"role": "assistant", "content": text})

    async def release(self, session): ...

    async def aclose(self): ...


class Pleased:
    """A judge that finds everything good."""

    inline = True

    async def score(self, episode):
        return Score(total=1.0, components={"task_solved": 1.0}, correct=True)


def members(*names):
    rows = [{"member_id": f"mb{n}", "name": name, "team": "docs"} for n, name in enumerate(names)]
    return {"members": rows, "total": len(rows)}


# --- the contract -----------------------------------------------------------------------------


@pytest.mark.thorough
def test_passes_every_check_of_an_agent_env():
    check_agent_env("agentgym/ToolWorld-v0", episodes=3)


def test_passes_gymnasiums_checker():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("agentgym/ToolWorld-v0").unwrapped)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_runs_in_vector_environments(mode):
    kwargs = {"shared_memory": False} if mode == "async" else {}
    envs = gymnasium.make_vec(
        "agentgym/ToolWorld-v0",
        num_envs=2,
        vectorization_mode=mode,
        vector_kwargs=kwargs,
        split="test",
    )
    try:
        observations, info = envs.reset(seed=0)
        assert [each[-1]["role"] for each in observations] == ["user", "user"]
        assert len(info["tools"]) == 2
        _, rewards, *_ = envs.step(("Answer: none", "Answer: none"))
        assert list(rewards) == [0.0, 0.0]
    finally:
        envs.close()


def test_tools_and_action_space_are_those_of_the_episode(sampled):
    seen = set()
    for task_id in ("toolworld/home/all_off/0", "toolworld/ledger/top_merchant/0"):
        _, info = sampled.reset(options={"task_id": task_id})
        names = [tool["function"]["name"] for tool in info["tools"]]
        assert names == [tool.name for tool in sampled.toolbox]
        assert tuple(info["tools"]) == sampled.action_space.tools
        domain = task_id.split("/")[1]
        assert {tool.name for tool in CATALOGUES[domain].domain.tools()} <= set(names)
        sampled.action_space.seed(0)
        _, _, _, _, info = sampled.step(sampled.action_space.sample())
        assert [tool["function"]["name"] for tool in info["tools"]] == names
        seen.add(tuple(names))
    assert len(seen) == 2


def test_a_tool_of_another_task_is_no_tool(sampled):
    sampled.reset(options={"task_id": "toolworld/home/all_off/0"})
    own = {tool.name for tool in sampled.toolbox}
    foreign = next(t.name for t in CATALOGUES["clinic"].domain.tools() if t.name not in own)
    observation, *_ = sampled.step(call(foreign, {}))
    assert f"there is no tool '{foreign}'" in observation[0]["content"]


def test_system_prompt_can_be_replaced_or_left_out():
    assert [m["role"] for m in ToolWorldEnv(prompt="").reset(seed=0)[0]] == ["user"]
    assert ToolWorldEnv(prompt="Work.").reset(seed=0)[0][0]["content"] == "Work."


@pytest.mark.thorough
def test_random_tasks_follow_the_seed_and_cover_the_split():
    env = ToolWorldEnv(split="test", tasks_per_family=2)

    def tasks(seed):
        return [env.reset(seed=seed)[1]["task_id"], *(env.reset()[1]["task_id"] for _ in range(60))]

    assert tasks(3) == tasks(3)
    assert tasks(3) != tasks(4)
    assert len(set(tasks(3))) > 12


@pytest.mark.parametrize(
    "task_id",
    [
        *("toolworld/tracker/root_blocker/12", "toolworld/tracker/root_blocker/-1", 7, None, ""),
        *("toolworld/tracker/root_blocker/01", "toolworld/tracker/none/0", "toolworld//0"),
    ],
)
def test_an_unknown_task_names_the_families(task_id):
    env = ToolWorldEnv(split="train")
    with pytest.raises(UnknownTaskError, match="tracker/root_blocker"):
        env.reset(options={"task_id": task_id})


def test_a_task_of_another_split_is_refused():
    with pytest.raises(UnknownTaskError, match="in split 'test'"):
        ToolWorldEnv(split="test").reset(options={"task_id": TASK})


@pytest.mark.parametrize(
    ("parameter", "value", "allowed"),
    [
        ("split", "dev", "'train', 'validation', 'test', None"),
        ("domains", ["casino"], "travel, calendar, library"),
        ("domains", "travel", "a list"),
        ("domains", ["travel", "travel"], "twice"),
        ("domains", [], "no domain"),
        ("tasks_per_family", 0, "at least 1"),
        ("tasks_per_family", True, "at least 1"),
        ("task_seed", "0", "a whole number"),
        ("distractors", -1, "at least 0"),
        ("prompt", 5, "a text"),
        ("max_turns", 0, "at least 1"),
        ("simulator", 5, "simulator"),
        ("judge", 5, "judge"),
        ("gates", "truncated", "a list"),
    ],
)
def test_a_wrong_value_names_those_allowed(parameter, value, allowed):
    with pytest.raises(ConfigError, match=allowed):
        ToolWorldEnv(**{parameter: value})


def test_domains_are_chosen_by_name_and_a_split_without_tasks_is_refused():
    env = ToolWorldEnv(domains=["home", "clinic"])
    assert {task_id.split("/")[1] for task_id in env.task_ids()} == {"home", "clinic"}
    with pytest.raises(ConfigError, match="no task of home is in split 'train'"):
        ToolWorldEnv(domains=["home"], split="train")


def test_steps_need_a_reset():
    env = ToolWorldEnv()
    with pytest.raises(ResetNeeded):
        env.step("x")
    env.reset(seed=0)
    env.close()
    with pytest.raises(ResetNeeded):
        env.step("x")


# --- results ----------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", CATALOGUES)
def test_every_result_is_valid_by_its_schema(domain):
    """Sampled calls that mostly hit: keys are taken from the world, as a policy would know them."""
    env = ToolWorldEnv(domains=[domain], tasks_per_family=1, max_turns=None)
    answered = set()
    for number, task_id in enumerate(env.task_ids()):
        env.reset(options={"task_id": task_id})
        world = env.snapshot()[1]
        schemas = {tool.name: JsonSchema(tool.result, where=tool.name) for tool in world.tools}
        home = {key: entity for entity, rows in world.state.items() for key in rows}
        fields = {
            field: sorted(world.state[home[str(value)]])
            for rows in world.state.values()
            for row in rows.values()
            for field, value in row.items()
            if str(value) in home
        }
        env.action_space.choices = {
            (tool.name, key): fields[key]
            for tool in world.tools
            for key in tool.parameters["properties"]
            if key in fields
        }
        env.action_space.seed(number)
        for _ in range(120):
            action = env.action_space.sample()
            observation, *_ = env.step(action)
            record = env.running.records[-1]
            assert record.calls[0].status in ("ok", "error"), record.calls[0]
            if record.calls[0].status == "ok":
                name = record.calls[0].name
                assert schemas[name].faults(json.loads(observation[0]["content"])) == []
                answered.add(name)
    own = {tool.name for tool in CATALOGUES[domain].domain.tools()}
    assert len(own & answered) >= len(own) - 1, own - answered


def test_what_is_created_is_found_and_what_is_deleted_is_gone():
    env = ToolWorldEnv(domains=["calendar"], max_turns=None)
    env.reset(seed=0)

    def say(name, **arguments):
        observation, *_ = env.step(call(name, arguments))
        text = observation[0]["content"]
        return text if text.startswith("Error") else json.loads(text)

    room = say("find_rooms")["rooms"][0]["room_id"]
    plan = {"title": "Retro", "date": "2026-07-01", "start": "09:00", "end": "10:00"}
    made = say("create_event", **plan, room_id=room, attendees=[])
    assert say("get_event", event_id=made["event_id"]) == made
    clash = say("create_event", **{**plan, "start": "09:30"}, room_id=room, attendees=[])
    assert "is taken from 09:00 to 10:00" in clash
    assert say("cancel_event", event_id=made["event_id"]) == {"deleted": made["event_id"]}
    assert "was deleted" in say("get_event", event_id=made["event_id"])
    assert say("list_events", title="Retro")["total"] == 0
    again = say("create_event", **plan, room_id=room, attendees=[])
    assert again["event_id"] != made["event_id"]


# --- simulators -------------------------------------------------------------------------------


def play_to_the_end(env, task_id=TASK, policy=expert):
    _, info = env.reset(options={"task_id": task_id})
    while True:
        _, reward, terminated, truncated, info = env.step(policy(env.messages, info))
        if terminated or truncated:
            return reward, info, env.running


@pytest.mark.parametrize("turn", [1, 3])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (SimulatorError("it contradicts itself"), "fault"),
        (SimulatorAbort("it gives up"), "simulator_abort"),
        (EndpointError("503", retryable=True), "fault"),
        (ZeroDivisionError("a bug"), "fault"),
    ],
)
def test_a_simulator_fault_masks_the_episode_and_charges_nothing_to_the_policy(turn, fault, reason):
    env = ToolWorldEnv(simulator=FaultyTools(fault, at=turn))
    reward, info, running = play_to_the_end(env)
    verdict = info["verdict"]
    assert len(running.records) == turn
    assert (reward, verdict.reward, verdict.masked) == (0.0, None, True)
    assert (verdict.failure_class, verdict.judge_failed) == ("simulator", False)
    assert verdict.components == {}
    assert str(fault) in verdict.reason
    assert (info["truncation_reason"], info["termination_reason"]) == (reason, None)
    assert str(fault) not in json.dumps(running.messages)


def test_calls_after_a_simulator_fault_in_the_same_message_are_not_run():
    tools = FaultyTools(SimulatorError("broken"), at=1)
    env = ToolWorldEnv(simulator=tools)
    env.reset(options={"task_id": TASK})
    message = call("find_members", {})
    message["tool_calls"] *= 3
    observation, _, _, truncated, info = env.step(message)
    assert truncated
    assert [each.status for each in env.running.records[0].calls] == ["error", "not_run", "not_run"]
    assert len(observation) == 3
    assert "broken" not in json.dumps(observation)
    assert info["verdict"].gates["malformed_call"] is False


def test_the_simulator_answers_on_every_turn():
    """Also after the first one, and in the next episode (case C19)."""
    tools = MadeUpTools(*(members("Ada", str(n)) for n in range(4)))
    env = ToolWorldEnv(simulator=tools, judge=Pleased())
    env.reset(options={"task_id": TASK})
    for turn in range(3):
        observation, *_ = env.step(call("find_members", {}))
        assert json.loads(observation[0]["content"]) == members("Ada", str(turn))
    env.step("Answer: Ada")
    env.reset(options={"task_id": TASK})
    observation, *_ = env.step(call("find_members", {}))
    assert json.loads(observation[0]["content"]) == members("Ada", "3")
    sessions = [world.session for world in tools.worlds]
    assert sessions[0] == sessions[2] != sessions[3]


def test_a_made_up_world_starts_empty_and_knows_what_was_asked():
    tools = MadeUpTools(members("Ada"))
    env = ToolWorldEnv(simulator=tools, judge=Pleased())
    observation, _ = env.reset(options={"task_id": TASK})
    env.step(call("find_members", {}))
    (world,) = tools.worlds
    assert world.state == {}
    assert observation[-1]["content"] in world.background
    assert CATALOGUES["tracker"].domain.background in world.background
    assert "things named there exist in this world" in world.background  # else it can't be done


def test_a_made_up_result_that_breaks_its_schema_is_the_simulators_fault():
    env = ToolWorldEnv(simulator=MadeUpTools({"members": "Ada"}), judge=Pleased())
    env.reset(options={"task_id": TASK})
    *_, truncated, info = env.step(call("find_members", {}))
    assert truncated
    assert info["verdict"].failure_class == "simulator"
    assert "members" in info["verdict"].reason


def test_made_up_results_need_a_judge():
    for simulator in (
        MadeUpTools(),
        ScriptedClient(["x"]),
        Endpoint(base_url="http://localhost:1/v1", model="m"),
        {"base_url": "http://localhost:1/v1", "model": "m"},
    ):
        with pytest.raises(ConfigError, match="give judge="):
            ToolWorldEnv(simulator=simulator)


def test_made_up_worlds_have_no_reference_and_the_verifier_masks_them():
    env = ToolWorldEnv(simulator=MadeUpTools(), judge=AnswerVerifier())
    env.reset(seed=0)
    *_, info = env.step("Answer: 3")
    assert info["verdict"].judge_failed
    assert info["verdict"].masked
    assert env.running.task.reference is None


def reply(**answer):
    return json.dumps({"answer": answer, "changes": []})


def test_a_model_plays_the_tools_and_another_judges():
    simulator = ScriptedClient([reply(result=members("Ada Abbott")), reply(error="no")])
    judge = ScriptedClient([json.dumps({"reason": "fine", "task_solved": 1, "grounded": 1})])
    env = ToolWorldEnv(simulator=simulator, judge=judge)
    env.reset(options={"task_id": TASK})
    first, *_ = env.step(call("find_members", {"team": "docs"}))
    assert json.loads(first[0]["content"]) == members("Ada Abbott")
    second, *_ = env.step(call("get_issue", {"issue_id": "is1"}))
    assert second[0]["content"] == "Error: no"
    _, reward, terminated, _, info = env.step("Answer: Ada Abbott")
    assert terminated
    assert info["verdict"].components == {"task_solved": 1.0, "grounded": 1.0}
    assert reward == pytest.approx(1.3)
    assert (simulator.calls, judge.calls) == (2, 1)


def test_a_model_that_answers_nonsense_masks_the_episode():
    env = ToolWorldEnv(
        simulator=ScriptedClient(["no JSON"], repeat=True), judge=ScriptedClient(["x"])
    )
    env.reset(options={"task_id": TASK})
    *_, truncated, info = env.step(call("find_members", {"team": "docs"}))
    assert truncated
    assert info["verdict"].failure_class == "simulator"
    assert info["verdict"].reward is None


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ("Answer: Ada", 0),
        ("Answer: mb0", 0),
        ("Answer: mb77777", 1),
        ("Answer: 2031-05-04, 09:15 and iss-1234", 3),
        ("Answer: 12345", 0),
    ],
)
def test_keys_and_dates_that_no_tool_gave_trip_a_gate(answer, count):
    env = ToolWorldEnv(simulator=MadeUpTools(members("Ada")), judge=Pleased())
    env.reset(options={"task_id": TASK})
    env.step(call("find_members", {}))
    _, reward, _, _, info = env.step(answer)
    assert info["verdict"].gate_counts["invented_value"] == count
    assert reward == pytest.approx(0.7 if count else 1.0)
    assert "invented_value" not in {gate.name for gate in ToolWorldEnv().scoring.gates}


def test_recorded_answers_play_an_episode_again():
    env = ToolWorldEnv()
    reward, _, _ = play_to_the_end(env)
    log = env.snapshot()[1].log
    again = ToolWorldEnv(simulator=FixtureTools(log))
    assert play_to_the_end(again)[0] == reward == 1.3


class Patchy:
    """The embedded backend without one of its tools."""

    inline = True
    fabricates = False

    def __init__(self, missing):
        self._tools = StateMachineTools(*(c.domain for c in CATALOGUES.values()))
        self._missing = missing

    async def call(self, world, name, arguments):
        if name == self._missing:
            raise SimulatorError(f"{name} is broken")
        return await self._tools.call(world, name, arguments)


async def test_many_episodes_at_once_are_scored_or_masked_each_for_itself():
    kwargs = {"tasks_per_family": 1, "split": "train", "simulator": Patchy("get_member")}
    engine = Engine("agentgym/ToolWorld-v0", client=ScriptedClient(expert), env_kwargs=kwargs)
    task_ids = ToolWorldEnv(tasks_per_family=1, split="train").task_ids()
    requests = [EpisodeRequest(seed=n, task_id=task_id) for n, task_id in enumerate(task_ids)]
    traces = {trace.task_id: trace async for trace in engine.run(requests)}
    await engine.aclose()
    assert set(traces) == set(task_ids)
    masked = {task_id for task_id, trace in traces.items() if not trace.scored}
    assert masked == {"toolworld/tracker/root_blocker/0"}
    assert {traces[task_id].failure_class for task_id in masked} == {"simulator"}
    assert {traces[task_id].reward for task_id in set(traces) - masked} == {1.3}


def test_the_embedded_backend_needs_no_event_loop():
    async def inside_a_loop():
        return play_to_the_end(ToolWorldEnv())[0]

    assert asyncio.run(inside_a_loop()) == 1.3


def test_a_judge_can_be_logged_beside_the_verifier():
    model = ScriptedClient([json.dumps({"reason": "bad", "task_solved": 0, "grounded": 0})])
    judge = Weighted({"verifier": AnswerVerifier(), "judge": (RubricJudge(model), 0.0)})
    env = ToolWorldEnv(judge=judge)
    reward, info, _ = play_to_the_end(env)
    assert reward == pytest.approx(1.3)
    assert info["verdict"].components["judge"] == 0.0
    assert info["verdict"].components["verifier.task_solved"] == 1.0


def test_judge_and_simulator_are_charged_to_their_roles():
    env = ToolWorldEnv(simulator=Paid("simulator"), judge=Paid("judge"))
    env.reset(options={"task_id": TASK})
    env.step(call("find_members", {}))
    *_, info = env.step("Answer: Ada")
    assert env.running.meter.by_role["simulator"].prompt_tokens == 7
    assert info["verdict"].spent["judge"].prompt_tokens == 7


# --- domains of one's own ---------------------------------------------------------------------


class Heaviest(Template):
    """Which stone is heaviest."""

    name = "heaviest"
    split = "train"
    prompts = ("Which stone in {place} weighs most?", "Name the heaviest stone of {place}.")

    def pose(self, rng, state):
        stones = list(state["stone"].values())
        return Posed(
            slots={"place": "the quarry"},
            answer=answers.name(
                max(stones, key=lambda s: s["weight"])["name"], [s["name"] for s in stones]
            ),
            evidence=[stone["stone_id"] for stone in stones],
        )

    def solve(self, slots):
        found = yield "list_stones", {}
        return max(found["stones"], key=lambda s: s["weight"])["name"]


class Impossible(Heaviest):
    def pose(self, rng, state):
        return None


def quarry(*templates):
    stone = Entity(
        name="stone", key="stone_id", prefix="sn", fields={"name": TEXT, "weight": COUNT}
    )
    return Catalogue(
        Domain(
            name="quarry",
            background="Stones.",
            entities=(stone,),
            actions=(Find(name="list_stones", description="All stones.", entity="stone"),),
            populate=lambda rng: {
                "stone": [
                    {"stone_id": f"sn{n}", "name": f"Stone {n}", "weight": rng.randrange(999)}
                    for n in range(5)
                ]
            },
        ),
        templates,
    )


def test_a_domain_of_ones_own_is_played_and_judged():
    own = quarry(Heaviest())
    env = ToolWorldEnv(domains=[own], tasks_per_family=3)
    policy = POLICIES["expert"](env, 0)
    for task_id in env.task_ids():
        assert play_to_the_end(env, task_id, policy)[0] == pytest.approx(1.3)
    assert [tool.name for tool in env.toolbox] == ["list_stones"]
    both = ToolWorldEnv(domains=[own, "library"], tasks_per_family=1)
    both.reset(options={"task_id": "toolworld/quarry/heaviest/0"})
    assert len(both.toolbox) == 1 + 4


def test_a_template_that_poses_nothing_is_named():
    env = ToolWorldEnv(domains=[quarry(Impossible())])
    with pytest.raises(ConfigError, match="template quarry/heaviest posed no task in 300 worlds"):
        env.reset(seed=0)


# --- snapshots --------------------------------------------------------------------------------


def test_an_episode_goes_on_from_a_snapshot_elsewhere():
    env, other = ToolWorldEnv(), ToolWorldEnv()
    task_id = "toolworld/clinic/reschedule/1"
    _, info = env.reset(options={"task_id": task_id})
    for _ in range(4):
        *_, info = env.step(expert(env.messages, info))
    state = env.get_state()
    other.reset(options={"task_id": "toolworld/home/all_off/0"})
    for _ in range(2):
        other.set_state(state)
        assert [t.name for t in other.toolbox] == [t["function"]["name"] for t in info["tools"]]
        assert other.action_space.tools == env.action_space.tools
        over = False
        while not over:
            _, reward, over, _, _ = other.step(expert(other.messages, info))
        assert reward == 1.3


def test_copies_and_pickles_continue_the_episode():
    env = ToolWorldEnv(tasks_per_family=2)
    _, info = env.reset(options={"task_id": "toolworld/warehouse/fill_up/0"})
    env.step(expert(env.messages, info))
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        over = False
        while not over:
            _, reward, over, _, _ = twin.step(expert(twin.messages, info))
        assert reward == 1.3
        assert twin.outcome() != env.outcome()


# --- nothing leaks ----------------------------------------------------------------------------


def pieces_in(reference):
    """Every key and field of the evidence."""
    return [piece for ways in reference.evidence for look in ways for piece in look]


def test_answer_evidence_and_changes_are_nowhere_in_what_a_policy_gets_at_first(sampled):
    """Before any tool was called (case J08)."""
    for task_id in sampled.task_ids():
        observation, info = sampled.reset(options={"task_id": task_id})
        reference = sampled.running.task.reference
        shown = json.dumps([observation, info], ensure_ascii=False)
        prompt = observation[-1]["content"]
        schemas = json.dumps(info["tools"], ensure_ascii=False)
        hidden = {*reference.answer.values, *pieces_in(reference)}
        hidden = {piece for piece in hidden if len(piece) >= 5 and piece not in prompt + schemas}
        assert hidden, task_id
        for piece in hidden:
            assert piece not in shown, (task_id, piece)


def test_reference_is_in_no_message_info_outcome_or_record(sampled):
    """Whatever a policy does, refusals included (case J08)."""
    words = ("evidence", "Reference", "answer_right", "'among'")
    for seed in range(100):
        _, info = sampled.reset(seed=seed)
        sampled.action_space.seed(seed)
        shown = [info]
        for _ in range(3):
            observation, _, terminated, truncated, info = sampled.step(
                sampled.action_space.sample()
            )
            shown.append((observation, info))
            assert (terminated, truncated) == (False, False)
        text = repr(shown)
        assert not any(word in text for word in words)
        assert "reference" not in sampled.running.task.model_dump_json()


def test_doing_nothing_leaves_an_outcome_that_says_nothing(sampled):
    for task_id in sampled.task_ids()[::7]:
        sampled.reset(options={"task_id": task_id, "judging": "deferred"})
        *_, info = sampled.step("Answer: none")
        assert info["episode_record"].outcome == {"changes": {}}


@pytest.mark.parametrize("name", ["judge", "verify", "get_answer", "submit"])
def test_the_judge_is_no_tool(sampled, name):
    sampled.reset(options={"task_id": TASK})
    observation, *_ = sampled.step(call(name, {}))
    assert f"there is no tool '{name}'" in observation[0]["content"]
