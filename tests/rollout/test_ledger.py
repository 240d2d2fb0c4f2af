"""Run budgets: two gates, a forecast, and a run that ends with all the amounts told."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.client import Completion, Endpoint, Prices, SamplingParams
from agentgym.clients import ChatClient, ScriptedClient
from agentgym.errors import BudgetExceeded, BudgetStop, ConfigError, EndpointError, JudgeError
from agentgym.judge import Score
from agentgym.metering import charge, metered, open_purse, paid_from, report_refusal
from agentgym.rollout import Engine, EpisodeRequest, Ledger, Limits, Retry, RunBudget
from agentgym.rollout.budget import Cap, read_budget
from agentgym.rollout.forecast import Forecast
from agentgym.testing.envs import CounterEnv
from agentgym.testing.quirky import QuirkyServer, Reply, answer
from agentgym.types import Usage
from tests.support.rolling import ADD, SUBMIT, Maker, read, singles, until

CENT = Prices(input=0, output=10_000)  # dollars per million: a token is a cent
FREE_PAUSE = {"pause_s": 0.0, "max_pause_s": 0.0}


def usage(usd: float, **more: Any) -> Usage:
    return Usage(completion_tokens=round(usd * 100), cost_usd=usd, **more)


def bill(usd: float, role: str = "policy") -> None:
    charge(role, usage(usd))


class PayingClient:
    """A policy that asks the purse before each request, as the real clients do.

    `costs(session)` gives a list per call: what each attempt took. All but the last failed.
    """

    def __init__(self, costs: Any, *, most: float = 0.01, role: str = "policy", last: Any = SUBMIT):
        self.endpoint = Endpoint(base_url="http://test/v1", model="m", role=role, prices=CENT)
        self.costs = costs
        self.most = most
        self.last = last
        self.sent = 0
        self.spent = 0.0
        self.in_flight = 0
        self.most_in_flight = 0
        self.calls: dict[str, int] = {}

    async def complete(self, messages: Any, tools: Any, sampling: Any, *, session: Any = None):
        number = self.calls[session] = self.calls.get(session, 0) + 1
        *failed, last = self.costs(session, number)
        total = Usage(calls=0)
        role = self.endpoint.role
        try:
            for cost in (*failed, last):
                total += usage(await self._attempt(cost))
        except BudgetExceeded as error:
            report_refusal(role, str(error))
            raise
        finally:
            if total.calls:
                charge(role, total)
        if last < 0:
            raise EndpointError("down", retryable=False, usage=total)
        done = number >= self.turns(session)
        return Completion(message=self.last if done else ADD, usage=total)

    def turns(self, session: str) -> int:
        return 1

    async def _attempt(self, cost: float) -> float:
        purse = open_purse()
        held = await purse.hold(self.endpoint.role, tokens=self.most * 100, usd=self.most)
        self.sent += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0)
            self.spent += abs(cost)
            return abs(cost)
        finally:
            self.in_flight -= 1
            purse.let_go(held, tokens=round(abs(cost) * 100), usd=abs(cost))

    async def release(self, session: str) -> None: ...

    async def aclose(self) -> None: ...


def engine(client: Any, *, env: Any = CounterEnv, concurrency: int = 64, **budget: Any) -> Engine:
    limits = Limits(concurrency=concurrency, budget=read_budget(budget))
    return Engine(env, client=client, limits=limits)


async def stopped(engine: Engine, requests: Any) -> tuple[list[Any], BudgetStop]:
    """What a run yields before its budget stops it, and how it says so."""
    traces, stop = await to_the_end(engine, requests)
    assert stop is not None, "the budget stopped nothing"
    return traces, stop


async def to_the_end(engine: Engine, requests: Any) -> tuple[list[Any], BudgetStop | None]:
    traces: list[Any] = []
    try:
        async for trace in engine.run(requests):
            traces += [trace]
    except BudgetStop as stop:
        return traces, stop
    return traces, None


# --- the cases --------------------------------------------------------------------------------


async def test_no_more_requests_are_out_than_can_be_paid_for():
    """I04: delm#65. A budget of ten requests at their worst; fifty would like to go out."""
    ledger = Ledger(RunBudget(usd=0.10))
    client = PayingClient(None)
    outcomes = []

    async def one() -> None:
        try:
            held = await ledger.hold("policy", tokens=1, usd=0.01)
        except BudgetExceeded as error:
            outcomes.append(error)
            return
        client.sent += 1
        await asyncio.sleep(0.001)
        ledger.let_go(held, tokens=1, usd=0.01)

    await asyncio.gather(*(one() for _ in range(50)))
    assert client.sent == 10
    assert len(outcomes) == 40
    assert not any(error.retryable for error in outcomes)  # topoteretes/cognee#4321
    assert "$0.1000 of $0.1000 are spent" in str(outcomes[0])


