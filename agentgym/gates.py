"""Gates: hard conditions on an episode with a named consequence.

A gate is a program. It looks at what the env recorded and never at what anybody says about it, so
no amount of persuasion moves it. Each has a name in the verdict, a count, and a consequence: a
penalty taken once, however often the condition was met, or the floor of the reward range.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any, TypeAlias

from pydantic import Field, ValidationError

from agentgym.errors import ConfigError
from agentgym.types import Episode, Finite, Message, Record, Turn, in_one_line

Predicate: TypeAlias = Callable[[Episode], bool | int]
"""Whether an episode meets a gate's condition, or how often it does."""


class Gate(Record):
    """A hard condition and its consequence: a penalty, or the floor of the reward range."""

    name: str = Field(min_length=1)
    """As it appears in `Verdict.gates`."""
    tripped: Predicate = Field(repr=False)
    """Whether the episode breaks the condition, or how often it does."""
    penalty: Finite = Field(default=0.0, ge=0)
    """Subtracted from the score when tripped, once however often."""
    floor: bool = False
    """Whether tripping pins the reward to the bottom of the range instead."""

    def count(self, episode: Episode) -> int:
        """How often the episode meets the condition; 0 is a pass.

        Raises:
            TypeError: If the predicate is async.
            ValueError: If it gives a negative number.
        """
        found: object = self.tripped(episode)
        if inspect.iscoroutine(found):
            found.close()
            raise TypeError(f"gate {self.name!r} is async; a gate is a plain function")
        number = int(found) if isinstance(found, Integral) else int(bool(found))
        if number < 0:
            raise ValueError(f"gate {self.name!r} counts {number}; a count is at least 0")
        return number


def over_token_budget(
    limit: int, *, name: str = "over_tokens", penalty: float = 0.2, floor: bool = False
) -> Gate:
    """A gate on the tokens a policy generates in an episode, reasoning included.

    Where the policy's client counts no tokens (a script), they are estimated from its text at four
    characters each.

    Args:
        limit: Tokens allowed; one more trips.
        name: As it appears in the verdict.
        penalty: See `Gate`.
        floor: See `Gate`.

    Raises:
        ConfigError: If the limit is no whole number of at least 1.
    """
    given: Any = limit
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigError(f"gate {name!r}: limit is a whole number of tokens >= 1, got {limit!r}")

    def tripped(episode: Episode) -> bool:
        return sum(map(_generated_tokens, episode.turns)) > limit

    return Gate(name=name, tripped=tripped, penalty=penalty, floor=floor)


def forbidden_tool(
    tools: str | Iterable[str],
    *,
    name: str = "forbidden_tool",
    penalty: float = 0.0,
    floor: bool = True,
) -> Gate:
    """A gate on tools that must not be called; its count is the number of such calls.

    An attempt counts, also one with unreadable arguments; a call that the output limit cut, or that
    came after the end, does not.

    Args:
        tools: Their names.
        name: As it appears in the verdict.
        penalty: See `Gate`.
        floor: See `Gate`; forbidden is forbidden, so this is the default.

    Raises:
        ConfigError: If no tool is named.
    """
    given: Any = [tools] if isinstance(tools, str) else tools
    names: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) else ()
    if not names or not all(isinstance(each, str) and each for each in names):
        raise ConfigError(f"gate {name!r}: tools is a list of tool names, got {tools!r:.100}")

    def tripped(episode: Episode) -> int:
        calls = (call for turn in episode.turns for call in turn.calls)
        return sum(c.name in names and c.status not in ("cut_off", "not_run") for c in calls)

    return Gate(name=name, tripped=tripped, penalty=penalty, floor=floor)


def custom_gate(
    predicate: Predicate | str, *, name: str, penalty: float = 0.0, floor: bool = False
) -> Gate:
    """A gate with a condition of one's own.

    Args:
        predicate: A function of the episode, or `module:function` to import.
        name: As it appears in the verdict.
        penalty: See `Gate`.
        floor: See `Gate`.

    Raises:
        ConfigError: If the predicate can't be imported or called.
    """
    function = _imported(predicate, name) if isinstance(predicate, str) else predicate
    if not callable(function):
        raise ConfigError(
            f"gate {name!r}: predicate is a function or 'module:function', got {function!r:.100}"
        )
    return Gate(name=name, tripped=function, penalty=penalty, floor=floor)


def _imported(path: str, name: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"gate {name!r}: no predicate {path!r} ({error}); write module:function"
        ) from error
    except Exception as error:  # whatever the module does when it is imported
        raise ConfigError(
            f"gate {name!r}: importing {module} for its predicate failed: "
            f"{type(error).__name__}: {error}"
        ) from error


