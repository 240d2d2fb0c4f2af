"""What a run has cost: tokens and dollars per role, per episode, per solved task, per step.

A role without a price is named and is in no sum; it is never free. Where a server sent no count of
tokens the client estimated it, and the share of such tokens stands beside the bill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pydantic import Field

from agentgym.client import Prices
from agentgym.cost.bills import EpisodeBill, ModelFacts, bills_of
from agentgym.errors import ConfigError
from agentgym.price_book import PriceBook
from agentgym.types import Finite, Record, Usage

Pricing: TypeAlias = Callable[[str, Mapping[str, ModelFacts]], Prices | None]
"""From a role and the models that a trace names, what the role's tokens cost anew; None leaves the
trace's own dollars."""


class RoleActual(Record):
    """One role's part of the bill."""

    model: str | None = None
    """Its name, where the traces tell; several are joined by a comma."""
    calls: int = 0
    input_tokens: int = 0
    """Cached ones included."""
    cached_tokens: int = 0
    output_tokens: int = 0
    """Reasoning included."""
    reasoning_tokens: int = 0
    retries: int = 0
    """Requests sent again, billed or not."""
    failed_calls: int = 0
    """Calls without an answer in the end."""
    estimated_tokens: int = 0
    """Tokens in usages of which a part was estimated, since the server sent none."""
    unpriced_tokens: int = 0
    """Tokens of which nobody knows what they cost."""
    priced_usd: Finite = 0.0
    """Dollars of the others."""
    rerun_usd: Finite = 0.0
    """The part of `priced_usd` for attempts that count no more, and for cancelled ones."""

    @property
    def tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    @property
    def usd(self) -> float | None:
        """Dollars; None where any of the tokens have no price."""
        return None if self.unpriced_tokens else self.priced_usd

    @property
    def estimated_share(self) -> float:
        """Share of the tokens that an estimate has a part in."""
        return self.estimated_tokens / self.tokens if self.tokens else 0.0

    def plus(self, usage: Usage, *, is_rerun: bool, model: str | None) -> RoleActual:
        """With one more usage."""
        tokens = usage.prompt_tokens + usage.completion_tokens
        unpriced = usage.cost_usd is None and not usage.is_nothing
        usd = usage.cost_usd or 0.0
        return RoleActual(
            model=_joined(self.model, model),
            calls=self.calls + usage.calls,
            input_tokens=self.input_tokens + usage.prompt_tokens,
            cached_tokens=self.cached_tokens + usage.cached_tokens,
            output_tokens=self.output_tokens + usage.completion_tokens,
            reasoning_tokens=self.reasoning_tokens + usage.reasoning_tokens,
            retries=self.retries + usage.retries,
            failed_calls=self.failed_calls + usage.failed_calls,
            estimated_tokens=self.estimated_tokens + (tokens if usage.estimated else 0),
            unpriced_tokens=self.unpriced_tokens + (max(tokens, 1) if unpriced else 0),
            priced_usd=self.priced_usd + usd,
            rerun_usd=self.rerun_usd + (usd if is_rerun else 0.0),
        )


