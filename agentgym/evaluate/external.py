"""External scores: what an evaluation reports, computed apart from the training reward.

A reward that is trained on becomes a target: policies find what it pays for and what it means by
accident. A score of the same object would rise with it and show nothing. So an evaluation takes a
score that other code computes from the finished episode, and sees to it that it is another: the
verdict is taken out of the trace before it is scored, and the env's judge refuses to be asked.

An environment ships its score in a module `external` beside the module of its class, as a function
`external_score(env, trace)`. Anybody's own is named as `MODULE:FUNCTION`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from agentgym.core import AgentEnv
from agentgym.errors import ConfigError
from agentgym.evaluate.result import content_hash
from agentgym.judge import Score, Scoring
from agentgym.trace import Trace
from agentgym.types import Episode, Verdict

ScoreFunction: TypeAlias = Callable[[Any, Trace], Any]
"""From an env (for its tasks; `env.choose_task({"task_id": …}).reference` is what solves one) and a
trace without its verdict to a `Score`, a number from 0 to 1 (1 is solved) or a bool."""

FUNCTION = "external_score"
_HIDDEN = "hidden from external scores"
_DEEPEST = 4
"""How far into a judge its parts are looked for."""


class ExternalScore:
    """A score that is known to be no part of the reward.

    Args:
        env: An env of its own, with the parameters of the evaluation; its judge can't be asked
            from then on.
        function: Scores a trace; None takes the one that the env ships.
        name: What it is called; None takes module and function.

    Raises:
        ConfigError: If there is none, or it is the reward's own judge, with the reason.
    """

    def __init__(
        self, env: AgentEnv, function: ScoreFunction | None = None, *, name: str | None = None
    ) -> None:
        if function is None:
            function, name = _shipped(env)
        reason = _why_not(function, env.scoring)
        self.name = name or _name_of(function)
        if reason is not None:
            raise ConfigError(
                f"the score {self.name} is {reason}; a reward that is trained on can't say whether "
                "the policy got better. Give a score that other code computes: --score "
                "MODULE:FUNCTION"
            )
        self._env = env
        self._function = function
        env.scoring = Scoring(judge=_Refusing(self.name), gates=(), reward_range=(-1.0, 1.0))

    @property
    def hash(self) -> str:
        """A hash of the code it is computed by, as far as that can be read.

        That is its module, and the modules beside it that it takes something from; not the env's.
        """
        module = inspect.getmodule(self._function)
        if module is None:
            return content_hash(self.name)
        beside = f"{module.__name__.rpartition('.')[0]}."
        used = {getattr(value, "__module__", None) or "" for value in vars(module).values()}
        used = {name for name in used if beside != "." and name.startswith(beside)}
        names = sorted({module.__name__, *used} - {type(self._env).__module__})
        return content_hash([_source(name) for name in names])

    def __call__(self, trace: Trace) -> Score | None:
        """Score an episode; None where something other than the policy broke it.

        An episode whose judge failed is whole all the same, and has a score.

        Raises:
            ConfigError: If the function gives no score, asks the judge or breaks; one line.
        """
        if trace.failure_class not in (None, "policy", "judge"):
            return None
        blind = trace.model_copy(update={"verdict": _NO_VERDICT})
        try:
            return self._read(self._function(self._env, blind))
        except ConfigError:
            raise
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"the score {self.name} broke on {trace.task_id}: {why}") from error

    def _read(self, given: Any) -> Score:
        if isinstance(given, bool):
            return Score(total=float(given), correct=given)
        if isinstance(given, int | float) and 0 <= given <= 1:  # NaN is not
            return Score(total=float(given), correct=given == 1)
        if isinstance(given, Score) and 0 <= given.total <= 1:
            solved = given.total == 1 if given.correct is None else given.correct
            found: Score = given.model_copy(update={"correct": solved})
            return found
        raise ConfigError(
            f"the score {self.name} gave {given!r:.60}; expected a Score, a bool, or a number from "
            "0 to 1 (the trace that it is given has no verdict and no reward)"
        )


def named_score(text: str) -> ScoreFunction:
    """The function that `MODULE:FUNCTION` names; the current folder is looked in, too.

    Raises:
        ConfigError: If there is none.
    """
    module, colon, function = text.partition(":")
    if not (module and colon and function):
        raise ConfigError(f"--score {text!r}: expected MODULE:FUNCTION, such as my_scores:strict")
    try:
        found = _imported(module)
        for part in function.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise ConfigError(f"--score: {module} has no {function!r}") from error
    except Exception as error:  # whatever a module of somebody else's does when it is imported
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"--score: can't import {module!r}: {why}") from error
    if not callable(found):
        raise ConfigError(f"--score: {text} is no function but a {type(found).__name__}")
    result: ScoreFunction = found
    return result


def _imported(module: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    return importlib.import_module(module)


def _shipped(env: AgentEnv) -> tuple[ScoreFunction, str]:
    """The env's own score, and what it is called."""
    package = type(env).__module__.rpartition(".")[0]
    name = f"{package}.external"
    if package and importlib.util.find_spec(name) is not None:
        function = getattr(importlib.import_module(name), FUNCTION, None)
        if callable(function):
            return function, f"{package.rpartition('.')[2]}/external"
    raise ConfigError(
        f"{type(env).__name__} ships no external score; give one with --score MODULE:FUNCTION, "
        f"or put a function {FUNCTION}(env, trace) into a module `external` in the env's package"
    )


def _source(module: str) -> str:
    """A module's text; its name where there is none to read."""
    try:
        return inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return module


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}:{name}"


# --- that it is no part of the reward -------------------------------------------------------------


def _why_not(function: Any, scoring: Scoring) -> str | None:
    """Why something can't be an external score; None if it can."""
    owner = getattr(function, "__self__", None)
    candidates = [one for one in (function, owner) if one is not None]
    for part in _parts(scoring.judge):
        if any(one is part or one is type(part) for one in candidates):
            return "the judge of the training reward itself"
        if any(isinstance(one, type(part)) for one in candidates):
            return "a judge of the same kind as the training reward's"
    if any(isinstance(one, Scoring | Verdict) for one in candidates):
        return "the training reward itself"
    if any(one is gate or one is gate.tripped for one in candidates for gate in scoring.gates):
        return "a gate of the training reward"
    return None


def _parts(judge: Any, depth: int = 0) -> Iterator[Any]:
    """A judge, and the judges that it is put together from."""
    if callable(getattr(judge, "score", None)) or callable(getattr(judge, "score_group", None)):
        yield judge
    if depth < _DEEPEST:
        for value in getattr(judge, "__dict__", {}).values():
            for item in _items(value):
                if not isinstance(item, str | int | float | type):
                    yield from _parts(item, depth + 1)


def _items(value: Any) -> list[Any]:
    """What is in a container, containers within it opened too; or the value alone."""
    if isinstance(value, dict):
        return [item for inner in value.values() for item in _items(inner)]
    if isinstance(value, list | tuple):
        return [item for inner in value for item in _items(inner)]
    return [value]


class _Refusing:
    """Stands where the judge was."""

    inline = True

    def __init__(self, name: str) -> None:
        self._name = name

    async def score(self, episode: Episode) -> Score:
        raise ConfigError(
            f"the score {self._name} asks the judge of the training reward; it must be computed "
            "apart from it"
        )


_NO_VERDICT = Verdict(masked=True, reward=None, reason=_HIDDEN)
