"""Which server gets a request: what always holds, and what pays."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentgym.client import Endpoint
from agentgym.clients.limiter import Limiter
from agentgym.clients.replicas import Replica, Seat
from agentgym.clients.reply import BadReply
from agentgym.clients.routing import Router
from agentgym.clients.scopes import Scopes
from agentgym.clients.transport import Transport
from agentgym.types import Usage

GONE = BadReply("no connection", retryable=True, unreachable=True)
CUT = BadReply("cut", retryable=True, unreachable=True, unknown_bill=True)
BUSY = BadReply("busy", retryable=True, status=503, retry_after_s=5.0)
WRONG = BadReply("wrong", retryable=False, status=400)
EMPTY = BadReply("empty", retryable=True, empty=True)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def replica(number: int, clock: Any, slots: int = 2) -> Replica:
    endpoint = Endpoint(base_url=f"http://h{number}/v1", model="m", max_concurrency=slots)
    limiter = Limiter(slots, clock=clock)
    return Replica(endpoint, limiter=limiter, transport=Transport(endpoint, Scopes("test")))


def router_of(clock: Any, count: int, slots: int = 2) -> tuple[Router, list[Replica]]:
    router = Router(clock=clock)
    replicas = [replica(k, clock, slots) for k in range(count)]
    for each in replicas:
        router.add(each)
    return router, replicas


class Fleet(RuleBasedStateMachine):
    """Calls come, are answered, fail and give up while servers come, go and die."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.numbers = itertools.count(2)
        self.router, self.replicas = router_of(self.clock, 2)
        self.leaving: list[Replica] = []
        self.waiting: list[asyncio.Task[Seat]] = []
        self.seats: list[Seat] = []

    def settle(self) -> None:
        """Let everybody who was woken go on."""
        for _ in range(3):
            self.loop.run_until_complete(asyncio.sleep(0))
        for task in [task for task in self.waiting if task.done()]:
            self.waiting.remove(task)
            if task.exception() is None:
                seat = task.result()
                seat.permit = self.loop.run_until_complete(seat.replica.limiter.paced())
                self.seats.append(seat)
            else:
                assert isinstance(task.exception(), BadReply)
                assert self.router.is_hopeless

    @rule(session=st.none() | st.integers(0, 5), tokens=st.integers(1, 5000), avoid=st.booleans())
    def call(self, session: int | None, tokens: int, avoid: bool) -> None:
        entering = self.router.enter(
            next(self.numbers),
            None if session is None else f"s{session}",
            prompt_tokens=tokens,
            most_tokens=64,
            avoid=("h0",) if avoid else (),
        )
        self.waiting.append(self.loop.create_task(entering))
        self.settle()

    @precondition(lambda self: self.seats)
    @rule(data=st.data(), usage=st.booleans(), took_s=st.floats(0, 20))
    def answer(self, data: Any, usage: bool, took_s: float) -> None:
        seat = self.seats.pop(data.draw(st.integers(0, len(self.seats) - 1)))
        self.clock.now += took_s
        counted = Usage(prompt_tokens=seat.prompt_tokens, completion_tokens=20)
        self.router.answered(seat, counted if usage else None)
        self.router.leave(seat)
        self.settle()

    @precondition(lambda self: self.seats)
    @rule(data=st.data(), failure=st.sampled_from([GONE, CUT, CUT, BUSY, WRONG, EMPTY]))
    def fail(self, data: Any, failure: BadReply) -> None:
        seat = self.seats.pop(data.draw(st.integers(0, len(self.seats) - 1)))
        self.router.failed(seat, failure, str(failure))
        self.router.leave(seat)
        self.settle()

    @precondition(lambda self: self.seats)
    @rule(data=st.data())
    def cancel_one_in_flight(self, data: Any) -> None:
        self.router.leave(self.seats.pop(data.draw(st.integers(0, len(self.seats) - 1))))
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), slot=st.booleans())
    def cancel_one_that_waits(self, data: Any, slot: bool) -> None:
        """Perhaps just when it was given a slot, and doesn't know yet."""
        task = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        if slot and self.seats:
            self.router.leave(self.seats.pop())
        task.cancel()
        self.loop.run_until_complete(asyncio.wait([task]))
        self.settle()

    @rule(session=st.integers(0, 5))
    def release(self, session: int) -> None:
        self.router.release(f"s{session}")

    @precondition(lambda self: len(self.replicas) < 4)
    @rule()
    def join(self) -> None:
        joined = replica(next(self.numbers), self.clock)
        self.replicas.append(joined)
        self.router.add(joined)
        self.settle()

    @precondition(lambda self: self.replicas)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        going = self.replicas.pop(data.draw(st.integers(0, len(self.replicas) - 1)))
        self.leaving.append(going)
        self.router.retire(going)
        self.settle()

    @precondition(lambda self: self.leaving)
    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        """Perhaps with calls in flight: whoever waited for it to become idle gave up."""
        going = self.leaving[data.draw(st.integers(0, len(self.leaving) - 1))]
        self.router.drop(going)
        self.settle()

    @precondition(lambda self: self.replicas)
    @rule(data=st.data(), paused=st.booleans())
    def pause_or_resume(self, data: Any, paused: bool) -> None:
        chosen = self.replicas[data.draw(st.integers(0, len(self.replicas) - 1))]
        if paused:
            self.router.pause(chosen)
        else:
            self.router.resume([chosen])
        self.settle()

    @precondition(lambda self: any(r.ejected or r.suspect for r in self.replicas))
    @rule(data=st.data(), alive=st.booleans())
    def probe(self, data: Any, alive: bool) -> None:
        away = [r for r in self.replicas if r.ejected or r.suspect]
        probed = away[data.draw(st.integers(0, len(away) - 1))]
        if alive:
            self.router.lives(probed)
        else:
            self.router.is_dead(probed, GONE, "dead")
        self.settle()

    @rule()
    def pauses_pass(self) -> None:
        self.clock.now += 10.0
        for away in self.router.away:
            if not (away.ejected or away.suspect):
                self.router.is_back(away)
        self.settle()

    @invariant()
    def what_is_in_flight_is_what_was_sent(self) -> None:
        for each in [*self.replicas, *self.leaving]:
            sent = [seat for seat in self.seats if seat.replica is each]
            assert each.seats == set(sent)
            assert each.in_flight == each.limiter.in_flight == len(sent)
            assert each.outstanding_tokens == sum(seat.tokens for seat in sent)
            assert each.in_flight <= each.endpoint.max_concurrency

    @invariant()
    def sessions_are_counted_where_they_are(self) -> None:
        sessions = list(self.router._sessions)
        for each in [*self.replicas, *self.leaving]:
            at_home = [session for session in sessions if session.home is each]
            assert each.sessions == len(at_home)
            assert each.busy_sessions == sum(session.calls > 0 for session in at_home)
        for session in sessions:
            assert session.calls == sum(seat.session is session for seat in self.seats)

    @invariant()
    def whoever_waits_has_a_reason_to(self) -> None:
        assert self.router.waiting == len(self.waiting)
        free = [r for r in self.replicas if r.is_up and r.limiter.has_room]
        for each in self.replicas:
            assert not (free and len(self.router._unbound))
            assert not (free and len(each.line) and (each in free or not each.is_up))
        assert not (self.waiting and self.router.is_hopeless)

    def teardown(self) -> None:
        """Whatever has happened, everything is given back."""
        for task in self.waiting:
            task.cancel()
        if self.waiting:
            self.loop.run_until_complete(asyncio.wait(self.waiting))
        for seat in self.seats:
            self.router.leave(seat)
        for each in [*self.replicas, *self.leaving]:
            assert (each.in_flight, each.outstanding_tokens, each.limiter.in_flight) == (0, 0, 0)
        assert self.router.waiting == 0
        self.loop.close()


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


