"""What a run will do, as far as it costs anything: the planner's input.

Everything here is an expectation per episode or per call, so it can be typed in before anything
exists, or measured from a few episodes. What is a probability is kept as one: the turns are a
distribution, a cache hits with a share, calls are paid twice with a share.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from agentgym.client import Prices
from agentgym.cost.turns import Turns
from agentgym.types import Finite, Record

MOST = 10**15
"""Of anything: what is more is a slip, and sums of it would be no numbers."""

Amount: TypeAlias = Annotated[Finite, Field(ge=0, le=MOST)]
Rate: TypeAlias = Annotated[Finite, Field(ge=1 / MOST, le=MOST)]
Share: TypeAlias = Annotated[Finite, Field(ge=0, le=1)]

Reads: TypeAlias = Literal["own", "transcript", "prompts"]


class EpisodeTokens(Record):
    """How a conversation grows. The prompt of turn t (from 0) is setup + t·(output + reply)."""

    setup: Amount
    """System prompt, tools and task: what the first prompt holds."""
    output: Amount
    """What the policy says per turn, tool calls included."""
    reply: Amount
    """What it is answered per turn but the last: tool results, or a user's message."""


class Serving(Record):
    """The policy's own GPUs. Prefill and decode apart: one costs compute, the other memory."""

    prefill_tokens_per_s: Rate
    """Prompt tokens that no cache held, per second and GPU, all requests together."""
    decode_tokens_per_s: Rate
    """Sampled tokens per second and GPU, all requests together."""
    gpus: int = Field(default=1, ge=1, le=MOST)
    """GPUs that sample."""
    usd_per_gpu_hour: Amount | None = None
    """What one costs, busy or not; None: dollars unknown."""
    update_s: Amount = 0.0
    """Seconds of a training step in which nothing is sampled: update and weight sync."""


class PolicyLoad(Record):
    """The model that plays: one call per turn, each with the whole conversation so far."""

    model: str | None = None
    """Name in the price book, for a hosted policy; None where it runs on own GPUs."""
    prices: Prices | None = None
    """Given here, they win over the book's."""
    cache_hit: Share = 0.0
    """Share of the prompt tokens a prefix cache could hold (those of the turn before) that hit."""
    shared_setup: bool = False
    """Whether a group's rollouts share their task's first prompt in that cache."""
    paid_twice: Amount = 0.0
    """Calls repeated and paid again, as a share of the calls."""
    seconds_per_call: Amount | None = None
    """How long an answer takes at the concurrency in mind."""
    serving: Serving | None = None
    """None: hosted, or not known."""

    @model_validator(mode="after")
    def _is_paid_one_way(self) -> PolicyLoad:
        per_hour = self.serving is not None and self.serving.usd_per_gpu_hour is not None
        if per_hour and (self.model is not None or self.prices is not None):
            raise ValueError(
                "is paid either by the token (model or prices) or by the hour "
                "(serving.usd_per_gpu_hour); leave one out"
            )
        return self


class RoleLoad(Record):
    """Another model of the run: how often it is called, what it reads and writes."""

    model: str | None = None
    """Name in the price book."""
    prices: Prices | None = None
    """Given here, they win over the book's; neither: unpriced, and the sum says so."""
    calls_per_episode: Amount = 0.0
    """Calls when the episode is over: 1 for a judge, 3 for a panel of three."""
    calls_per_turn: Amount = 0.0
    """Calls after each output of the policy."""
    calls_per_reply: Amount = 0.0
    """Calls for each reply, of which there is one less than turns: 1 for a user simulator."""
    reads: Reads = "own"
    """Beside its own tokens: `own` nothing; `transcript` the conversation at the time of the call,
    once; `prompts` all the policy's prompts summed, which no judge reads, but many a budget has."""
    input_tokens: Amount = 0.0
    """Tokens per call beside what it reads: instructions, rubric, a record."""
    output_tokens: Amount = 0.0
    """Tokens per call it writes, reasoning included."""
    cache_hit: Share = 0.0
    """Share of the tokens a prefix cache could hold that hit; see `RolePlan.cacheable`."""
    paid_twice: Amount = 0.0
    """Calls repeated and paid again (retries, a second question), as a share of the calls."""
    seconds_per_call: Amount | None = None
    """How long an answer takes."""

    @model_validator(mode="after")
    def _prompts_are_read_at_the_end(self) -> RoleLoad:
        if self.reads == "prompts" and (self.calls_per_turn or self.calls_per_reply):
            raise ValueError(
                "reads = 'prompts' is for calls_per_episode; calls during the episode read "
                "'transcript' or 'own'"
            )
        return self


class Workload(Record):
    """A run to be priced. An evaluation is one, too: tasks as groups, samples, one step."""

    name: str = "workload"
    """What to call it in tables."""
    basis: str = "assumed"
    """Where the figures are from, such as `20 episodes of runs/x`."""
    groups: int = Field(ge=0, le=MOST)
    """Tasks per training step."""
    group_size: int = Field(ge=1, le=MOST)
    """Rollouts per task."""
    steps: int = Field(ge=0, le=MOST)
    """Training steps."""
    turns: Turns
    """How many turns an episode takes."""
    tokens: EpisodeTokens
    policy: PolicyLoad = PolicyLoad()
    roles: dict[str, RoleLoad] = Field(default_factory=dict)
    """The other models, by role."""
    rerun_share: Amount = 0.0
    """Episodes played and paid again in full, as a share of all, because something broke."""
    safety_factor: Rate = 1.0
    """On all token counts: for figures counted with another tokenizer, or guessed."""
    concurrency: int | None = Field(default=None, ge=1, le=MOST)
    """Episodes at once; None: all of a training step."""

    @field_validator("roles")
    @classmethod
    def _policy_is_apart(cls, roles: dict[str, RoleLoad]) -> dict[str, RoleLoad]:
        if "policy" in roles:
            raise ValueError("the policy has a table of its own, [policy]")
        return roles

    @property
    def episodes_per_step(self) -> int:
        """Episodes of a training step, without reruns."""
        return self.groups * self.group_size

    @property
    def episodes(self) -> int:
        """Episodes of the run, without reruns."""
        return self.episodes_per_step * self.steps

    def with_role(self, role: str, load: RoleLoad) -> Workload:
        """The same with one role's load replaced or added."""
        return self.model_copy(update={"roles": {**self.roles, role: load}})
