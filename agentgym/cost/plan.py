"""What a run will cost: tokens and dollars per role, per training step and in all.

Pure functions of a workload. The policy is priced by the sum of its prompts, since every turn reads
the whole conversation again; a judge by the transcript it reads once. Where a role has no price it
is named beside the sum, and never counted as free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

from agentgym.client import Prices
from agentgym.cost.bill import Dollars, Volume
from agentgym.cost.reading import prompt_tokens
from agentgym.cost.serving import StepTime, step_time
from agentgym.cost.turns import Outcomes
from agentgym.cost.volumes import policy_volume, role_volume
from agentgym.cost.workload import PolicyLoad, RoleLoad, Workload
from agentgym.price_book import PriceBook
from agentgym.types import Finite, Record

Load = TypeVar("Load", PolicyLoad, RoleLoad)


class RolePlan(Record):
    """One role's part."""

    role: str
    model: str | None
    prices: Prices | None
    """None: nobody knows what it costs by the token."""
    per_episode: Volume

    def usd(self, episodes: float) -> Dollars | None:
        """The bill of so many episodes; None where unpriced."""
        if self.prices is None:
            return None
        return self.per_episode.times(episodes).usd(self.prices)

    def usd_with_hits(self, hit: float, episodes: float) -> float | None:
        """The bill if so large a share of what can be cached is: 0 without a cache, 1 at best."""
        if self.prices is None:
            return None
        return self.per_episode.with_hits(hit).times(episodes).usd(self.prices).total

    @property
    def best_hit_rate(self) -> float:
        """The largest share of its input that a prefix cache could hold."""
        volume = self.per_episode
        return volume.cacheable_tokens / volume.input_tokens if volume.input_tokens else 0.0


class Part(Record):
    """One line of the bill: a role's input, cached input, output or GPUs."""

    role: str
    what: str
    usd: Finite


class TurnRow(Record):
    """One turn of the policy, for the growth of its prompts."""

    turn: int
    """From 1."""
    reached: Finite
    """Share of episodes that have this turn."""
    prompt: Finite
    """Its prompt's tokens."""
    repeated: Finite
    """Those of them that the turn before held already."""
    read_so_far: Finite
    """Prompt tokens of all turns up to this one."""


class Plan(Record):
    """The expected bill of a workload."""

    workload: Workload
    """As planned, with the prices that were found."""
    roles: tuple[RolePlan, ...]
    """The policy first."""
    step: StepTime | None
    """None where nothing is known of speed."""

    def role(self, name: str) -> RolePlan:
        """One role's part."""
        return next(one for one in self.roles if one.role == name)

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours in which the policy's GPUs work on its tokens, over the run."""
        busy = None if self.step is None else self.step.sampling_s
        return None if busy is None else self._gpu_hours_per_step(busy) * self.workload.steps

    @property
    def gpu_hours_held(self) -> float | None:
        """GPU-hours from the first to the last step, idle ones included; these are paid for."""
        if self.step is None or self.step.sampling_s is None:
            return None
        return self._gpu_hours_per_step(self.step.total_s) * self.workload.steps

    @property
    def wall_clock_s(self) -> float | None:
        """Seconds the run takes; None where nothing is known of speed."""
        return None if self.step is None else self.step.total_s * self.workload.steps

    def usd_per_step(self, name: str) -> float | None:
        """A role's dollars per training step, GPUs included; None where unpriced."""
        bill = self.role(name).usd(self.workload.episodes_per_step)
        if name == "policy" and bill is None:
            return self._gpu_usd_per_step
        return None if bill is None else bill.total

    def usd(self, name: str) -> float | None:
        """A role's dollars over the run; None where unpriced."""
        per_step = self.usd_per_step(name)
        return None if per_step is None else per_step * self.workload.steps

    @property
    def total_usd_per_step(self) -> float:
        """Dollars per training step of all roles that have a price; see `unpriced`."""
        return sum(usd for one in self.roles if (usd := self.usd_per_step(one.role)) is not None)

    @property
    def total_usd(self) -> float:
        """Dollars over the run of all roles that have a price; see `unpriced` for the others."""
        return self.total_usd_per_step * self.workload.steps

    def _gpu_hours_per_step(self, seconds: float) -> float:
        serving = self.workload.policy.serving
        return seconds * (serving.gpus if serving else 0) / 3600

    @property
    def _gpu_usd_per_step(self) -> float | None:
        serving = self.workload.policy.serving
        if self.step is None or serving is None or serving.usd_per_gpu_hour is None:
            return None
        return self._gpu_hours_per_step(self.step.total_s) * serving.usd_per_gpu_hour

    @property
    def is_priced(self) -> bool:
        """Whether any role has a price; without one, the sums of dollars say nothing."""
        return any(self.usd_per_step(one.role) is not None for one in self.roles)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Roles that are called and have no price."""
        return tuple(
            one.role for one in self.roles if one.per_episode.calls and self.usd(one.role) is None
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        """The lines of the bill, largest first: what dominates."""
        return tuple(sorted(self._parts(), key=lambda part: -part.usd))

    def _parts(self) -> Iterator[Part]:
        for one in self.roles:
            bill = one.usd(self.workload.episodes)
            if bill is not None:
                named = ("input", bill.fresh_input), ("cached input", bill.cached_input)
                for what, usd in (*named, ("output", bill.output)):
                    if usd:
                        yield Part(role=one.role, what=what, usd=usd)
        if self._gpu_usd_per_step:
            usd = self._gpu_usd_per_step * self.workload.steps
            yield Part(role="policy", what="GPUs", usd=usd)

    @property
    def turn_rows(self) -> tuple[TurnRow, ...]:
        """How the policy's prompts grow, turn by turn, up to the longest episode."""
        return tuple(_turn_rows(self.workload, self.workload.turns.outcomes))


