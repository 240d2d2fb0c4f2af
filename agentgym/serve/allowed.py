"""What a client may have the service make, and whom it may have it talk to.

A job names an environment, its parameters and the servers of its models. Each of these could be
turned into something else than a rollout: an import of a module, a file read, a request to an
address that only the service can reach, a key sent to a stranger. So all of them are checked here,
before anything is made, and what isn't allowed is refused by name, never by value.
"""

from __future__ import annotations

import inspect
import ipaddress
import logging
import re
import socket
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

import gymnasium
from gymnasium.envs.registration import load_env_creator
from pydantic import Field

from agentgym.client import Endpoint, named_secrets, public_url
from agentgym.envs.registration import ENTRY_POINTS
from agentgym.errors import AgentGymError, ConfigError
from agentgym.roles import read_endpoint
from agentgym.rollout.hosted import ENV_ROLES
from agentgym.rollout.source import EnvSource
from agentgym.serve.faults import ServiceFault
from agentgym.tokens.loading import load_tokenizer
from agentgym.types import Record, nests_too_deep

logger = logging.getLogger(__name__)

LOOPBACK = "loopback"
ANY = "*"
NO_KEY = "AGENTGYM_NO_KEY"
"""The variable that endpoints without a key of their own are given: nobody sets it."""

UNKNOWN_HOST = "unknown_host"
"""The code of a refusal that may be over when names can be looked up again."""

EndpointT = TypeVar("EndpointT", bound=Endpoint)

