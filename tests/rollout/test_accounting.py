"""Usage per role, endpoints that refuse, empty replies: what a trace says of the models' side."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agentgym.client import Completion, Endpoint, SamplingParams
from agentgym.clients import RecordingClient, ReplayClient, ScriptedClient
from agentgym.clients.record import Recording
from agentgym.clients.replay import Replay
from agentgym.errors import (
    BudgetExceeded,
    EmptyReply,
    EndpointError,
    JudgeError,
    RolloutStopped,
    SimulatorError,
)
from agentgym.judge import Score
from agentgym.metering import charge, report_refusal
from agentgym.rollout import Engine, EpisodeRequest, Limits, summarize
from agentgym.testing.envs import CounterEnv
from agentgym.trace import Trace
from agentgym.types import Usage

PRICED = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=2, cost_usd=0.5)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    tool_call = {"id": "c", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [tool_call]}


def solve(messages: Any) -> dict[str, Any]:
    target = int(messages[1]["content"].split(" to ")[1].split(",")[0])
    return call("submit") if len(messages) > 2 else call("add", amount=target)


class PaidClient(ScriptedClient):
    """Answers from a script and charges each call, as a hosted endpoint's client does."""

    def __init__(self, policy: Any, *, role: str = "policy", usage: Usage = PRICED) -> None:
        super().__init__(policy, repeat=not callable(policy))
        self.role, self.usage = role, usage

    async def complete(self, *args: Any, **kwargs: Any) -> Completion:
        try:
            completion = await super().complete(*args, **kwargs)
        except EndpointError as error:
            charge(self.role, Usage(calls=3, retries=2, failed_calls=1, cost_usd=0))
            if error.status == 402:
                report_refusal(self.role, str(error))
            raise
        charge(self.role, self.usage)
        return completion.model_copy(update={"usage": self.usage})


class ModelJudge:
    """Asks its model and takes any answer for 1.0."""

    inline = False

    def __init__(self, client: Any) -> None:
        self.client = client

    async def score(self, episode: Any) -> Score:
        try:
            await self.client.complete(list(episode.messages), (), SamplingParams(seed=1))
        except EndpointError as error:
            raise JudgeError(str(error)) from error
        return Score(total=1.0, correct=True)


class HostedEnv(CounterEnv):
    """A counter whose every start and step asks a simulator."""

    awaits = True

    def __init__(self, simulator: Any, judge: Any) -> None:
        self.simulator = simulator
        super().__init__()
        self.scoring = self.scoring.model_copy(update={"judge": judge})

    async def start(self, task: Any) -> Any:
        await self.ask()
        return await super().start(task)

    async def _advance(self, running: Any, record: Any) -> Any:
        await self.ask()
        return await super()._advance(running, record)

    async def ask(self) -> None:
        question = [{"role": "user", "content": "What now?"}]
        try:
            await self.simulator.complete(question, (), SamplingParams(seed=1))
        except EndpointError as error:
            raise SimulatorError(str(error)) from error


def hosted(simulator: Any = ("fine",), judge: Any = ("good",)) -> Any:
    clients = [
        PaidClient(script, role=role) if isinstance(script, tuple) else script
        for script, role in ((simulator, "simulator"), (judge, "judge"))
    ]
    return lambda: HostedEnv(clients[0], ModelJudge(clients[1]))


async def play(engine: Engine, count: int = 1) -> list[Trace]:
    async with engine:
        requests = [EpisodeRequest(seed=k, task_id=f"counter/{k + 1}") for k in range(count)]
        return [trace async for trace in engine.run(requests)]


# --- usage per role ---------------------------------------------------------------------------


async def test_each_roles_calls_are_in_its_own_account():
    (trace,) = await play(Engine(hosted(), client=PaidClient(solve)))
    assert {role: usage.calls for role, usage in trace.usage.items()} == {
        "policy": 2,
        "simulator": 3,
        "judge": 1,
    }
    assert trace.usage["simulator"].cost_usd == 1.5
    assert trace.usage["judge"] == trace.verdict.spent["judge"] == PRICED


