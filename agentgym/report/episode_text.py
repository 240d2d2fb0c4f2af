r"""One episode as text for a terminal.

A terminal obeys what it is sent: an escape sequence in a tool's result could repaint the screen or
rename the window, and a right-to-left override could turn a path around. So whatever is not
printable comes as its escape, `\x1b` or `\u202e`, and no text is ever read as markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.text import Text

from agentgym.report.viewer.external import External
from agentgym.trace import Trace
from agentgym.types import Message, ToolCall, Turn, Usage, printable

FOLD_CHARS = 1_600
FOLD_LINES = 24
"""A text longer than either is folded, unless all is asked for."""
_INDENT = "  "
_STYLES = {"system": "dim", "user": "green", "assistant": "cyan", "tool": "yellow"}


def episode_console(*, width: int | None = None) -> Console:
    """A console that shows text as it is: no markup, no emoji codes, no highlighting.

    Args:
        width: Columns; None is the terminal's, or 100 where there is none.
    """
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    if width is None and not console.is_terminal:
        console.width = 100
    return console


def print_episode(
    trace: Trace, console: Console, *, full: bool = False, external: External | None = None
) -> None:
    """Print one episode: what it came to, the conversation turn by turn, and the verdict.

    Args:
        trace: The episode.
        console: Where to; see `episode_console`.
        full: Whether long texts are shown whole.
        external: What an evaluation's external score says of it, where one does.
    """
    for part in _parts(trace, full=full, external=external):
        if isinstance(part, Text):  # without the spaces with which rich fills lines up
            for line in part.wrap(console, console.width - len(_INDENT), tab_size=4):
                line.rstrip()
                console.print(Text(_INDENT).append_text(line))
        else:
            console.print(part)


def readable(text: str) -> str:
    """Text for a terminal: lines and tabs stay, what is not printable is escaped."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("    ".join(map(printable, line.split("\t"))) for line in lines)


def folded(text: str, *, full: bool) -> str:
    """A text's beginning, and how much is left out, where it is long."""
    lines = text.split("\n", FOLD_LINES)
    begin = "\n".join(lines[:FOLD_LINES])[:FOLD_CHARS]
    rest = len(text) - len(begin)
    if full or rest <= FOLD_CHARS // 8:  # hardly worth a second look
        return readable(text)
    return f"{readable(begin)}\n… {rest:,} more characters (--full shows all)"


def _parts(trace: Trace, *, full: bool, external: External | None) -> Iterator[RenderableType]:
    yield from _title(trace)
    opening = _opening(trace)
    for message in opening:
        yield from _message(message, str(message.get("role", "?")), full=full)
    for turn in trace.turns:
        yield from _turn(turn, full=full)
    if trace.error:
        yield _rule("error", "red")
        yield _indented(folded(trace.error, full=full))
    for number, attempt in enumerate(trace.earlier, start=1):
        yield _rule(f"earlier attempt {number}: {attempt.failure_class}", "red")
        yield _indented(folded(attempt.error, full=full))
    if external is not None:
        yield _rule("external score: what the evaluation counts", "bold")
        yield _indented(_external(external, trace))
    title = "verdict" if external is None else "verdict of the reward: what policies are trained on"
    yield from _verdict(trace, title, full=full)


def _title(trace: Trace) -> Iterator[RenderableType]:
    facts = [
        _env_id(trace),
        f"model {trace.policy['model']}" if "model" in trace.policy else "",
        f"split {trace.split}" if trace.split else "",
        f"seed {trace.seed}" if trace.seed is not None else "",
        f"started {trace.started_at}",
    ]
    yield _rule(f"{printable(trace.task_id or 'no task')} · sample {trace.sample}", "white")
    yield Text(printable(" · ".join(filter(None, facts))), style="dim")
    yield Text(f"trace {printable(trace.trace_id)}", style="dim")


def _env_id(trace: Trace) -> str:
    try:
        return str(json.loads(trace.env_spec)["id"])
    except (ValueError, KeyError, TypeError):
        return ""


def _opening(trace: Trace) -> tuple[Message, ...]:
    """The messages before the first turn."""
    played = sum(1 + len(turn.replies) for turn in trace.turns)
    return trace.messages[: max(0, len(trace.messages) - played)]


def _rule(title: str, style: str) -> RenderableType:
    return Rule(Text(title, style=f"bold {style}"), align="left", style="dim")


def _indented(text: str) -> RenderableType:
    return Text(text)


def _message(
    message: Message, title: str, *, full: bool, calls: Sequence[ToolCall] | None = None
) -> Iterator[RenderableType]:
    """A message and its calls, by default those that it asks for."""
    role = str(message.get("role", "?"))
    yield _rule(printable(title), _STYLES.get(role, "magenta"))
    text = _content(message.get("content"))
    if text:
        yield _indented(folded(text, full=full))
    for call in _asked(message) if calls is None else calls:
        yield _call(call, full=full)


