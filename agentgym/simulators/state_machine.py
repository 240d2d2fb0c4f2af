"""Tools answered by a program: consistent, deterministic, without a model or a key.

`StateMachineTools` plays the tools of declared domains on a world's records: what was created is
found, what was deleted is gone, what isn't allowed is refused. It is the embedded stand-in for a
hosted tool simulator, and the yardstick one can be audited against. `FixtureTools` plays back
recorded answers.

Both keep nothing of an episode: all of it is in the `SimulatedWorld`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.copies import copied
from agentgym.errors import AgentGymError, ConfigError, SimulatorError, ToolError
from agentgym.json_schema import non_finite
from agentgym.simulator import SimulatedWorld
from agentgym.simulators.actions import Action
from agentgym.simulators.domain import Domain
from agentgym.simulators.records import Entity, Records


class StateMachineTools:
    """Answers for the tools of declared domains.

    Args:
        domains: Their tools and entities must have different names.

    Raises:
        ConfigError: If two domains share the name of a tool or an entity.
    """

    inline = True
    fabricates = False
    """Results follow from the world's records, so what is right is known."""

    def __init__(self, *domains: Domain) -> None:
        self._entities: dict[str, Entity] = {}
        self._actions: dict[str, Action] = {}
        for domain in domains:
            for entity in domain.entities:
                self._add(self._entities, entity.name, entity, domain)
            for action in domain.actions:
                self._add(self._actions, action.name, action, domain)

    @staticmethod
    def _add(known: dict[str, Any], name: str, entry: Any, domain: Domain) -> None:
        if name in known:
            raise ConfigError(
                f"domain {domain.name!r} has {name!r}, and so has another domain; in one world "
                "tools and entities need names that differ"
            )
        known[name] = entry

    async def call(self, world: SimulatedWorld, name: str, arguments: Mapping[str, Any]) -> Any:
        """Answer one call; see `ToolSimulator.call`.

        A refused call leaves the records as they were.

        Raises:
            ToolError: If the call can't or may not be done, or its numbers are too large to work
                with: those are the caller's, and no fault of the simulator.
            SimulatorError: If no domain has the tool, or the domain's own functions crash.
        """
        action = self._actions.get(name)
        if action is None or all(tool.name != name for tool in world.tools):
            known = ", ".join(sorted(self._actions)) or "none"
            raise SimulatorError(f"no domain of this simulator has a tool {name!r}; tools: {known}")
        entry = {"name": name, "arguments": copied(dict(arguments))}
        before = None
        if action.effect != "read":
            before = copied(world.state), copied(world.deleted)
        try:
            kind = self._entities[action.entity]
            result = copied(self._run(action, kind, world, arguments))
        except ToolError as refusal:
            if before is not None:
                world.state, world.deleted = before
            world.log.append({**entry, "error": str(refusal)})
            raise
        except AgentGymError:
            raise
        except Exception as error:
            raise SimulatorError(
                f"the domain's action {name!r} crashed: {type(error).__name__}: {error}"
            ) from error
        world.log.append({**entry, "result": copied(result)})
        return result

    def _run(
        self, action: Action, kind: Entity, world: SimulatedWorld, arguments: Mapping[str, Any]
    ) -> Any:
        """The action's result, refused where its numbers overflow.

        Raises:
            ToolError: If the action refuses, or a number of the result is not finite.
        """
        too_large = ToolError(f"Error: {action.name} can't work with numbers as large as these.")
        try:
            result = action.run(kind, Records(world, self._entities), arguments)
        except OverflowError as error:
            raise too_large from error
        if next(non_finite(result), None) is not None:
            raise too_large
        return result


class FixtureTools:
    """Answers from a recording, such as the `log` of an earlier world.

    Equal calls are answered in the order recorded; the last answer stays.

    Args:
        entries: `{"name", "arguments"}` with a `"result"`, or an `"error"` for the policy.
        missing: What a call that was not recorded is answered with; None makes it a simulator
            fault, since nobody knows the right answer.

    Raises:
        ConfigError: If an entry has another form.
    """

    inline = True
    fabricates = False

    def __init__(self, entries: Sequence[Mapping[str, Any]], *, missing: str | None = None) -> None:
        self._answers: dict[str, list[Mapping[str, Any]]] = {}
        self._missing = missing
        for position, entry in enumerate(entries):
            if not {"name", "arguments"} <= set(entry) or ("result" in entry) == ("error" in entry):
                raise ConfigError(
                    f"fixture {position}: needs name, arguments and either result or error, "
                    f"got {sorted(entry)}"
                )
            key = _call_key(entry["name"], entry["arguments"])
            self._answers.setdefault(key, []).append(copied(dict(entry)))

    async def call(self, world: SimulatedWorld, name: str, arguments: Mapping[str, Any]) -> Any:
        """Answer one call; see `ToolSimulator.call`.

        Raises:
            ToolError: If the recorded call was refused, or is missing and `missing` says so.
            SimulatorError: If the call was not recorded.
        """
        key = _call_key(name, arguments)
        answers = self._answers.get(key)
        entry = {"name": name, "arguments": copied(dict(arguments))}
        if answers is None:
            if self._missing is None:
                raise SimulatorError(f"no recorded answer to {key:.300}")
            world.log.append({**entry, "error": self._missing})
            raise ToolError(self._missing)
        asked = sum(_call_key(past["name"], past["arguments"]) == key for past in world.log)
        answer = answers[min(asked, len(answers) - 1)]
        if "error" in answer:
            world.log.append({**entry, "error": answer["error"]})
            raise ToolError(answer["error"])
        world.log.append({**entry, "result": copied(answer["result"])})
        return copied(answer["result"])


def _call_key(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({json.dumps(dict(arguments), sort_keys=True, ensure_ascii=False)})"
