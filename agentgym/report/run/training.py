"""A training run as a page: what it is, what went wrong and when, a chart for each question."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import agentgym
from agentgym.report.run.episodes import episode_charts, policy_charts
from agentgym.report.run.learning import alarm_chart, group_charts, learning_charts
from agentgym.report.run.making import ChartMaker
from agentgym.report.run.markup import Table
from agentgym.report.run.page import Item, Page, Section
from agentgym.report.run.record import TrainingRecord
from agentgym.report.run.spending import spending_charts

_EXPECTED = {
    "held-out": "held-out evaluations (eval.every)",
    "components-": "reward components",
    "groups": "what the groups offer (episodes without groups)",
    "masked": "episodes without a score",
    "entropy": "entropy",
    "logprob-gap": "sampler against trainer",
    "ratio": "importance-sampling ratios",
    "staleness": "age of the weights",
    "time": "where a step's time goes",
    "tokens-in": "tokens by role",
}
"""Charts that a run of `agentgym train` has, and what is missing where they are."""


def training_page(record: TrainingRecord, *, refresh_s: int | None = None) -> Page:
    """The page of a run.

    Args:
        record: The run.
        refresh_s: Seconds after which a browser is to read the page anew, while the run goes on.
    """
    make = ChartMaker(record)
    sections = [
        Section(
            "alarms", "Alarms", tuple(alarm_chart(make)), items=_alarms(record),
            intro=_about_alarms(record),
        ),
        Section("learning", "Learning", tuple(learning_charts(make))),
        Section("signal", "Signal in the groups", tuple(group_charts(make))),
        Section("episodes", "Episodes", tuple(episode_charts(make))),
        Section("policy", "Policy", tuple(policy_charts(make))),
        Section("spending", "Time, tokens, dollars", tuple(spending_charts(make)),
                tables=tuple(_usage(record))),
    ]  # fmt: skip
    keys = [chart.key for section in sections for chart in section.charts]
    missing = [
        what for key, what in _EXPECTED.items() if not any(each.startswith(key) for each in keys)
    ]
    return Page(
        title=f"Training run {_name(record.folder.absolute())}",
        status=status_of(record),
        facts=tuple(header_facts(record)),
        sections=[s for s in sections if s.charts or s.items or s.intro],
        notes=record.notes,
        settings=json.dumps(record.config, indent=2, ensure_ascii=False) if record.config else "",
        footer=f"agentgym {agentgym.__version__}, made {record.now:%Y-%m-%d %H:%M:%S} UTC. Points "
        "say their values when pointed at; every chart has its figures as a table.",
        refresh_s=refresh_s,
        missing=missing,
    )


def _name(folder: Path) -> str:
    """What a run is called; `train` is what the demo calls every one, in a folder of its own."""
    return f"{folder.parent.name}/{folder.name}" if folder.name == "train" else folder.name


def status_of(record: TrainingRecord) -> tuple[str, str]:
    """How a run stands, in a word, and what that rests on."""
    planned = record.planned
    steps = f"{record.steps:,}" + ("" if planned is None else f" of {planned:,}") + " steps"
    ago = _duration(record.now - record.written_at)
    written = f"last written {record.written_at:%Y-%m-%d %H:%M:%S} UTC, {ago} before this page"
    if record.state == "finished":
        return "Finished:", f"{steps}; {written}"
    if record.state == "stopped":
        return "Stopped by an alarm:", f"{steps}; {written}"
    if record.budget_end is not None:
        return "Ended by its budget:", f"{steps}; {written}; {record.budget_end.budget}"
    if planned is None:
        return "Unknown end:", f"{steps}; {written}"
    if record.seems_alive:
        return "Going:", f"{steps}; {written}"
    return "Killed or stopped:", f"{steps}; {written}; --resume goes on from its last checkpoint"


def _duration(time: timedelta) -> str:
    seconds = max(0.0, time.total_seconds())
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


def _in(config: Mapping[str, Any], table: str, name: str) -> Any:
    """A setting in a table of the run's config; None where the record has none."""
    found = config.get(table)
    return found.get(name) if isinstance(found, Mapping) else None


