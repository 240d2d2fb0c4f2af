"""What goes over the wire, as records; the OpenAPI page is made from them.

The path says the version. A client may also say in a header which version it was written for, and
is refused if it isn't this one: better than fields that silently mean something else.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, model_validator

from agentgym.client import Endpoint, SamplingParams
from agentgym.errors import ConfigError
from agentgym.rollout.enough import Enough
from agentgym.rollout.limits import Limits
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.retry import Retry
from agentgym.rollout.status import EngineStatus
from agentgym.trace import Trace
from agentgym.types import Finite, Record, Usage

API_VERSION = "v1"
PREFIX = f"/{API_VERSION}"
VERSION_HEADER = "AgentGym-Api-Version"
IDEMPOTENCY_HEADER = "Idempotency-Key"

JobState: TypeAlias = Literal["running", "finished", "failed", "cancelled", "expired"]
"""`running` from acceptance on. `failed`: stopped with a cause; `expired`: nobody asked for its
traces for longer than its lease."""

MAX_KEY = 200
MAX_NAME = 100
MAX_REQUESTS = 100_000
"""Episodes one by one in one request; a body of the shortest has millions, and each is memory."""


class PolicyEndpoint(Endpoint):
    """A server of the policy, and the weights it has loaded."""

    weight_version: str | None = Field(default=None, max_length=MAX_NAME)
    """Goes into the traces of the turns that it answers."""

    def endpoint(self) -> Endpoint:
        """The endpoint alone."""
        fields = {name: getattr(self, name) for name in self.model_fields_set}
        fields.pop("weight_version", None)
        return Endpoint(**fields)


class Policy(Record):
    """Who plays: a pool of the service, or servers named here."""

    pool: str | None = Field(default=None, max_length=MAX_NAME)
    """A pool made with `POST /v1/policies/{pool}/endpoints`; its servers may come and go while the
    job runs."""
    endpoints: tuple[PolicyEndpoint, ...] = ()
    """Servers with the same weights; episodes are balanced over them."""
    name: str | None = Field(default=None, max_length=MAX_KEY)
    """The policy as the traces name it; default: the model of the first endpoint."""

    @model_validator(mode="after")
    def _is_one(self) -> Policy:
        if (self.pool is None) == (not self.endpoints):
            raise ValueError("give either pool or endpoints")
        return self


class Episodes(Record):
    """Which episodes: by tasks, by seeds, or one by one."""

    tasks: tuple[str, ...] = ()
    """Task ids, each once."""
    first: int | None = Field(default=None, ge=1)
    """The first so many tasks of the env, in its own order."""
    seeds: tuple[int, ...] = ()
    """Seeds by which the env draws a task, each once."""
    samples: int = Field(default=1, ge=1)
    """Rollouts of each task or seed; with more than one they form a group."""
    seed: int = Field(default=0, ge=0)
    """Fixes the seeds of `tasks` and `first`."""
    requests: tuple[EpisodeRequest, ...] = Field(default=(), max_length=MAX_REQUESTS)
    """Episodes one by one; more than fit are added later, to a job that is open."""

    @property
    def count(self) -> int:
        """How many there are, told without making them."""
        named = len(self.tasks) + len(self.seeds) + (self.first or 0)
        return named * self.samples + len(self.requests)

    @model_validator(mode="after")
    def _is_one_kind(self) -> Episodes:
        kinds = [bool(self.tasks), self.first is not None, bool(self.seeds), bool(self.requests)]
        if sum(kinds) > 1:
            raise ValueError("give one of tasks, first, seeds and requests")
        if self.requests and self.samples != 1:
            raise ValueError("samples goes with tasks, first or seeds; requests have their own")
        for name in ("tasks", "seeds"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise ValueError(f"{name} must be different; several rollouts of one are samples")
        if any(seed < 0 for seed in self.seeds):
            raise ValueError("seeds must be at least 0")
        return self


class JobRequest(Record):
    """Episodes of one environment, played by one policy."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "env": "agentgym/WebShop-v0",
                    "env_kwargs": {"split": "train"},
                    "episodes": {"first": 8, "samples": 4},
                    "policy": {
                        "endpoints": [
                            {
                                "base_url": "http://localhost:8000/v1",
                                "model": "my-policy",
                                "weight_version": "step-17",
                            }
                        ]
                    },
                    "sampling": {"temperature": 1.0, "max_tokens": 512},
                    "idempotency_key": "step-17",
                }
            ]
        }
    )

    env: str = Field(min_length=1, max_length=MAX_KEY)
    """Id of an environment of `GET /v1/envs`."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Its parameters, as far as the service allows them."""
    episodes: Episodes = Episodes()
    """What to play; may be empty for a job that is open."""
    open: bool = False
    """Whether episodes are added later, with `POST /v1/jobs/{job_id}/episodes`."""
    policy: Policy
    """Who plays them."""
    sampling: SamplingParams = SamplingParams()
    """How the policy samples."""
    limits: Limits = Limits()
    """Deadlines and budgets of the episodes. `concurrency` bounds this job's share of the
    service's; the service's own bounds hold as well."""
    retry: Retry | None = None
    """What is played again after a failure that isn't the policy's; null: nothing."""
    enough: Enough | None = None
    """When the job has enough and ends early; null: when everything is played. What is unfinished
    then is cancelled."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Facts about the run, for the traces."""
    lease_s: Finite | None = Field(default=None, gt=0)
    """Seconds for which the job goes on with nobody asking for its traces or its status; each
    request about it renews the lease. null: the service's default."""
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=MAX_KEY)
    """Sending the same job twice under one key makes one job; may also be the header."""


