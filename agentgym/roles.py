"""Every model of a run in one place: policy, simulator, judge and baseline.

A run talks to up to four models, each with an address, a price and limits of its own. One TOML file
configures them all, so that a training job, an evaluation and a re-scoring can't disagree about
what "the judge" is:

    [policy]
    base_url = "http://localhost:8000/v1"
    model = "my-policy"

    [judge]
    base_url = "https://api.deepinfra.com/v1/openai"
    model = "deepseek-ai/DeepSeek-V4-Flash-0731"
    api_key_env = "DEEPINFRA_API_KEY"
    prices = {input = 0.08, cached = 0.016, output = 0.18}

A table's fields are those of `Endpoint`. `prices = "book"` takes them from the price book, by the
model's name, and `prices = "GLM-4.7-Flash"` from that row of it. Keys never stand in the file, only
the names of the variables that hold them. A policy may have several servers, among which episodes
are balanced: `base_url` is then a list, or `replicas` names further ones with what is different
there.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import ValidationError

from agentgym.client import Dialect, Endpoint, Prices, RateLimits, Role, TokenPath, public_url
from agentgym.errors import ConfigError, unknown_name
from agentgym.price_book import PriceBook, resolve_prices
from agentgym.types import Record

ROLES: tuple[Role, ...] = get_args(Role)

_INNER: dict[str, type[Record]] = {
    "prices": Prices,
    "rate": RateLimits,
    "dialect": Dialect,
    "tokens": TokenPath,
}
_UNQUOTED = ("base_url", "api_key_env", "extra_body")
"""Fields whose value may hold a secret, and isn't shown in an error."""


class Roles(Record):
    """The endpoints of a run; None where a role isn't filled."""

    policy: Endpoint | None = None
    """Plays the episodes."""
    simulator: Endpoint | None = None
    """Plays users and answers for tools."""
    judge: Endpoint | None = None
    """Scores episodes."""
    baseline: Endpoint | None = None
    """What the policy is compared with."""
    replicas: tuple[Endpoint, ...] = ()
    """Further servers of the policy; `policy` is the first."""

    @property
    def policy_servers(self) -> tuple[Endpoint, ...]:
        """All servers of the policy."""
        return () if self.policy is None else (self.policy, *self.replicas)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], *, book: PriceBook | None = None) -> Roles:
        """Read a file with one table per role.

        Args:
            path: The file.
            book: Where prices that are only named are; default: the user's.

        Raises:
            ConfigError: If it can't be read, isn't TOML (with the line), or a table or field is
                unknown or not allowed; the message names file, table and field.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")  # as editors on Windows write it
        except OSError as error:
            raise ConfigError(f"can't read {path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            end = f"at line {len(text.splitlines())}, the last one"
            what = str(error).replace("at end of document", end)
            raise ConfigError(f"{path} is not valid TOML: {what}") from error
        return cls.from_tables(tables, where=str(path), book=book)

    @classmethod
    def from_tables(
        cls, tables: Mapping[str, Any], *, where: str = "roles", book: PriceBook | None = None
    ) -> Roles:
        """Read a mapping from role to the fields of its endpoint.

        Args:
            tables: As `from_toml` finds them.
            where: What to call the mapping in errors.
            book: Where prices that are only named are; default: the user's.

        Raises:
            ConfigError: If a table or field is unknown or not allowed.
        """
        found: dict[str, Any] = {}
        for name, values in tables.items():
            if name not in ROLES:
                raise ConfigError(f"{where}: {unknown_name('table', name, ROLES)}")
            table = f"{where}: [{name}]"
            if name == "policy":
                servers = read_policy(values, where=table, book=book)
                found |= {"policy": servers[0], "replicas": servers[1:]}
            else:
                found[name] = read_endpoint(values, role=name, where=table, book=book)
        return cls(**found)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Roles:
        """Read `AGENTGYM_<ROLE>_BASE_URL`, `…_MODEL` and `…_API_KEY_ENV`, as far as they are set.

        The last one holds the name of the variable with the key, not the key. The policy's URLs,
        where it has several servers, are separated by commas.

        Raises:
            ConfigError: If one of the first two is set without the other, or isn't allowed.
        """
        environ = os.environ if environ is None else environ
        found: dict[str, Any] = {}
        for role in ROLES:
            prefix = f"AGENTGYM_{role.upper()}_"
            fields = {
                field: value
                for field in ("base_url", "model", "api_key_env")
                if (value := environ.get(prefix + field.upper(), "").strip())
            }
            if not fields:
                continue
            for field in ("base_url", "model"):
                if field not in fields:
                    given = ", ".join(prefix + name.upper() for name in fields)
                    raise ConfigError(f"{prefix}{field.upper()} is not set, but {given} is")
            if role == "policy":
                urls = split_urls([fields["base_url"]])
                servers = read_policy({**fields, "base_url": urls}, where=f"{prefix}*")
                found |= {"policy": servers[0], "replicas": servers[1:]}
            else:
                found[role] = read_endpoint(fields, role=role, where=f"{prefix}*")
        return cls(**found)

    def filled(self) -> dict[Role, Endpoint]:
        """The roles that have an endpoint, in the order policy, simulator, judge, baseline."""
        found = {role: getattr(self, role) for role in ROLES}
        return {role: endpoint for role, endpoint in found.items() if endpoint is not None}

    def check_keys(self, environ: Mapping[str, str] | None = None) -> None:
        """See that every key that will be needed is there, before anything is paid for.

        See `needs_key`.

        Raises:
            ConfigError: If one isn't; the message names role and variable.
        """
        environ = os.environ if environ is None else environ
        servers = [*self.filled().items(), *(("policy", one) for one in self.replicas)]
        for role, endpoint in servers:
            if needs_key(endpoint) and not environ.get(endpoint.api_key_env, "").strip():
                raise ConfigError(
                    f"the {role} {endpoint.model!r} at {public_url(endpoint.base_url)} needs a "
                    f"key, and the environment variable {endpoint.api_key_env} is not set; set it, "
                    "or name another one as api_key_env (any value does where none is checked)"
                )

    def public(self) -> dict[str, Any]:
        """Every filled role as plain data without secrets, for traces and logs."""
        found: dict[str, Any] = {role: one.public() for role, one in self.filled().items()}
        if self.replicas:
            found["replicas"] = [replica.public() for replica in self.replicas]
        return found


def needs_key(endpoint: Endpoint) -> bool:
    """Whether an endpoint's key variable must be set.

    It must where one was named on purpose, and for every server on the public internet unless its
    URL brings user and password. A server on this machine or in a private network may do without.
    """
    if "api_key_env" in endpoint.model_fields_set:
        return True
    parts = urlsplit(endpoint.base_url)
    return parts.password is None and not _is_private(parts.hostname or "")


def _is_private(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:  # a name
        return "." not in host or host.endswith((".local", ".internal", ".lan", ".localhost"))


def read_endpoint(
    values: Any,
    *,
    role: Role | None = None,
    where: str = "endpoint",
    book: PriceBook | None = None,
) -> Endpoint:
    """An endpoint from plain values, with its role.

    Args:
        values: The fields of `Endpoint`, by name.
        role: What it is used for; None leaves that to `values`.
        where: What to call it in errors.
        book: Where prices that are only named are; default: the user's.

    Raises:
        ConfigError: If a field is unknown, missing or not allowed: one line, without secrets.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must have the fields of an endpoint (base_url, model, …)")
    fields = dict(values)
    if role is not None and fields.setdefault("role", role) != role:
        raise ConfigError(f"{where}: role: is {role!r} here, got {fields['role']!r}; leave it out")
    try:
        if isinstance(named := fields.get("prices"), str):
            model, base_url = fields.get("model"), fields.get("base_url")
            fields["prices"] = resolve_prices(named, model=model, base_url=base_url, book=book)
        return Endpoint.model_validate(fields)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise ConfigError(f"{where}: {'; '.join(map(_fault_text, faults[:5]))}") from None
    except ConfigError as error:  # the price book's
        raise ConfigError(f"{where}: prices: {error}") from error


