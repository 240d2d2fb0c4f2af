"""The contract with simulators: models or programs that play a user, or answer for tools.

A simulator is shared by any number of episodes and keeps nothing of them. What an episode needs is
in its `UserDialogue` or `SimulatedWorld`: plain data that the env holds, copies for a snapshot and
drops at the end. So a simulator is as easy to share between episodes as a model client, and an
embedded program can stand in for a hosted model anywhere.

A simulator that fails, contradicts its own record or gives up raises `SimulatorError`: the episode
is masked with failure class `simulator` and never charged to the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import Field, model_validator

from agentgym.errors import ConfigError
from agentgym.json_schema import JsonSchema
from agentgym.schema_tool import parameters_schema
from agentgym.types import Record, ToolSpec

# --- users ------------------------------------------------------------------------------------


class Scenario(Record):
    """Who a simulated user is and what they want; the policy never sees any of it."""

    goal: str
    """What the user is here for, in the second person ("You want to return …")."""
    persona: str = ""
    """How they talk."""
    opening: str | None = None
    """Their first message, said as it stands; None lets the simulator write it."""
    facts: dict[str, str] = Field(default_factory=dict)
    """What they know and tell when asked: fact name to value (`email` to `ada@example.com`)."""
    instructions: tuple[str, ...] = ()
    """How they react ("If a refund is refused, accept an exchange"), in order of importance."""
    script: dict[str, Any] = Field(default_factory=dict)
    """The same reactions for `ScriptedUser`, which reads no prose; see there."""


UserEnd: TypeAlias = Literal["done", "abort"]
"""`done`: the user has nothing more to say. `abort`: the simulator can't go on playing its part,
which says nothing about the policy."""


class UserReply(Record):
    """What a simulated user says; whether they leave is beside the text, never inside it."""

    text: str = ""
    ended: UserEnd | None = None


@dataclass
class UserDialogue:
    """A user simulator's side of one episode: plain data."""

    scenario: Scenario
    seed: int
    """Every draw and every sampling seed of the dialogue follows from it."""
    session: str = ""
    """The episode, for clients that keep or record something per episode."""
    said: list[tuple[Literal["agent", "user"], str]] = field(default_factory=list)
    """Both sides so far, in order; the simulator appends, its own lines included."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What the simulator remembers beside the words (facts told, position in a script)."""
    faults: list[str] = field(default_factory=list)
    """Lines that the simulator refused to pass on and asked its model for again."""


@runtime_checkable
class UserSimulator(Protocol):
    """Plays users."""

    inline: bool
    """True if it never awaits anything, so that a plain loop needs no event loop."""

    async def open(self, dialogue: UserDialogue) -> UserReply:
        """The user's first message.

        Raises:
            SimulatorError: If there is none.
        """
        ...

    async def reply(self, dialogue: UserDialogue, heard: str) -> UserReply:
        """Answer what the agent said.

        Args:
            dialogue: Changed in place: both lines are appended to `said`.
            heard: The agent's text, without reasoning, calls or tool results.

        Raises:
            SimulatorError: If there is no answer, or it contradicts the dialogue.
        """
        ...


# --- tools ------------------------------------------------------------------------------------


class SimulatedTool(Record):
    """A tool without an implementation: what it takes, gives and does to the world's state."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments, an object."""
    result: dict[str, Any]
    """JSON schema of a successful result."""
    effect: Literal["read", "create", "update", "delete"] = "read"
    """What it does to the world."""
    entity: str | None = None
    """What kind of thing it is about; a tool of the same entity sees what this one did."""
    key: str | None = None
    """The argument or result field that names one such thing."""

    @model_validator(mode="after")
    def _can_be_simulated(self) -> SimulatedTool:
        where = f"tool {self.name!r}"
        try:
            parameters_schema(self.parameters, where=where)
            JsonSchema(self.result, where=f"{where}, result")
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if not self.result:
            raise ValueError(
                f"{where}: has no result schema, so no result of a simulator can be checked; give "
                'one such as {"type": "object", "properties": {…}, "required": […]}'
            )
        if self.key is not None and self.entity is None:
            raise ValueError(f"{where}: key {self.key!r} names one of what? give entity")
        if self.effect in ("create", "delete") and self.key is None:
            raise ValueError(
                f"{where}: what it {self.effect}s must be known by name; give entity and key"
            )
        return self

    @property
    def spec(self) -> ToolSpec:
        """The entry of OpenAI's tool list."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }


@dataclass
class SimulatedWorld:
    """A tool simulator's side of one episode: plain data."""

    tools: tuple[SimulatedTool, ...]
    seed: int
    background: str = ""
    """What holds in this world, in prose, for a model."""
    session: str = ""
    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Entity to key to record: what exists. Deleted things are gone from it."""
    deleted: dict[str, list[str]] = field(default_factory=dict)
    """Entity to keys that once existed."""
    log: list[dict[str, Any]] = field(default_factory=list)
    """Calls answered so far, in order: `{"name", "arguments"}` with `"result"` or `"error"`."""
    faults: list[str] = field(default_factory=list)
    """Answers that the simulator refused to pass on and asked its model for again."""

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise ConfigError(f"simulated tools need names that differ, got {', '.join(names)}")

    def tool(self, name: str) -> SimulatedTool:
        """The tool of that name.

        Raises:
            KeyError: If there is none.
        """
        for tool in self.tools:
            if tool.name == name:
                return tool
        raise KeyError(name)


@runtime_checkable
class ToolSimulator(Protocol):
    """Answers for tools that don't exist."""

    inline: bool
    """True if it never awaits anything."""

    async def call(self, world: SimulatedWorld, name: str, arguments: Mapping[str, Any]) -> Any:
        """Answer one call.

        Args:
            world: Changed in place: state and log.
            name: One of `world.tools`.
            arguments: Valid by the tool's parameters.

        Returns:
            A JSON value, valid by the tool's result schema.

        Raises:
            ToolError: What the model is to be told (no such record, not allowed).
            SimulatorError: If no valid and consistent result can be had.
        """
        ...


# --- what a trace keeps -------------------------------------------------------------------------

FAULTS = "simulator_faults"
"""The entry of an env's outcome with the replies that were refused; see `refused_replies`."""


def refused_replies(episode: UserDialogue | SimulatedWorld) -> dict[str, list[str]]:
    """What an env adds to its `outcome()`, so that traces list the faults and summaries count them.

    Also those that a second reply mended: nobody was charged for them, and they say how good the
    simulator is.
    """
    return {FAULTS: list(episode.faults)} if episode.faults else {}
