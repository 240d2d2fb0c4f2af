"""How much at once, how long, how often again, and when a run has enough: the flags for it."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agentgym.cli._inputs import checked, key_values
from agentgym.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from agentgym.rollout import BudgetStatus, Enough, Limits, Retry, RunBudget
    from agentgym.traces.jsonl import Entry

_CLASSES = ("env", "simulator", "infra", "judge")


def add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    """Options for slots, deadlines, retries and an early end."""
    slots = parser.add_argument_group(
        "slots: each stage has its own, and waiting for one costs no time"
    )
    slots.add_argument(
        "--concurrency",
        type=int,
        help="episodes taking turns at once (default: the policy's max_concurrency in --roles, "
        "or 64)",
    )
    slots.add_argument(
        "--init-concurrency",
        type=int,
        metavar="N",
        help="environments made or reset at once (default: 16, or --concurrency if that is less)",
    )
    slots.add_argument(
        "--eval-concurrency",
        type=int,
        metavar="N",
        help="episodes judged at once (default: 64, or --concurrency if that is more)",
    )
    limits = parser.add_argument_group("limits of an episode")
    limits.add_argument("--max-turns", type=int, help="turns, if below the env's cap")
    limits.add_argument("--max-episode-tokens", type=int, help="generated tokens")
    limits.add_argument("--episode-timeout", type=float, metavar="S", help="seconds for its turns")
    failures = parser.add_argument_group(
        "failures that are not the policy's; what fails in the end has no score, never 0"
    )
    failures.add_argument(
        "--retries",
        nargs="+",
        action="extend",
        default=[],
        metavar="CLASS=N",
        help=f"times an episode is tried again by who failed ({', '.join(_CLASSES)}), such as "
        "env=0 infra=3; 0 alone: never",
    )
    failures.add_argument(
        "--retry-budget", type=float, metavar="SHARE", help="repeats per episode asked for, at most"
    )
    failures.add_argument(
        "--min-group-size",
        type=int,
        metavar="N",
        help="with --samples: replace failed siblings where fewer have a score",
    )
    failures.add_argument(
        "--max-failure-rate",
        type=float,
        metavar="SHARE",
        help="failed episodes above which, and by more than chance, the run stops (default: 0.5)",
    )
    add_budget_arguments(parser)
    early = parser.add_argument_group("an early end, without the slowest episodes")
    early.add_argument("--enough", type=int, metavar="N", help="stop at N scored episodes")
    early.add_argument(
        "--enough-groups", type=int, metavar="N", help="stop at N groups whose rewards differ"
    )


def add_budget_arguments(parser: argparse.ArgumentParser) -> None:
    """Options for what a run may spend."""
    budget = parser.add_argument_group(
        "a budget for the run: no episode begins that it might not pay for (exit code 3)"
    )
    for unit, what in (("usd", "dollars"), ("tokens", "tokens, input and output")):
        budget.add_argument(
            f"--budget-{unit}",
            nargs="+",
            metavar="N",
            help=f"{what} that all roles may spend, or one of them: 5 judge=2",
        )


def read_budget_flags(args: argparse.Namespace) -> RunBudget | None:
    """The run's budget; None without one.

    Raises:
        ConfigError: If an amount isn't allowed, or a role unknown.
    """
    from agentgym.roles import ROLES
    from agentgym.rollout.budget import read_budget

    values: dict[str, Any] = {}
    roles: dict[str, dict[str, Any]] = {}
    for unit in ("usd", "tokens"):
        for text in getattr(args, f"budget_{unit}") or ():
            role, named, number = text.rpartition("=")
            if named and role not in ROLES:
                raise ConfigError(f"--budget-{unit}: {unknown_name('role', role, ROLES)}")
            amount = _amount(number, unit)
            into = roles.setdefault(role, {}) if named else values
            if unit in into:
                raise ConfigError(f"--budget-{unit} is given twice for {role or 'the whole run'}")
            into[unit] = amount
    if not values and not roles:
        return None
    return read_budget({**values, "roles": roles})


def larger_budget(status: BudgetStatus) -> str:
    """Which option to raise so that the rest is played, and to what, as far as anybody knows."""
    from agentgym.rollout.budget import amount_text

    cap = status.struck
    flag = f"a --budget-{cap.unit} {'' if cap.role is None else f'{cap.role}=N '}above "
    limit = amount_text(cap.limit, cap.unit).removesuffix(" tokens")
    left = len(status.cut) + len(status.not_run)
    each = status.expected or (cap.spent / status.done if status.done else None)
    if each is None or status.not_run_unknown:
        return f"and {flag}{limit}"
    whole = amount_text(cap.spent + left * each, cap.unit).removesuffix(" tokens")
    return f"and {flag}{limit} (about {whole} for all of them)"


def _amount(text: str, unit: str) -> float:
    try:
        amount = float(text.removeprefix("$").replace("_", ""))
    except ValueError:
        raise ConfigError(f"--budget-{unit} takes a number or ROLE=NUMBER, got {text!r}") from None
    return int(amount) if unit == "tokens" and amount.is_integer() else amount


def read_limits(args: argparse.Namespace, concurrency: int | None) -> Limits:
    """The engine's limits.

    Args:
        args: The command line.
        concurrency: Episodes at once, wherever that was said.

    Raises:
        ConfigError: If one is out of range.
    """
    from agentgym.rollout import Limits

    given = checked(
        Limits,
        concurrency=concurrency,
        init_concurrency=args.init_concurrency,
        eval_concurrency=args.eval_concurrency,
        max_turns=args.max_turns,
        max_episode_tokens=args.max_episode_tokens,
        episode_timeout_s=args.episode_timeout,
        max_failure_rate=args.max_failure_rate,
        budget=read_budget_flags(args),
    )
    more: dict[str, Any] = {}
    if args.init_concurrency is None:
        more["init_concurrency"] = min(given.init_concurrency, given.concurrency)
    if args.eval_concurrency is None:
        more["eval_concurrency"] = max(given.eval_concurrency, given.concurrency)
    return given.model_copy(update=more)


def read_retry(args: argparse.Namespace) -> Retry | None:
    """What is tried again; None for nothing.

    Raises:
        ConfigError: If a class is unknown or a number not allowed.
    """
    from agentgym.rollout import Retry

    if args.min_group_size is not None and args.min_group_size > args.samples:
        raise ConfigError(
            f"--min-group-size {args.min_group_size} is more than the {args.samples} --samples "
            "of a group"
        )
    if args.retries == ["0"]:
        if args.retry_budget is not None or args.min_group_size is not None:
            raise ConfigError("--retries 0 leaves no use for --retry-budget and --min-group-size")
        return None
    by_class = _by_class(args.retries)
    return checked(Retry, budget=args.retry_budget, min_group_size=args.min_group_size, **by_class)


def _by_class(pairs: Iterable[str]) -> dict[str, Any]:
    try:
        found = key_values(pairs)
    except ConfigError as error:
        raise ConfigError(f"--retries: {error} (or 0 alone, for none)") from error
    for name in found:
        if name not in _CLASSES:
            raise ConfigError(f"--retries: {unknown_name('failure class', name, _CLASSES)}")
    return found


def read_enough(args: argparse.Namespace) -> Enough | None:
    """When the run ends early; None for when all is played.

    Raises:
        ConfigError: If a number isn't allowed, or there are no groups.
    """
    from agentgym.rollout import Enough

    if args.enough is None and args.enough_groups is None:
        return None
    if args.enough_groups is not None and args.samples < 2:
        raise ConfigError("--enough-groups is about groups: give --samples of 2 or more")
    return checked(Enough, episodes=args.enough, informative_groups=args.enough_groups)


def still_needed(enough: Enough, entries: Iterable[Entry], samples: int) -> Enough | None:
    """What is left of it after what an earlier run has; None if nothing is.

    Args:
        enough: What the whole run needs.
        entries: The episodes there are.
        samples: Rollouts of a group.
    """
    scored = 0
    sizes: Counter[str | None] = Counter()
    rewards: dict[str | None, set[float]] = defaultdict(set)
    for entry in entries:
        sizes[entry.group] += 1
        if entry.reward is not None:
            scored += 1
            rewards[entry.group].add(entry.reward)
    informative = sum(
        sizes[group] >= samples and len(found) > 1
        for group, found in rewards.items()
        if group is not None
    )
    left = {
        "episodes": enough.episodes and enough.episodes - scored,
        "informative_groups": enough.informative_groups and enough.informative_groups - informative,
    }
    if any(number is not None and number <= 0 for number in left.values()):
        return None
    return enough.model_copy(update=left)


def stages_line(limits: Limits) -> str:
    """The slots in effect."""
    return (
        f"at once    {limits.init_concurrency} environments made or reset, "
        f"{limits.concurrency} episodes taking turns, {limits.eval_concurrency} judged"
    )
