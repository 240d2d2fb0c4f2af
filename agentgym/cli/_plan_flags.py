"""A workload from a file and flags: flags are short ways to fields of the file."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agentgym.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from agentgym.cost.workload import Workload
    from agentgym.price_book import PriceBook

_FIELDS = {
    "groups": "groups",
    "group_size": "group_size",
    "steps": "steps",
    "setup_tokens": "tokens.setup",
    "output_tokens": "tokens.output",
    "reply_tokens": "tokens.reply",
    "rerun_share": "rerun_share",
    "safety_factor": "safety_factor",
    "concurrency": "concurrency",
    "policy_model": "policy.model",
    "simulator_model": "roles.simulator.model",
    "judge_model": "roles.judge.model",
    "judge_reads": "roles.judge.reads",
    "prefill_tps": "policy.serving.prefill_tokens_per_s",
    "decode_tps": "policy.serving.decode_tokens_per_s",
    "gpus": "policy.serving.gpus",
    "gpu_hour_usd": "policy.serving.usd_per_gpu_hour",
    "update_s": "policy.serving.update_s",
}
"""Flag to the field it sets."""

_BY_ROLE = {
    "cache": "cache_hit",
    "paid_twice": "paid_twice",
    "seconds_per_call": "seconds_per_call",
}
"""Flag of `ROLE=VALUE` to the role's field."""


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that make or change a workload."""
    run = parser.add_argument_group("the run")
    run.add_argument("--workload", type=Path, metavar="FILE", help="a TOML file; flags win over it")
    run.add_argument("--groups", type=int, metavar="N", help="tasks per training step")
    run.add_argument("--group-size", type=int, metavar="N", help="rollouts per task")
    run.add_argument("--steps", type=int, metavar="N", help="training steps")
    turns = run.add_mutually_exclusive_group()
    turns.add_argument(
        "--turns",
        metavar="SPEC",
        help="5, geometric:mean=5,max=20, lognormal:mean=5,sd=4,max=20 or histogram:3=10,5=40",
    )
    turns.add_argument(
        "--turns-from", type=Path, metavar="PATH", help="count them in a run's folder or trace file"
    )
    run.add_argument("--setup-tokens", type=float, metavar="N", help="of the first prompt")
    run.add_argument("--output-tokens", type=float, metavar="N", help="the policy's per turn")
    run.add_argument("--reply-tokens", type=float, metavar="N", help="tool or user, per turn")
    models = parser.add_argument_group("models and prices")
    for role in ("policy", "simulator", "judge"):
        models.add_argument(f"--{role}-model", metavar="NAME", help="its name in the price book")
    models.add_argument(
        "--roles", type=Path, metavar="FILE", help="models and prices of a roles file"
    )
    models.add_argument("--without", action="append", metavar="ROLE", help="leave a role out")
    models.add_argument(
        "--judge-reads",
        choices=("transcript", "prompts"),
        help="the conversation once, or (as many budgets have it) all the policy's prompts summed",
    )
    models.add_argument(
        "--cache",
        action="append",
        metavar="ROLE=SHARE",
        help="share of what a prefix cache could hold that hits: 0 none, 1 the best case (default: "
        "the workload's; 0 for a --policy-model whose cached input has no price of its own)",
    )
    models.add_argument(
        "--paid-twice", action="append", metavar="ROLE=SHARE", help="calls that are paid twice"
    )
    models.add_argument(
        "--rerun-share", type=float, metavar="SHARE", help="episodes played and paid twice"
    )
    models.add_argument(
        "--safety-factor", type=float, metavar="F", help="on all token counts, where guessed"
    )
    speed = parser.add_argument_group("speed: GPU-hours and wall-clock")
    speed.add_argument(
        "--prefill-tps", type=float, metavar="N", help="the policy's prompt tokens/s per GPU"
    )
    speed.add_argument("--decode-tps", type=float, metavar="N", help="its sampled tokens/s per GPU")
    speed.add_argument("--gpus", type=int, metavar="N", help="GPUs that sample")
    speed.add_argument("--gpu-hour-usd", type=float, metavar="USD", help="price of one for an hour")
    speed.add_argument("--update-s", type=float, metavar="S", help="update and sync per step")
    speed.add_argument(
        "--seconds-per-call", action="append", metavar="ROLE=S", help="how long answers take"
    )
    speed.add_argument("--concurrency", type=int, metavar="N", help="episodes at once")
    parser.add_argument(
        "--set",
        action="append",
        metavar="FIELD=VALUE",
        help="any field of the file, such as roles.judge.output_tokens=300",
    )


class Described(NamedTuple):
    """What a command line describes."""

    workload: Workload
    cache_assumed: bool
    """Whether flags name another policy, and none says how much of its input is cached."""


def workload_from(args: argparse.Namespace, book: PriceBook) -> Described:
    """The workload that a command line describes.

    A policy that flags put in the place of the workload's has a cache of its own: where the price
    book has no price for its cached input, no hit is counted on.

    Args:
        args: The flags of `add_workload_arguments`.
        book: Where prices that are only named are.

    Raises:
        ConfigError: If a file or a flag is wrong.
    """
    from agentgym.cost.caching import caches
    from agentgym.cost.plan import priced
    from agentgym.cost.workload_file import REFERENCE, read_tables, workload_of

    tables = read_tables(args.workload or REFERENCE)
    if not isinstance(tables.get("roles", {}), dict):
        raise ConfigError(f"{args.workload}: roles must be tables, one per role: [roles.judge]")
    named, changed = tables.get("name"), False
    before = _paid_as(tables.get("policy"))
    for role in args.without or ():
        _check_role(tables, role)
        del tables["roles"][role]
        changed = True
    if args.roles:
        _take_roles(tables, args.roles, book)
        changed = True
    counted = None if args.turns_from is None else _counted(args.turns_from)
    if counted is not None:
        tables["turns"], changed = counted, True
    for path, value in _changes(args, tables):
        _put(tables, path, value)
        changed = True
    if counted is not None and tables["turns"] is counted:
        of = f"{sum(counted['counts'].values()):,.0f} episodes of {args.turns_from}"
        tables["basis"] = f"{tables.get('basis', 'assumed')}; turns counted in {of}"
    if changed and not args.workload and tables["name"] == named:
        tables["name"] = f"{named}, changed by flags"
    hosted = _paid_as(tables.get("policy")) not in (before, _UNPAID)
    # A file that names no model is about the one whose prices the flags add: calibrated, say.
    measured = args.workload is not None and before == _UNPAID
    assumed = hosted and not measured and not _says_cache(args)
    workload = workload_of(tables, where=str(args.workload or "workload"))
    prices = priced(workload, book).policy.prices if assumed else None
    if prices is not None and not caches(prices):
        own = workload.policy.model_copy(update={"cache_hit": 0.0})
        workload = workload.model_copy(update={"policy": own})
    return Described(workload, assumed)


_UNPAID = (None, None)


def _paid_as(policy: Any) -> tuple[Any, Any]:
    """Model and prices of a policy's table."""
    return (policy.get("model"), policy.get("prices")) if isinstance(policy, dict) else _UNPAID