def _asked(message: Message) -> tuple[ToolCall, ...]:
    """The calls that a message asks for, where none was recorded: in an example, for one."""
    asked = message.get("tool_calls")
    functions = [
        call["function"]
        for call in (asked if isinstance(asked, list) else ())
        if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)
    ]
    return tuple(
        ToolCall(
            id="",
            name=str(function.get("name", "?")),
            arguments=None,
            raw_arguments=_content(function.get("arguments")),
        )
        for function in functions
    )


def _turn(turn: Turn, *, full: bool) -> Iterator[RenderableType]:
    facts = [f"turn {turn.index + 1}", str(turn.message.get("role", "?"))]
    if turn.usage is not None:
        facts.append(_tokens(turn.usage))
    if turn.policy_s is not None:
        facts.append(f"policy {_seconds(turn.policy_s)}")
    facts.append(f"env {_seconds(turn.env_s)}")
    if turn.cut_off:
        facts.append("cut off by the output limit")
    elif turn.finish_reason not in (None, "stop", "tool_calls"):
        facts.append(f"finish {turn.finish_reason}")
    if turn.attempts > 1:
        facts.append(f"{turn.attempts} requests")
    if turn.malformed_text:
        facts.append("matches no action")
    if turn.reasoning:
        yield _rule(f"turn {turn.index + 1} · reasoning", "dim")
        yield _indented(folded(turn.reasoning, full=full))
    read_well = all(call.status == "ok" for call in turn.calls)
    if turn.calls and turn.message.get("content") and not turn.message.get("tool_calls"):
        calls = () if read_well else turn.calls  # read from the text, which says it all
    else:
        calls = turn.calls or _asked(turn.message)
    yield from _message(turn.message, " · ".join(facts), full=full, calls=calls)
    names = {call.id: call.name for call in turn.calls}
    for reply in turn.replies:
        name = names.get(str(reply.get("tool_call_id")))
        role = str(reply.get("role", "?"))
        yield from _message(reply, f"{role}: {name}" if name else role, full=full)


def _call(call: ToolCall, *, full: bool) -> RenderableType:
    given = call.raw_arguments if call.arguments is None else call.arguments
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=repr)
    line = Text("→ ").append(printable(call.name), style="bold cyan")
    line.append(f" {folded(text, full=full)}")
    if call.status != "ok":
        line.append(f"  [{call.status}]", style="red")
    if call.repaired:
        line.append("  [repaired]", style="yellow")
    return line


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part(part) for part in content)
    return json.dumps(content, ensure_ascii=False, default=repr)


def _part(part: Any) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    return json.dumps(part, ensure_ascii=False, default=repr)


def _tokens(usage: Usage) -> str:
    cached = f"{usage.cached_tokens / usage.prompt_tokens:.0%}" if usage.prompt_tokens else "0%"
    estimated = ", estimated" if usage.estimated else ""
    return (
        f"{usage.prompt_tokens:,} in ({cached} cached), {usage.completion_tokens:,} out{estimated}"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{1000 * seconds:.2g} ms"


def _external(external: External, trace: Trace) -> str:
    by = f"by {printable(external.name)}"
    if external.score is None:
        return f"no score {by}: something other than the policy broke"
    told = f"{'solved' if external.correct else 'not solved'}, score {external.score:.4g} {by}"
    return told + ("; the reward's verdict disagrees" if external.disagrees_with(trace) else "")


def _verdict(trace: Trace, title: str, *, full: bool) -> Iterator[RenderableType]:
    verdict = trace.verdict
    yield _rule(title, "bold")
    yield _indented(_outcome(trace))
    lines: list[tuple[str, Text]] = [
        (name, Text(f"{value:.4g}")) for name, value in verdict.components.items()
    ]
    for name, tripped in verdict.gates.items():
        state = Text("tripped", style="red") if tripped else Text("not tripped", style="dim")
        lines.append((f"gate {name}", state))
    for role, usage in trace.usage.items():
        if not usage.is_nothing:
            cost = "cost unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4g}"
            told = f"{_tokens(usage)}, {usage.calls:,} calls, {cost}"
            lines.append((f"tokens {role}", Text(told)))
    lines += [(f"stage {stage}", Text(_seconds(s))) for stage, s in trace.stage_s.items()]
    width = max((len(printable(name)) for name, _ in lines), default=0)
    for name, text in lines:
        yield Text(f"{printable(name):<{width}}  ").append_text(text)
    if verdict.reason:
        yield _indented(folded(verdict.reason, full=full))


def _outcome(trace: Trace) -> str:
    verdict = trace.verdict
    if verdict.reward is None:
        blame = trace.failure_class or verdict.failure_class or "unknown"
        return f"masked ({blame}): no score"
    correct = {True: "solved", False: "not solved", None: "nobody can tell if solved"}
    ended = (
        f"truncated ({trace.truncation_reason})"
        if trace.truncated
        else printable(trace.termination_reason or "terminated")
    )
    completed = "completed" if verdict.completed else "no final answer"
    return f"reward {verdict.reward:.4g}, {correct[verdict.correct]}, {completed}, {ended}"
