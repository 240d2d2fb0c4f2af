"""Tools answered by a language model that has to stay consistent.

A model invents plausible results and contradicts them three calls later. So the model proposes and
the world's memory decides (`agentgym.simulators.memory`): calls that don't fit the tool's schema
never reach the model; what follows from memory is answered without it; what it answers is held
against the result schema and the records. A reply that fails is asked for again once, then the
episode is masked, with the contradiction in its error. Arithmetic, dates and look-ups are done by
programs that the model may call on.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from agentgym.client import Completion, ModelClient, SamplingParams
from agentgym.errors import SimulatorError, ToolError
from agentgym.json_schema import JsonSchema, rebased
from agentgym.schema_tool import parameters_schema
from agentgym.simulator import SimulatedTool, SimulatedWorld
from agentgym.simulators.asking import Unusable, ask, is_blank, read_object
from agentgym.simulators.helpers import calculate, days_between, shift_date
from agentgym.simulators.memory import Contradiction, Draft, Entry, recall, refused
from agentgym.simulators.prompts import as_json, tool_prompt

MAX_HELPER_CALLS = 8
"""Helpers that the model may use for one answer."""
LONGEST_ARGUMENTS = 20_000
"""Characters of a call's arguments, as JSON; they stand in the prompt and in the log."""
LONGEST_RESULT = 50_000
"""Characters of a result, as JSON."""
LONGEST_ERROR = 1_000
"""Characters of an error text."""

DEFAULT_SAMPLING = SamplingParams(temperature=0.3, max_tokens=2048)

_CHANGES = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "entity": {"type": "string"},
            "key": {"type": "string"},
            "fields": {"type": ["object", "null"]},
        },
        "required": ["entity", "key", "fields"],
        "additionalProperties": False,
    },
}


class HostedTools:
    """Answers for any declared tools with a model.

    Args:
        client: The model.
        sampling: How it samples; its `seed` and `json_schema` are set per call.
    """

    inline = False
    fabricates: ClassVar[bool] = True
    """Results are invented: what is right is only what was answered before."""

    def __init__(self, client: ModelClient, *, sampling: SamplingParams | None = None) -> None:
        self._client = client
        self._sampling = sampling or DEFAULT_SAMPLING

    async def call(self, world: SimulatedWorld, name: str, arguments: Mapping[str, Any]) -> Any:
        """Answer one call; see `ToolSimulator.call`.

        Raises:
            ToolError: What the model is to be told: no such record, not allowed, bad arguments.
            SimulatorError: If the model gives no valid and consistent answer.
        """
        tool = _find(world, name)
        faults = parameters_schema(tool.parameters, where=name).faults(dict(arguments))
        if faults:
            raise ToolError(f"Error: invalid arguments for {name}: {'; '.join(faults)}.")
        if (size := len(as_json(arguments))) > LONGEST_ARGUMENTS:
            raise ToolError(
                f"Error: the arguments of {name} have {size} characters as JSON; "
                f"{LONGEST_ARGUMENTS} are allowed."
            )
        entry = recall(world, tool, arguments)
        if entry is None:
            entry = await self._answer(world, tool, arguments)
        world.log.append(entry)
        if "error" in entry:
            raise ToolError(entry["error"])
        return copy.deepcopy(entry["result"])

    async def _answer(
        self, world: SimulatedWorld, tool: SimulatedTool, arguments: Mapping[str, Any]
    ) -> Entry:
        """Ask the model, run the helpers it wants, and take its answer into the records."""
        prompt = tool_prompt(world, tool, arguments)
        sampling = self._sampling.model_copy(update={"json_schema": answer_schema(tool)})
        for used in range(MAX_HELPER_CALLS + 1):
            answer = await ask(
                self._client,
                prompt,
                functools.partial(_read, world, tool, arguments),
                sampling=sampling,
                seed=f"tools/{world.seed}/{len(world.log)}/{used}",
                session=world.session,
                faults=world.faults,
                who=f"tool simulator, {tool.name}",
            )
            if isinstance(answer, _HelperCall):
                asked = {"answer": {"helper": answer.asked}, "changes": []}
                prompt += [
                    {"role": "assistant", "content": as_json(asked)},
                    {"role": "user", "content": as_json(answer.run(world))},
                ]
                continue
            entry, draft = answer
            draft.commit()
            return entry
        raise SimulatorError(
            f"tool simulator, {tool.name}: {MAX_HELPER_CALLS} helpers used and no answer yet"
        )


def _find(world: SimulatedWorld, name: str) -> SimulatedTool:
    try:
        return world.tool(name)
    except KeyError as error:
        known = ", ".join(tool.name for tool in world.tools) or "none"
        raise SimulatorError(f"this world has no tool {name!r}; tools: {known}") from error


