"""What is tried again, what never is, and that it ends."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from rolling import (
    ADD,
    SUBMIT,
    Judge,
    Maker,
    RankingJudge,
    groups,
    never,
    read,
    settle,
    singles,
    submits,
)

from agentgym.client import Completion
from agentgym.clients import ScriptedClient
from agentgym.errors import EndpointError, EnvFault, JudgeError, RolloutStopped, SimulatorError
from agentgym.metering import charge
from agentgym.rollout import Engine, EpisodeRequest, Limits, Retry
from agentgym.rollout.limits import FailureWatch
from agentgym.rollout.plan import plan_requests
from agentgym.rollout.retry import Retries, pause_before
from agentgym.trace import EarlierAttempt, Trace
from agentgym.types import Usage

QUICK = Retry(pause_s=0)
DOWN = EndpointError("http://x/v1: no connection", retryable=True)


class Failing:
    """Raises for the first so many calls, and counts them."""

    def __init__(self, times: int, error: Any) -> None:
        self.times = times
        self.error = error
        self.calls = 0

    async def __call__(self, *_: Any) -> None:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error


def paid(reply: Any, **tokens: int) -> Completion:
    return Completion(message=reply, usage=Usage(**tokens))


# --- whole episodes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "error", "failure_class", "stage"),
    [
        ("step", EnvFault("the disk is gone"), "env", "run"),
        ("step", ValueError("a bug"), "env", "run"),
        ("start", EnvFault("no container"), "env", "init"),
        ("step", SimulatorError("nonsense"), "simulator", "run"),
        ("start", SimulatorError("no opening"), "simulator", "init"),
    ],
)
async def test_step_of_unknown_outcome_has_the_whole_episode_played_again(
    where, error, failure_class, stage, caplog
):
    client = ScriptedClient([paid(SUBMIT, prompt_tokens=7, completion_tokens=2)])
    maker = Maker(**{where: Failing(1, error)})
    engine = Engine(maker, client=client, retry=QUICK)
    (trace,) = await read(engine, [EpisodeRequest(seed=3)])
    assert trace.scored
    (attempt,) = trace.earlier
    assert (attempt.failure_class, attempt.failed_stage) == (failure_class, stage)
    assert str(error) in attempt.error
    assert trace.seed == 3
    calls = 2 if where == "step" else 1
    assert trace.usage["policy"] == Usage(
        prompt_tokens=7 * calls, completion_tokens=2 * calls, calls=calls
    )
    assert "playing it again" in caplog.text
    assert caplog.records[-1].levelname == "WARNING"
    await engine.aclose()
    assert maker.all_closed


async def test_second_attempt_is_the_same_episode():
    seeds: list[Any] = []

    def policy(messages: Any, info: Any, sampling: Any) -> Any:
        seeds.append((info["task_id"], sampling.seed))
        return SUBMIT

    engine = Engine(
        Maker(step=Failing(1, EnvFault("gone"))), client=ScriptedClient(policy), retry=QUICK
    )
    (trace,) = await read(engine, [EpisodeRequest(sample=4)])
    assert seeds[0] == seeds[1]
    assert trace.sample == 4
    await engine.aclose()


async def test_deadline_in_the_middle_of_a_step_is_an_unknown_outcome():
    hung = []

    async def once(_: Any) -> None:
        if not hung:
            hung.append(1)
            await never()

    engine = Engine(
        Maker(step=once), client=submits(), retry=QUICK, limits=Limits(turn_timeout_s=0.05)
    )
    (trace,) = await read(engine, singles(1))
    assert trace.scored
    assert [attempt.failure_class for attempt in trace.earlier] == ["infra"]
    await engine.aclose()


@pytest.mark.parametrize(
    "error",
    [
        DOWN,
        EndpointError("bad request", retryable=False),
        ConnectionResetError("of a client with errors of its own"),
        asyncio.CancelledError("by a client of its own accord"),
    ],
)
async def test_call_that_its_client_gave_up_on_is_not_asked_again(error):
    client = ScriptedClient([ADD, error])
    engine = Engine(Maker(), client=client, retry=QUICK)
    (trace,) = await read(engine, singles(1))
    assert (trace.failure_class, trace.earlier, client.calls) == ("infra", (), 2)
    await engine.aclose()


async def test_policy_failures_and_zeros_are_results():
    judge = Judge(total=lambda _: 0.0)
    client = ScriptedClient(["?"])
    engine = Engine(Maker(judge=judge), client=client, retry=QUICK)
    traces = await read(engine, singles(10))
    assert all(trace.scored and not trace.earlier for trace in traces)
    assert judge.calls == client.calls == 10
    await engine.aclose()


async def test_unknown_task_is_not_looked_for_again():
    engine = Engine(Maker(), client=submits(), retry=QUICK)
    (trace,) = await read(engine, [EpisodeRequest(task_id="counter/99")])
    assert (trace.failure_class, trace.earlier) == ("env", ())
    await engine.aclose()


@pytest.mark.parametrize(
    ("retry", "attempts"),
    [
        (None, 1),
        (Retry(pause_s=0, env=0), 1),
        (Retry(pause_s=0), 2),
        (Retry(pause_s=0, env=3), 3),
        (Retry(pause_s=0, env=3, per_episode=9), 4),
        (Retry(pause_s=0, env=3, budget=0, budget_floor=1), 2),
    ],
)
async def test_attempts_are_bounded(retry, attempts):
    """E19, E20: WecoAI/aideml#86, PrimeIntellect-ai/prime-rl#2579."""
    failing = Failing(99, EnvFault("gone"))
    engine = Engine(Maker(step=failing), client=submits(), retry=retry)
    (trace,) = await read(engine, singles(1))
    assert (trace.failure_class, len(trace.earlier), failing.calls) == (
        "env",
        attempts - 1,
        attempts,
    )
    await engine.aclose()