def header_facts(record: TrainingRecord) -> Iterator[tuple[str, str]]:
    """What the run is, each with its name."""
    config = record.config
    yield "environment", _text(config.get("env")) + _kwargs(config.get("env_kwargs"))
    yield "policy", _text(config.get("model"))
    servers = _in(config, "policy", "servers")
    yield "sampled by", ", ".join(servers) if servers else ("" if not config else "vLLM, colocated")
    if config:
        algorithm = _text(_in(config, "objective", "algorithm")) or "TRL's GRPO"
        settings = {
            "learning rate": config.get("learning_rate"),
            "temperature": _in(config, "sampling", "temperature"),
            "seed": config.get("seed"),
        }
        known = [f"{name} {value}" for name, value in settings.items() if value is not None]
        yield "algorithm", ", ".join([algorithm, *known])
        tasks, group = config.get("tasks_per_step"), config.get("group_size")
        yield "a step", f"{tasks} tasks × {group} episodes" if tasks and group else ""
        evaluations = _in(config, "eval", "every")
        yield (
            "held-out",
            (
                "none"
                if not evaluations
                else f"every {evaluations} steps, "
                f"{_in(config, 'eval', 'tasks')} tasks × {_in(config, 'eval', 'samples')} "
                "episodes at most"
            ),
        )
    yield "versions", _versions(record)
    yield "started", record.starts[0].started_at if record.starts else ""
    for number, start in enumerate(record.resumes, start=1):
        yield f"R{number} resumed", _resumed(record, start.step, number)


def _resumed(record: TrainingRecord, step: int, number: int) -> str:
    start = record.resumes[number - 1]
    changed = [f"{name}: {was!r} → {now!r}" for name, (was, now) in start.changed.items()]
    before = record.starts[record.starts.index(start) - 1]
    changed += [
        f"{name} {before.versions.get(name, 'none')} → {version}"
        for name, version in start.versions.items()
        if before.versions.get(name) != version and before is not start
    ]
    told = f"; changed: {'; '.join(changed)}" if changed else "; nothing changed"
    return f"after step {step}, {start.started_at}{told}"


def _versions(record: TrainingRecord) -> str:
    if record.starts:
        return ", ".join(f"{name} {v}" for name, v in record.starts[-1].versions.items())
    return f"agentgym {record.package}; no starts.jsonl" if record.package else ""


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _kwargs(kwargs: object) -> str:
    if not isinstance(kwargs, dict) or not kwargs:
        return ""
    return " (" + ", ".join(f"{name}={value!r}" for name, value in kwargs.items()) + ")"


def _alarms(record: TrainingRecord) -> Sequence[Item]:
    return [
        Item(
            name=f"A{number} {alarm.name}",
            where=f"at step {alarm.step}"
            + ("" if alarm.name in record.diagnosis.lasting else ", not at the end"),
            facts=(("seen", alarm.seen), ("cause", alarm.cause), ("try first", alarm.change)),
            over=alarm.name not in record.diagnosis.lasting,
        )
        for number, alarm in enumerate(record.alarms, start=1)
    ]


def _about_alarms(record: TrainingRecord) -> str:
    if record.alarms:
        return ""
    if record.steps < record.thresholds.min_steps:
        return (
            f"None, and too few steps to tell: an alarm needs {record.thresholds.min_steps} steps "
            "of evidence."
        )
    return "None."


def _usage(record: TrainingRecord) -> Iterator[Table]:
    usage = record.diagnosis.usage
    if not usage:
        return
    rows = [
        (
            role,
            f"{each.get('tokens_in', 0):,.0f}",
            f"{each.get('tokens_out', 0):,.0f}",
            f"${each['usd']:,.4f}" if "usd" in each else "price unknown",
        )
        for role, each in usage.items()
    ]
    yield Table("Whole run, all attempts", ("role", "tokens in", "tokens out", "dollars"), rows)
