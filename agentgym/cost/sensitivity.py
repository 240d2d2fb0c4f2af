"""Which input moves the bill most: one at a time, the others as they are.

Amounts go down and up by the same share, so the elasticity (per cent of bill per per cent of input)
can be compared between them. Shares such as a cache's hit rate go down and up by so many points,
since a tenth of nothing would show nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from agentgym.cost.plan import Plan, plan_priced
from agentgym.cost.turns import GeometricTurns, LogNormalTurns
from agentgym.cost.workload import Workload
from agentgym.types import Finite, Record

Change: TypeAlias = Callable[[float], Workload]
"""From a factor, or from a number of points, to the workload changed by it."""


class _Amount(NamedTuple):
    """An input to multiply."""

    name: str
    change: Change
    reached: Callable[[float], float] = lambda factor: factor
    """The factor that really results: turns are at least 1, and a cap is a whole number."""


class Effect(Record):
    """What the bill becomes with one input lower and higher."""

    input: str
    """Its name, as in a workload file."""
    kind: Literal["amount", "share"]
    """`amount`: changed by a factor; `share`: by points."""
    low: Finite
    """The bill with it lower."""
    high: Finite
    """The bill with it higher."""
    changed: tuple[Finite, Finite] | None = None
    """Relative change of an amount, lower and higher; None for shares."""
    elasticity: Finite | None = None
    """Relative change of the bill per relative change of the input; None for shares."""

    @property
    def swing(self) -> float:
        """How far the bill moves between the two."""
        return abs(self.high - self.low)


class Sensitivity(Record):
    """All inputs that move the bill, the strongest first."""

    unit: Literal["usd", "tokens"]
    """What the bill is in: tokens where nothing has a price, or costs anything."""
    base: Finite
    """The bill as planned."""
    by: Finite
    """Relative change of amounts, and points of shares."""
    effects: tuple[Effect, ...]


def sensitivity(plan: Plan, *, by: float = 0.1) -> Sensitivity:
    """Change each input of a plan alone.

    Args:
        plan: With its prices.
        by: How far: 0.1 is 10 % for amounts, 10 points for shares.
    """
    unit: Literal["usd", "tokens"] = "usd" if plan.total_usd else "tokens"
    workload = plan.workload

    def bill(changed: Workload) -> float:
        other = plan_priced(changed)
        return other.total_usd if unit == "usd" else _tokens(other)

    base = bill(workload)
    effects = []
    for name, change, reached in _amounts(workload):
        low, high = bill(change(1 - by)), bill(change(1 + by))
        down, up = reached(1 - by) - 1, reached(1 + by) - 1
        effects.append(
            Effect(
                input=name,
                kind="amount",
                low=low,
                high=high,
                changed=(down, up),
                elasticity=(high - low) / ((up - down) * base) if base else 0.0,
            )
        )
    for name, change in _shares(workload):
        low, high = bill(change(-by)), bill(change(by))
        effects.append(Effect(input=name, kind="share", low=low, high=high))
    moving = [effect for effect in effects if effect.swing > 1e-9 * abs(base)]
    moving.sort(key=lambda effect: -effect.swing)
    return Sensitivity(unit=unit, base=base, by=by, effects=tuple(moving))


def _tokens(plan: Plan) -> float:
    volumes = (one.per_episode for one in plan.roles)
    return sum(v.input_tokens + v.output_tokens for v in volumes) * plan.workload.episodes


def _amounts(workload: Workload) -> Iterator[_Amount]:
    """Inputs to multiply. `steps` stands for `groups`, too: both count episodes."""
    turns = workload.turns
    yield _Amount("steps (or groups)", lambda f: _with(workload, ("steps",), workload.steps * f))
    yield _Amount(
        "turns",
        lambda f: workload.model_copy(update={"turns": turns.scaled(f)}),
        lambda f: turns.scaled(f).size / turns.size,
    )
    if isinstance(turns, GeometricTurns | LogNormalTurns):
        cap = turns.max_turns
        yield _Amount(
            "turns.max_turns",
            lambda f: _with(workload, ("turns", "max_turns"), _other_whole(cap, f)),
            lambda f: _other_whole(cap, f) / cap,
        )
    paths: list[tuple[str, ...]] = [("tokens", name) for name in ("setup", "output", "reply")]
    serving = ("prefill_tokens_per_s", "decode_tokens_per_s", "gpus", "usd_per_gpu_hour")
    paths += [("policy", "serving", name) for name in (*serving, "update_s")]
    paths += [("policy", "seconds_per_call"), ("concurrency",), *_prices("policy")]
    for role in workload.roles:
        own = ("calls_per_episode", "calls_per_turn", "calls_per_reply", "seconds_per_call")
        paths += [("roles", role, name) for name in (*own, "input_tokens", "output_tokens")]
        paths += _prices("roles", role)
    for path in paths:
        if value := _get(workload, path):
            yield _Amount(".".join(path), partial(_scaled, workload, path, value))


def _scaled(workload: Workload, path: tuple[str, ...], value: float, factor: float) -> Workload:
    """The workload with one of its amounts times a factor."""
    scaled: Workload = _with(workload, path, value * factor)
    return scaled


def _prices(*owner: str) -> list[tuple[str, ...]]:
    return [(*owner, "prices", name) for name in ("input", "cached", "output")]


def _shares(workload: Workload) -> Iterator[tuple[str, Change]]:
    """Inputs to add points to."""
    owners = [("policy",), *(("roles", role) for role in workload.roles)]
    paths = [(*owner, name) for owner in owners for name in ("cache_hit", "paid_twice")]
    for path in [*paths, ("rerun_share",)]:
        value = _get(workload, path)
        most = 1.0 if path[-1] == "cache_hit" else float("inf")

        def change(points: float, path: Any = path, value: Any = value, most: Any = most) -> Any:
            return _with(workload, path, min(most, max(0.0, value + points)))

        yield ".".join(path), change


def _other_whole(cap: int, factor: float) -> int:
    """A cap that is another one, or the change would vanish; still at least 1."""
    moved = round(cap * factor)
    if moved == cap:
        moved += 1 if factor > 1 else -1
    return max(1, moved)


def _get(record: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if record is None:
            return None
        record = record[name] if isinstance(record, dict) else getattr(record, name)
    return record


def _with(record: Any, path: tuple[str, ...], value: Any) -> Any:
    """A copy in which one field, however deep, has another value."""
    name, *rest = path
    inner = record[name] if isinstance(record, dict) else getattr(record, name)
    changed = _with(inner, tuple(rest), value) if rest else value
    if isinstance(record, dict):
        return {**record, name: changed}
    return record.model_copy(update={name: changed})