async def test_clients_of_different_roles_pay_from_one_purse():
    """I04, over HTTP: 25 calls of a policy and 25 of a judge, of a cent at most each."""
    said = answer("hi", usage={"prompt_tokens": 9, "completion_tokens": 100})
    ledger = Ledger(RunBudget(usd=0.10))
    async with QuirkyServer(said) as server:
        prices = Prices(input=0, output=100)
        clients = [
            ChatClient(Endpoint(base_url=server.url, model="m", role=role, prices=prices))
            for role in ("policy", "judge")
        ]
        with metered(ledger.meter), paid_from(ledger):
            calls = [
                client.complete(
                    [{"role": "user", "content": "hi"}], (), SamplingParams(max_tokens=100)
                )
                for client in clients
                for _ in range(25)
            ]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for client in clients:
            await client.aclose()
        assert len(server.requests) == 10
    assert sum(isinstance(one, BudgetExceeded) for one in outcomes) == 40
    assert ledger.caps()[0].spent == pytest.approx(0.10)
    assert sum(usage.calls for usage in ledger.spent_by_role.values()) == 10


async def test_a_cancelled_request_gives_back_what_it_held():
    """Whether it was billed is unknown, so it counts as the most; nothing stays held beside."""
    ledger = Ledger(RunBudget(usd=1.0))
    async with QuirkyServer(Reply(hangs=True)) as server:
        prices = Prices(input=0, output=100)
        client = ChatClient(Endpoint(base_url=server.url, model="m", prices=prices))
        with paid_from(ledger):
            hello = [{"role": "user", "content": "hi"}]
            call = asyncio.create_task(client.complete(hello, (), SamplingParams(max_tokens=100)))
            await until(lambda: bool(server.requests))
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        await client.aclose()
    (account,) = ledger._accounts
    assert (account.held, account.in_flight) == (0.0, 0)
    assert account.spent == pytest.approx(0.01)


async def test_at_most_ten_episodes_of_fifty_are_dispatched_on_a_budget_for_ten():
    """I04, a level up: fifty episodes of one request each."""
    client = PayingClient(lambda *_: [0.01])
    traces, stop = await stopped(engine(client, usd=0.10), singles(50))
    assert client.sent == len(traces) == 10
    assert client.spent == pytest.approx(0.10)
    assert (stop.status.done, len(stop.status.not_run), stop.status.cut) == (10, 40, ())


@pytest.mark.parametrize("concurrency", [1, 3, 20])
async def test_a_run_that_hits_its_budget_says_so_with_all_amounts(concurrency):
    """I08: coworld#64. Seven of twenty episodes can be paid for."""
    client = PayingClient(lambda *_: [0.01])
    traces, stop = await stopped(engine(client, concurrency=concurrency, usd=0.075), singles(20))
    assert [trace.scored for trace in traces] == [True] * 7
    status = stop.status
    assert status.status == "budget_stop"
    assert (status.done, len(status.not_run)) == (7, 13)
    assert set(status.not_run) | {f"drawn@{t.seed}.0" for t in traces} == {
        f"drawn@{seed}.0" for seed in range(20)
    }
    assert (status.struck.unit, status.struck.limit) == ("usd", 0.075)
    assert status.struck.spent == pytest.approx(0.07)
    assert str(stop) == (
        "stopped by the budget: $0.0700 of $0.0750 are spent, and an episode takes $0.0100 on "
        "average; 7 episodes are done, 13 were not run"
    )


async def test_retries_and_failed_calls_count():
    """I03: what failed was billed too, and a run that retries reaches its budget sooner."""
    client = PayingClient(lambda *_: [0.01, 0.01, -0.01])  # two attempts more, and it fails
    runs = Engine(
        CounterEnv,
        client=client,
        limits=Limits(budget=RunBudget(usd=0.125), max_failure_rate=1.0),
        retry=Retry(**FREE_PAUSE),
    )
    traces, stop = await stopped(runs, singles(20))
    assert client.spent == pytest.approx(0.12)
    assert (stop.status.done, stop.status.struck.spent) == (4, pytest.approx(0.12))
    assert [t.usage["policy"].cost_usd for t in traces] == [pytest.approx(0.03)] * 4


