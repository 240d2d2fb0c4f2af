"""Who may ask, and for what.

A token names a client. What a client may have the service do is bounded thrice: by the environments
and parameters that are allowed, by where the service may send requests on its behalf and with whose
key, and by a quota. Tokens are compared in constant time and kept as digests only, so neither a
log, a traceback nor a dump of the process's objects shows one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import Request
from pydantic import Field, ValidationError

from agentgym.errors import ConfigError, unknown_name
from agentgym.serve.faults import ServiceFault
from agentgym.types import Finite, Record, in_one_line

TOKEN_VARIABLE = "AGENTGYM_SERVICE_TOKEN"
SHORTEST_TOKEN = 16
LOCAL = "local"
"""The one client of a service on the loopback interface that asks for no token."""


class Quota(Record):
    """How much one client may ask for."""

    concurrent_episodes: int | None = Field(default=None, ge=1)
    """Episodes at once; None: up to the service's concurrency. Where several clients want more
    than there is, each gets as much as the others."""
    open_jobs: int = Field(default=32, ge=1)
    """Jobs that run at once."""
    episodes_per_job: int = Field(default=100_000, ge=1)
    """Episodes of one job, added ones included."""
    sessions: int = Field(default=256, ge=1)
    """Single environments open at once."""
    episodes_per_day: int | None = Field(default=None, ge=1)
    """Episodes accepted per day, UTC, those of sessions included."""
    tokens_per_day: int | None = Field(default=None, ge=1)
    """Tokens of all roles per day, input and output; once used up, jobs end, none is taken, and
    sessions play no further turn."""
    usd_per_day: Finite | None = Field(default=None, gt=0)
    """Dollars per day, as far as endpoints have prices; then as above."""

    @property
    def is_daily(self) -> bool:
        """Whether anything is bounded per day."""
        daily = (self.episodes_per_day, self.tokens_per_day, self.usd_per_day)
        return any(bound is not None for bound in daily)


@dataclass(frozen=True)
class Caller:
    """A client of the service."""

    name: str
    quota: Quota = field(default_factory=Quota)


def caller_of(request: Request) -> Caller:
    """The client that sent a request; for `fastapi.Depends`."""
    caller: Caller = request.state.caller
    return caller


class Tokens:
    """The tokens there are.

    Args:
        clients: Token to client; none means that everybody is the client `local`.
        default: That client's quota.

    Raises:
        ConfigError: If a token is too short to be secret.
    """

    def __init__(self, clients: Mapping[str, Caller], *, default: Quota | None = None) -> None:
        for token, caller in clients.items():
            if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
                raise ConfigError(
                    f"the token of {caller.name!r} must have at least {SHORTEST_TOKEN} printable "
                    "ASCII characters; `openssl rand -hex 32` makes a good one"
                )
        self._by_digest = {_digest(token): caller for token, caller in clients.items()}
        self._default = default or Quota()
        self._local = Caller(LOCAL, self._default)

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def __repr__(self) -> str:
        names = ", ".join(sorted(caller.name for caller in self._by_digest.values()))
        return f"tokens of {names}" if names else "no tokens"

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        default: Quota | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Tokens:
        """The token of the environment and those of a file, which has one table per client.

            [trainer]
            token = "…"
            concurrent_episodes = 256

        Beside `token`, a table has the fields of `Quota`.

        Args:
            path: The file.
            default: What holds where a table is silent.
            environ: Default: the process's.

        Raises:
            ConfigError: If the file can't be read, or says something that isn't allowed; the
                message never shows a token.
        """
        default = default or Quota()
        clients: dict[str, Caller] = {}
        token = (os.environ if environ is None else environ).get(TOKEN_VARIABLE, "").strip()
        if token:
            clients[token] = Caller("default", default)
        for name, table in _tables(path).items() if path is not None else ():
            fields = dict(table) if isinstance(table, Mapping) else {}
            token = fields.pop("token", None)
            if not isinstance(token, str) or not token:
                raise ConfigError(f"{path}: [{name}] needs a token")
            if token in clients:
                raise ConfigError(f"{path}: [{name}] has the same token as another client")
            for name_given in fields:
                if name_given not in Quota.model_fields:
                    known = ("token", *Quota.model_fields)
                    raise ConfigError(
                        f"{path}: [{name}]: {unknown_name('field', name_given, known)}"
                    )
            try:
                quota = Quota.model_validate({**default.model_dump(), **fields})
            except ValidationError as error:
                raise ConfigError(f"{path}: [{name}]: {in_one_line(error)}") from None
            clients[token] = Caller(name, quota)
        return cls(clients, default=default)

    def named(self, name: str) -> Caller:
        """The client of a name; one whose token is gone keeps its jobs, under the default quota."""
        known = [caller for caller in self._by_digest.values() if caller.name == name]
        return known[0] if known else Caller(name, self._default)

    def caller(self, authorization: str | None) -> Caller:
        """The client behind an `Authorization` header.

        Raises:
            ServiceFault: 401, if there is none.
        """
        if not self._by_digest:
            return self._local
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            message = "this service needs a token; send the header 'Authorization: Bearer TOKEN'"
            raise ServiceFault(HTTPStatus.UNAUTHORIZED, "no_token", message)
        asked = _digest(token.strip())
        found = None
        for digest, caller in self._by_digest.items():  # all of them, whichever it is
            if hmac.compare_digest(digest, asked):
                found = caller
        if found is None:
            message = "the service doesn't know this token"
            raise ServiceFault(HTTPStatus.UNAUTHORIZED, "bad_token", message)
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _tables(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        place = str(error).partition("(")[2].rstrip(")") or "somewhere"
        raise ConfigError(f"{path} is not valid TOML: {place}") from None
