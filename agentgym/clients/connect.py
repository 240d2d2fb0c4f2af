"""The client of an endpoint: one for the whole process, however often it is asked for.

A hundred copies of an environment may name the same judge. They must share its connections, its
limiter and its budget, or each would lean on the server as if it were alone. So whoever is given an
endpoint asks here for its client and keeps no client of its own. Connections belong to an event
loop and close with it; nobody has to remember to close them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from agentgym.client import Completion, Endpoint, ModelClient, Role, SamplingParams
from agentgym.errors import ConfigError
from agentgym.roles import read_endpoint
from agentgym.types import Message, ToolSpec

if TYPE_CHECKING:
    from agentgym.clients.chat import ChatClient

EndpointLike: TypeAlias = Endpoint | Mapping[str, Any] | ModelClient
"""What stands for a model in an environment's parameters."""

ClientMaker: TypeAlias = Callable[[Endpoint], ModelClient]

_shared: dict[str, SharedClient] = {}
_lock = threading.Lock()


def connect(endpoint: EndpointLike, *, role: Role | None = None) -> ModelClient:
    """The process's client of an endpoint; equal endpoints have the same one.

    Args:
        endpoint: An `Endpoint`, a mapping with its fields, or a client, which is given back as is.
        role: What the endpoint is used for, where it doesn't say so itself.

    Raises:
        ConfigError: If it is none of these, a field is not allowed, or no request can be sent to
            the URL.
    """
    if isinstance(endpoint, Mapping):
        endpoint = read_endpoint(
            {"role": role, **endpoint} if role else endpoint, where=role or "endpoint"
        )
    elif isinstance(endpoint, Endpoint):
        if role is not None and "role" not in endpoint.model_fields_set:
            endpoint = endpoint.model_copy(update={"role": role})
    elif isinstance(endpoint, ModelClient):
        return endpoint
    else:
        raise ConfigError(
            f"{role or 'endpoint'}: expected an Endpoint, a mapping with base_url and model, or a "
            f"client with complete(), got a {type(endpoint).__name__}"
        )
    maker, _ = _maker.get()
    return maker(endpoint)


def shared_client(endpoint: Endpoint) -> SharedClient:
    """The process's client of an endpoint, whatever `connecting_by` says."""
    key = endpoint.model_dump_json()
    with _lock:
        if key not in _shared:
            from agentgym.clients.chat import ChatClient

            _shared[key] = SharedClient(ChatClient(endpoint))
        return _shared[key]


_maker: ContextVar[tuple[ClientMaker, bool]] = ContextVar(
    "agentgym_connect", default=(shared_client, True)
)


@contextmanager
def connecting_by(maker: ClientMaker, *, asks_servers: bool = True) -> Iterator[None]:
    """Have `connect` give out other clients inside the block: recording ones, or a replay.

    Args:
        maker: Makes the client of an endpoint; `shared_client` gives it the real one.
        asks_servers: Whether those clients send anything, and so need keys.
    """
    token = _maker.set((maker, asks_servers))
    try:
        yield
    finally:
        _maker.reset(token)


def connects_directly() -> bool:
    """Whether `connect` gives out the process's own clients: no recording, no replay."""
    return _maker.get()[0] is shared_client


def connects_to_servers() -> bool:
    """Whether `connect` gives out clients that ask servers, rather than play a recording."""
    return _maker.get()[1]


class SharedClient:
    """A `ChatClient` that many use and nobody owns.

    Args:
        client: Where the calls go.
    """

    def __init__(self, client: ChatClient) -> None:
        self._client = client

    @property
    def endpoint(self) -> Endpoint:
        """Where the calls go."""
        return self._client.endpoint

    def __repr__(self) -> str:
        return f"SharedClient({self._client!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedClient:
        return self  # Gymnasium copies what an environment is made of

    def __reduce__(self) -> tuple[Any, ...]:
        return connect, (self.endpoint,)  # in another process: that one's client

    def limit_to(self, requests: int) -> None:
        """Allow fewer requests at once than the endpoint does, where others ask it, too.

        Args:
            requests: At least 1.
        """
        self._client.limiter.resize(requests)

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        *,
        session: str | None = None,
    ) -> Completion:
        """Answer the conversation; see `ModelClient.complete`."""
        return await self._client.complete(messages, tools, sampling, session=session)

    async def preflight(self, tools: Sequence[ToolSpec] = ()) -> None:
        """Make one tiny request to see that endpoint, key and model are right.

        Raises:
            EndpointError: If they are not; one line that says why.
        """
        await self._client.preflight(tools)

    def spent_before(self, usd: float) -> None:
        """Count on the budget what was spent elsewhere, in dollars."""
        self._client.spent_before(usd)

    async def release(self, session: str) -> None:
        """Forget a session."""
        await self._client.release(session)

    async def aclose(self) -> None:
        """Nothing: others use the client too, and its connections close with their loop."""