@pytest.mark.parametrize("cap", [{"usd": 1.0}, {"roles": {"policy": {"usd": 1.0}}}])
def test_an_unknown_price_is_a_config_error_with_a_budget(cap):
    """I05: opik#7312."""
    unpriced = Endpoint(base_url="http://user:pw@test/v1", model="foo/bar")
    with pytest.raises(ConfigError, match=r"policy 'foo/bar' at http://test/v1 has no prices"):
        Engine(CounterEnv, client=unpriced, limits=Limits(budget=read_budget(cap)))
    for fine in ({"tokens": 100}, {"roles": {"judge": {"usd": 1.0}}}):
        Engine(CounterEnv, client=unpriced, limits=Limits(budget=read_budget(fine)))


async def test_a_role_that_is_billed_without_a_price_stops_the_run():
    """I05, where the price is missing behind the engine's back: in an env's own client."""

    async def judge(_: Any) -> None:
        charge("judge", Usage(prompt_tokens=5))

    runs = engine(ScriptedClient([SUBMIT], repeat=True), env=Maker(judge=JudgeOf(judge)), usd=1.0)
    with pytest.raises(ConfigError, match="the judge was billed without a price"):
        await read(runs, singles(20))


async def test_a_run_of_pilots_only_is_told_of_a_missing_price_too():
    """I05: all had begun when the first bill came."""

    async def judge(_: Any) -> None:
        charge("judge", Usage(prompt_tokens=5))

    runs = engine(ScriptedClient([SUBMIT], repeat=True), env=Maker(judge=JudgeOf(judge)), usd=1.0)
    with pytest.raises(ConfigError, match="the judge was billed without a price"):
        await read(runs, singles(1))


def test_what_was_spent_before_there_was_a_price_counts_at_the_one_there_is():
    ledger = Ledger(RunBudget(usd=1.0))
    replicas = (Prices(input=1, output=1), Prices(input=2, output=5), Prices(input=1, output=2))
    for prices in replicas:
        ledger.check_prices([Endpoint(base_url="http://test/v1", model="m", prices=prices)])
    ledger.spent_before({"policy": Usage(prompt_tokens=100_000, completion_tokens=20_000)})
    ledger.check_priced()
    assert ledger.caps()[0].spent == pytest.approx(0.3)


# --- the gates --------------------------------------------------------------------------------


class JudgeOf:
    def __init__(self, hook: Any) -> None:
        self.hook = hook

    async def score(self, episode: Any) -> Score:
        await self.hook(episode)
        return Score(total=1.0)


async def test_a_small_budget_finishes_one_episode_rather_than_begin_four():
    """Nobody knows yet what one takes; four at once would have been cut off, all of them."""
    client = PayingClient(lambda *_: [0.01])
    client.turns = lambda session: 9
    traces, stop = await stopped(engine(client, usd=0.13), singles(20))
    assert [trace.scored for trace in traces] == [True]
    assert (stop.status.cut, len(stop.status.not_run)) == ((), 19)


async def test_an_ample_budget_sends_four_pilots_as_soon_as_a_request_was_seen():
    ledger = Ledger(RunBudget(usd=1.5))
    assert await ledger.admit() is not None
    second = asyncio.create_task(ledger.admit())
    await asyncio.sleep(0)
    assert not second.done()
    await ledger.hold("policy", tokens=1, usd=0.01)
    assert await second is not None
    assert await ledger.admit() is not None
    assert await ledger.admit() is not None
    fifth = asyncio.create_task(ledger.admit())
    await asyncio.sleep(0)
    assert not fifth.done()
    fifth.cancel()


async def test_an_episode_that_outgrows_its_forecast_is_cut_off_and_marked():
    """The gate of requests holds where the forecast was wrong; such a trace is never a zero."""
    client = PayingClient(lambda *_: [0.01])
    client.turns = lambda session: 9 if list(client.calls).index(session) > 3 else 1
    traces, stop = await stopped(engine(client, usd=0.065), singles(20))
    assert client.spent == pytest.approx(0.06)
    assert [trace.scored for trace in traces] == [True] * 4 + [False] * 2
    cut = traces[-1]
    assert (cut.reward, cut.cut_by_budget, cut.verdict.masked) == (None, True, True)
    assert cut.error.startswith("BudgetStop: BudgetExceeded: not sent, since the budget of the run")
    assert cut.metadata["budget"][0]["limit"] == 0.065
    assert len(stop.status.cut) == 2
    assert stop.status.cut[-1] == f"drawn@{cut.seed}.0"
    assert stop.status.done + len(stop.status.cut) + len(stop.status.not_run) == 20
    assert "might be overrun: it may take $0.0100" in str(stop)


