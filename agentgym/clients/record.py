"""Record what models answered, so that a run can be had again without them.

Hosted models give no answer twice. A recording does: each call is kept with the episode it was made
for (`agentgym.naming`) and the request, not with its place in time, so it is found again whatever
the order in which episodes advance, and however many of them at once. One file holds every role.

A line is one call. A conversation's messages are kept once and referred to by their hashes
afterwards, or the tenth turn would repeat the nine before it. A line is appended whole, when the
call is over; what a kill leaves behind is at most one torn line.

A run that goes on with a recording asks only for what isn't in it (`known`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.client import Completion, Endpoint, ModelClient, Role, SamplingParams
from agentgym.clients.connect import connecting_by, shared_client
from agentgym.clients.known import Known, KnownCalls, check_is_recording
from agentgym.durable import LineFile
from agentgym.errors import EndpointError, TraceError
from agentgym.metering import Meter, charge, metered, report_refusal
from agentgym.naming import episode_name
from agentgym.redaction import Redactor
from agentgym.types import Message, ToolSpec, Usage

VERSION = 1
"""Of the file's lines; goes up when an older reader would misread a newer line."""
VERSION_WITH_REPLACED = 2
"""Of lines whose call was made instead of ones that failed, which a replay must leave out."""


def canonical(value: Any) -> str:
    """A JSON value as text, the same for equal values; any string has such a form."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(text: str) -> str:
    """A short name for a text."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Request:
    """One call's question, as recordings know it."""

    messages: tuple[str, ...]
    """Hashes of the messages, in order."""
    tools: tuple[str, ...]
    """Hashes of the tools, in order."""
    sampling: dict[str, Any]
    """What differs from the defaults of `SamplingParams`."""
    parts: dict[str, Any]
    """Hash to message or tool."""

    @classmethod
    def of(
        cls,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        redact: Redactor,
    ) -> Request:
        """Take a request in, before anybody changes its messages.

        Requests that differ in secrets only are equal, so a recording without them still answers.
        """
        parts: dict[str, Any] = {}

        def named(items: Sequence[Any]) -> tuple[str, ...]:
            texts = [redact(canonical(item)) for item in items]
            parts.update({digest(text): text for text in texts})
            return tuple(map(digest, texts))

        names = named(messages), named(tools)
        values = {name: json.loads(text) for name, text in parts.items()}
        return cls(*names, sampling.model_dump(mode="json", exclude_defaults=True), values)

    @property
    def key(self) -> str:
        """The same for equal requests."""
        return digest(canonical([self.messages, self.tools, self.sampling]))


