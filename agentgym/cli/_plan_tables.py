"""A plan as text: tables of tokens and dollars, and the sentences that go with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from agentgym.cost.plan import Plan, RolePlan, other_reading
from agentgym.cost.turns import ConstantTurns, mean_and_sd
from agentgym.cost.volumes import volume_at_mean_turns
from agentgym.price_book import PriceBook

if TYPE_CHECKING:
    from agentgym.cost.sensitivity import Sensitivity

WIDTH = 100
"""Columns where nobody says how many there are, as in a file."""
MOST_TURNS = 8
"""Rows of the table of prompt growth."""
BAR = 20
"""Characters of the longest bar."""


def print_plan(plan: Plan, found: Sensitivity, book: PriceBook, *, every_input: bool) -> None:
    """Print all of it.

    Args:
        plan: What to print.
        found: What moves the bill.
        book: Where the prices came from, to say when they were read.
        every_input: Whether to show all inputs that move the bill.
    """
    console = Console(
        width=None if sys.stdout.isatty() else WIDTH, highlight=False, soft_wrap=False
    )

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    for line in _heading(plan):
        say(line)
    console.print(_roles_table(plan, "per training step", 1))
    console.print(_roles_table(plan, "per run", plan.workload.steps))
    say("")
    for line in [*_prices(plan, book), *_caveats(plan)]:
        say(line)
    console.print(_parts_table(plan))
    console.print(_turns_table(plan))
    say("")
    for line in [*_turn_lines(plan), *_readings(plan), *_time(plan)]:
        say(line)
    console.print(_sensitivity_table(found, every_input=every_input))


def amount(value: float) -> str:
    """A count, in millions or billions where it is one."""
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if abs(value) >= size:
            return f"{value / size:,.3f}{unit}"
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.1f}"


def dollars(value: float | None) -> str:
    """Dollars; unknown is no zero."""
    return "unpriced" if value is None else f"${value:,.2f}"


def _heading(plan: Plan) -> Iterator[str]:
    workload, tokens = plan.workload, plan.workload.tokens
    mean, sd = mean_and_sd(workload.turns.outcomes)
    yield f"{workload.name} ({workload.basis}): an estimate"
    yield (
        f"{workload.groups:,} tasks × {workload.group_size} rollouts × {workload.steps:,} training "
        f"steps = {workload.episodes:,} episodes, {workload.episodes_per_step:,} per step"
    )
    spread = "" if isinstance(workload.turns, ConstantTurns) else f" ± {sd:.2f}"
    yield (
        f"turns {mean:.4g}{spread}; tokens: setup {tokens.setup:,g}, output {tokens.output:,g} and "
        f"reply {tokens.reply:,g} per turn"
    )
    extra = (
        ("episodes played twice", workload.rerun_share, "{:.1%}"),
        ("safety factor on tokens", workload.safety_factor - 1, "{:+.0%}"),
    )
    for what, value, shape in extra:
        if value:
            yield f"{what}: {shape.format(value)}"


def _table(title: str, *names: str) -> Table:
    table = Table(
        title=f"\n{title}",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    return table


def _roles_table(plan: Plan, title: str, steps: int) -> Table:
    table = _table(
        title, "role", "calls", "input", "cached", "output", "cost", "no cache", "best cache"
    )
    episodes = plan.workload.episodes_per_step * steps
    for one in plan.roles:
        volume = one.per_episode.times(episodes)
        usd = plan.usd_per_step(one.role)
        table.add_row(
            one.role,
            amount(volume.calls),
            amount(volume.input_tokens),
            amount(volume.cached_tokens),
            amount(volume.output_tokens),
            dollars(None if usd is None else usd * steps),
            *_with_and_without(one, episodes),
        )
    total = plan.total_usd_per_step * steps
    priced = [one for one in plan.roles if one.role not in plan.unpriced]
    name = "total" if not plan.unpriced else "priced roles"
    calls, read, cached, written = (
        sum(getattr(one.per_episode, field) for one in priced) * episodes
        for field in ("calls", "input_tokens", "cached_tokens", "output_tokens")
    )
    ends = [
        sum(usd for one in priced if (usd := one.usd_with_hits(hit, episodes)) is not None)
        for hit in (0.0, 1.0)
    ]
    hourly = any(part.what == "GPUs" for part in plan.parts)
    by_token = ["" if hourly else dollars(usd) for usd in ends]
    table.add_section()
    table.add_row(name, *map(amount, (calls, read, cached, written)), dollars(total), *by_token)
    return table


def _with_and_without(one: RolePlan, episodes: int) -> tuple[str, str]:
    if one.prices is None:
        return "", ""
    return dollars(one.usd_with_hits(0, episodes)), dollars(one.usd_with_hits(1, episodes))


def _prices(plan: Plan, book: PriceBook) -> Iterator[str]:
    for one in plan.roles:
        prices = one.prices
        if prices is None:
            continue
        cached = "as input" if prices.cached is None else f"{prices.cached:g}"
        origin = book.find(prices.book).origin if prices.book else "given"
        yield (
            f"{one.role}: {one.model or 'a model'} at ${prices.input:g} in, {cached} cached, "
            f"{prices.output:g} out per Mtok ({origin})"
        )


def _caveats(plan: Plan) -> Iterator[str]:
    if plan.unpriced:
        hints = {"policy": "--policy-model, or --gpu-hour-usd with --prefill-tps and --decode-tps"}
        for role in plan.unpriced:
            hint = hints.get(role, f"model or prices under [roles.{role}]")
            yield f"{role}: no price, and in no sum; give {hint}"


def _parts_table(plan: Plan) -> Table:
    table = _table("what dominates", "part", "per run", "share")
    for part in plan.parts:
        share = part.usd / plan.total_usd if plan.total_usd else 0.0
        table.add_row(f"{part.role} {part.what}", dollars(part.usd), f"{share:.1%}")
    if not plan.parts:
        table.add_row("nothing has a price", "", "")
    return table


def _turns_table(plan: Plan) -> Table:
    table = _table(
        "the policy's prompts", "turn", "reached by", "prompt", "of it new", "read so far"
    )
    rows = plan.turn_rows
    shown = rows if len(rows) <= MOST_TURNS else (*rows[: MOST_TURNS - 2], *rows[-2:])
    for row in shown:
        if len(rows) > MOST_TURNS and row is rows[-2]:
            table.add_row("…", "", "", "", "")
        table.add_row(
            str(row.turn),
            f"{row.reached:.1%}",
            amount(row.prompt),
            amount(row.prompt - row.repeated),
            amount(row.read_so_far),
        )
    return table


def _turn_lines(plan: Plan) -> Iterator[str]:
    workload, policy = plan.workload, plan.role("policy")
    read = policy.per_episode.input_tokens
    yield (
        f"Prompts: {amount(read)} tokens per episode, "
        f"{amount(read * workload.episodes_per_step)} per step, "
        f"{amount(read * workload.episodes)} per run; a prefix cache could hold "
        f"{policy.best_hit_rate:.1%} of them. Sampled: "
        f"{amount(policy.per_episode.output_tokens * workload.episodes_per_step)} per step."
    )
    if not isinstance(workload.turns, ConstantTurns):
        mean, _ = mean_and_sd(workload.turns.outcomes)
        flat = volume_at_mean_turns(workload).input_tokens
        ratio = f"{read / flat:.2f} times as many" if flat else "as many"
        yield (
            f"If every episode took the mean of {mean:.4g} turns, they would be {amount(flat)}: "
            f"the spread alone makes it {ratio}."
        )


def _readings(plan: Plan) -> Iterator[str]:
    """Why two bills for the same judge differ."""
    for role in plan.workload.roles:
        other = other_reading(plan, role)
        if other is None or plan.usd(role) is None:
            continue
        once, summed = plan, other
        if plan.workload.roles[role].reads == "prompts":
            once, summed = other, plan
        tokens = [amount(p.role(role).per_episode.input_tokens) for p in (once, summed)]
        yield (
            f"The {role} reads the transcript once: {tokens[0]} tokens per episode, "
            f"{dollars(once.usd(role))}, in all {dollars(once.total_usd)}. Many budgets charge it "
            f"for the sum of the policy's prompts, which no judge reads: {tokens[1]} tokens, "
            f"{dollars(summed.usd(role))}, in all {dollars(summed.total_usd)}. "
            f"Counted here: {'the first' if once is plan else 'the second'}."
        )


def _time(plan: Plan) -> Iterator[str]:
    step = plan.step
    if step is None or plan.wall_clock_s is None:
        yield (
            "Time: unknown; give --prefill-tps and --decode-tps, or --seconds-per-call policy=S."
        )
        return
    if plan.gpu_hours is not None and plan.gpu_hours_held is not None:
        prefill = "" if step.prefill_share is None else f", {step.prefill_share:.0%} of it prefill"
        usd = plan.usd("policy")
        cost = "" if usd is None else f", {dollars(usd)}"
        yield (
            f"GPUs: {plan.gpu_hours:,.1f} GPU-hours busy with the policy{prefill}; "
            f"{plan.gpu_hours_held:,.1f} from first to last step{cost}."
        )
    least = f" at least (no seconds per call for {', '.join(step.unknown)})" if step.unknown else ""
    bound = f"rollouts {step.rollouts_s:,.1f} s, bound by the {step.bound_by}"
    if step.waiting_s is None:
        bound += ", waiting for answers not counted (--seconds-per-call)"
    yield (
        f"Time: {step.total_s:,.1f} s per step{least}: {bound}; judging's tail "
        f"{step.judging_s:,.1f} s; update {step.update_s:,.1f} s. "
        f"The run: {plan.wall_clock_s / 3600:,.1f} h."
    )


def _sensitivity_table(found: Sensitivity, *, every_input: bool) -> Table:
    by = f"{found.by:.0%}"
    table = _table(
        f"what moves the bill: amounts ±{by}, shares ±{found.by * 100:.0f} points",
        "input",
        "lower",
        "higher",
        "swing",
        "elasticity",
    )
    table.add_column("", no_wrap=True)
    most = max((effect.swing for effect in found.effects), default=0.0)
    show = dollars if found.unit == "usd" else amount
    effects = found.effects if every_input else found.effects[:8]
    for effect in effects:
        slope = "" if effect.elasticity is None else f"{effect.elasticity:+.2f}"
        swing = f"{effect.swing / found.base:.1%}" if found.base else ""
        bar = "█" * max(1, round(BAR * effect.swing / most))
        table.add_row(effect.input, show(effect.low), show(effect.high), swing, slope, bar)
    if len(effects) < len(found.effects):
        table.caption = f"{len(found.effects) - len(effects)} more with --sensitivity"
        table.caption_justify = "left"
    return table