class MoreEpisodes(Record):
    """Further episodes of an open job."""

    after: int = Field(ge=0)
    """Episodes the job has without these. What it already has is not taken twice, so that a
    request may be repeated."""
    requests: tuple[EpisodeRequest, ...] = Field(default=(), max_length=MAX_REQUESTS)
    """The episodes."""
    last: bool = False
    """Whether these are the last."""
    wait_s: Finite = Field(default=0.0, ge=0, le=60)
    """Longest wait for the job to have room for more, before the answer."""


class Room(Record):
    """How many further episodes an open job could use."""

    episodes: int
    """Episodes it has."""
    room: int
    """Further ones that would keep it busy; 0 while enough of them wait."""
    state: JobState


class Fault(Record):
    """Why something ended or was refused."""

    code: str
    """For programs; doesn't change."""
    message: str
    """For people: what happened, and what to do."""


class FaultBody(Record):
    """What every refusal looks like."""

    error: Fault


class JobEpisodes(Record):
    """A job's episodes, by how far they are."""

    requested: int
    """Accepted so far."""
    finished: int
    """Over, with a trace; replacements that were played for others included."""
    scored: int
    """Of the finished, those with a reward."""
    masked: dict[str, int] = Field(default_factory=dict)
    """Of the finished, those without, by failure class."""
    in_flight: int = 0
    """Taken up and not over."""
    waiting: int = 0
    """Not taken up yet."""


class JobStatus(Record):
    """How a job is doing."""

    job_id: str
    state: JobState
    env: str
    episodes: JobEpisodes
    open: bool
    """Whether further episodes may be added."""
    room: int = 0
    """Further episodes that would keep an open job busy."""
    cursor: int
    """That of its latest trace; 0 before the first."""
    usage: dict[str, Usage] = Field(default_factory=dict)
    """Tokens and dollars so far, by role."""
    error: Fault | None = None
    """Why it failed or expired; while it runs, what holds it up."""
    engine: EngineStatus | None = None
    """What the engine that plays it is doing, for all your jobs of the same kind; null if it isn't
    playing."""
    created_at: str
    """UTC, ISO 8601."""
    finished_at: str | None = None
    """UTC, ISO 8601."""
    lease_s: float
    """See `JobRequest.lease_s`."""
    keep_s: float
    """Seconds for which it is kept after its end; then its traces are gone."""


class JobList(Record):
    """Your jobs, the latest first."""

    jobs: tuple[JobStatus, ...]


class TraceItem(Record):
    """One finished episode; in a stream, one line."""

    cursor: int
    """Ask for traces after this one to go on from here."""
    trace: Trace


class TracePage(Record):
    """Finished episodes after a cursor, in the order in which they finished."""

    traces: tuple[TraceItem, ...]
    cursor: int
    """Of the last of them; the one asked for if there are none."""
    state: JobState
    over: bool
    """Whether the job has ended and no trace comes after these."""
    error: Fault | None = None
    """Why it failed or expired."""


class StreamEnd(Record):
    """The last line of a stream that came to the job's end."""

    cursor: int
    state: JobState
    over: Literal[True] = True
    error: Fault | None = None


class AddedEndpoints(Record):
    """Servers for a pool."""

    endpoints: tuple[PolicyEndpoint, ...] = Field(min_length=1)
    """Those the pool already has are left as they are, but for the weight version."""


class EndpointChange(Record):
    """What changes about a server of a pool."""

    base_url: str | None = None
    """Which; null: all of them."""
    paused: bool | None = None
    """True: gets no further episode; false: takes part again."""
    weight_version: str | None = Field(default=None, max_length=MAX_NAME)
    """The weights it has now."""


class PoolStatus(Record):
    """A pool of policy servers."""

    pool: str
    replicas: tuple[dict[str, Any], ...]
    """Each server's state, load and weight version."""


class PoolList(Record):
    """Your pools."""

    pools: tuple[PoolStatus, ...]


class EnvParameter(Record):
    """A parameter of an environment that a client may set."""

    name: str
    type: str
    """As the environment's constructor declares it."""
    default: Any = None


class EnvEntry(Record):
    """An environment that this service plays."""

    env: str
    about: str
    """What one does in it, in one line."""
    parameters: tuple[EnvParameter, ...]


class EnvList(Record):
    """The environments that this service plays."""

    envs: tuple[EnvEntry, ...]


class ServiceStatus(Record):
    """How the service is doing, as far as it is yours."""

    api_version: str = API_VERSION
    version: str
    """agentgym's."""
    caller: str
    """Who your token says you are."""
    draining: bool
    """Whether it is about to stop, and takes no further job."""
    concurrency: int
    """Episodes taking turns at once, all clients together."""
    open_jobs: int
    """Yours."""
    in_flight: int
    """Your episodes that are being played."""
    spent_today: dict[str, float]
    """Episodes, tokens and dollars since midnight UTC, against the quota."""


def parsed_version(text: str | None) -> None:
    """Check the version that a client says it was written for.

    Raises:
        ConfigError: If it is another one.
    """
    if text is not None and text.strip() != API_VERSION:
        raise ConfigError(
            f"this service speaks API {API_VERSION}, and the client asked for "
            f"{text.strip()!r:.20}; install the agentgym version that the service runs"
        )