async def test_a_refused_judge_cuts_the_episode_and_is_no_judge_failure():
    """The cap of one role ends the run, whatever is left of the others'."""
    client = PayingClient(lambda *_: [0.02], role="judge", most=0.02)

    async def judge(_: Any) -> None:
        try:
            await client.complete((), (), None, session="judge")
        except EndpointError as error:
            raise JudgeError(str(error)) from error

    limits = Limits(budget=RunBudget(usd=9, roles={"judge": Cap(usd=0.05)}), concurrency=1)
    policy = ScriptedClient([SUBMIT], repeat=True)
    runs = Engine(Maker(judge=JudgeOf(judge)), client=policy, limits=limits)
    traces, stop = await stopped(runs, singles(9))
    assert [t.scored for t in traces if not t.cut_by_budget] == [True, True]
    assert (stop.status.struck.role, stop.status.struck.spent) == ("judge", pytest.approx(0.04))


async def test_a_policy_without_an_endpoint_costs_no_dollars_but_tokens():
    answer = Completion(message=SUBMIT, usage=Usage(prompt_tokens=90, completion_tokens=10))
    client = ScriptedClient([answer], repeat=True)
    assert len(await read(engine(client, usd=0.01), singles(9))) == 9
    traces, stop = await stopped(engine(client, tokens=550), singles(9))
    assert len(traces) == 5
    assert stop.status.struck.spent == 500


async def test_several_runs_and_engines_spend_one_budget():
    client = PayingClient(lambda *_: [0.01])
    ledger = Ledger(RunBudget(usd=0.10))
    ledger.spent_before({"policy": usage(0.04)})
    first, second = (Engine(CounterEnv, client=client, ledger=ledger) for _ in range(2))
    assert len(await read(first, singles(3))) == 3
    traces, stop = await stopped(second, singles(9))
    assert len(traces) == 3
    assert stop.status.struck.spent == pytest.approx(0.10)
    assert not ledger.affords(1)


async def test_an_iterator_is_not_drained_for_what_could_not_be_played():
    def forever():
        seed = 0
        while True:
            yield EpisodeRequest(seed=seed)
            seed += 1

    client = PayingClient(lambda *_: [0.01])
    traces, stop = await stopped(engine(client, usd=0.05), forever())
    assert len(traces) == 5
    assert (stop.status.not_run_unknown, len(stop.status.not_run)) == (True, 1)
    assert "1 or more were not run" in str(stop)


async def test_a_run_that_is_through_before_its_budget_ends_as_ever():
    client = PayingClient(lambda *_: [0.01])
    assert len(await read(engine(client, usd=0.05), singles(5))) == 5


async def test_episodes_played_elsewhere_are_charged_when_they_end():
    """A cluster's workers hold nothing here; what their episodes cost is known by and by."""
    ledger = Ledger(RunBudget(usd=0.10))
    costs = [0.0, 0.0, 0.0]
    slips = []
    for index in range(3):
        slip = await ledger.admit()
        assert slip is not None
        slip.follow(lambda index=index: {"policy": usage(costs[index])}, charged_here=False)
        slips.append(slip)
    costs[0] = costs[1] = 0.03
    slips[0].close(teaches=True)
    slips[1].close(teaches=True)
    assert ledger.caps()[0].spent == pytest.approx(0.06)
    costs[2] = 0.01  # so far; it is expected to take three, too
    waiting = asyncio.create_task(ledger.admit())
    await asyncio.sleep(0)
    assert not waiting.done()
    slips[2].close(teaches=True)
    assert (await waiting) is not None  # it took one in the end
    slips[2].close()
    assert ledger.caps()[0].spent == pytest.approx(0.07)


def test_a_budget_is_told_in_one_line():
    limits = Limits(budget=read_budget({"usd": 20, "roles": {"judge": {"tokens": 5000}}}))
    assert limits.describe().endswith("and at $20.0000, 5,000 tokens (judge)")


# --- the forecast -----------------------------------------------------------------------------


def test_the_margin_is_that_of_a_prediction_interval_for_a_sum():
    """Of 1, 2, 3: s = 1, and t(2 df, one-sided 95 %) = 2.919986; for a sum of 2 further draws
    t·s·sqrt(2 + 4/3) = 5.33; where none is in flight, the dearest so far bounds it at 2·(3 - 2)."""
    forecast = Forecast()
    for number, amount in enumerate((1.0, 2.0, 3.0)):
        forecast.learn(number, amount)
    margin = 2.919986 * math.sqrt(2 + 4 / 3)
    assert forecast.needed([0.5], 1) == pytest.approx(4.0 + margin, rel=1e-6)
    assert forecast.needed([], 2) == 2 * 3.0  # none is in flight


