"""Answer from a recording, offline: the same ids, log-probabilities, usage and failures.

A replay never makes anything up. A request that isn't in the recording is an error that says which
episode asked, for the how-manieth time, and what it asked differently from the nearest one
recorded, because that is what somebody has changed.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentgym.client import Completion, Endpoint, Role, SamplingParams
from agentgym.clients.connect import connecting_by
from agentgym.clients.known import VERSIONS
from agentgym.clients.record import Request, hide
from agentgym.errors import (
    BudgetExceeded,
    ConfigError,
    ContextOverflow,
    DataError,
    EmptyReply,
    EndpointError,
    ReplayMiss,
)
from agentgym.metering import charge, report_refusal
from agentgym.naming import episode_name
from agentgym.redaction import Redactor
from agentgym.types import Message, ToolSpec, Usage, in_one_line

logger = logging.getLogger(__name__)

_PLAIN_ERRORS: dict[str, type[EndpointError]] = {"EmptyReply": EmptyReply}
_ERRORS_WITH_STATUS = {"ContextOverflow": ContextOverflow, "BudgetExceeded": BudgetExceeded}
_FIELDS = frozenset(
    {"run", "role", "episode", "k", "request", "model", "messages", "tools", "sampling"}
    | {"parts", "spent"}
)
_SHOWN = 60  # characters of a message in an error


class Replay:
    """The calls of a recording, to be given out once each.

    Where an episode was recorded more than once, by runs one after the other, the last one counts.

    Args:
        path: A file made by `Recording`.
        secrets: What the `Recording` was given, since a request is looked for without its secrets.

    Raises:
        DataError: If it can't be read or is no recording.
    """

    def __init__(self, path: str | os.PathLike[str], *, secrets: Iterable[str] = ()) -> None:
        self.path = Path(path)
        self.redact = Redactor(secrets)
        self._lock = threading.Lock()
        self._parts: dict[str, Any] = {}
        self._calls: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._asked: Counter[tuple[str, str]] = Counter()
        self._given: Counter[tuple[str, str, str]] = Counter()
        self._read()

    def __deepcopy__(self, memo: dict[int, Any]) -> Replay:
        return self

    @property
    def roles(self) -> frozenset[str]:
        """The roles that were recorded."""
        return frozenset(role for role, _ in self._calls)

    def hide(self, endpoint: Endpoint) -> None:
        """Look for requests without an endpoint's key and password, as they were recorded."""
        with self._lock:
            hide(endpoint, self.redact)

    def take(self, role: str, request: Request, episode: str, model: str | None) -> dict[str, Any]:
        """The recorded call that answers a request.

        Raises:
            ReplayMiss: If there is none, or each was given out already.
        """
        with self._lock:
            number = self._asked[role, episode]
            self._asked[role, episode] += 1
            calls = self._calls.get((role, episode), [])
            equal = [call for call in calls if call["request"] == request.key]
            place = self._given[role, episode, request.key]
            where = f"{self.path}: the {role} of episode {episode!r}, request {number + 1}"
            if place >= len(equal):
                raise ReplayMiss(f"{where}: {self._why_missing(role, request, calls, len(equal))}")
            call = equal[place]
            if model is not None and call["model"] not in (None, model):
                raise ReplayMiss(f"{where}: was answered by {call['model']!r}, and is to {model!r}")
            self._given[role, episode, request.key] += 1
            return call

    # --- inside -------------------------------------------------------------------------------

    def _read(self) -> None:
        runs: dict[tuple[str, str], str] = {}
        try:
            lines = self.path.read_bytes().splitlines()
        except OSError as error:
            raise DataError(f"can't read {self.path}: {error.strerror or error}") from error
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                call = json.loads(line)
            except ValueError:
                logger.warning("%s, line %d is torn and left out", self.path, number)
                continue
            if not isinstance(call, dict) or not (
                call.get("recording") in VERSIONS and call.keys() >= _FIELDS
            ):
                versions = " or ".join(map(str, VERSIONS))
                raise DataError(
                    f"{self.path}, line {number}: not a recorded call of version {versions}"
                )
            self._parts.update(call.pop("parts"))
            key = (call["role"], call["episode"])
            if runs.get(key) != call["run"]:
                runs[key] = call["run"]
                self._calls[key] = []
            if replaced := call.get("instead_of"):  # by a run that went on with this one
                self._calls[key] = [c for c in self._calls[key] if c["k"] not in replaced]
            self._calls[key].append(call)
        for calls in self._calls.values():
            calls.sort(key=lambda call: int(call["k"]))

    def _why_missing(
        self, role: str, request: Request, calls: list[dict[str, Any]], equal: int
    ) -> str:
        if equal:
            times = "once" if equal == 1 else f"{equal} times"
            return f"was recorded {times}, and is asked for again"
        if not calls:
            known = [episode for of, episode in self._calls if of == role]
            if not known:
                return f"nothing is recorded of that role; there are {sorted(self.roles)}"
            return f"nothing is recorded of that episode; there are {len(known)}: {known[:3]}"
        nearest = max(calls, key=lambda call: _likeness(call, request))
        return (
            f"not recorded; the nearest is request {nearest['k'] + 1}, with a difference in "
            f"{_difference(nearest, request, {**self._parts, **request.parts})}"
        )