async def test_budget_of_the_engine_bounds_a_dead_environment(caplog):
    """E20: started attempts have a limit, and a run that only fails is stopped."""
    failing = Failing(10**9, EnvFault("gone"))
    limits = Limits(concurrency=8, min_failures=40)
    engine = Engine(Maker(step=failing), client=submits(), retry=QUICK, limits=limits)
    with pytest.raises(RolloutStopped, match=r"\d+ of \d+ attempts failed \(env \d+\).*gone"):
        await read(engine, singles(1000))
    assert failing.calls <= 40 + 10 + 24
    assert caplog.text.count("retry budget is used up") == 1
    await engine.aclose()


async def test_policy_endpoint_that_is_down_stops_the_run_and_starts_nothing_twice():
    """E20: the endpoint always answers 503."""
    client = ScriptedClient([EndpointError("503 after 5 attempts", retryable=True, status=503)])
    limits = Limits(concurrency=4, min_failures=10)
    retry = Retry(pause_s=0, min_group_size=4)
    engine = Engine(Maker(), client=client, retry=retry, limits=limits)
    with pytest.raises(RolloutStopped, match="503 after 5 attempts"):
        await read(engine, groups(100, 4))
    assert client.calls <= 10 + 10 + 20  # failures, replacements, in flight
    await engine.aclose()


async def test_slot_is_free_and_place_is_waited_for_between_attempts():
    """E03: every attempt gives back what it took, whatever comes of it."""
    limits = Limits(concurrency=1, init_concurrency=1)
    engine = Engine(
        Maker(step=Failing(4, RuntimeError("boom")), start=Failing(3, RuntimeError("bang"))),
        client=submits(),
        retry=Retry(pause_s=0, budget=1),
        limits=limits,
    )
    traces = await read(engine, singles(64))
    assert len(traces) == 64
    stages = engine.status().stages
    assert [stage.active for stage in stages] == [0, 0, 0]
    assert engine.status().admission.taken == 0  # type: ignore[union-attr]
    await engine.aclose()