def make_plan(workload: Workload, book: PriceBook | None = None) -> Plan:
    """Plan a workload.

    Args:
        workload: The run.
        book: Where the prices of the models named are; default: the user's.

    Raises:
        ConfigError: If a model has no price.
    """
    return plan_priced(priced(workload, book))


def priced(workload: Workload, book: PriceBook | None = None) -> Workload:
    """The workload with prices for every model that it names.

    Raises:
        ConfigError: If a model has none.
    """
    book = PriceBook.load() if book is None else book
    return workload.model_copy(
        update={
            "policy": _priced(workload.policy, book),
            "roles": {role: _priced(load, book) for role, load in workload.roles.items()},
        }
    )


def plan_priced(workload: Workload) -> Plan:
    """Plan a workload of which only the prices in it count."""
    policy = RolePlan(
        role="policy",
        model=workload.policy.model,
        prices=workload.policy.prices,
        per_episode=policy_volume(workload),
    )
    others = (
        RolePlan(
            role=role,
            model=load.model,
            prices=load.prices,
            per_episode=role_volume(workload, load),
        )
        for role, load in workload.roles.items()
    )
    return Plan(
        workload=workload,
        roles=(policy, *others),
        step=step_time(workload, policy.per_episode),
    )


def other_reading(plan: Plan, role: str) -> Plan | None:
    """The plan in which a judge is charged the other way round, to show what hangs on it.

    Returns:
        With `transcript` and `prompts` exchanged; None where the role reads neither, or is asked
        during the episode, or never.
    """
    load = plan.workload.roles.get(role)
    if load is None or load.reads == "own" or load.calls_per_turn or load.calls_per_reply:
        return None
    if not load.calls_per_episode:
        return None
    reads = "prompts" if load.reads == "transcript" else "transcript"
    return plan_priced(plan.workload.with_role(role, load.model_copy(update={"reads": reads})))


def _priced(load: Load, book: PriceBook) -> Load:
    if load.prices is not None or load.model is None:
        return load
    return load.model_copy(update={"prices": book.find(load.model).prices})


def _turn_rows(workload: Workload, outcomes: Outcomes) -> Iterator[TurnRow]:
    tokens, factor = workload.tokens, workload.safety_factor
    ends = sorted(outcomes)
    so_far, ended = 0.0, 0.0
    for turn in range(math.ceil(ends[-1])):
        while ends[0] <= turn:
            ended += outcomes[ends.pop(0)]
        prompt = factor * prompt_tokens(tokens, turn)
        so_far += prompt
        yield TurnRow(
            turn=turn + 1,
            reached=max(0.0, 1 - ended),
            prompt=prompt,
            repeated=factor * prompt_tokens(tokens, turn - 1) if turn else 0.0,
            read_so_far=so_far,
        )
