"""A diagnosis as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from agentgym.cli._columns import columns
from agentgym.errors import ConfigError, unknown_name
from agentgym.types import in_one_line, printable

if TYPE_CHECKING:
    from agentgym.train.monitors import Alarm, Diagnosis, Thresholds

_WIDTH = 100


def thresholds_for(run: Path, settings: Sequence[str]) -> Thresholds | None:
    """The run's own thresholds with some changed; None without changes.

    Raises:
        ConfigError: If a setting is none, or its value isn't allowed.
    """
    from agentgym.train.monitors import Thresholds
    from agentgym.train.monitors.offline import thresholds_of

    changed: dict[str, str] = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise ConfigError(f"--set takes key=value, got {setting!r}")
        if name not in Thresholds.model_fields:
            names = sorted(Thresholds.model_fields)
            raise ConfigError(f"--set {setting}: {unknown_name('threshold', name, names)}")
        changed[name] = value
    if not changed:
        return None
    try:
        return Thresholds.model_validate({**thresholds_of(run).model_dump(), **changed})
    except ValidationError as error:
        raise ConfigError(f"--set: {in_one_line(error)}") from error


def diagnosis_text(found: Diagnosis) -> str:
    """What there is to say: alarms, then the figures they are about."""
    return "\n\n".join(part for part in _parts(found) if part)


def _parts(found: Diagnosis) -> Iterator[str]:
    from agentgym.evaluate.finding import counted

    yield f"{found.run}: {counted(found.steps, 'training step')}"
    if found.alarms:
        yield "\n".join(_alarm(alarm, lasting=found.lasting) for alarm in found.alarms)
    elif _is_too_short(found):
        yield "no alarm: too few steps to tell (`--set min_steps=2` takes fewer as evidence)"
    else:
        yield "no alarm"
    yield _figures(found)
    yield _groups(found)
    yield _held_out(found)
    yield _seconds(found)
    yield _usage(found)


def _alarm(alarm: Alarm, *, lasting: Sequence[str]) -> str:
    over = "" if alarm.name in lasting else ", not at the end"
    lines = [f"ALARM {printable(alarm.name)} (step {alarm.step}{over})"]
    for label, text in (("seen", alarm.seen), ("cause", alarm.cause), ("try", alarm.change)):
        indent = " " * 9
        lines += textwrap.wrap(
            printable(text), _WIDTH, initial_indent=f"  {label:<5}  ", subsequent_indent=indent
        )
    return "\n".join(lines)


def _is_too_short(found: Diagnosis) -> bool:
    return bool(found.figures) and all(moved.low is None for moved in found.figures)


def _figures(found: Diagnosis) -> str:
    if _is_too_short(found):  # the first steps are the last ones, too
        means = [(printable(moved.name), f"{moved.last:.4g}") for moved in found.figures]
        return columns(("per step", "mean"), means)
    rows = [
        (
            printable(moved.name),
            f"{moved.first:.4g}",
            f"{moved.last:.4g}",
            "-" if moved.low is None else f"{moved.low:.4g} to {moved.high:.4g}",
        )
        for moved in found.figures
    ]
    return columns(("per step", "first", "last", "last, 3 standard errors"), rows) if rows else ""


def _groups(found: Diagnosis) -> str:
    groups = found.groups
    if "seen" not in groups:
        return ""
    text = f"groups with all rewards equal: {groups['seen']:.0%}"
    if "expected" in groups:
        text += (
            f"; p={groups['p']:.2g} at group size {groups['group_size']:.0f} predicts "
            f"p^G + (1-p)^G = {groups['expected']:.0%}"
        )
    if "expected_by_task" in groups:
        text += f", task by task {groups['expected_by_task']:.0%}"
    return text


def _held_out(found: Diagnosis) -> str:
    if not found.held_out:
        return ""
    best = max((score.step for score in found.held_out if score.best), default=None)
    lines = [
        f"  step {score.step}: {score.text()}" + (" · best" if score.step == best else "")
        for score in found.held_out
    ]
    return "\n".join(["held-out tasks, by verdict.correct:", *lines])


def _seconds(found: Diagnosis) -> str:
    seconds = dict(found.seconds)
    whole = seconds.pop("step", 0.0)
    if not whole:
        return ""
    parts = ", ".join(f"{printable(n)} {value / whole:.0%}" for n, value in seconds.items())
    return f"a step takes {whole:.3g} s: {parts}"


def _usage(found: Diagnosis) -> str:
    if not found.usage:
        return ""
    rows = [
        (
            printable(role),
            f"{each.get('tokens_in', 0):,.0f}",
            f"{each.get('tokens_out', 0):,.0f}",
            f"${each['usd']:.4f}" if "usd" in each else "-",
        )
        for role, each in found.usage.items()
    ]
    told = columns(("tokens", "in", "out", "cost"), rows)
    return f"{told}\nheld-out evaluations are not in it" if found.held_out else told