class Recording:
    """A file that calls are appended to, from any thread.

    Args:
        path: The file; it and its folder are made if missing. What it holds already stays, and
            is superseded episode by episode.
        secrets: Values that must not reach the disk, beside the endpoints' and those that
            `agentgym.redaction` knows of itself; the `Replay` has to be given them too.
        known: What the file holds of episodes that are gone on with. Their calls are answered from
            it as far as it goes, and the new ones follow; None begins every episode anew.

    Raises:
        DataError: If the file is there and no recording.
        TraceError: If the file can't be opened for appending.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        secrets: Iterable[str] = (),
        known: KnownCalls | None = None,
    ) -> None:
        self.path = Path(path)
        self._known = known
        self._run = _fresh_run()
        self.redact = Redactor(secrets)
        self._lock = threading.Lock()
        self._made: dict[str, Counter[str]] = {}
        self._written: set[str] = set()
        check_is_recording(self.path)
        self._file = LineFile(self.path)

    def __deepcopy__(self, memo: dict[int, Any]) -> Recording:
        return self

    def hide(self, endpoint: Endpoint) -> None:
        """Keep an endpoint's key and password out of the file."""
        with self._lock:
            hide(endpoint, self.redact)

    def number(self, role: str, episode: str) -> int:
        """The place of a call that begins now among the role's calls of the episode, from 0."""
        with self._lock:
            made = self._made_for(episode)
            made[role] += 1
            return made[role] - 1

    def calls(self, episode: str) -> dict[str, int]:
        """By role, how many calls of an episode have been made so far, in earlier runs too."""
        with self._lock:
            return dict(self._made_for(episode))

    def _made_for(self, episode: str) -> Counter[str]:
        made = self._made.get(episode)
        if made is None:
            before = self._known.made_for(episode) if self._known is not None else {}
            made = self._made[episode] = Counter(before)
        return made

    def known(self, role: str, episode: str, request: Request, model: str | None) -> Known | None:
        """The answer that the file holds already, given once; None if the call must be made."""
        with self._lock:
            if self._known is None:
                return None
            return self._known.take(role, episode, request.key, model)

    def replaced(self, role: str, episode: str, request: Request) -> tuple[int, ...]:
        """The failed calls that one is made instead of; what they cost is charged."""
        if self._known is None:
            return ()
        with self._lock:
            places, spent = self._known.failed(role, episode, request.key)
        _charge(spent)
        return places

    def charge_left_over(self, episode: str) -> None:
        """Charge what an episode's turns cost before it was cut, as far as nobody was yet."""
        if self._known is not None:
            with self._lock:
                spent = self._known.left_over(episode, besides="judge")
            _charge(spent)

    def write(self, request: Request, entry: Mapping[str, Any]) -> None:
        """Append one call; when this returns, it is in the file.

        Raises:
            TraceError: If it can't be written; the file then holds what it held.
        """
        with self._lock:
            fresh = {k: part for k, part in request.parts.items() if k not in self._written}
            before = self._known.run_of(entry["role"], entry["episode"]) if self._known else None
            line = canonical(
                {
                    "recording": VERSION_WITH_REPLACED if entry.get("instead_of") else VERSION,
                    "run": before or self._run,
                    "request": request.key,
                    "messages": request.messages,
                    "tools": request.tools,
                    "sampling": request.sampling,
                    "parts": fresh,
                    **entry,
                }
            )
            self._file.append(f"{self.redact(line)}\n".encode())
            self._written.update(fresh)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class RecordingClient:
    """Passes calls on and records what came of them, failures included.

    Args:
        client: Where the calls go.
        recording: The file, or its path; a path's file is closed with this client.
        role: What the client is used for; by default, its endpoint's role.

    Raises:
        TraceError: If the file can't be opened for appending.
    """

    def __init__(
        self,
        client: ModelClient,
        recording: Recording | str | os.PathLike[str],
        *,
        role: Role | None = None,
    ) -> None:
        self._client = client
        self._owns_file = not isinstance(recording, Recording)
        self._recording = recording if isinstance(recording, Recording) else Recording(recording)
        endpoint = getattr(client, "endpoint", None)
        self._endpoint: Endpoint | None = endpoint if isinstance(endpoint, Endpoint) else None
        if self._endpoint is not None:
            self._recording.hide(self._endpoint)
        self.role: Role = role or (self._endpoint.role if self._endpoint else "policy")
        if (status := getattr(client, "status", None)) is not None:
            self.status = status  # of a policy's servers, for whoever watches

    def __repr__(self) -> str:
        return f"RecordingClient({self._client!r}, {str(self._recording.path)!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordingClient:
        return self

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        *,
        session: str | None = None,
    ) -> Completion:
        """Answer the conversation; see `ModelClient.complete`.

        Raises:
            TraceError: If the answer can't be recorded.
        """
        request = Request.of(messages, tools, sampling, self._recording.redact)
        episode = episode_name() or session or ""
        model = self._endpoint.model if self._endpoint else None
        known = self._recording.known(self.role, episode, request, model)
        if known is not None:
            _charge({self.role: Usage(calls=0), **known.spent})
            return Completion.model_validate(known.completion)
        meter = Meter()
        entry: dict[str, Any] = {
            "role": self.role,
            "episode": episode,
            "k": self._recording.number(self.role, episode),
            "model": model,
        }
        replaced = self._recording.replaced(self.role, episode, request)
        if replaced:
            entry["instead_of"] = replaced
        try:
            with metered(meter):
                completion = await self._client.complete(messages, tools, sampling, session=session)
        except EndpointError as error:
            entry["error"] = _error_fields(error)
            raise
        except asyncio.CancelledError:
            entry["unanswered"] = True
            raise
        else:
            entry["completion"] = completion.model_dump(mode="json", exclude_defaults=True)
            return completion
        finally:
            if entry.keys() & {"error", "unanswered", "completion"}:  # anything else is a bug
                spent = {role: usage.model_dump() for role, usage in meter.by_role.items()}
                self._write(request, {**entry, "spent": spent})

    def _write(self, request: Request, entry: Mapping[str, Any]) -> None:
        try:
            self._recording.write(request, entry)
        except TraceError as error:
            report_refusal(self.role, str(error))  # else each further call is paid for and lost
            raise

    def observe(self, session: str, info: Mapping[str, Any]) -> None:
        """Pass on what the env told, to a client that wants to know."""
        observe = getattr(self._client, "observe", None)
        if observe is not None:
            observe(session, info)

    async def preflight(self, tools: Sequence[ToolSpec] = ()) -> None:
        """The client's own preflight, which isn't recorded; nothing if it has none."""
        preflight = getattr(self._client, "preflight", None)
        if preflight is not None:
            await preflight(tools)

    def spent_before(self, usd: float) -> None:
        """The client's own; nothing if it has no budget."""
        spent_before = getattr(self._client, "spent_before", None)
        if spent_before is not None:
            spent_before(usd)

    async def release(self, session: str) -> None:
        """Forget a session; its episode's turns are over."""
        self._recording.charge_left_over(episode_name() or session)
        await self._client.release(session)

    async def aclose(self) -> None:
        """Close the client, and the file if this client opened it."""
        if self._owns_file:
            self._recording.close()
        await self._client.aclose()


@contextmanager
def recording(
    path: str | os.PathLike[str], *, known: KnownCalls | None = None
) -> Iterator[Recording]:
    """Record every endpoint that is connected to inside the block, whatever its role.

    Args:
        path: The file; it is appended to.
        known: What it holds of episodes that are gone on with; see `Recording`.

    Raises:
        TraceError: If it can't be opened for appending.
    """
    with (
        Recording(path, known=known) as file,
        connecting_by(lambda endpoint: RecordingClient(shared_client(endpoint), file)),
    ):
        yield file


def _charge(spent: Mapping[str, Usage]) -> None:
    for role, usage in spent.items():
        charge(role, usage)


def hide(endpoint: Endpoint, redact: Redactor) -> None:
    """Have an endpoint's key and password taken out as well."""
    from agentgym.clients.failures import secrets_of

    redact.add(secrets_of(endpoint))


def _fresh_run() -> str:
    """Tells the calls of one `Recording` from those that the file held before."""
    return secrets.token_hex(4)


def _error_fields(error: EndpointError) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "message": str(error),
        "retryable": error.retryable,
        "status": error.status,
        "usage": error.usage.model_dump() if error.usage else None,
    }
