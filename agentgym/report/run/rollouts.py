"""A rollout run (`agentgym rollout --out`) as a page."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import agentgym
from agentgym.errors import DataError
from agentgym.report.plots.chart import Chart, Point
from agentgym.report.run.bars import BAR_TEXT, bar_chart, mean_point, share_point
from agentgym.report.run.markup import Table, counted
from agentgym.report.run.page import Page, Section
from agentgym.rollout.summary import Summary, summarize_file
from agentgym.trace import Trace
from agentgym.traces import TraceFile

TRACES_FILE = "traces.jsonl"
CONFIG_FILE = "config.json"
_MOST_ROWS = 30


def is_rollouts(folder: Path) -> bool:
    """Whether a folder is one of a rollout run."""
    return (folder / TRACES_FILE).is_file()


def rollouts_page(
    folder: Path, *, now: datetime | None = None, refresh_s: int | None = None
) -> Page:
    """The page of a rollout run, finished or not.

    Args:
        folder: What `agentgym rollout --out` got.
        now: The time.
        refresh_s: Seconds after which a browser is to read the page anew.

    Raises:
        DataError: If there is no episode.
        TraceError: If the traces can't be read.
    """
    path = folder / TRACES_FILE
    episodes = [
        _facts(trace) for trace, successor in TraceFile(path).with_successors() if successor is None
    ]
    if not episodes:
        raise DataError(f"{path} has no episode yet")
    summary = summarize_file(path)
    config = _config(folder)
    now = now or datetime.now(UTC)
    written = f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d %H:%M:%S} UTC"
    scored = [each for each in episodes if each["reward"] is not None]
    sections = [
        Section("outcomes", "Outcomes", tuple(_outcomes(scored, summary)),
                intro="" if scored else "No episode has a score, so nothing is known of them."),
        Section("episodes", "Episodes", tuple(_episodes(episodes, scored))),
        Section("spending", "Time, tokens, dollars", tuple(_spending(summary)),
                tables=tuple(_usage(summary))),
    ]  # fmt: skip
    return Page(
        title=f"Rollout run {folder.absolute().name}",
        status=(
            f"{summary.n_total:,} episodes:",
            f"{summary.n_scored:,} of them scored, {summary.n_tasks:,} tasks; written {written}",
        ),
        facts=tuple(_header(config, episodes)),
        sections=sections,
        notes=_notes(summary),
        settings=json.dumps(config, indent=2, ensure_ascii=False) if config else "",
        footer=f"agentgym {agentgym.__version__}, made {now:%Y-%m-%d %H:%M:%S} UTC. Points say "
        "their values when pointed at; every chart has its figures as a table.",
        refresh_s=refresh_s,
    )


def _facts(trace: Trace) -> dict[str, Any]:
    """What the charts need of an episode; its messages aren't kept."""
    return {
        "task": trace.task_id or trace.trace_id,
        "reward": trace.reward,
        "turns": len(trace.turns),
        "solved": trace.verdict.correct is True,
        "completed": trace.verdict.completed,
        "truncated": trace.truncation_reason if trace.truncated else None,
        "malformed": trace.malformed_calls > 0,
        "cut_off": any(turn.cut_off for turn in trace.turns),
        "components": trace.verdict.components,
        "gates": trace.verdict.gates,
        "env": trace.env_spec,
        "package": trace.metadata.get("agentgym"),
    }