async def test_a_call_that_comes_while_its_full_server_leaves_is_served_by_the_next_free_one():
    router, (home, other) = router_of(Clock(), 2, slots=1)
    first, busy = await enter(router, "s"), await enter(router, None)
    assert (first.replica, busy.replica) == (home, other)
    router.retire(home)
    call = asyncio.create_task(enter(router, "s", ticket=1))
    await asyncio.sleep(0)
    router.leave(first)
    router.drop(home)
    assert router.waiting == 1
    router.leave(busy)
    assert (await call).replica is other


def test_who_is_dropped_twice_does_not_take_its_successor_along():
    router, (gone,) = router_of(Clock(), 1)
    router.retire(gone)
    router.drop(gone)
    router.add(successor := replica(0, Clock()))
    router.drop(gone)
    assert list(router) == [successor]


# --- where to ---------------------------------------------------------------------------------


async def enter(router: Router, session: str | None, tokens: int = 100, ticket: int = 0) -> Seat:
    return await router.enter(ticket, session, prompt_tokens=tokens, most_tokens=50)


def answered(router: Router, seat: Seat, prompt: int, completion: int = 10) -> None:
    router.answered(seat, Usage(prompt_tokens=prompt, completion_tokens=completion))
    router.leave(seat)


async def test_a_new_episode_goes_where_the_fewest_tokens_are_in_flight():
    router, (one, two) = router_of(Clock(), 2, slots=8)
    assert (await enter(router, "long", 5000)).replica is one
    shorts = [await enter(router, f"short {k}", 100) for k in range(4)]
    assert {seat.replica for seat in shorts} == {two}
    assert one.outstanding_tokens == 5000 + 50
    assert two.outstanding_tokens == 4 * (100 + 50)