class ReplayClient:
    """A `ModelClient` that answers from a recording.

    Args:
        replay: The recording, or its path.
        role: Whose calls; by default those of the only role recorded.
        model: The model that must have answered; None takes any.

    Raises:
        DataError: If the file can't be read or is no recording.
        ConfigError: If no role is given and the file has several.
    """

    def __init__(
        self,
        replay: Replay | str | os.PathLike[str],
        *,
        role: Role | None = None,
        model: str | None = None,
    ) -> None:
        self._replay = replay if isinstance(replay, Replay) else Replay(replay)
        if role is None and len(self._replay.roles) > 1:
            raise ConfigError(
                f"{self._replay.path} has {', '.join(sorted(self._replay.roles))}; say which role"
            )
        self.role: str = role or next(iter(self._replay.roles), "policy")
        self._model = model

    def __repr__(self) -> str:
        return f"ReplayClient({str(self._replay.path)!r}, role={self.role!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> ReplayClient:
        return self

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        *,
        session: str | None = None,
    ) -> Completion:
        """Answer as recorded, and charge what it cost then; see `ModelClient.complete`.

        Raises:
            ReplayMiss: If the recording has no answer.
            EndpointError: If the recorded call failed.
        """
        request = Request.of(messages, tools, sampling, self._replay.redact)
        episode = episode_name() or session or ""
        try:
            call = self._replay.take(self.role, request, episode, self._model)
        except ReplayMiss as miss:
            report_refusal(self.role, str(miss))  # else a judge's would only mask an episode
            raise
        for role, usage in call["spent"].items():
            charge(role, Usage(**usage))
        if "completion" not in call:
            raise _error(call)
        try:
            return Completion.model_validate(call["completion"])
        except ValidationError as error:
            raise DataError(f"{self._replay.path}: {in_one_line(error)}") from error

    async def release(self, session: str) -> None:
        """Nothing is kept per session."""

    async def aclose(self) -> None:
        """Nothing is open."""


@contextmanager
def replaying(path: str | os.PathLike[str]) -> Iterator[Replay]:
    """Answer for every endpoint that is connected to inside the block; nothing is sent anywhere.

    Raises:
        DataError: If the file can't be read or is no recording.
    """
    replay = Replay(path)

    def recorded(endpoint: Endpoint) -> ReplayClient:
        replay.hide(endpoint)
        return ReplayClient(replay, role=endpoint.role, model=endpoint.model)

    with connecting_by(recorded, asks_servers=False):
        yield replay


def _error(call: dict[str, Any]) -> EndpointError:
    """What the recorded call raised."""
    if "error" not in call:
        return EndpointError("the recorded call was given up before its answer", retryable=True)
    fields = call["error"]
    if fields["type"] in _ERRORS_WITH_STATUS:
        error: EndpointError = _ERRORS_WITH_STATUS[fields["type"]](fields["message"])
    else:
        error = _PLAIN_ERRORS.get(fields["type"], EndpointError)(
            fields["message"], retryable=fields["retryable"], status=fields["status"]
        )
    error.usage = Usage(**fields["usage"]) if fields["usage"] else None
    return error


# --- what differs -----------------------------------------------------------------------------


def _common(recorded: Sequence[str], asked: Sequence[str]) -> int:
    """How many items two sequences share at their beginning."""
    count = 0
    for one, other in zip(recorded, asked, strict=False):
        if one != other:
            break
        count += 1
    return count


def _likeness(call: dict[str, Any], request: Request) -> tuple[int, int, int]:
    messages = call["messages"]
    return (
        _common(messages, request.messages) - abs(len(messages) - len(request.messages)),
        call["tools"] == list(request.tools),
        call["sampling"] == request.sampling,
    )


def _difference(call: dict[str, Any], request: Request, parts: dict[str, Any]) -> str:
    """What a request has other than a recorded one, in words."""
    found = []
    recorded, asked = call["messages"], request.messages
    same = _common(recorded, asked)
    if same < min(len(recorded), len(asked)):
        found.append(_message_difference(same, parts[recorded[same]], parts[asked[same]]))
    elif len(recorded) != len(asked):
        found.append(f"the number of messages: recorded {len(recorded)}, asked {len(asked)}")
    if call["tools"] != list(request.tools):
        names = [
            ", ".join(str(parts[tool].get("function", {}).get("name")) for tool in tools) or "none"
            for tools in (call["tools"], request.tools)
        ]
        same_names = names[0] == names[1]
        found.append(
            "the tools' schemas"
            if same_names
            else f"the tools: recorded {names[0]}, asked {names[1]}"
        )
    for name in sorted({*call["sampling"], *request.sampling}):
        then, now = call["sampling"].get(name), request.sampling.get(name)
        if then != now:
            found.append(f"sampling.{name}: recorded {then!r:.{_SHOWN}}, asked {now!r:.{_SHOWN}}")
    return "; ".join(found)


def _message_difference(index: int, recorded: Message, asked: Message) -> str:
    field = next(key for key in [*recorded, *asked] if recorded.get(key) != asked.get(key))
    then, now = recorded.get(field), asked.get(field)
    if not (isinstance(then, str) and isinstance(now, str)):
        then, now = (json.dumps(value, ensure_ascii=False) for value in (then, now))
    start = max(0, _common(then, now) - _SHOWN // 3)
    then, now = _excerpt(then, start), _excerpt(now, start)
    return f"message {index + 1} ({asked.get('role')}), {field}: recorded {then}, asked {now}"


def _excerpt(text: str, start: int) -> str:
    """Part of a text, in quotes, with a mark where there is more."""
    end = start + _SHOWN
    shown = f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
    return json.dumps(shown, ensure_ascii=False)
