"""Every error agentgym raises, one class per boundary.

A caller catches the boundary it can do something about: `EndpointError` to wait and retry,
`ConfigError` to mend a file, `ResetNeeded` to call `reset`. All share `AgentGymError`, so a program
can print one clear line for any of them and keep tracebacks for real bugs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentgym.types import Usage


class AgentGymError(Exception):
    """Base of every error raised on purpose by agentgym."""


class ConfigError(AgentGymError, ValueError):
    """A parameter, config field or file value is not allowed; the message says what is."""


class DataError(AgentGymError, ValueError):
    """A data file is missing or malformed; the message names file, record and field."""


class UnknownTaskError(ConfigError, KeyError):
    """No task of that id or split; the message says which exist."""

    __str__ = Exception.__str__


class ActionError(AgentGymError, TypeError):
    """The action is not an assistant message at all: a fault of the caller, not of the policy."""


class ResetNeeded(AgentGymError, RuntimeError):
    """`step` was called before `reset`, after the end of an episode, or after `close`."""


class EnvFault(AgentGymError, RuntimeError):
    """The environment itself broke (a tool crashed); the episode has no reward."""


class ToolError(AgentGymError):
    """Raised by a tool to answer the model with an error message; the episode goes on."""


class MalformedCall(AgentGymError):
    """The policy's call can't be read; the text tells the policy how to mend it."""


class SimulatorError(AgentGymError):
    """A user or tool simulator failed; the episode is masked with failure class `simulator`."""


class SimulatorAbort(SimulatorError):
    """A simulator gave up its part; the episode is truncated as `simulator_abort` and masked."""


class JudgeError(AgentGymError):
    """A judge could not score an episode; the episode is masked with failure class `judge`."""


class JudgeTruncated(JudgeError):
    """A judge's reply was ended by the output limit, before or in its verdict."""


class JudgeRefused(JudgeError):
    """A judge's model, or its provider's filter, refused to rate the episode."""


class EndpointError(AgentGymError):
    """A model endpoint failed to answer.

    Args:
        message: What happened, with the endpoint's base URL and model.
        retryable: Whether the same request may succeed later (time-outs, 429, 5xx).
        status: The HTTP status, if there was one.
        usage: Tokens that were billed all the same, if the endpoint said so.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        status: int | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.status = status
        self.usage = usage

    def __reduce__(self) -> tuple[Any, ...]:
        return _error_again, (type(self), self.args, self.__dict__)  # from other processes

    @property
    def refuses_caller(self) -> bool:
        """Whether no further call will fare better: wrong key, no credit, budget used up."""
        return self.status in (401, 402)


def _error_again(
    kind: type[EndpointError], args: tuple[Any, ...], facts: dict[str, Any]
) -> EndpointError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class ContextOverflow(EndpointError):
    """The conversation no longer fits the model's context; the episode is truncated, not failed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False, status=400)


class EmptyReply(EndpointError):
    """An endpoint keeps answering without an answer in it, after all retries."""


class BudgetExceeded(EndpointError):
    """The call might cost more than is left of the endpoint's budget, so it was not sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False, status=402)


class ReplayMiss(EndpointError):
    """A recording has no answer to the request; the message names episode and request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class TraceError(AgentGymError):
    """A trace file can't be read or written."""


class RolloutStopped(AgentGymError, RuntimeError):
    """A batch was stopped because abnormally many of its episodes failed, whatever the policy."""


class BudgetStop(RolloutStopped):
    """A run ended since its budget is used up; what was done and what wasn't is in `status`.

    Args:
        message: What is spent, of what, and what was not played.
        status: A `agentgym.rollout.BudgetStatus`; None where only the message is known.
    """

    def __init__(self, message: str, status: Any = None) -> None:
        super().__init__(message)
        self.status = status


class MissingExtraError(AgentGymError, ImportError):
    """An optional dependency is not installed; the message gives the install command."""


class TrainingError(AgentGymError, RuntimeError):
    """A training run can't start or must stop (stale sampler weights, no signal, bad rows)."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """One line about a name that isn't known, with the likeliest one meant."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
    return f"unknown {what} {name!r}; {hint}"