class Actual(Record):
    """The bill of a set of episodes."""

    episodes: int = 0
    """Those that count; attempts at them aren't."""
    scored: int = 0
    solved: int = 0
    tasks_solved: int = 0
    """Tasks solved at least once."""
    reruns: int = 0
    """Attempts that count no more: repeated, superseded, cancelled with a bill."""
    training_steps: int = 0
    """Steps of which training episodes are there; a run may keep only some."""
    by_kind: dict[str, int] = Field(default_factory=dict)
    """Episodes by what they were for: rollout, training, evaluation."""
    training_usd: Finite | None = None
    """Dollars of the training episodes; None where unpriced, or none are there."""
    roles: dict[str, RoleActual] = Field(default_factory=dict)
    """The policy first."""

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Roles with tokens whose price nobody knows."""
        return tuple(role for role, actual in self.roles.items() if actual.usd is None)

    @property
    def priced_usd(self) -> float:
        """Dollars of all that has a price; see `unpriced` for the others."""
        return sum(actual.priced_usd for actual in self.roles.values())

    @property
    def usd(self) -> float | None:
        """Dollars; None where a role is unpriced."""
        return None if self.unpriced else self.priced_usd

    @property
    def usd_per_episode(self) -> float | None:
        """Dollars per episode that counts, reruns included."""
        return _per(self.usd, self.episodes)

    @property
    def usd_per_solved_task(self) -> float | None:
        """Dollars of everything per task solved at least once; None if none was."""
        return _per(self.usd, self.tasks_solved)

    @property
    def usd_per_step(self) -> float | None:
        """Dollars of the training episodes per step of which there are any."""
        return _per(self.training_usd, self.training_steps)


class Adder:
    """Adds up bills.

    Args:
        pricing: Prices the tokens anew; None takes the traces' dollars.
    """

    def __init__(self, pricing: Pricing | None = None) -> None:
        self._pricing = pricing
        self._roles: dict[str, RoleActual] = {"policy": RoleActual()}
        self._counts = {"episodes": 0, "scored": 0, "solved": 0, "reruns": 0}
        self._tasks: set[str] = set()
        self._steps: set[int] = set()
        self._by_kind: dict[str, int] = {}
        self._training: list[float | None] = []

    def add(self, bill: EpisodeBill) -> None:
        """Add one."""
        usages = {role: self._priced(role, used, bill) for role, used in bill.usage.items()}
        for role, usage in usages.items():
            facts = bill.models.get(role)
            self._roles[role] = self._roles.get(role, RoleActual()).plus(
                usage, is_rerun=not bill.counts, model=facts.name if facts else None
            )
        if bill.kind == "training":
            self._training.append(sum(usages.values(), Usage(calls=0)).cost_usd)
        if not bill.counts:
            self._counts["reruns"] += 1
            return
        self._counts["episodes"] += 1
        self._counts["scored"] += bill.scored
        self._counts["solved"] += bill.solved
        self._counts["reruns"] += bill.earlier
        self._by_kind[bill.kind] = self._by_kind.get(bill.kind, 0) + 1
        if bill.solved:
            self._tasks.add(bill.task)
        if bill.kind == "training" and bill.step is not None:
            self._steps.add(bill.step)

    def _priced(self, role: str, usage: Usage, bill: EpisodeBill) -> Usage:
        prices = self._pricing(role, bill.models) if self._pricing is not None else None
        if prices is None:
            return usage
        return usage.model_copy(update={"cost_usd": prices.cost_usd(usage)})

    @property
    def actual(self) -> Actual:
        """The sum so far."""
        known = [usd for usd in self._training if usd is not None]
        whole = len(known) == len(self._training)
        return Actual(
            **self._counts,
            tasks_solved=len(self._tasks),
            training_steps=len(self._steps),
            by_kind=dict(self._by_kind),
            training_usd=sum(known) if known and whole else None,
            roles={
                role: actual
                for role, actual in self._roles.items()
                if actual.tokens or actual.calls or role == "policy"
            },
        )


def add_up(bills: Iterable[EpisodeBill], *, pricing: Pricing | None = None) -> Actual:
    """The sum of bills."""
    adder = Adder(pricing)
    for bill in bills:
        adder.add(bill)
    return adder.actual


def actual_of(paths: Sequence[Path], *, pricing: Pricing | None = None) -> Actual:
    """What the traces in files and folders have cost; see `bills_of`."""
    return add_up(bills_of(paths), pricing=pricing)


def priced_by(
    book: PriceBook, *, models: Mapping[str, str] | None = None, needed: bool = True
) -> Pricing:
    """Prices tokens by the book, by the name of the model that a trace has for a role.

    Args:
        book: The prices.
        models: By role, the name to look up instead.
        needed: Whether a model that isn't in the book is an error; if not, the trace's own dollars
            stand. Roles of which no trace tells the model always keep theirs.
    """
    given = dict(models or {})
    cache: dict[str, Prices | None] = {}

    def pricing(role: str, facts: Mapping[str, ModelFacts]) -> Prices | None:
        known = facts.get(role)
        name = given.get(role) or (known and known.name)
        if not name:
            return None
        if name not in cache:
            cache[name] = _found(book, name, needed=needed or role in given)
        return cache[name]

    return pricing


def _found(book: PriceBook, name: str, *, needed: bool) -> Prices | None:
    try:
        return book.find(name).prices
    except ConfigError:
        if needed:
            raise
        return None


def _joined(names: str | None, name: str | None) -> str | None:
    if name is None or name in (names or "").split(", "):
        return names
    return name if names is None else f"{names}, {name}"


def _per(usd: float | None, count: int) -> float | None:
    return usd / count if usd is not None and count else None