async def test_an_episode_that_is_in_a_tool_just_now_will_be_back_and_counts():
    router, (one, two) = router_of(Clock(), 2, slots=8)
    for k in range(3):
        seat = await enter(router, f"resting {k}")
        router.leave(seat)
    assert (one.sessions, two.sessions) == (2, 1)
    assert (await enter(router, "new")).replica is two


async def test_the_larger_server_is_given_more():
    clock = Clock()
    router = Router(clock=clock)
    small, large = replica(0, clock, slots=2), replica(1, clock, slots=6)
    router.add(small)
    router.add(large)
    for k in range(8):
        await enter(router, f"s{k}")
    assert (small.in_flight, large.in_flight) == (2, 6)


async def test_a_prefix_that_is_cached_is_no_work():
    router, (one,) = router_of(Clock(), 1)
    answered(router, await enter(router, "s", 1000), prompt=1000, completion=30)
    seat = await enter(router, "s", 1100)
    assert seat.tokens == 1100 - 1030 + 30  # what is new, and what is expected back
    assert one.outstanding_tokens == seat.tokens


async def test_an_episode_stays_while_its_server_has_a_slot_though_others_are_idle():
    router, (one, _, _) = router_of(Clock(), 3, slots=4)
    answered(router, await enter(router, "s", 5000), prompt=5000)
    for k in range(6):
        router.leave(await enter(router, f"other {k}"))
    assert (await enter(router, "s", 5100)).replica is one


async def at_a_full_server(wait_s: float, known: int) -> tuple[Router, asyncio.Task[Seat]]:
    """An episode with a prefix of `known` tokens asks; its server is full for about `wait_s`.

    Reading takes a millisecond per token, and another server is idle.
    """
    clock = Clock()
    router, (one, _) = router_of(clock, 2, slots=1)
    for fresh, out in ((100, 0), (0, 100), (200, 10), (10, 200)):  # teaches the pace
        router._placing.pace.learn(
            estimated=0, prompt=fresh, fresh=fresh, completion=out, seconds=fresh / 1000 + out / 50
        )
    seat = await enter(router, "s", known)
    assert seat.replica is one
    clock.now += known / 1000
    answered(router, seat, prompt=known, completion=0)
    one.answer_s = wait_s
    await enter(router, "s", known)
    waiting = asyncio.ensure_future(enter(router, "s", known))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return router, waiting


async def test_a_call_leaves_a_full_server_where_reading_again_is_clearly_sooner():
    router, waiting = await at_a_full_server(wait_s=3.0, known=1000)
    assert (await waiting).replica.name == "h1"
    assert router.waiting == 0


async def test_a_call_waits_for_its_full_server_where_that_is_about_as_soon():
    router, waiting = await at_a_full_server(wait_s=1.5, known=1000)
    assert router.waiting == 1
    (seat,) = router.get("h0").seats
    router.leave(seat)
    assert (await waiting).replica.name == "h0"


def test_thousands_of_calls_of_a_loop_that_ended_are_passed_over():
    router, (one,) = router_of(Clock(), 1, slots=1)

    async def abandon() -> Seat:
        seat = await enter(router, None)
        for k in range(3000):
            # Not in a task: nobody cancels it when the loop ends.
            entering = enter(router, None, ticket=k)
            entering.send(None)
            abandoned.append(entering)
        return seat

    abandoned: list[Any] = []
    seat = asyncio.run(abandon())
    assert router.waiting == 3000
    router.leave(seat)
    assert (router.waiting, one.in_flight) == (0, 0)
    for entering in abandoned:
        entering.close()
    assert (router.waiting, one.in_flight) == (0, 0)
    assert asyncio.run(enter(router, None)).replica is one
