"""A program as judge.

A verifier looks at an episode's record: its messages, and its outcome, which the env computed from
its own state, out of the policy's reach. It is as strict with itself as with a model: a crash is a
failed judgement, and so is a value that is no number in range.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
from pydantic import ValidationError

from agentgym.errors import ConfigError, JudgeError
from agentgym.judge import Score
from agentgym.threads import in_thread
from agentgym.types import Episode, in_one_line

Finding: TypeAlias = bool | float | Score | Mapping[str, Any]
"""What a verifier's function may say: solved or not; a number; a score or its fields (`total` and
so on); or named components, whose mean is the total."""


class Verifier:
    """Scores episodes by a function.

    Args:
        function: Takes an episode; plain or async.
        name: Of its component in the verdict; the function's own name by default.
        low: The least total it may give.
        high: The greatest.
        in_thread: Whether to run a plain function in a thread, because it takes long or blocks.

    Raises:
        ConfigError: If the function can't be called, or the range is none.

    Examples:
        >>> bought = Verifier(lambda episode: episode.outcome["bought"] == "B07X", name="bought")
    """

    def __init__(
        self,
        function: Callable[[Episode], Finding | Awaitable[Finding]],
        *,
        name: str | None = None,
        low: float = 0.0,
        high: float = 1.0,
        in_thread: bool = False,
    ) -> None:
        if not callable(function):
            raise ConfigError(f"a verifier needs a function of the episode, got {function!r:.100}")
        self.name = name or _name_of(function)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(
                f"verifier {self.name!r}: low must be less than high, got {low}, {high}"
            )
        self._function = function
        self._in_thread = in_thread
        self.low, self.highest = low, high
        self.inline = not in_thread and not _is_async(function)

    def __repr__(self) -> str:
        return f"Verifier({self.name!r})"

    async def score(self, episode: Episode) -> Score:
        """Score one episode; see `Judge.score`.

        Raises:
            JudgeError: If the function crashed or gave no number in range.
        """
        try:
            found: Any
            if self._in_thread:
                found = await in_thread(lambda: self._function(episode))
            else:
                found = self._function(episode)
            if inspect.isawaitable(found):
                found = await found
        except JudgeError:
            raise
        except (Exception, SystemExit) as error:  # grading scripts end with sys.exit
            raise JudgeError(
                f"verifier {self.name!r} crashed: {type(error).__name__}: {error}"
            ) from error
        score = self._as_score(found)
        if not self.low <= score.total <= self.highest:
            raise JudgeError(
                f"verifier {self.name!r} gave {score.total:g}; allowed are {self.low:g} to "
                f"{self.highest:g}"
            )
        return score

    def _as_score(self, found: Any) -> Score:
        try:
            if isinstance(found, Score):
                return found
            if isinstance(found, bool | np.bool_):
                solved = float(found)
                return Score(total=solved, components={self.name: solved}, correct=bool(found))
            if isinstance(found, Real):
                return Score(total=float(found), components={self.name: float(found)})
            if isinstance(found, Mapping) and "total" in found:
                return Score.model_validate(dict(found))
            if isinstance(found, Mapping) and found:
                parts = {name: float(value) for name, value in found.items()}
                return Score(total=math.fsum(parts.values()) / len(parts), components=parts)
        except ValidationError as error:
            raise JudgeError(f"verifier {self.name!r}: {in_one_line(error)}") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise JudgeError(f"verifier {self.name!r} gave {found!r:.100}: {error}") from error
        raise JudgeError(
            f"verifier {self.name!r} gave {found!r:.100}; it must give a bool, a number, a Score "
            "or a mapping of components to numbers"
        )


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", "")
    return name if name and name != "<lambda>" else "verified"


def _is_async(function: Any) -> bool:
    is_coroutine = inspect.iscoroutinefunction
    return is_coroutine(function) or is_coroutine(getattr(type(function), "__call__", None))  # noqa: B004