def test_who_finishes_first_is_short_and_says_little_of_the_others():
    """Three began first and took 1, 5, 3. Of the next hundred the ninety short ones, of 1
    each, are over before the ten long ones, of 21: all in all, they take 3 on average, too."""
    forecast = Forecast()
    for number, amount in enumerate((1.0, 5.0, 3.0)):
        forecast.learn(number, amount)
    for number in range(90):
        forecast.learn(13 + number, 1.0)
    assert forecast.over.mean < 1.1
    assert forecast.mean == pytest.approx(3.0)
    margin = 2.919986 * 2.0 * math.sqrt(10 + 100 / 3)
    assert forecast.needed([2.0] * 10, 0) == pytest.approx(300 - 90 + margin, rel=1e-6)
    forecast.learn(3, None)  # cancelled: it says nothing, and holds up nothing
    for number in range(4, 13):
        forecast.learn(number, 21.0)
    assert forecast.first.n == forecast.over.n == 102
    assert forecast.needed([], 0) == 0.0


@pytest.mark.parametrize(("usd", "begun"), [(1.0, 8), (7.0, 40)])
async def test_a_few_that_are_over_say_little_of_hundreds_unless_money_is_ample(usd, begun):
    """Two took a cent each; a dollar for a hundred such isn't ample for forty, seven are."""
    ledger = Ledger(RunBudget(usd=usd))
    for _ in range(2):
        slip = await ledger.admit()
        slip.follow(lambda: {"policy": usage(0.01)})
        ledger.charge("policy", usage(0.01))
        slip.close(teaches=True)
    slips = []
    for _ in range(40):
        waiting = asyncio.create_task(ledger.admit())
        await asyncio.sleep(0)
        if not waiting.done():
            waiting.cancel()
            break
        slips.append(waiting.result())
    assert len(slips) == begun


def test_budgets_must_say_how_much():
    with pytest.raises(ConfigError, match="say how much the run may spend"):
        read_budget({})
    with pytest.raises(ConfigError, match="say how much the judge may spend"):
        read_budget({"roles": {"judge": {}}})
    with pytest.raises(ConfigError, match=r"usd.*greater than 0"):
        read_budget({"usd": 0})
    assert read_budget({"usd": 1, "roles": {"judge": {"tokens": 5}}}).caps() == [
        (None, "usd", 1.0),
        ("judge", "tokens", 5.0),
    ]


# --- anything at all --------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_never_overrun_and_nothing_affordable_left_out(data: st.DataObject) -> None:
    """Random costs, retries, failures and concurrency."""
    cents = st.integers(0, 5).map(lambda n: n / 100)
    plans = data.draw(
        st.lists(
            st.lists(st.lists(cents, min_size=1, max_size=3), min_size=1, max_size=4),
            min_size=1,
            max_size=25,
        )
    )
    fails = data.draw(st.sets(st.integers(0, 24), max_size=5))
    budget = data.draw(st.integers(1, 60)) / 100
    most = 0.05
    order: dict[str, int] = {}

    def costs(session: str, number: int) -> list[float]:
        index = order.setdefault(session, len(order)) % len(plans)
        planned = plans[index][number - 1]
        if index in fails and number == len(plans[index]):
            return [*planned, -0.01]
        return planned

    client = PayingClient(costs, most=most)
    client.turns = lambda session: len(plans[order[session] % len(plans)])
    runs = Engine(
        CounterEnv,
        client=client,
        limits=Limits(
            budget=RunBudget(usd=budget),
            concurrency=data.draw(st.integers(1, 16)),
            max_failure_rate=1.0,
        ),
        retry=Retry(**FREE_PAUSE),
    )
    traces, stop = asyncio.run(to_the_end(runs, singles(len(plans))))
    assert client.spent <= budget + 1e-9  # each request was held for at its most
    counted = math.fsum(t.usage["policy"].cost_usd or 0.0 for t in traces)
    assert counted == pytest.approx(client.spent)  # nothing is spent that no trace tells
    if stop is None:
        assert len(traces) == len(plans)
        return
    status = stop.status
    assert status.done + len(status.cut) + len(status.not_run) == len(plans)
    assert status.struck.spent == pytest.approx(client.spent)
    left = budget - client.spent
    if status.cut:  # some request did not fit any more
        assert left < most + 1e-9
    else:  # not even as much as the dearest so far took
        done = [t.usage["policy"].cost_usd for t in traces]
        assert left < max(done, default=most) + 1e-9 or left <= 1e-9
