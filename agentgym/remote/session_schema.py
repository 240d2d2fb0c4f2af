"""What sessions say over the wire: one environment, reset and stepped from elsewhere.

The answers have Gymnasium's meaning, field by field. Turns are numbered by the client, so that a
request whose answer was lost can be sent again without being played twice.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import ConfigDict, Field

from agentgym.types import FailureClass, Finite, Message, Record, ToolSpec, Verdict

SessionState: TypeAlias = Literal["new", "running", "over"]
"""`new`: never reset. `over`: the episode ended; reset for another."""

MAX_KEY = 200
_MOST = 2**63 - 1


class ResetEpisode(Record):
    """Start an episode."""

    seed: int | None = Field(default=None, ge=0, le=_MOST)
    """Fixes this and all following task choices; null goes on drawing."""
    options: dict[str, Any] = Field(default_factory=dict)
    """`task_id` picks a task, `max_turns` tightens the cap."""
    episode: int | None = Field(default=None, ge=1, le=_MOST)
    """The number the episode gets, one more than the last one's. With it, the same request sent
    again gets the same answer; without, it starts another episode."""


class CreateSession(Record):
    """Make an environment."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"env": "agentgym/WebShop-v0", "env_kwargs": {"split": "train"}, "key": "worker-3"}
            ]
        }
    )

    env: str = Field(min_length=1, max_length=MAX_KEY)
    """Id of an environment of `GET /v1/envs`."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Its parameters, as far as the service allows them."""
    key: str | None = Field(default=None, min_length=1, max_length=MAX_KEY)
    """Your name for the session: as long as it is open, creating it again gives the same one."""
    reset: ResetEpisode | None = None
    """Start the first episode at once; an agent framework that only speaks MCP needs this."""


class TakeTurn(Record):
    """One assistant message."""

    turn: int = Field(ge=0, le=_MOST)
    """Turns taken in this episode before this one. Sent again with the same action, a turn is not
    played again but answered as before."""
    action: Any
    """A text, or an assistant message with `content` and `tool_calls`; it may carry how it was made
    (`usage`, `finish_reason`, `completion_ids`, `logprobs`, …). Of an env that isn't an `AgentEnv`,
    a JSON value of its action space."""
    episode: int | None = Field(default=None, ge=1, le=_MOST)
    """The episode it belongs to; refused if that isn't the current one."""


class CutEpisode(Record):
    """End the running episode because a limit outside the environment was reached."""

    reason: Literal["tokens", "context", "time"]
    """Which limit."""
    episode: int | None = Field(default=None, ge=1, le=_MOST)
    """The episode; refused if that isn't the current one."""


class Choices(Record):
    """Values that a parameter can have right now, where the env knows better than the schema."""

    tool: str
    parameter: str
    values: tuple[Any, ...]


class EpisodeStart(Record):
    """What `reset` returned."""

    episode: int
    """Its number in the session."""
    turn: Literal[0] = 0
    """The number of the next turn."""
    observation: Any
    """The opening messages; of an env that isn't an `AgentEnv`, a value of its observation
    space."""
    observation_truncated: bool = False
    """Whether text was left out because the observation was too large; the text says where."""
    info: dict[str, Any]
    """The env's `info`, as far as a policy may see it."""
    tools: tuple[ToolSpec, ...]
    """OpenAI tool list."""
    choices: tuple[Choices, ...] = ()
    """See `Choices`."""


class TurnResult(Record):
    """What `step` returned."""

    episode: int
    turn: int
    """The number of the next turn."""
    message: Message | None = None
    """Your message as it stands in the conversation: ids made unique, arguments as JSON text."""
    observation: Any
    """The messages it caused."""
    observation_truncated: bool = False
    """See `EpisodeStart`."""
    failed_calls: tuple[str, ...] = ()
    """Ids of the calls that were answered with an error."""
    reward: Finite | None
    """0 until the end; null when masked: unscored is not zero."""
    terminated: bool
    truncated: bool
    masked: bool = False
    """Whether the episode ended without a score, so that it carries no training signal."""
    failure_class: FailureClass | None = None
    """Who is to blame, when the episode failed."""
    info: dict[str, Any]
    """See `EpisodeStart`."""
    verdict: Verdict | None = None
    """Components, gates and correctness, at the end of an `AgentEnv`'s episode."""
    tools: tuple[ToolSpec, ...] | None = None
    """The tool list, where the turn changed it."""
    choices: tuple[Choices, ...] = ()
    """See `Choices`."""

    @property
    def over(self) -> bool:
        """Whether the episode ended."""
        return self.terminated or self.truncated


class Spaces(Record):
    """The spaces of an env that isn't an `AgentEnv`, described."""

    observation: dict[str, Any]
    action: dict[str, Any]


class SessionView(Record):
    """A session, as its owner sees it."""

    session_id: str
    env: str
    state: SessionState
    busy: bool
    """Whether a request is being worked on."""
    episode: int
    """Number of the current episode; 0 before the first reset."""
    turn: int
    """The number of the next turn."""
    tools: tuple[ToolSpec, ...]
    """OpenAI tool list; some envs have one only after a reset."""
    spaces: Spaces | None = None
    """null for an `AgentEnv`: messages in, messages out."""
    messages: tuple[Message, ...] = ()
    """The conversation so far, as the policy saw it."""
    last: TurnResult | None = None
    """The latest turn's result, also after the end."""
    started: EpisodeStart | None = None
    """What the current episode's reset returned."""
    expires_in_s: float
    """Seconds without a request after which the session is closed."""
    created_at: str
    """UTC, ISO 8601."""


class SessionList(Record):
    """Your sessions, the latest first, without their conversations."""

    sessions: tuple[SessionView, ...]


class Alive(Record):
    """The answer to a sign of life."""

    expires_in_s: float
    """Seconds until the next one is due."""