_METADATA_NAMES = ("metadata", "metadata.google.internal", "instance-data")
_METADATA_RANGES = tuple(
    map(
        ipaddress.ip_network,
        (
            "169.254.0.0/16",
            "fd00:ec2::/32",  # Amazon
            "fd20:ce::254/128",  # Google
            "168.63.129.16/32",  # Azure
            "100.100.100.200/32",  # Alibaba
            "192.0.0.192/32",  # Oracle
        ),
    )
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_MAX_PARAMETER_LEVELS = 12


class Allowed(Record):
    """Environments, parameters, hosts and keys that jobs and sessions may use."""

    envs: tuple[str, ...] = tuple(sorted(ENTRY_POINTS))
    """Env ids; `module:id` for one that a module registers, which is then imported."""
    policy_hosts: tuple[str, ...] = (LOOPBACK,)
    """Where model requests may go: `host`, `host:port`, `*.domain`, an address range such as
    `10.0.0.0/8`, `loopback` (an address of this machine or `localhost`, and no name that somebody
    else may lead there), or `*` for anywhere. Link-local and cloud metadata addresses never."""
    keys: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Key variable of the service to the hosts that its value may be sent to, written as above."""
    largest_number: int = Field(default=100_000, ge=1)
    """No whole number among an env's parameters may be larger, seeds apart: numbers of tasks and
    products are memory."""
    tokenizers: tuple[str, ...] = ()
    """Folders and hub ids of tokenizers with which policies may be asked in token ids; exactly as
    clients write them. Loading one reads the service's disk or asks the hub."""
    parameters: tuple[str, ...] = ()
    """Parameters of envs that are refused otherwise, since they name files or code: `data`, or
    `agentgym/WebShop-v0.data` for those of one env."""

    def env(self, env_id: str) -> str:
        """Check that an env is one of those allowed.

        Raises:
            ServiceFault: 403 or 404, if it isn't.
        """
        if env_id in self.envs:
            return env_id
        known = ", ".join(self.envs)
        if ":" in env_id:
            message = f"this service imports no module that a client names; it plays {known}"
            raise ServiceFault(HTTPStatus.FORBIDDEN, "env_not_allowed", message)
        if env_id in ENTRY_POINTS:
            message = f"{env_id} is not allowed on this service; it plays {known}"
            raise ServiceFault(HTTPStatus.FORBIDDEN, "env_not_allowed", message)
        try:
            EnvSource(env_id)
            hint = ""
        except AgentGymError as error:
            hint = f" ({error})" if "did you mean" in str(error) else ""
        message = f"no env {env_id!r:.100} on this service; it plays {known}{hint:.200}"
        raise ServiceFault(HTTPStatus.NOT_FOUND, "unknown_env", message)

    def env_kwargs(self, env_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check the parameters of an env, and give those that name models their keys.

        Raises:
            ServiceFault: 403 if one isn't allowed, 422 if it makes no sense.
        """
        if nests_too_deep(given, _MAX_PARAMETER_LEVELS):
            raise _refused("env_kwargs nest too deep", HTTPStatus.UNPROCESSABLE_ENTITY)
        found: dict[str, Any] = {}
        paths = path_parameters(env_id)
        for name, value in given.items():
            permitted = {name, f"{env_id}.{name}"} & set(self.parameters)
            if permitted:
                found[name] = value
            elif name in ENV_ROLES:
                found[name] = self._model(name, value)
            elif name in paths and value is not None and value != paths[name]:
                raise _refused(f"env_kwargs.{name} would read a file of the service")
            elif name == "render_mode":
                raise _refused("env_kwargs.render_mode is for people who watch")
            elif "seed" not in name and _largest(value) > self.largest_number:
                raise _refused(f"env_kwargs.{name} may be {self.largest_number} at most")
            elif names_code(value):
                raise _refused(f"env_kwargs.{name} names code (module:name) to import")
            else:
                found[name] = value
        return found

    def _model(self, role: str, value: Any) -> dict[str, Any] | None:
        """The endpoint of an env's simulator or judge."""
        if value is None:
            return None
        try:
            endpoint = read_endpoint(value, where=f"env_kwargs.{role}")
        except ConfigError as error:
            raise ServiceFault(
                HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request", str(error)
            ) from None
        return self.endpoint(endpoint, where=f"env_kwargs.{role}").model_dump(
            mode="json", exclude_unset=True
        )

    def endpoint(self, endpoint: EndpointT, *, where: str) -> EndpointT:
        """Check where requests would go, and with which key.

        The check looks the host's name up, which may block: it belongs into a thread.

        Returns:
            The endpoint; without a key variable that it didn't name and may not use.

        Raises:
            ServiceFault: 403 if host, key or tokenizer isn't allowed, 422 if it holds a secret
                itself, its host has no address, or its tokenizer can't be used.
        """
        if public_url(endpoint.base_url) != endpoint.base_url:
            text = f"{where}.base_url may have no user, password or query; name a key variable"
            raise _refused(text, HTTPStatus.UNPROCESSABLE_ENTITY)
        if named_secrets(endpoint.extra_body):
            text = f"{where}.extra_body holds what is named like a secret; name a key variable"
            raise _refused(text, HTTPStatus.UNPROCESSABLE_ENTITY)
        self._check_tokenizer(endpoint, where)
        host, port = _host_of(endpoint.base_url, where)
        never_reached(host, where)
        if not matches(host, port, self.policy_hosts):
            if any("/" in pattern for pattern in self.policy_hosts) and not addresses_of(host):
                text = f"{where}: the name {host} leads to no address"
                raise ServiceFault(HTTPStatus.UNPROCESSABLE_ENTITY, UNKNOWN_HOST, text)
            allowed = ", ".join(self.policy_hosts) or "none"
            text = f"{where}: requests may go to {allowed}, not to {host}"
            raise _refused(f"{text}; the service's policy_hosts say where")
        variable = endpoint.api_key_env
        if matches(host, port, self.keys.get(variable, ())):
            return endpoint
        if "api_key_env" in endpoint.model_fields_set and variable != NO_KEY:
            text = f"{where}.api_key_env: the service sends no {variable} to {host}"
            raise _refused(f"{text}; its `keys` say which variable may go where")
        return endpoint.model_copy(update={"api_key_env": NO_KEY})

    def _check_tokenizer(self, endpoint: Endpoint, where: str) -> None:
        """Check, before anything is looked up, that a tokenizer is one of those that may be had."""
        path = endpoint.tokens
        if path is None:
            return
        if path.tokenizer not in self.tokenizers:
            allowed = ", ".join(self.tokenizers) or "none"
            raise _refused(
                f"{where}.tokens.tokenizer: this service loads only tokenizers that it is told to "
                f"({allowed}); start it with --allow-tokenizer"
            )
        if nests_too_deep(path.template_kwargs, _MAX_PARAMETER_LEVELS):
            text = f"{where}.tokens.template_kwargs nest too deep"
            raise _refused(text, HTTPStatus.UNPROCESSABLE_ENTITY)
        if named_secrets(path.template_kwargs):
            text = f"{where}.tokens.template_kwargs hold what is named like a secret"
            raise _refused(text, HTTPStatus.UNPROCESSABLE_ENTITY)
        try:
            load_tokenizer(path.tokenizer)
        except AgentGymError as error:
            logger.error("a job's tokenizer can't be loaded: %s", error)
            raise _refused(
                f"{where}.tokens.tokenizer: this service can't load {path.tokenizer!r:.100}; its "
                "log says why",
                HTTPStatus.UNPROCESSABLE_ENTITY,
            ) from error


def _refused(message: str, status: HTTPStatus = HTTPStatus.FORBIDDEN) -> ServiceFault:
    code = "not_allowed" if status == HTTPStatus.FORBIDDEN else "invalid_request"
    return ServiceFault(status, code, message)


def _host_of(url: str, where: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = (parts.hostname or "").rstrip(".").lower()
    except ValueError:
        host, port = "", 0
    if not host:
        text = f"{where}.base_url is no usable URL; expected http://HOST:PORT/v1"
        raise _refused(text, HTTPStatus.UNPROCESSABLE_ENTITY)
    return host, port


def addresses_of(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Where a host's name leads, as this machine sees it; empty if nowhere."""
    try:
        return [_plain(ipaddress.ip_address(host.partition("%")[0]))]
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [_plain(ipaddress.ip_address(str(entry[4][0]).partition("%")[0])) for entry in found]


def is_loopback(host: str) -> bool:
    """Whether an interface's address or name is reached from this machine only."""
    try:
        return _plain(ipaddress.ip_address(host.partition("%")[0])).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IPv4 address that is written as IPv6, or reached through a gateway, as what it is."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def never_reached(host: str, where: str) -> None:
    """Refuse addresses that no model server has and that give away a machine's credentials.

    Raises:
        ServiceFault: 403, if the host is one of them.
    """
    reserved = host in _METADATA_NAMES or any(
        any(address in network for network in _METADATA_RANGES)
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        for address in addresses_of(host)
    )
    if reserved:
        raise _refused(f"{where}: no request is sent to link-local or metadata addresses ({host})")


def matches(host: str, port: int, patterns: Iterable[str]) -> bool:
    """Whether a host is one of those written down; see `Allowed.policy_hosts`."""
    return any(_matches(host, port, pattern.lower()) for pattern in patterns)


def _matches(host: str, port: int, pattern: str) -> bool:
    if pattern == ANY:
        return True
    if pattern == LOOPBACK:
        return is_loopback(host)
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    if "/" in pattern:
        network = ipaddress.ip_network(pattern, strict=False)
        found = addresses_of(host)
        return bool(found) and all(address in network for address in found)
    return pattern in (host, f"{host}:{port}", f"[{host}]:{port}", f"[{host}]")


def path_parameters(env_id: str) -> dict[str, Any]:
    """Parameters of an env that may name a file, as its constructor declares them, by default."""
    return {
        parameter.name: parameter.default
        for parameter in constructor_parameters(env_id)
        if re.search(r"\bPath(Like)?\b", str(parameter.annotation))
    }


def constructor_parameters(env_id: str) -> list[inspect.Parameter]:
    """The parameters of an env's constructor.

    Raises:
        ConfigError: If there is no such env.
    """
    creator = _creator(env_id)
    if creator is None:
        return []
    allowed = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(creator).parameters.values()
    return [parameter for parameter in parameters if parameter.kind in allowed]


def about(env_id: str) -> str:
    """An env in one line, as its class says."""
    return (inspect.getdoc(_creator(env_id)) or "").partition("\n")[0]


def _creator(env_id: str) -> Any:
    EnvSource(env_id)  # imports the module that registers it, if that is said
    entry = gymnasium.spec(env_id.rpartition(":")[2]).entry_point
    return load_env_creator(entry) if isinstance(entry, str) else entry


def _largest(value: Any) -> float:
    """The largest number in a parameter."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return 0
    return max(map(_largest, value), default=0)


def names_code(value: Any) -> bool:
    """Whether a parameter, or something inside it, may be read as `module:name` and imported."""
    if isinstance(value, str):
        return _IMPORT.fullmatch(value) is not None
    if isinstance(value, Mapping):
        return "predicate" in value or any(map(names_code, value.values()))
    if isinstance(value, list | tuple):
        return any(map(names_code, value))
    return False
