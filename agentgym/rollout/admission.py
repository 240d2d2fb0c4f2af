"""Which episodes are in flight, and whether one more may begin.

While it isn't known what one takes, a few pilots play: one until it has asked a model something,
and then as many as there is ample money for. After that it is a matter of the forecast; see
`agentgym.rollout.forecast`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from agentgym.rollout.account import CRUMB, Account
from agentgym.rollout.forecast import AMPLE, RAMP
from agentgym.types import Usage

PILOTS = 4
"""Episodes at once, at most, as long as nobody knows what one needs."""

Spent = Callable[[], Mapping[str, Usage]]


class Slip:
    """Leave for one episode to begin, and what it takes; `close` must follow.

    Args:
        number: How many began before.
        close: Called with the slip, and whether the episode tells what one needs.
    """

    def __init__(self, number: int, close: Callable[[Slip, bool], None]) -> None:
        self.number = number
        self._close = close
        self._spent: Spent | None = None
        self.is_charged_here = True
        """Whether its bills reach the ledger as they come; if not, with its end."""

    def follow(self, spent: Spent, *, charged_here: bool = True) -> None:
        """The episode has begun.

        Args:
            spent: Tells what it has cost so far, by role.
            charged_here: Whether its calls are made inside `metered(ledger.meter)`.
        """
        self._spent = spent
        self.is_charged_here = charged_here

    @property
    def spent(self) -> Mapping[str, Usage]:
        """What it has cost so far."""
        return {} if self._spent is None else self._spent()

    def close(self, *, teaches: bool = False) -> None:
        """The episode is over, or will never begin; may be called again.

        Args:
            teaches: Whether it was played to its end, so that it tells what an episode needs.
        """
        self._close(self, teaches)


class Admission:
    """The gate that episodes pass; whoever owns it sees to it that one thread at a time is here.

    Args:
        accounts: All limits.
    """

    def __init__(self, accounts: Sequence[Account]) -> None:
        self._accounts = accounts
        self._numbers = itertools.count()
        self.in_flight: set[Slip] = set()
        self.over = 0
        """Episodes that were played to their end."""
        self.has_asked = False
        """Whether anything was held for or billed yet, so that a request's size is known."""

    def begin(self, close: Callable[[Slip, bool], None]) -> Slip:
        """One more begins."""
        slip = Slip(next(self._numbers), close)
        self.in_flight.add(slip)
        return slip

    def end(self, slip: Slip, *, teaches: bool) -> None:
        """One is over; `teaches` where it was played to its end."""
        self.in_flight.discard(slip)
        self.over += teaches
        for account in self._accounts:
            account.forecast.learn(slip.number, account.of(slip.spent) if teaches else None)

    def affords(self, episodes: int) -> bool:
        """Whether so many further episodes can be paid for, as far as one knows."""
        if self.over < 2:
            return not any(account.exceeds(account.spent) for account in self._accounts)
        return not any(a.exceeds(self._forecast(a, episodes)) for a in self._accounts)

    def lacking(self) -> Account | None:
        """A limit that leaves nothing for one more episode, or not at the moment."""
        for account in self._accounts:
            # Spent to the last cent is used up: the next request would be refused.
            used_up = account.spent >= account.limit * (1 - CRUMB)
            if used_up or self._has_all_pilots(account) or self._is_ahead_of_itself(account):
                return account
            if self.over and account.exceeds(self._forecast(account, 1)):
                return account
        return None

    def _has_all_pilots(self, account: Account) -> bool:
        """Whether nobody knows what an episode takes, and those that find out are in flight."""
        if account.forecast.is_known:
            return False
        if not all(slip.is_charged_here for slip in self.in_flight):  # whose requests aren't seen
            return len(self.in_flight) >= PILOTS
        return len(self.in_flight) >= (account.room_for_pilots(PILOTS) if self.has_asked else 1)

    def _is_ahead_of_itself(self, account: Account) -> bool:
        """Whether many are in flight for the few that are known, and money isn't ample."""
        in_flight = len(self.in_flight)
        if not 0 < RAMP * account.forecast.known <= in_flight:
            return False
        needed = account.forecast.still_needed_at_most(in_flight, 1)
        return account.exceeds(account.spent + AMPLE * needed)

    def _forecast(self, account: Account, more: int) -> float:
        """What is spent when those in flight, and so many more, are over."""
        roughly = account.spent + account.forecast.still_needed_at_most(len(self.in_flight), more)
        if not account.exceeds(roughly):
            return roughly
        so_far = [(account.of(slip.spent), slip.is_charged_here) for slip in self.in_flight]
        counted = math.fsum(spent for spent, here in so_far if here)
        needed = account.forecast.needed([spent for spent, _ in so_far], more)
        return account.spent - counted + needed