def _generated_tokens(turn: Turn) -> int:
    """Tokens the policy generated in a turn, estimated where nobody counted."""
    if turn.usage is not None:
        return turn.usage.completion_tokens
    if turn.completion_ids is not None:
        return len(turn.completion_ids)
    return -(-_length(turn.message) // 4)


def _length(message: Message) -> int:
    calls = message.get("tool_calls") or ()
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)]
    text = len(str(message.get("content") or ""))
    return text + sum(len(json.dumps(f, ensure_ascii=False, default=str)) for f in functions)


def _truncated(episode: Episode) -> bool:
    return episode.truncated


def _malformed(episode: Episode) -> int:
    return episode.malformed_calls


def _no_answer(episode: Episode) -> bool:
    """Stopped by itself without saying anything: a final message in which nothing can be seen."""
    answer = episode.answer or ""
    shown = any(char.isprintable() and not char.isspace() for char in answer)
    return episode.termination_reason == "answered" and not shown


STANDARD_GATES: dict[str, Gate] = {
    "truncated": Gate(name="truncated", tripped=_truncated, penalty=0.5),
    "malformed_call": Gate(name="malformed_call", tripped=_malformed, penalty=0.3),
    "no_answer": Gate(name="no_answer", tripped=_no_answer, penalty=0.5),
}
"""The default gates: at most one penalty each, so one slip and ten cost the same."""

_KINDS: dict[str, tuple[Callable[..., Gate], str]] = {
    "over_tokens": (over_token_budget, "limit"),
    "forbidden_tool": (forbidden_tool, "tools"),
    "custom": (custom_gate, "predicate"),
}
"""Gates that need to be told something: how they are made, and the field that tells it."""

GateSpec: TypeAlias = Gate | str | Mapping[str, Any]
"""A gate; a standard one's name; or fields: `name` with `penalty` and `floor` to re-weigh a
standard one, `{"name": "over_tokens", "limit": 2000}`, `{"name": "forbidden_tool", "tools":
["refund"]}`, `{"kind": "custom", "name": "shouts", "predicate": "mine:shouts", "penalty": 0.1}`.
`kind` says what a gate of another name is."""


def resolve_gates(specs: Iterable[GateSpec] | None) -> tuple[Gate, ...]:
    """Turn gate specs into gates; None gives the standard ones, `()` gives none.

    Raises:
        ConfigError: If a name is not that of a known gate, or a field is wrong.
    """
    if specs is None:
        return tuple(STANDARD_GATES.values())
    if isinstance(specs, str | Mapping) or not isinstance(specs, Iterable):
        raise ConfigError(
            f"gates must be a list such as ['truncated', {{'name': 'malformed_call', 'penalty': "
            f"0.1}}], () for none or None for the standard ones, got {specs!r:.100}"
        )
    gates: dict[str, Gate] = {}
    for spec in specs:
        gate = spec if isinstance(spec, Gate) else _from_spec(spec)
        if gate.name in gates:
            raise ConfigError(f"gate {gate.name!r} is given twice; name each gate once")
        gates[gate.name] = gate
    return tuple(gates.values())


def _from_spec(spec: str | Mapping[str, Any]) -> Gate:
    if not isinstance(spec, str | Mapping):
        raise ConfigError(f"a gate is a name, a dict with 'name' or a Gate, got {spec!r:.100}")
    fields = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = fields.pop("name", None)
    kind = fields.pop("kind", name)
    if not isinstance(kind, str) or kind not in {**STANDARD_GATES, **_KINDS}:
        known = ", ".join([*STANDARD_GATES, *_KINDS])
        raise ConfigError(f"no standard gate {kind!r}; there are {known}, or pass a Gate")
    name = kind if name is None else name
    told = _KINDS[kind][1] if kind in _KINDS else None
    allowed = [*([told] if told else []), "penalty", "floor"]
    unknown = set(fields) - set(allowed)
    if unknown:
        takes = " and ".join(filter(None, [", ".join(allowed[:-1]), allowed[-1]]))
        raise ConfigError(
            f"gate {name!r} takes {takes}, not {', '.join(sorted(map(str, unknown)))}"
        )
    if told and told not in fields:
        raise ConfigError(f"gate {name!r} needs {told}, as in {{'kind': {kind!r}, {told!r}: …}}")
    try:
        if kind in STANDARD_GATES:
            return Gate.model_validate({**dict(STANDARD_GATES[kind]), "name": name, **fields})
        return _KINDS[kind][0](name=name, **fields)
    except ValidationError as error:
        raise ConfigError(f"gate {name!r}: {in_one_line(error)}") from error
