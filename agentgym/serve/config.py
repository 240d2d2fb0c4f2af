"""What a service is told when it starts: by flags, by a file, or from Python."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from agentgym.errors import ConfigError, unknown_name
from agentgym.roles import Roles
from agentgym.rollout.cluster_config import Cluster
from agentgym.rollout.limits import Limits
from agentgym.serve.access import TOKEN_VARIABLE, Quota, Tokens
from agentgym.serve.allowed import Allowed, is_loopback
from agentgym.serve.session_limits import SessionLimits
from agentgym.types import Finite, Record, in_one_line


class Keeping(Record):
    """How long things are kept of which nobody asks any more, and how many."""

    lease_s: Finite = Field(default=600.0, gt=0)
    """Seconds for which a job goes on without a request about it, unless it says otherwise."""
    max_lease_s: Finite = Field(default=7 * 86400.0, gt=0)
    """The longest lease that a job may ask for, seconds."""
    ended_job_s: Finite = Field(default=86400.0, gt=0)
    """Seconds for which a job and its traces are kept after its end, or after the last request
    about it if that is later."""
    ended_jobs: int = Field(default=10_000, ge=1)
    """Ended jobs that are kept of one client; beyond it those go first, with their traces, of which
    nobody asked for the longest time."""
    idle_engine_s: Finite = Field(default=60.0, ge=0)
    """Seconds for which environments and connections that no job uses are kept."""


class ServiceConfig(Record):
    """A service."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    host: str = "127.0.0.1"
    """The interface to listen on."""
    port: int = Field(default=8800, ge=0, le=65535)
    """0 takes a free one."""
    store: Path | None = None
    """The SQLite file that keeps jobs over a restart; None keeps them in memory only."""
    limits: Limits = Limits()
    """Episodes at once in each stage, all clients together; a job's own limits hold as well."""
    tokens: Tokens = Field(default_factory=lambda: Tokens({}))
    """Who may ask."""
    allowed: Allowed = Allowed()
    """What for."""
    roles: Roles = Roles()
    """The simulator and the judge of envs for which a job names none."""
    keeping: Keeping = Keeping()
    """How long jobs and engines are kept."""
    sessions: SessionLimits = SessionLimits()
    """How many single environments are kept, how long, and what they show."""
    max_body_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)
    """The largest request body."""
    drain_s: Finite = Field(default=60.0, ge=0)
    """Longest wait for episodes in flight when the service is asked to stop, seconds. What isn't
    over by then is played again when a service starts on the same store."""
    backend: Literal["local", "ray"] = "local"
    """Where episodes are played."""
    cluster: Cluster = Cluster()
    """Which Ray cluster, and how much of it; with `backend = "ray"`."""

    @model_validator(mode="after")
    def _is_guarded(self) -> ServiceConfig:
        if not is_loopback(self.host) and not self.tokens:
            raise ValueError(
                f"a service on {self.host} can be reached from other machines and needs a token: "
                f"set {TOKEN_VARIABLE}, or name a token file; 127.0.0.1 needs none"
            )
        return self


_TABLES: dict[str, type[Record]] = {
    "allowed": Allowed,
    "cluster": Cluster,
    "keeping": Keeping,
    "limits": Limits,
    "quota": Quota,
    "sessions": SessionLimits,
}
_PLAIN = ("host", "port", "store", "max_body_bytes", "drain_s", "backend", "token_file")
_ROLES = ("simulator", "judge")


def read_config(
    path: Path | None, flags: Mapping[str, Any], *, store: Path | None = None
) -> ServiceConfig:
    """A service's configuration from a TOML file and what flags say beside it.

        port = 8800
        store = "runs/service.db"
        token_file = "tokens.toml"

        [limits]
        concurrency = 256

        [allowed]
        policy_hosts = ["10.0.0.0/8"]
        keys = {DEEPINFRA_API_KEY = ["api.deepinfra.com"]}

        [quota]
        open_jobs = 8

        [judge]
        base_url = "https://api.deepinfra.com/v1/openai"
        model = "deepseek-ai/DeepSeek-V4-Flash-0731"
        api_key_env = "DEEPINFRA_API_KEY"

    Args:
        path: The file, if there is one.
        flags: The fields that flags name; a mapping adds to the table of that name.
        store: The store where neither says one.

    Raises:
        ConfigError: If something is unknown or not allowed; one line, without secrets.
    """
    where = str(path) if path is not None else "serve"
    values: dict[str, Any] = _toml(path) if path is not None else {}
    for name in values:
        if name not in (*_PLAIN, *_TABLES, *_ROLES):
            raise ConfigError(
                f"{where}: {unknown_name('name', name, (*_PLAIN, *_TABLES, *_ROLES))}"
            )
    for name, value in flags.items():
        known = values.get(name)
        both = isinstance(value, Mapping) and isinstance(known, Mapping)
        values[name] = {**known, **value} if both and known is not None else value
    values.setdefault("store", store)
    roles = Roles.from_tables(
        {role: values.pop(role) for role in _ROLES if role in values}, where=where
    )
    tables = {
        name: _record(kind, values.pop(name, {}), name, where) for name, kind in _TABLES.items()
    }
    tokens = Tokens.read(values.pop("token_file", None), default=tables.pop("quota"))
    try:
        return ServiceConfig(**values, **tables, roles=roles, tokens=tokens)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_told(error)}") from None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _record(kind: type[Record], values: Any, name: str, where: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: {name} must be a table")
    for field in values:
        if field not in kind.model_fields:
            raise ConfigError(
                f"{where}: [{name}]: {unknown_name('field', field, kind.model_fields)}"
            )
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}: [{name}]: {in_one_line(error)}") from None


def _told(error: ValidationError) -> str:
    """What is wrong, without the value where that is the whole config."""
    faults = error.errors(include_url=False, include_context=False)
    return "; ".join(
        ": ".join(
            filter(None, (".".join(map(str, f["loc"])), f["msg"].removeprefix("Value error, ")))
        )
        for f in faults[:5]
    )