def read_policy(
    values: Any, *, where: str = "policy", book: PriceBook | None = None
) -> tuple[Endpoint, ...]:
    """The servers of a policy from plain values: one endpoint each, equal but for what is said.

    Args:
        values: The fields of `Endpoint`. `base_url` may be a list of URLs; `replicas` lists further
            servers, each a URL or a mapping of the fields in which it differs.
        where: What to call it in errors.
        book: Where prices that are only named are; default: the user's.

    Raises:
        ConfigError: If a field is unknown, missing or not allowed, or there is no server.
    """
    if not isinstance(values, Mapping):
        return (read_endpoint(values, role="policy", where=where, book=book),)
    fields = dict(values)
    more = fields.pop("replicas", [])
    urls = fields.pop("base_url", None)
    if not isinstance(more, list | tuple):
        raise ConfigError(f"{where}: replicas must be a list of URLs or tables")
    differences = [{"base_url": url} for url in urls] if isinstance(urls, list | tuple) else []
    if not isinstance(urls, list | tuple) and (urls is not None or not more):
        differences = [{} if urls is None else {"base_url": urls}]
    differences += [dict(one) if isinstance(one, Mapping) else {"base_url": one} for one in more]
    if not differences:
        raise ConfigError(f"{where}: base_url is an empty list; name at least one server")
    servers = [
        read_endpoint({**fields, **one}, role="policy", where=where, book=book)
        for one in differences
    ]
    seen: set[str] = set()
    for server in servers:
        if server.base_url in seen:
            raise ConfigError(f"{where}: {public_url(server.base_url)} is there twice")
        seen.add(server.base_url)
    return tuple(servers)


def split_urls(given: Iterable[str]) -> list[str]:
    """URLs out of texts that may each hold several, separated by commas."""
    return [url.strip() for text in given for url in text.split(",") if url.strip()]


def public_kwargs(value: Any) -> Any:
    """Parameters of an environment for traces and logs: endpoints without their secrets."""
    if isinstance(value, Endpoint):
        return value.public()
    if isinstance(value, Mapping):
        if "base_url" in value and "model" in value:
            with suppress(ValidationError):  # an endpoint as a mapping
                return Endpoint.model_validate(value).public()
        return {key: public_kwargs(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(public_kwargs(item) for item in value)
    return value


def _fault_text(fault: Any) -> str:
    """What is wrong with one field, and with which value unless that may be a secret."""
    path = [str(part) for part in fault["loc"]]
    if fault["type"] == "extra_forbidden":
        known = _INNER[path[0]] if len(path) > 1 else Endpoint
        inside = f"{'.'.join(path[:-1])}: " if len(path) > 1 else ""
        return inside + unknown_name("field", path[-1], known.model_fields)
    text = str(fault["msg"]).removeprefix("Value error, ")
    if not path:
        return text
    if fault["type"] == "missing":
        return f"{'.'.join(path)}: is missing"
    got = "" if path[0] in _UNQUOTED else f" (got {fault['input']!r:.60})"
    return f"{'.'.join(path)}: {text}{got}"