async def test_cancelled_pause_leaves_nothing_behind():
    paused = Retry(pause_s=1000, max_pause_s=1000)
    maker = Maker(step=Failing(1, EnvFault("gone")))
    engine = Engine(maker, client=submits(), retry=paused)
    reading = asyncio.create_task(read(engine, singles(1)))
    for _ in range(1000):
        await settle(1)
        if any(waiters.waiting == "retry" for waiters in engine.status().waiting):
            break
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert engine.status().in_flight == 0
    await engine.aclose()


def test_pauses_double_up_to_the_longest_with_jitter_that_follows_from_the_name():
    retry = Retry(pause_s=1, max_pause_s=5)
    pauses = [pause_before(retry, n, "a@1.0") for n in range(1, 6)]
    for pause, longest in zip(pauses, [1, 2, 4, 5, 5], strict=True):
        assert longest / 2 <= pause <= longest
    assert pauses == [pause_before(retry, n, "a@1.0") for n in range(1, 6)]
    assert pauses != [pause_before(retry, n, "a@2.0") for n in range(1, 6)]


# --- judgements -------------------------------------------------------------------------------


async def test_failed_judgement_is_made_again_without_rolling_out_again(caplog):
    async def fail_once(_: Any) -> None:
        charge("judge", Usage(prompt_tokens=5))
        await failing()

    failing = Failing(1, JudgeError("unreadable"))
    client = submits()
    engine = Engine(Maker(judge=Judge(fail_once)), client=client, retry=QUICK)
    (trace,) = await read(engine, singles(1))
    assert (trace.reward, client.calls, failing.calls) == (1.0, 1, 2)
    assert trace.usage["judge"] == Usage(prompt_tokens=10, calls=2)
    assert trace.verdict.spent["judge"].prompt_tokens == 10
    assert "judging it again" in caplog.text
    await engine.aclose()


@pytest.mark.parametrize(("again", "calls"), [(0, 1), (2, 3)])
async def test_judgements_are_bounded(again, calls):
    judge = Judge(Failing(99, JudgeError("unreadable")))
    engine = Engine(Maker(judge=judge), client=submits(), retry=Retry(pause_s=0, judge=again))
    (trace,) = await read(engine, singles(1))
    assert (trace.failure_class, judge.calls) == ("judge", calls)
    await engine.aclose()


async def test_judge_whose_client_gave_up_is_not_asked_again():
    async def give_up(_: Any) -> None:
        charge("judge", Usage(failed_calls=1, calls=0))
        raise JudgeError("no answer in 5 attempts")

    judge = Judge(give_up)
    engine = Engine(Maker(judge=judge), client=submits(), retry=Retry(pause_s=0, judge=5))
    (trace,) = await read(engine, singles(1))
    assert (trace.failure_class, judge.calls) == ("judge", 1)
    await engine.aclose()


async def test_group_whose_judgement_failed_is_judged_again_as_a_whole():
    judge = RankingJudge(Failing(1, JudgeError("unreadable")))
    client = submits()
    engine = Engine(Maker(judge=judge), client=client, retry=QUICK)
    traces = await read(engine, groups(1, 3))
    assert [len(tasks) for tasks in judge.groups] == [3, 3]
    assert client.calls == 3
    assert all(trace.scored for trace in traces)
    await engine.aclose()


# --- groups -----------------------------------------------------------------------------------


def failing_samples(*samples: int) -> ScriptedClient:
    """A policy that is unreachable for the first rollouts that ask."""
    asked: Counter[int] = Counter()

    def policy(messages: Any) -> Any:
        asked["n"] += 1  # type: ignore[index]
        return DOWN if asked["n"] - 1 in samples else SUBMIT  # type: ignore[index]

    return ScriptedClient(policy)


