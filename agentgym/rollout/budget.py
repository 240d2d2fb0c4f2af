"""What a run may spend, and what became of it.

A run's budget caps all its endpoints together, and a role's share on its own: dollars, tokens, or
both. It is about the run and not about a server: an endpoint's own `budget_usd` stays beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from agentgym.client import Endpoint, Role, public_url
from agentgym.errors import ConfigError
from agentgym.types import Finite, Record

Unit: TypeAlias = Literal["usd", "tokens"]


class Cap(Record):
    """The most that may be spent."""

    usd: Finite | None = Field(default=None, gt=0)
    """US dollars; None is no limit."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens, input (cached ones included) and output together; None is no limit."""


class RunBudget(Cap):
    """The most that a run may spend over all roles, and by role.

    Everything counts: requests that failed, those sent again, attempts at episodes that were
    repeated, episodes that were cancelled.
    """

    roles: dict[Role, Cap] = Field(default_factory=dict)
    """What single roles may spend of it."""

    @field_validator("roles")
    @classmethod
    def _each_says_how_much(cls, roles: dict[Role, Cap]) -> dict[Role, Cap]:
        for role, cap in roles.items():
            if cap.usd is None and cap.tokens is None:
                raise ValueError(f"say how much the {role} may spend: usd, tokens, or both")
        return roles

    @model_validator(mode="after")
    def _says_how_much(self) -> RunBudget:
        if self.usd is None and self.tokens is None and not self.roles:
            raise ValueError("say how much the run may spend: usd, tokens, or roles")
        return self

    def caps(self) -> list[tuple[Role | None, Unit, float]]:
        """Every limit there is, as role (None: all together), unit and amount."""
        found: list[tuple[Role | None, Unit, float]] = []
        for role, cap in [(None, self), *self.roles.items()]:
            found += [(role, "usd", cap.usd)] if cap.usd is not None else []
            found += [(role, "tokens", float(cap.tokens))] if cap.tokens is not None else []
        return found

    def __str__(self) -> str:
        return ", ".join(
            amount_text(limit, unit) + ("" if role is None else f" ({role})")
            for role, unit, limit in self.caps()
        )

    def needs_price(self, role: str) -> bool:
        """Whether a role's calls count in dollars."""
        cap = self.roles.get(role)  # type: ignore[call-overload]  # any role may be asked for
        return self.usd is not None or (cap is not None and cap.usd is not None)

    def check_prices(self, endpoints: Iterable[Endpoint]) -> None:
        """See that the price of every endpoint is known that is paid out of dollars.

        Raises:
            ConfigError: If one isn't; a budget that can't see what is spent never stops.
        """
        for endpoint in endpoints:
            if endpoint.prices is None and self.needs_price(endpoint.role):
                raise ConfigError(
                    f"the budget is in dollars, and the {endpoint.role} {endpoint.model!r} at "
                    f"{public_url(endpoint.base_url)} has no prices, so nobody knows when it is "
                    "used up; add prices = {input = …, output = …} in dollars per million tokens "
                    "(0 for a server of your own), or cap tokens"
                )


class CapStatus(Record):
    """One limit and what is spent of it."""

    role: str | None = None
    """None: all roles together."""
    unit: Unit
    limit: Finite
    spent: Finite
    """What is known to be spent; a request whose bill nobody knows counts as the most it could be.
    """

    def __str__(self) -> str:
        whose = "" if self.role is None else f" ({self.role})"
        return (
            f"{amount_text(self.spent, self.unit)} of {amount_text(self.limit, self.unit)}{whose}"
        )


class BudgetStatus(Record):
    """How a run stands that its budget has ended."""

    status: Literal["budget_stop"] = "budget_stop"
    caps: tuple[CapStatus, ...]
    struck: CapStatus
    """The limit that ended it."""
    expected: Finite | None = None
    """What one more episode was expected to take of that limit; None where none had finished."""
    refusal: str | None = None
    """The last request that could not be paid for any more, if there was one."""
    done: int
    """Episodes of the run that are over."""
    before: int | None = None
    """Those of them that earlier parts of the run had played; None where there was none."""
    cut: tuple[str, ...] = ()
    """Episodes in flight of which a request could no longer be paid, as `task@seed.sample`; their
    traces are masked, and `--resume` plays them again."""
    not_run: tuple[str, ...] = ()
    """Episodes that were not begun, for the budget."""
    not_run_unknown: bool = False
    """Whether there were more, of which nobody knows how many: requests from an iterator."""

    def __str__(self) -> str:
        why = ""
        if self.refusal is not None:
            why = f", and {self.refusal}"
        elif self.expected is not None:
            expected = amount_text(self.expected, self.struck.unit)
            why = f", and an episode takes {expected} on average"
        return f"stopped by the budget: {self.struck} are spent{why}; {self._episodes()}"

    def _episodes(self) -> str:
        """What there is, and what is left."""
        more = " or more" if self.not_run_unknown else ""
        cut = f"{len(self.cut)} were cut off" if self.cut else ""
        if self.before is not None:
            left = len(self.cut) + len(self.not_run)
            new = self.done - self.before or "none"
            return (
                f"{self.done} of {self.done + left}{more} episodes are there ({new} of them new), "
                f"{left}{more} are left" + (f" ({cut})" if cut else "")
            )
        done = f"{self.done} episodes are done"
        if not (self.done or self.cut):
            done = "no episode was begun"
        return ", ".join([done, *([cut] if cut else []), f"{len(self.not_run)}{more} were not run"])


def amount_text(amount: float, unit: Unit) -> str:
    """An amount for people."""
    if unit == "tokens":
        return f"{amount:,.0f} tokens"
    return f"${amount:,.2f}" if amount >= 100 else f"${amount:.4f}"


def read_budget(values: Mapping[str, Any]) -> RunBudget:
    """A budget from plain values.

    Raises:
        ConfigError: If one isn't allowed; one line.
    """
    from pydantic import ValidationError

    from agentgym.types import in_one_line

    try:
        return RunBudget.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"budget: {in_one_line(error)}") from None