def _config(folder: Path) -> Mapping[str, Any]:
    """The run's parameters, which hold no credentials; empty where they can't be read."""
    try:
        found = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _header(config: Mapping[str, Any], episodes: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    env = config.get("env")
    if env is None:
        try:
            env = json.loads(episodes[0]["env"])["id"]
        except (ValueError, KeyError, TypeError):
            env = ""
    kwargs = config.get("env_kwargs")
    told = ", ".join(f"{k}={v!r}" for k, v in kwargs.items()) if isinstance(kwargs, dict) else ""
    yield "environment", f"{env} ({told})" if told else str(env)
    for name in ("policy", "base_url", "simulator", "judge", "service"):
        if config.get(name):
            yield name.replace("_", " "), str(config[name])
    if config:
        sampling = config.get("sampling")
        yield "asked for", f"{config.get('samples')} episodes per task, seed {config.get('seed')}"
        yield "sampling", json.dumps(sampling, ensure_ascii=False) if sampling else ""
    yield "versions", f"agentgym {episodes[-1]['package']}" if episodes[-1]["package"] else ""


def _notes(summary: Summary) -> tuple[str, ...]:
    if not summary.failure_reasons:
        return ()
    reasons = "; ".join(f"{n} × {reason}" for reason, n in summary.failure_reasons.items())
    return (f"Why episodes have no score: {reasons}.",)


def _outcomes(scored: list[dict[str, Any]], summary: Summary) -> Iterator[Chart]:
    if not scored:
        return
    tasks = [each["task"] for each in scored]
    rests_on = (
        f"n = {len(scored)} scored of {summary.n_total} episodes, {len(set(tasks))} tasks; the "
        f"{summary.n_failed} without a score are in no bar. "
        f"{_first_only(scored)}{BAR_TEXT}"
    )
    facts = {
        "solved": "solved", "completed: an answer came": "completed",
        "unreadable call": "malformed", "message cut off": "cut_off",
    }  # fmt: skip
    bars = {
        name: share_point([bool(each[key]) for each in scored], tasks)
        for name, key in facts.items()
    }
    cut = sorted({each["truncated"] for each in scored if each["truncated"]})
    bars |= {
        f"cut by {reason}": share_point([each["truncated"] == reason for each in scored], tasks)
        for reason in cut
    }
    yield bar_chart(
        "outcomes-shares", "What became of the episodes", {"share of scored episodes": bars},
        about=rests_on, y_range=(0.0, 1.0),
        read="Low completion and right when complete: more turns or tokens. High completion, "
        "seldom solved: look at the reward.",
    )  # fmt: skip
    gates = {
        name: share_point([name in e["gates"] and e["gates"][name] for e in scored], tasks)
        for name in _names(scored, "gates")
    }
    if gates:
        yield bar_chart("gates", "Gates", {"share that fails it": gates},
                        about=rests_on, y_range=(0.0, 1.0))  # fmt: skip
    means = {"reward": mean_point([float(each["reward"]) for each in scored], tasks)}
    for name in _names(scored, "components"):
        having = [each for each in scored if name in each["components"]]
        means[name] = mean_point(
            [each["components"][name] for each in having], [each["task"] for each in having]
        )
    yield bar_chart(
        "components", "Reward and its components", {"mean": means}, unit="number",
        about=f"Means over the scored episodes that have each. {rests_on}",
    )  # fmt: skip


def _first_only(scored: list[dict[str, Any]]) -> str:
    """Says that a chart has not all names; nothing where it has."""
    most = max(len({n for each in scored for n in each[part]}) for part in ("gates", "components"))
    return f"Of more than {_MOST_ROWS} names the first. " if most > _MOST_ROWS else ""


def _names(scored: list[dict[str, Any]], part: str) -> list[str]:
    return sorted({name for each in scored for name in each[part]})[:_MOST_ROWS]


def _episodes(episodes: list[dict[str, Any]], scored: list[dict[str, Any]]) -> Iterator[Chart]:
    turns = Counter(each["turns"] for each in episodes)
    solved = Counter(each["turns"] for each in scored if each["solved"])
    least, most = min(turns), max(turns)
    # Few rows, none left out: the largest number is where a turn cap shows.
    width = 1 if len(turns) <= _MOST_ROWS else -(-(most - least + 1) // _MOST_ROWS)
    starts = sorted({least + (n - least) // width * width for n in turns})
    rows = {_turns(n, n + width - 1): range(n, n + width) for n in starts}
    yield bar_chart(
        "turns",
        "Turns",
        {
            name: {row: Point(x=0, y=sum(counts[n] for n in each)) for row, each in rows.items()}
            for name, counts in (("episodes", turns), ("of them solved", solved))
        },
        about=f"Episodes by their number of turns; counts, so there is no interval. n = "
        f"{len(episodes)}.",
        unit="number",
        read="Many at the largest number, few of them solved: the turn cap is too low.",
    )
    bins: dict[str, int] = defaultdict(int)
    values = sorted(float(each["reward"]) for each in scored)
    if values and values[0] < values[-1]:
        width = (values[-1] - values[0]) / 10
        edges = [values[0] + i * width for i in range(11)]
        for low, high in pairwise(edges):
            last = high == edges[-1]
            name = f"{low:.3g} to {high:.3g}"
            bins[name] += sum(low <= v < high or (last and v >= low) for v in values)
        yield bar_chart(
            "rewards", "Rewards", {"episodes": {n: Point(x=0, y=c) for n, c in bins.items()}},
            about=f"Scored episodes by reward; counts, so there is no interval. n = {len(values)}.",
            unit="number",
            read="All in one bar: nothing to tell episodes apart, and nothing to train on.",
        )  # fmt: skip


def _turns(low: int, high: int) -> str:
    return counted(low, "turn") if low == high else f"{low} to {high} turns"


def _spending(summary: Summary) -> Iterator[Chart]:
    if summary.stage_s:
        yield bar_chart(
            "stages",
            "Seconds by stage",
            {
                "mean": {s: Point(x=0, y=took.mean_s) for s, took in summary.stage_s.items()},
                "95th percentile": {
                    s: Point(x=0, y=took.p95_s) for s, took in summary.stage_s.items()
                },
            },
            about="Active seconds per episode; waiting in a queue is not counted. n = "
            f"{summary.n_total} episodes.",
            unit="seconds",
        )


def _usage(summary: Summary) -> Iterator[Table]:
    rows = [
        (
            role,
            f"{each.calls:,}",
            f"{each.prompt_tokens:,}",
            f"{each.cached_tokens:,}",
            f"{each.completion_tokens:,}" + (" (estimated)" if each.estimated else ""),
            "price unknown" if each.cost_usd is None else f"${each.cost_usd:,.4f}",
        )
        for role, each in summary.usage.items()
    ]
    if rows:
        yield Table(
            "All attempts, failed calls included",
            ("role", "calls", "tokens in", "of them cached", "tokens out", "dollars"),
            rows,
        )
