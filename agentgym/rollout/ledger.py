"""Keeps a run within its budget: what is spent, what is held, and who may still begin.

Two gates, since each alone is not enough. An episode begins only if what it and those in flight are
expected to need is there: otherwise many would begin and few be finished. And every request first
sets aside the most that it can take: an expectation is no promise, and this one is never overrun.

The first is `agentgym.rollout.admission`, with what it learns from episodes that are over; here are
the second, and the count of what is spent.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentgym.client import Endpoint, Prices
from agentgym.clients.waiting import WaitingLine, Wake
from agentgym.deadline import queued
from agentgym.errors import BudgetExceeded, ConfigError
from agentgym.metering import Meter
from agentgym.rollout.account import CRUMB, Account, amount_of
from agentgym.rollout.admission import Admission, Slip
from agentgym.rollout.budget import BudgetStatus, CapStatus, RunBudget, Unit, amount_text
from agentgym.rollout.spending import Spending, Unbilled, write_spending
from agentgym.types import Usage

REFUSAL = "not sent, since the budget of the run"
"""How the refusal of a request begins."""


@dataclass(eq=False)
class _Request:
    """What one request is held for, in every account."""

    role: str
    most: dict[Unit, float]
    refused_by: Account | None = None


class Ledger:
    """What is spent of a budget, by all engines that share it; also the `Purse` of their requests.

    Any event loop and thread may use it.

    Args:
        budget: What may be spent.
        free_roles: Roles that cost no dollars though they have no price, such as a policy in one's
            own process.
    """

    def __init__(self, budget: RunBudget, *, free_roles: Iterable[str] = ()) -> None:
        self.budget = budget
        self._free = frozenset(free_roles)
        self._accounts = [Account(*cap) for cap in budget.caps()]
        # Reentrant: the garbage collector may end a call, and so bill it, in here.
        self._lock = threading.RLock()
        self._line = WaitingLine[_Request](self._lock, take=self._take, give_back=self._give_back)
        self._tickets = itertools.count()
        self._admission = Admission(self._accounts)
        self._prices: dict[str, Prices] = {}
        self._settled: dict[str, dict[Unit, float]] = {}
        self._file: Path | None = None
        self._waiting: list[Wake] = []
        self._unpriced: set[str] = set()
        self._struck: Account | None = None
        self._expected: float | None = None
        self._refusal: str | None = None
        self.spent_by_role: dict[str, Usage] = {}
        """All bills so far."""
        self.meter: Meter = _LedgerMeter(self)
        """Counts what is charged inside `metered(ledger.meter)`."""

    def check_prices(self, endpoints: Iterable[Endpoint]) -> None:
        """See that the price of every endpoint is known that is paid out of dollars.

        Raises:
            ConfigError: If one isn't.
        """
        known = list(endpoints)
        self.budget.check_prices(each for each in known if each.role not in self._free)
        for endpoint in known:
            if endpoint.prices is not None:
                before = self._prices.get(endpoint.role, endpoint.prices)
                self._prices[endpoint.role] = max(before, endpoint.prices, key=_dearness)

    def check_priced(self) -> None:
        """See that everything so far was billed with a price, where dollars count.

        Raises:
            ConfigError: If a role was billed whose prices nobody knows.
        """
        if self._unpriced:
            role = min(self._unpriced)
            raise ConfigError(
                f"the budget is in dollars, and the {role} was billed without a price, so nobody "
                "knows when it is used up; give its endpoint prices, or cap tokens"
            )

    # --- what is spent --------------------------------------------------------------------------

    def spent_before(
        self, spent: Mapping[str, Usage], *, unbilled: Mapping[str, Unbilled] | None = None
    ) -> None:
        """Count what an earlier part of the run has cost, by role.

        What it cost in an endpoint that had no prices then is counted at those it has now.

        Args:
            spent: What was billed.
            unbilled: What beside that may have been spent, since nobody saw the bill.
        """
        more = unbilled or {}
        with self._lock:
            for role in {**spent, **more}:
                used, unknown = spent.get(role, Usage(calls=0)), more.get(role, Unbilled())
                prices = self._prices.get(role) if used.cost_usd is None else None
                if prices is not None:
                    used = used.model_copy(update={"cost_usd": prices.cost_usd(used)})
                self._count(role, used)
                self._settle(
                    role,
                    {
                        "usd": amount_of(used, "usd") + unknown.usd,
                        "tokens": amount_of(used, "tokens") + unknown.tokens,
                    },
                )

    def spending(self) -> Spending:
        """What is spent so far."""
        with self._lock:
            unbilled = {}
            for role, took in self._settled.items():
                billed = self.spent_by_role.get(role, Usage(calls=0))
                usd, tokens = (max(0.0, took[u] - amount_of(billed, u)) for u in ("usd", "tokens"))
                if usd > CRUMB * took["usd"] or tokens > 0:
                    unbilled[role] = Unbilled(usd=usd, tokens=tokens)
            return Spending(billed=dict(self.spent_by_role), unbilled=unbilled)

    def keep_in(self, file: Path) -> None:
        """From now on, `keep` writes what is spent to a file."""
        self._file = file

    def keep(self) -> None:
        """Write down what is spent; the engine does after every episode.

        Raises:
            TraceError: If it can't be written.
        """
        if self._file is not None:
            with self._lock:  # one at a time
                write_spending(self._file, self.spending())

    def charge(self, role: str, usage: Usage) -> None:
        """Count a bill."""
        with self._lock:
            self._count(role, usage)
            if usage.calls:
                for account in self._counting(role):
                    each = amount_of(usage, account.unit) / usage.calls
                    account.dearest_request = max(account.dearest_request, each)
                self._has_asked_now()

    def _count(self, role: str, usage: Usage) -> None:
        with self._lock:
            before = self.spent_by_role.get(role)
            self.spent_by_role[role] = usage if before is None else before + usage
            unpriced = usage.cost_usd is None and not usage.is_nothing
            if unpriced and self.budget.needs_price(role) and role not in self._free:
                self._unpriced.add(role)
            for account in self._accounts:
                if account.counts(role):
                    amount = amount_of(usage, account.unit)
                    account.charged[role] = account.charged.get(role, 0.0) + amount

    # --- requests: the purse --------------------------------------------------------------------

    async def hold(self, role: str, *, tokens: float, usd: float | None) -> _Request:
        """Set aside the most that a request can take; see `Purse`."""
        if usd is None and self.budget.needs_price(role) and role not in self._free:
            raise BudgetExceeded(
                f"{REFUSAL} is in dollars and the {role}'s endpoint has no prices; add prices = "
                "{input = …, output = …}"
            )
        request = _Request(role, {"tokens": tokens, "usd": usd or 0.0})
        if not self._line.takes_at_once(request):
            with queued():
                await self._line.wait(next(self._tickets), request)
        if (account := request.refused_by) is not None:
            most = request.most[account.unit]
            if math.isinf(most):
                why = "can't hold a request without an output limit, which may take anything"
            else:
                why = f"might be overrun: it may take {amount_text(most, account.unit)}"
            self._refusal = f"a request was {REFUSAL} {why}"
            raise BudgetExceeded(f"{REFUSAL} {why}; {account.status} are spent")
        return request

    def let_go(self, held: _Request, *, tokens: float, usd: float) -> None:
        """A request is over; see `Purse`."""
        took: dict[Unit, float] = {"tokens": tokens, "usd": usd}
        with self._lock:
            self._give_back(held)
            self._settle(held.role, took)
            self._line.serve()

    def _settle(self, role: str, took: Mapping[Unit, float]) -> None:
        so_far = self._settled.setdefault(role, {"usd": 0.0, "tokens": 0.0})
        for unit, amount in took.items():
            so_far[unit] += amount
        for account in self._counting(role):
            account.settled[role] = account.settled.get(role, 0.0) + took[account.unit]

    def _counting(self, role: str) -> list[Account]:
        return [account for account in self._accounts if account.counts(role)]

    def _take(self, request: _Request) -> bool:
        """Whether a request is decided: what it needs is held, or will never be there."""
        accounts = self._counting(request.role)
        for account in accounts:
            if account.exceeds(account.spent + request.most[account.unit]):
                request.refused_by = account
                self._struck = self._struck or account
                return True
        for account in accounts:
            needed = account.spent + account.held + request.most[account.unit]
            if account.in_flight and account.exceeds(needed):
                return False
        for account in accounts:
            most = request.most[account.unit]
            account.in_flight += 1
            account.held += most
            account.dearest_request = max(account.dearest_request, most)
        self._has_asked_now()
        return True

    def _has_asked_now(self) -> None:
        """A first request shows what one takes, and so, how many pilots may play."""
        if not self._admission.has_asked:
            self._admission.has_asked = True
            self._tell()

    def _give_back(self, request: _Request) -> None:
        if request.refused_by is not None:
            return
        for account in self._counting(request.role):
            account.in_flight -= 1
            left = account.held - request.most[account.unit]
            account.held = left if account.in_flight else 0.0

    # --- episodes -------------------------------------------------------------------------------

    async def admit(self) -> Slip | None:
        """Wait until one more episode can be paid for; None if it can't be.

        Raises:
            ConfigError: If a role was billed whose prices nobody knows.
        """
        while True:
            with self._lock:
                self.check_priced()
                account = self._struck or self._admission.lacking()
                if account is None:
                    return self._admission.begin(self._close)
                if self._struck is not None or not self._admission.in_flight:
                    self._struck = self._struck or account
                    self._expected = account.forecast.mean if account.forecast.over.n else None
                    return None
                wake = Wake()
                self._waiting.append(wake)
            try:
                await wake.wait()
            finally:
                with self._lock:
                    self._waiting = [other for other in self._waiting if other is not wake]

    def affords(self, episodes: int) -> bool:
        """Whether so many further episodes can be paid for, as far as one knows."""
        with self._lock:
            return self._struck is None and self._admission.affords(episodes)

    def strike(self) -> None:
        """Let nothing further begin: it is known that the budget is used up."""
        with self._lock:
            self._struck = self._struck or self._tightest()
            self._tell()

    def status(
        self,
        *,
        done: int,
        cut: Iterable[str] = (),
        not_run: Iterable[str] = (),
        not_run_unknown: bool = False,
    ) -> BudgetStatus:
        """How a run stands that the budget has ended."""
        with self._lock:
            return BudgetStatus(
                caps=self.caps(),
                struck=(self._struck or self._tightest()).status,
                expected=self._expected,
                refusal=self._refusal,
                done=done,
                cut=tuple(cut),
                not_run=tuple(not_run),
                not_run_unknown=not_run_unknown,
            )

    @property
    def over(self) -> int:
        """Episodes that were played to their end."""
        return self._admission.over

    def caps(self) -> tuple[CapStatus, ...]:
        """What is spent of each limit."""
        return tuple(account.status for account in self._accounts)

    def _tightest(self) -> Account:
        return max(self._accounts, key=lambda account: account.spent / account.limit)

    def _close(self, slip: Slip, teaches: bool) -> None:
        with self._lock:
            if slip not in self._admission.in_flight:
                return
            if not slip.is_charged_here:
                for role, usage in slip.spent.items():
                    self.charge(role, usage)
            self._admission.end(slip, teaches=teaches)
            self._tell()

    def _tell(self) -> None:
        """Wake who waits to begin."""
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake.up()


class _LedgerMeter(Meter):
    """Passes every charge on to a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def add(self, role: str, usage: Usage) -> None:
        """Count what a call cost."""
        self._ledger.charge(role, usage)


def _dearness(prices: Prices) -> float:
    return prices.input + prices.output


def is_refusal(text: str | None) -> bool:
    """Whether an endpoint's refusal is that of a run's budget."""
    return text is not None and REFUSAL in text