@pytest.mark.parametrize("together", [False, True])
async def test_group_that_failures_left_too_small_gets_a_replacement(together):
    judge = RankingJudge() if together else None
    limits = Limits(concurrency=1, init_concurrency=1)
    retry = Retry(pause_s=0, min_group_size=4)
    engine = Engine(Maker(judge=judge), client=failing_samples(1), retry=retry, limits=limits)
    traces = await read(engine, groups(2, 4))
    assert len(traces) == 9
    (failed,) = [trace for trace in traces if not trace.scored]
    (replacement,) = [trace for trace in traces if "replaces_sample" in trace.metadata]
    assert (failed.sample, failed.failure_class) == (1, "infra")
    assert (replacement.sample, replacement.metadata["replaces_sample"]) == (4, 1)
    assert (replacement.group, replacement.seed) == (failed.group, failed.seed)
    scored = Counter(trace.group for trace in traces if trace.scored)
    assert set(scored.values()) == {4}
    if judge is not None:
        assert [len(tasks) for tasks in judge.groups] == [4, 4], "the place was kept for it"
    await engine.aclose()


async def test_group_that_is_still_large_enough_gets_none():
    retry = Retry(pause_s=0, min_group_size=3)
    engine = Engine(Maker(), client=failing_samples(1), retry=retry)
    traces = await read(engine, groups(1, 4))
    assert sorted(trace.sample for trace in traces) == [0, 1, 2, 3]
    await engine.aclose()


async def test_replacements_are_bounded():
    client = ScriptedClient([DOWN])
    retry = Retry(pause_s=0, min_group_size=4, top_ups=3)
    engine = Engine(Maker(), client=client, retry=retry, limits=Limits(min_failures=99))
    traces = await read(engine, groups(1, 4))
    assert sorted(trace.sample for trace in traces) == list(range(7))
    assert not any(trace.scored for trace in traces)
    await engine.aclose()


async def test_rollout_that_only_its_own_judge_failed_is_replaced_after_judging_again():
    judge = Judge(Failing(2, JudgeError("unreadable")))
    limits = Limits(concurrency=1, init_concurrency=1, eval_concurrency=1)
    retry = Retry(pause_s=0, judge=1, min_group_size=2)
    client = submits()
    engine = Engine(Maker(judge=judge), client=client, retry=retry, limits=limits)
    traces = await read(engine, groups(1, 2))
    assert sum(trace.scored for trace in traces) == 2
    assert client.calls == len(traces)
    await engine.aclose()


@pytest.mark.parametrize(("concurrency", "scored"), [(64, 3), (1, 2)])
async def test_group_is_topped_up_only_if_it_is_known_who_else_will_come(concurrency, scored):
    retry = Retry(pause_s=0, min_group_size=3)
    limits = Limits(concurrency=concurrency, init_concurrency=1)
    engine = Engine(Maker(), client=failing_samples(0), retry=retry, limits=limits)
    traces = await read(engine, groups(1, 3, group_size=None))
    assert sum(trace.scored for trace in traces) == scored
    await engine.aclose()


@pytest.mark.parametrize("order", [(4, 5, 6), (6, 4, 5)])
async def test_replacement_never_gets_the_number_of_a_sibling_still_to_come(order):
    engine = Engine(
        Maker(),
        client=failing_samples(0),
        retry=Retry(pause_s=0, min_group_size=3),
        limits=Limits(concurrency=1, init_concurrency=1),
    )
    shared = {"task_id": "counter/1", "seed": 1, "group": "g", "group_size": 3}
    traces = await read(engine, [EpisodeRequest(sample=sample, **shared) for sample in order])
    samples = [trace.sample for trace in traces]
    assert len(samples) == len(set(samples)) == 4
    assert sum(trace.scored for trace in traces) == 3


def test_replacements_of_a_resumed_run_get_numbers_that_nobody_has():
    (request,) = plan_requests(
        ["a"], samples=4, done={("a", n) for n in (0, 1, 3, 6)} | {("b", 9)}
    )[:1]
    assert (request.sample, request.free_sample) == (2, 7)
    assert plan_requests(["a"])[0].free_sample is None


@pytest.mark.parametrize(
    ("asked", "budget", "allowed"),
    [(1, 0.2, 0), (4, 0.2, 0), (5, 0.2, 1), (48, 0.3, 14), (100, 0.29, 29)],
)
def test_budget_is_never_exceeded_by_a_fraction(asked, budget, allowed):
    retries = Retries(Retry(env=10**6, per_episode=10**6, budget=budget, budget_floor=0))
    for _ in range(asked):
        retries.asked()
    while retries.pause_s("env", (), name="e", why="gone") is not None:
        assert retries.again <= allowed
    assert retries.again == allowed


