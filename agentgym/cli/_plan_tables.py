"""A plan as text: tables of tokens and dollars, and the sentences that go with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from agentgym.cli._bill_tables import amount, bill_console, bill_table, dollars, say
from agentgym.client import Prices
from agentgym.cost.plan import Plan, RolePlan, other_reading
from agentgym.cost.turns import ConstantTurns, mean_and_sd
from agentgym.cost.volumes import volume_at_mean_turns
from agentgym.price_book import PriceBook
from agentgym.types import printable

if TYPE_CHECKING:
    from agentgym.cost.caching import PolicyCache
    from agentgym.cost.sensitivity import Effect, Sensitivity

MOST_TURNS = 8
"""Rows of the table of prompt growth."""
BAR = 20
"""Characters of the longest bar."""


def print_plan(
    plan: Plan,
    found: Sensitivity,
    book: PriceBook,
    cache: PolicyCache | None,
    *,
    every_input: bool,
) -> None:
    """Print all of it.

    Args:
        plan: What to print.
        found: What moves the bill.
        book: Where the prices came from, to say when they were read.
        cache: What hangs on the policy's prefix cache, where it is paid by the token.
        every_input: Whether to show all inputs that move the bill.
    """
    console = bill_console()
    for line in _heading(plan):
        say(console, line)
    console.print(_roles_table(plan, "per training step", 1))
    console.print(_roles_table(plan, "per run", plan.workload.steps))
    say(console, "")
    for line in [*_prices(plan, book), *_cache(cache), *_caveats(plan)]:
        say(console, line)
    console.print(_parts_table(plan))
    console.print(_turns_table(plan))
    say(console, "")
    for line in [*_turn_lines(plan), *_readings(plan), *_time(plan)]:
        say(console, line)
    console.print(_sensitivity_table(plan, found, every_input=every_input))


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
        f"turns {_turns(mean)}{spread}; tokens: setup {amount(tokens.setup)}, output "
        f"{amount(tokens.output)} and reply {amount(tokens.reply)} per turn"
    )
    extra = (
        ("episodes played twice", workload.rerun_share, "{:.2g}% of all"),
        ("safety factor on tokens", workload.safety_factor - 1, "{:+.2g}%"),
    )
    for what, value, shape in extra:
        if value:
            yield f"{what}: {shape.format(100 * value)}"


def _turns(mean: float) -> str:
    return f"{mean:,.0f}" if mean >= 1000 else f"{mean:.4g}"


def _roles_table(plan: Plan, title: str, steps: int) -> Table:
    table = bill_table(
        title, "role", "calls", "input", "cached", "output", "cost", "no cache", "best cache"
    )
    episodes = plan.workload.episodes_per_step * steps
    for one in plan.roles:
        volume = one.per_episode.times(episodes)
        usd = plan.usd_per_step(one.role)
        table.add_row(
            printable(one.role),
            amount(volume.calls),
            amount(volume.input_tokens),
            amount(volume.cached_tokens),
            amount(volume.output_tokens),
            dollars(None if usd is None else usd * steps),
            *_with_and_without(one, episodes),
        )
    if not plan.is_priced:
        return table  # a sum of no dollars would read as free
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
        yield (
            f"{one.role}: {one.model or 'a model'} at ${prices.input:g} in, {cached} cached, "
            f"{prices.output:g} out per Mtok ({_origin(prices, book)})"
        )


def _origin(prices: Prices, book: PriceBook) -> str:
    if prices.book is None:
        return "given"
    row = book.row_of(prices)
    return f"given; the book's {prices.book!r} is not that" if row is None else row.origin


def _cache(cache: PolicyCache | None) -> Iterator[str]:
    """What is taken to be cached of a hosted policy's input, and what it makes."""
    if cache is None:
        return
    if not cache.has_price:
        yield (
            "policy: cached input has no price of its own, so no cache makes it cheaper "
            f"({cache.hit:.0%} planned to hit)"
        )
        return
    told = "assumed, nobody said" if cache.assumed else "given"
    yield (
        f"policy: {cache.hit:.0%} of what a prefix cache could hold is planned to hit ({told}); "
        f"in all {dollars(cache.usd_at_best)} if all of it does, {dollars(cache.usd_without)} if "
        "none"
    )
    if cache.is_notable:
        yield (
            f"! that is {cache.swing:.0%} of the sum, and providers hit less than they could: set "
            "--cache policy=SHARE, from a pilot (`agentgym cost calibrate`) or 0 to be safe"
        )


def _caveats(plan: Plan) -> Iterator[str]:
    if plan.unpriced:
        hints = {"policy": "--policy-model, or --gpu-hour-usd with --prefill-tps and --decode-tps"}
        for role in plan.unpriced:
            hint = hints.get(role, f"model or prices under [roles.{role}]")
            yield f"{role}: no price, and in no sum; give {hint}"


def _parts_table(plan: Plan) -> Table:
    whose = " of what has a price" if plan.unpriced and plan.parts else ""
    table = bill_table(f"what dominates{whose}", "part", "per run", "share")
    for part in plan.parts:
        share = part.usd / plan.total_usd if plan.total_usd else 0.0
        table.add_row(printable(f"{part.role} {part.what}"), dollars(part.usd), f"{share:.1%}")
    if not plan.parts:
        nothing = "nothing is paid for" if plan.is_priced else "nothing has a price"
        table.add_row(nothing, "", "")
    return table


def _turns_table(plan: Plan) -> Table:
    table = bill_table(
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
            f"If every episode took the mean of {_turns(mean)} turns, they would be "
            f"{amount(flat)}: the spread alone makes it {ratio}."
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
        calls = plan.workload.roles[role].calls_per_episode
        whole = "all priced roles" if plan.unpriced else "in all"
        often = "once" if calls == 1 else f"once per call, with {calls:.3g} calls per episode"
        yield (
            f"The {role} reads the transcript {often}: {tokens[0]} tokens per episode, "
            f"{dollars(once.usd(role))}, {whole} {dollars(once.total_usd)}. Many budgets charge it "
            f"for the sum of the policy's prompts, which no judge reads: {tokens[1]} tokens, "
            f"{dollars(summed.usd(role))}, {whole} {dollars(summed.total_usd)}. "
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
        by_hour = sum(part.usd for part in plan.parts if part.what == "GPUs")
        cost = f", {dollars(by_hour)}" if by_hour else ""
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


def _sensitivity_table(plan: Plan, found: Sensitivity, *, every_input: bool) -> Table:
    by = f"{found.by:.0%}"
    what = "tokens" if found.unit == "tokens" else "bill"
    whose = " of the priced roles" if found.unit == "usd" and plan.unpriced else ""
    table = bill_table(
        f"what moves the {what}{whose}: amounts ±{by}, shares ±{found.by * 100:.0f} points",
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
        table.add_row(
            _input(effect, found.by), show(effect.low), show(effect.high), swing, slope, bar
        )
    if not effects:
        table.add_row("nothing", *[""] * 5)
    if len(effects) < len(found.effects):
        table.caption = f"{len(found.effects) - len(effects)} more with --sensitivity"
        table.caption_justify = "left"
    return table


def _input(effect: Effect, by: float) -> str:
    """Its name, and how far it was changed where it couldn't be as far as the others."""
    ends = effect.changed or (-by, by)
    if max(abs(ends[0] + by), abs(ends[1] - by)) < by / 100:
        return printable(effect.input)
    return f"{printable(effect.input)} ({ends[0]:+.0%}, {ends[1]:+.0%})"
