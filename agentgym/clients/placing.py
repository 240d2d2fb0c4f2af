"""Which server of a policy gets the next request, and which call a server that has room.

A server answers an episode's next turn the sooner for having answered the ones before: the prefix
is in its cache. So an episode stays where it is, and a new one goes where there is least to do,
counted in tokens: what is in flight there (prompts, as far as they aren't cached, and the output
expected), and a turn's worth for every episode of its that is in a tool just now and will be back.

Who waits for a server that is full goes elsewhere when that is clearly sooner: a free slot is
there, and the wait of the whole line is `MOVING_PAYS` times what reading the prefix again takes.
Four, since both are estimates, and a move costs twice: the new server computes what the old one
had, and both caches hold it. With two, runs on 16 simulated servers take as long and miss 1.5 times
as many cached tokens. A slow server loses those episodes that are better off elsewhere (`speeds`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from agentgym.clients.lines import Line, Waiter
from agentgym.clients.pace import Pace
from agentgym.clients.replicas import Replica, Seat
from agentgym.clients.sessions import Session
from agentgym.clients.speeds import sooner
from agentgym.types import Usage

MOVING_PAYS = 4.0
"""Wait saved, as a multiple of the time to read the prefix again, for which a call moves."""


class Placing:
    """The choice among a policy's servers, and what it has learnt of them; it gives no slot away.

    Args:
        replicas: The servers by name, as they are at any time; the router's, under its lock.
    """

    def __init__(self, replicas: Mapping[str, Replica]) -> None:
        self._replicas = replicas
        self.pace = Pace()
        """What answers have taught so far."""

    def choice(self, session: Session | None, avoid: Collection[str]) -> Replica | None:
        """The server to send to at once; None if the call has to wait."""
        home = session.home if session is not None else None
        if session is not None and home is not None and home.is_up and home.name not in avoid:
            # Whether it is better off elsewhere is seen once it is in the line.
            return self._home_or_sooner(home, session) if home.limiter.has_room else None
        return self.least(avoid) or self.least(())

    def least(self, avoid: Collection[str]) -> Replica | None:
        """The server with room that has least to do."""
        best, least = None, 0.0
        for replica in self._replicas.values():
            if replica.is_up and replica.limiter.has_room and replica.name not in avoid:
                load = replica.load(self.pace.turn_tokens)
                if best is None or load < least:
                    best, least = replica, load
        return best

    def next_for(self, replica: Replica, unbound: Line) -> Waiter | None:
        """Who may have a free slot of a server: its own calls and those of nobody, in order.

        Args:
            replica: The server.
            unbound: The calls that wait for no server in particular.
        """
        lines = [replica.line, unbound]
        lines += [other.line for other in self._replicas.values() if not other.is_up]
        firsts = [waiter for line in lines if (waiter := line.first()) is not None]
        if firsts:
            return min(firsts, key=lambda waiter: waiter.ticket)
        return self._overflow_for(replica)

    def learn(self, seat: Seat, usage: Usage, seconds: float) -> None:
        """Take in how long an answer took, and how many tokens it had."""
        session = seat.session
        known = session.known_tokens if session is not None else 0
        fresh = max(0, usage.prompt_tokens - max(usage.cached_tokens, known))
        answer = {"fresh": fresh, "completion": usage.completion_tokens}
        seat.replica.speed.learn(seconds, expected_s=self.pace.answer_s(**answer))
        asked = {"estimated": seat.prompt_tokens, "prompt": usage.prompt_tokens}
        self.pace.learn(**asked, **answer, seconds=seconds)

    def _home_or_sooner(self, home: Replica, session: Session) -> Replica:
        """Where a call goes whose server has room; elsewhere only if that server is a slow one."""
        faster = [r for r in self._replicas.values() if r.speed.beats(home.speed)]
        free = [r for r in faster if r.is_up and r.limiter.has_room]
        return sooner(home, free, known_tokens=session.known_tokens, pace=self.pace) or home

    def _overflow_for(self, replica: Replica) -> Waiter | None:
        """The first in the longest line of another server, if moving it pays."""
        longest, waits_s = None, 0.0
        for other in self._replicas.values():
            if other is not replica and len(other.line) and other.wait_s() > waits_s:
                longest, waits_s = other, other.wait_s()
        waiter = longest.line.first() if longest is not None else None
        if waiter is None or waiter.session is None:
            return waiter
        again_s = self.pace.prefill_s(waiter.session.known_tokens)
        return waiter if waits_s > MOVING_PAYS * again_s else None