async def test_a_call_is_never_counted_twice():
    (trace,) = await play(Engine(hosted(), client=PaidClient(solve)))
    assert (
        trace.usage["policy"]
        == PRICED + PRICED
        == sum((turn.usage for turn in trace.turns), Usage(calls=0))
    )


async def test_failed_policy_call_is_in_the_account():
    down = EndpointError("down", retryable=True)
    (trace,) = await play(Engine(CounterEnv, client=PaidClient([down])))
    usage = trace.usage["policy"]
    assert (usage.calls, usage.retries, usage.failed_calls) == (3, 2, 1)


async def test_policy_call_that_was_not_sent_counts_once():
    """A hosted client's error says that it failed, though there is nothing to charge for it."""
    unsent = EndpointError("not sent", retryable=False, usage=Usage(calls=0, failed_calls=1))
    (trace,) = await play(Engine(CounterEnv, client=ScriptedClient([unsent])))
    usage = trace.usage["policy"]
    assert (usage.calls, usage.failed_calls) == (0, 1)


async def test_simulator_that_fails_around_a_step_is_not_the_envs_fault():
    class Around(CounterEnv):
        awaits = True

        async def astep(self, action: Any) -> Any:
            raise SimulatorError("no reply")

    (trace,) = await play(Engine(Around, client=PaidClient(solve)))
    assert (trace.failure_class, trace.reward) == ("simulator", None)


async def test_failed_judgement_and_its_cost_are_in_the_account():
    down = EndpointError("down", retryable=True)
    (trace,) = await play(Engine(hosted(judge=(down,)), client=PaidClient(solve)))
    assert (trace.failure_class, trace.reward) == ("judge", None)
    assert trace.usage["judge"].failed_calls == 1


async def test_judge_that_takes_too_long_is_billed_for_what_it_had_asked():
    class Slow(PaidClient):
        async def complete(self, *args: Any, **kwargs: Any) -> Completion:
            await super().complete(*args, **kwargs)
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    judge = Slow(("good",), role="judge")
    limits = Limits(eval_timeout_s=0.05)
    (trace,) = await play(Engine(hosted(judge=judge), client=PaidClient(solve), limits=limits))
    assert trace.failure_class == "judge"
    assert trace.usage["judge"] == trace.verdict.spent["judge"] == PRICED


async def test_simulator_that_fails_at_the_start_is_billed():
    down = EndpointError("down", retryable=True)
    (trace,) = await play(Engine(hosted(simulator=(down,)), client=PaidClient(solve)))
    assert trace.reward is None
    assert trace.usage["simulator"].failed_calls == 1
    assert trace.error == "SimulatorError: down", "a failure with a name needs no traceback"


async def test_summary_adds_up_every_role():
    traces = await play(Engine(hosted(), client=PaidClient(solve)), 3)
    summary = summarize(traces)
    assert summary.usage["simulator"].calls == 9
    assert summary.cost_usd == pytest.approx((6 + 9 + 3) * 0.5)


async def test_outcome_and_answer_are_in_the_trace_and_read_back():
    (trace,) = await play(Engine(CounterEnv, client=ScriptedClient(solve)))
    assert trace.outcome == {"value": 1}
    assert Trace.model_validate_json(trace.to_json_line()).outcome == {"value": 1}


def test_trace_without_outcome_is_still_read():
    old = {"trace_id": "t", "env_spec": "{}", "started_at": "now", "verdict": {"reward": 1.0}}
    assert Trace.model_validate({"schema_version": 1, **old}).outcome == {}


# --- empty replies, refusals ------------------------------------------------------------------


async def test_empty_reply_truncates_and_masks():
    """Case A17: the provider's doing, never the policy's."""
    empty = EmptyReply("no choices after 5 attempts", retryable=False)
    client = ScriptedClient([call("add", amount=1), empty])
    (trace,) = await play(Engine(CounterEnv, client=client))
    assert (trace.truncation_reason, trace.failure_class) == ("provider_empty", "infra")
    assert (trace.reward, trace.verdict.masked, len(trace.turns)) == (None, True, 1)
    assert "no choices" in trace.error


