"""A plan held against what a run has cost, per role: where it was wrong, and by how much."""

from __future__ import annotations

from agentgym.cost.actual import Actual
from agentgym.cost.plan import Plan
from agentgym.types import Finite, Record


class RoleAgainst(Record):
    """One role, per episode: planned and actual."""

    role: str
    planned_calls: Finite
    actual_calls: Finite
    planned_input: Finite
    """Tokens, cached ones included."""
    actual_input: Finite
    planned_cached: Finite
    actual_cached: Finite
    planned_output: Finite
    actual_output: Finite
    planned_usd: Finite | None
    """None where the role has no price, or is paid by the hour."""
    actual_usd: Finite | None

    @property
    def usd_ratio(self) -> float | None:
        """Actual dollars over planned ones; 1 where the plan was right."""
        if self.planned_usd is None or self.actual_usd is None:
            return None
        return ratio(self.actual_usd, self.planned_usd)

    @property
    def tokens_ratio(self) -> float | None:
        """The same for tokens, input and output."""
        return ratio(
            self.actual_input + self.actual_output, self.planned_input + self.planned_output
        )


class Against(Record):
    """All roles, and the sum over those that have a price on both sides."""

    roles: tuple[RoleAgainst, ...]
    planned_episodes: int
    actual_episodes: int

    @property
    def left_out(self) -> tuple[str, ...]:
        """Roles that are in no sum, since one side has no price."""
        return tuple(
            one.role
            for one in self.roles
            if None in (one.planned_usd, one.actual_usd) and _used(one)
        )

    @property
    def planned_usd(self) -> float:
        """Planned dollars per episode, over the roles with a price on both sides."""
        return sum(one.planned_usd or 0.0 for one in self.roles if one.role not in self.left_out)

    @property
    def actual_usd(self) -> float:
        """Actual dollars per episode, over the same."""
        return sum(one.actual_usd or 0.0 for one in self.roles if one.role not in self.left_out)

    @property
    def usd_ratio(self) -> float | None:
        """Actual over planned."""
        return ratio(self.actual_usd, self.planned_usd)


def against(plan: Plan, actual: Actual) -> Against:
    """Hold a plan against a bill, per episode, so that a run that ended early can be compared.

    Attempts that were repeated are on both sides: in the bill as they came, in the plan by its
    shares of calls paid twice and of episodes played again.
    """
    planned = {one.role: one for one in plan.roles}
    rows = []
    for role in dict.fromkeys([*planned, *actual.roles]):
        bill, mine = actual.roles.get(role), planned.get(role)
        count = actual.episodes or 1
        volume = mine.per_episode if mine else None
        usd = mine.usd(1) if mine else None
        no_calls = mine is not None and not mine.per_episode.calls
        rows.append(
            RoleAgainst(
                role=role,
                planned_calls=volume.calls if volume else 0.0,
                actual_calls=bill.calls / count if bill else 0.0,
                planned_input=volume.input_tokens if volume else 0.0,
                actual_input=bill.input_tokens / count if bill else 0.0,
                planned_cached=volume.cached_tokens if volume else 0.0,
                actual_cached=bill.cached_tokens / count if bill else 0.0,
                planned_output=volume.output_tokens if volume else 0.0,
                actual_output=bill.output_tokens / count if bill else 0.0,
                planned_usd=0.0 if mine is None or no_calls else usd.total if usd else None,
                actual_usd=_usd(bill.usd if bill else 0.0, count),
            )
        )
    return Against(
        roles=tuple(rows),
        planned_episodes=plan.workload.episodes,
        actual_episodes=actual.episodes,
    )


def ratio(actual: float, planned: float) -> float | None:
    """Actual over planned; None where nothing was planned."""
    return actual / planned if planned else None


def _usd(usd: float | None, count: int) -> float | None:
    return None if usd is None else usd / count


def _used(one: RoleAgainst) -> bool:
    return bool(one.planned_calls or one.actual_calls or one.actual_input or one.planned_input)