def _says_cache(args: argparse.Namespace) -> bool:
    """Whether a flag says how much of the policy's input is cached."""
    pairs = [pair.partition("=")[0].strip() for pair in args.set or ()]
    return "policy.cache_hit" in pairs or any(
        pair.partition("=")[0] == "policy" for pair in args.cache or ()
    )


def _changes(args: argparse.Namespace, tables: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Every field that a flag sets."""
    for flag, path in _FIELDS.items():
        value = getattr(args, flag)
        if value is not None:
            if path.startswith("roles."):
                _check_role(tables, path.split(".")[1])
            yield path, value
            if path in ("policy.model", "roles.simulator.model", "roles.judge.model"):
                yield path.replace(".model", ".prices"), None  # those of another model
    for flag, field in _BY_ROLE.items():
        for pair in getattr(args, flag) or ():
            role, _, text = pair.partition("=")
            name = f"--{flag.replace('_', '-')}"
            if role != "policy":
                _check_role(tables, role)
            try:
                value = float(text)
            except ValueError:
                raise ConfigError(f"{name} takes ROLE=NUMBER, got {pair!r}") from None
            yield (f"policy.{field}" if role == "policy" else f"roles.{role}.{field}"), value
    if args.turns is not None:
        yield "turns", turns_spec(args.turns)
    for pair in args.set or ():
        path, equals, text = pair.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set takes FIELD=VALUE, got {pair!r}")
        _refuse_misspelt(tables, path)
        yield path, _toml_value(text)


def _refuse_misspelt(tables: dict[str, Any], path: str) -> None:
    """--set may add a role, but not one that is a slip of the pen for another."""
    section, _, rest = path.partition(".")
    role, known = rest.partition(".")[0], tables.get("roles", {})
    if section == "roles" and role not in known and get_close_matches(role, known):
        _check_role(tables, role)


def turns_spec(text: str) -> dict[str, Any]:
    """A turn distribution in one word.

    Raises:
        ConfigError: If it isn't one.
    """
    kind, _, rest = text.partition(":")
    try:
        if not rest:
            return {"kind": "constant", "turns": float(text)}
        pairs = [(key, float(value)) for key, value in (one.split("=") for one in rest.split(","))]
    except ValueError:
        raise ConfigError(
            "--turns takes 5, geometric:mean=5,max=20, lognormal:mean=5,sd=4,max=20 or "
            f"histogram:3=10,5=40, got {text!r}"
        ) from None
    numbers = dict(pairs)
    if len(numbers) < len(pairs):
        raise ConfigError(f"--turns says something twice: {text!r}")
    if kind == "histogram":
        return {"kind": kind, "counts": numbers}
    if kind in ("geometric", "lognormal") and not {"max", "max_turns"} & numbers.keys():
        raise ConfigError(
            f"--turns {kind} needs the cap of the turns, too, such as {kind}:{rest},max=20"
        )
    return {"kind": kind, **{"max_turns" if k == "max" else k: v for k, v in numbers.items()}}


def _counted(path: Path) -> dict[str, Any]:
    """How many turns the episodes of a run took, each counted once."""
    from agentgym.cost.turns import turns_of_traces
    from agentgym.traces import TraceFile

    file = path / "traces.jsonl" if path.is_dir() else path
    last = (trace for trace, successor in TraceFile(file).with_successors() if successor is None)
    return turns_of_traces(last).model_dump()


def _take_roles(tables: dict[str, Any], path: Path, book: PriceBook) -> None:
    """Prices of a roles file for the roles that the workload has."""
    from agentgym.roles import Roles

    for role, endpoint in Roles.from_toml(path, book=book).filled().items():
        if role == "policy" or role in tables.get("roles", {}):
            where = "policy" if role == "policy" else f"roles.{role}"
            _put(tables, f"{where}.model", endpoint.model if endpoint.prices else None)
            _put(tables, f"{where}.prices", endpoint.prices and endpoint.prices.model_dump())


def _check_role(tables: dict[str, Any], role: str) -> None:
    known = tables.get("roles", {})
    if role not in known:
        what = unknown_name("role", role, known) if known else f"there is no role {role!r}"
        raise ConfigError(f"{what} (a new one goes into the workload file, as [roles.{role}])")


def _put(tables: dict[str, Any], path: str, value: Any) -> None:
    *above, name = path.split(".")
    for part in above:
        if tables.get(part) is None:
            tables[part] = {}
        tables = tables[part]
        if not isinstance(tables, dict):
            raise ConfigError(f"can't set {path}: {part} is no table")
    tables[name] = value


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