async def test_policy_budget_used_up_stops_the_run():
    client = PaidClient([BudgetExceeded("the budget of $5 is used up")])
    with pytest.raises(RolloutStopped, match=r"no other episode would fare better.*\$5 is used"):
        await play(Engine(CounterEnv, client=client), 50)


@pytest.mark.parametrize("role", ["simulator", "judge"])
async def test_simulator_or_judge_without_credit_stops_the_run(role):
    broke = (BudgetExceeded("the budget of $5 is used up"),)
    client = PaidClient(solve)
    with pytest.raises(RolloutStopped, match=rf"{role}: the budget of \$5"):
        await play(
            Engine(hosted(**{role: broke}), client=client, limits=Limits(concurrency=2)), 100
        )
    assert client.calls < 40  # those that had begun, of 200


async def test_judge_that_is_only_down_stops_nothing():
    down = EndpointError("down", retryable=True, status=503)
    traces = await play(Engine(hosted(judge=(down,)), client=PaidClient(solve)), 5)
    assert [trace.failure_class for trace in traces] == ["judge"] * 5


# --- record and replay ------------------------------------------------------------------------


async def record(path: Any, count: int) -> list[Trace]:
    with Recording(path) as kept:
        fine, good = (PaidClient((text,), role=text) for text in ("simulator", "judge"))
        env = hosted(
            simulator=RecordingClient(fine, kept, role="simulator"),
            judge=RecordingClient(good, kept, role="judge"),
        )
        return await play(Engine(env, client=RecordingClient(PaidClient(solve), kept)), count)


def replay(path: Any, **limits: Any) -> Engine:
    kept = Replay(path)
    env = hosted(
        simulator=ReplayClient(kept, role="simulator"), judge=ReplayClient(kept, role="judge")
    )
    client = ReplayClient(kept, role="policy")
    return Engine(env, client=client, limits=Limits(**limits))


def facts(traces: list[Trace]) -> dict[str | None, Any]:
    return {t.task_id: (t.messages, t.verdict, t.usage, t.outcome) for t in traces}


async def test_replayed_run_equals_the_recorded_one(tmp_path):
    recorded = await record(tmp_path / "calls.jsonl", 6)
    for concurrency in (1, 6):
        engine = replay(tmp_path / "calls.jsonl", concurrency=concurrency)
        assert facts(await play(engine, 6)) == facts(recorded)


@pytest.mark.parametrize("role", ["policy", "simulator", "judge"])
async def test_replay_miss_of_any_role_stops_the_run_and_names_it(tmp_path, role):
    path = tmp_path / "calls.jsonl"
    await record(path, 2)
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if f'"role":"{role}"' not in line]
    assert len(kept) < len(lines)
    path.write_text("".join(kept))
    with pytest.raises(RolloutStopped, match=f"the {role} of episode 'counter/.@.*nothing is rec"):
        await play(replay(path), 2)


# --- environments' specs ----------------------------------------------------------------------


async def test_endpoint_among_the_parameters_is_in_the_traces_without_secrets():
    import gymnasium

    from agentgym.rollout.source import EnvSource

    endpoint = Endpoint(base_url="http://u:hunter22@h/v1", model="m", role="judge")
    spec = gymnasium.envs.registration.EnvSpec("Hosted-v0", entry_point=HostedEnv)
    judge = ModelJudge(ScriptedClient([]))
    for given in (endpoint, endpoint.model_dump()):
        source = EnvSource(spec, {"simulator": given, "judge": [1]})
        assert "hunter22" not in source.spec_json
        assert '"http://h/v1"' in source.spec_json
    source = EnvSource(spec, {"simulator": endpoint, "judge": judge})
    made = [source.make().unwrapped for _ in range(2)]
    assert all(env.scoring.judge is judge for env in made)
    assert made[0].simulator == endpoint