def test_nothing_is_replaced_without_min_group_size_or_budget():
    args: dict[str, Any] = {"size": 4, "lost": 0, "replaced": 0, "name": "x"}
    assert not Retries(None).replaces(**args)
    assert not Retries(Retry()).replaces(**args)
    assert not Retries(Retry(min_group_size=4, budget=0, budget_floor=0)).replaces(**args)
    assert Retries(Retry(min_group_size=4)).replaces(**args)
    assert not Retries(Retry(min_group_size=4, top_ups=1)).replaces(**{**args, "replaced": 1})


# --- the failure rate -------------------------------------------------------------------------


def trace(error: str | None = None, **fields: Any) -> Trace:
    verdict: dict[str, Any] = {"masked": error is not None, "reward": None if error else 1.0}
    failure = {"failure_class": "infra", "error": error} if error else {}
    return Trace.model_validate(
        {"trace_id": "t", "env_spec": "{}", "started_at": "now", "verdict": verdict}
        | failure
        | fields
    )


def test_run_that_goes_bad_late_stops_soon():
    limits = Limits(min_failures=20, max_failure_rate=0.5, failure_window=100)
    watch = FailureWatch(limits)
    for _ in range(10_000):
        watch.count(trace())
    for _ in range(59):
        watch.count(trace("no connection"))
    # Wilson's interval of 60 of 100 begins at 0.502.
    with pytest.raises(RolloutStopped, match="60 of the last 100 episodes failed"):
        watch.count(trace("no connection"))


def test_a_share_below_the_limit_does_not_end_runs_by_chance():
    ended = 0
    scored, failed = trace(), trace("no verdict")
    for seed in range(200):
        rng, watch = random.Random(seed), FailureWatch(Limits())
        try:
            for _ in range(500):
                watch.count(failed if rng.random() < 0.3 else scored)
        except RolloutStopped:
            ended += 1
    assert ended == 0


def test_stop_names_a_cause_that_the_window_no_longer_has():
    watch = FailureWatch(Limits(failure_window=1, min_failures=1, max_failure_rate=0.05))
    failed = EarlierAttempt(failure_class="env", failed_stage="run", error="no disk", usage={})
    with pytest.raises(RolloutStopped, match="1 of 2 attempts failed .* no disk"):
        watch.count(trace(earlier=(failed,)))


def test_stop_names_the_commonest_cause_and_keeps_its_traceback():
    watch = FailureWatch(Limits(min_failures=6, max_failure_rate=0))
    closed = "Traceback (most recent call last):\nOSError: port {} is closed"
    for error in (closed.format(0), "one", closed.format(1), "two", closed.format(2)):
        watch.count(trace(error))
    with pytest.raises(RolloutStopped) as stopped:
        watch.count(trace("three"))
    assert "3×: OSError: port 0 is closed" in str(stopped.value)
    assert "Traceback" in stopped.value.__notes__[0]


def test_attempts_that_failed_before_count_as_failures():
    watch = FailureWatch(Limits(min_failures=4, max_failure_rate=0.25))
    lost = EarlierAttempt(failure_class="env", failed_stage="run", error="gone")
    watch.count(trace(earlier=[lost, lost]))
    with pytest.raises(RolloutStopped, match=r"4 of 6 attempts failed \(env 4\)"):
        watch.count(trace(earlier=[lost, lost]))


async def test_root_cause_comes_first_with_its_traceback():
    """E01."""

    async def step(_: Any) -> None:
        raise ValueError("number seven is alive")

    limits = Limits(min_failures=1, max_failure_rate=0)
    engine = Engine(Maker(step=step), client=submits(), limits=limits)
    with pytest.raises(RolloutStopped, match="number seven is alive") as stopped:
        await read(engine, singles(5))
    assert "Traceback" in stopped.value.__notes__[0]
    await engine.aclose()