class _HelperCall:
    """A helper that the model wants to use."""

    def __init__(self, asked: Any) -> None:
        name = asked.get("name") if isinstance(asked, Mapping) else None
        given = asked.get("input") if isinstance(asked, Mapping) else None
        if not isinstance(name, str) or name not in _HELPERS or not isinstance(given, list):
            raise Unusable(
                '"helper" needs "name", one of '
                f'{", ".join(_HELPERS)}, and "input", a list of its arguments'
            )
        self.asked: dict[str, Any] = {"name": name, "input": given}

    def run(self, world: SimulatedWorld) -> dict[str, Any]:
        """What the helper says, or why it can't."""
        helper = _HELPERS[self.asked["name"]]
        try:
            return {"helper result": helper(world, *map(str, self.asked["input"]))}
        except ToolError as error:
            return {"helper error": str(error).removeprefix("Error: ")}
        except (TypeError, ValueError):  # a wrong number of inputs, "two" days
            return {"helper error": f"{self.asked['name']} can't take {self.asked['input']!r:.200}"}


def _look_up(world: SimulatedWorld, entity: str, key: str) -> Any:
    if key in world.deleted.get(entity, ()):
        return f"{entity} {key!r} was deleted"
    return world.state.get(entity, {}).get(key, f"no {entity} {key!r} is recorded")


_HELPERS: dict[str, Callable[..., Any]] = {
    "calculate": lambda _, expression: calculate(expression),
    "lookup": _look_up,
    "days_between": lambda _, start, end: days_between(start, end),
    "shift_date": lambda _, date, amount, unit: shift_date(date, int(amount), unit),
}


def answer_schema(tool: SimulatedTool) -> dict[str, Any]:
    """The form of the model's answers for one tool."""
    helper = {
        "name": {"type": "string", "enum": list(_HELPERS)},
        "input": {"type": "array", "items": {"type": "string"}},
    }
    result = rebased(tool.result, "#/properties/answer/anyOf/0/properties/result")
    forms = [
        _object(result=result),
        _object(error={"type": "string"}),
        _object(helper=_object(**helper)),
    ]
    return _object(answer={"anyOf": forms}, changes=_CHANGES)


def _object(**properties: Any) -> dict[str, Any]:
    """The schema of an object with just these fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _read(
    world: SimulatedWorld,
    tool: SimulatedTool,
    arguments: Mapping[str, Any],
    completion: Completion,
) -> _HelperCall | tuple[Entry, Draft]:
    """Check a model's answer against the schema and the records.

    Raises:
        Unusable: If it doesn't fit one of them.
    """
    found = read_object(completion)
    answer = found.get("answer")
    if not isinstance(answer, Mapping) or len(answer) != 1:
        raise Unusable('"answer" must be an object with one field: "result", "error" or "helper"')
    entry: Entry = {"name": tool.name, "arguments": copy.deepcopy(dict(arguments))}
    draft = Draft(world)
    try:
        match dict(answer):
            case {"helper": asked}:
                return _HelperCall(asked)
            case {"error": text}:
                entry["error"] = _error_text(text)
                refused(world, tool, arguments, entry["error"])
            case {"result": result}:
                entry["result"] = _valid_result(tool, result)
                draft.take(tool, arguments, entry["result"], _valid_changes(found.get("changes")))
            case _:
                raise Unusable('"answer" must have "result", "error" or "helper"')
    except Contradiction as error:
        raise Unusable(f"it contradicts the records: {error}") from error
    return entry, draft


def _error_text(text: Any) -> str:
    if not isinstance(text, str) or not 0 < len(text.strip()) <= LONGEST_ERROR:
        raise Unusable(f'"error" must be a text of 1 to {LONGEST_ERROR} characters')
    text = text.strip()
    if is_blank(text):
        raise Unusable('"error" has a blank that should have been filled in')
    return text if text.lower().startswith("error") else f"Error: {text}"


def _valid_result(tool: SimulatedTool, result: Any) -> Any:
    schema = JsonSchema(tool.result, where=f"tool {tool.name!r}, result")
    result = schema.exact(result)
    if faults := schema.faults(result):
        raise Unusable(f"the result doesn't fit the result schema: {'; '.join(faults)}")
    if len(as_json(result)) > LONGEST_RESULT:
        raise Unusable(f"the result has more than {LONGEST_RESULT} characters as JSON")
    return result


def _valid_changes(changes: Any) -> list[dict[str, Any]]:
    schema = JsonSchema(_CHANGES, where="changes")
    given: list[dict[str, Any]] = [] if changes is None else changes
    if faults := schema.faults(given):
        raise Unusable(f'"changes": {"; ".join(faults)}')
    return given
