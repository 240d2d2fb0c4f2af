"""Where environments come from: an id, a spec or a function, and the errors in between."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Number
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from agentgym.client import Endpoint
from agentgym.envs.registration import NAMESPACE
from agentgym.errors import AgentGymError, ConfigError
from agentgym.roles import public_kwargs

EnvLike: TypeAlias = str | EnvSpec | Callable[[], gymnasium.Env[Any, Any]]


class EnvSource:
    """Makes any number of equal environments.

    Args:
        env: A registered id, `module:id` for one that a module registers when it is imported, a
            spec, or a function that makes one.
        env_kwargs: Parameters of the environment; not with a function. An `Endpoint` among them
            stands in `spec_json` without its secrets.

    Raises:
        ConfigError: If there is no such id, its module can't be imported, or a function comes with
            parameters.
    """

    def __init__(self, env: EnvLike, env_kwargs: Mapping[str, Any] | None = None) -> None:
        self._spec: EnvSpec | None = None
        self._function: Callable[[], gymnasium.Env[Any, Any]] | None = None
        self._objects: dict[str, Any] = {}
        if isinstance(env, str | EnvSpec):
            spec = copy.deepcopy(_registered(env) if isinstance(env, str) else env)
            given = {**spec.kwargs, **(env_kwargs or {})}
            # Gymnasium copies a spec's parameters. A client or a judge is to be shared.
            self._objects = {key: value for key, value in given.items() if not _is_plain(value)}
            spec.kwargs = {key: value for key, value in given.items() if _is_plain(value)}
            self._spec = spec
            self.spec_json = _as_json(dataclasses.replace(spec, kwargs=given))
        elif env_kwargs:
            raise ConfigError("env_kwargs go with an env id; let the function pass them itself")
        else:
            self._function = env
            self.spec_json = json.dumps({"entry_point": _name_of(env)})

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        """The environment's parameters; none are known of a function."""
        return {} if self._spec is None else {**self._spec.kwargs, **self._objects}

    def takes(self, name: str) -> bool:
        """Whether the environment has a parameter of that name; a function has none."""
        return self._spec is not None and name in _parameters(self._spec)

    def make(self) -> gymnasium.Env[Any, Any]:
        """Make one environment; this may block.

        Raises:
            ConfigError: If it doesn't take the parameters, or its package is missing.
        """
        if self._function is not None:
            env = self._function()
            if env.spec is not None:
                self.spec_json = _as_json(env.spec)
            return env
        assert self._spec is not None
        try:
            return gymnasium.make(self._spec, disable_env_checker=True, **self._objects)
        except AgentGymError:
            raise
        except gymnasium.error.Error as error:
            raise ConfigError(f"can't make {self._spec.id}: {error}") from error
        except TypeError as error:
            given = [*self._spec.kwargs, *self._objects]
            raise _unknown_parameter(self._spec, given, error) from error


def _parameters(spec: EnvSpec) -> set[str]:
    """Names of the parameters that the env's constructor takes."""
    entry = spec.entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    if creator is None:
        return set()
    return {
        p.name
        for p in inspect.signature(creator).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


def _registered(name: str) -> EnvSpec:
    module, colon, env_id = name.rpartition(":")
    if colon:
        _import(module, env_id)
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        raise ConfigError(_no_such_env(env_id, f" in {module!r}" if colon else "")) from error


def _import(module: str, env_id: str) -> None:
    """Import the module that registers an env, from the current directory if nowhere else.

    The directory then stays on the path, where `python -m` has it and a console script has not:
    the env's entry point is imported later.

    Raises:
        ConfigError: If it can't be imported.
    """
    here = str(Path.cwd())
    try:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if here in sys.path or not f"{module}.".startswith(f"{missing}."):
                raise
            sys.path.insert(0, here)
            importlib.invalidate_caches()
            try:
                importlib.import_module(module)
            except BaseException:
                sys.path.remove(here)
                raise
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"can't import {module!r} for the env {env_id!r}: {why}; "
            "install it, or run this in the folder that it lies in"
        ) from error


def _no_such_env(env_id: str, where: str = "") -> str:
    lowered = {known.lower(): known for known in gymnasium.registry}
    full = env_id if "/" in env_id else f"{NAMESPACE}/{env_id}"
    ours = [known for known in lowered if known.startswith(f"{NAMESPACE}/")]
    # A slip of a letter first, whosever env it is; then one of ours that is meant more vaguely.
    close = difflib.get_close_matches(env_id.lower(), lowered, n=1, cutoff=0.9)
    close = close or difflib.get_close_matches(full.lower(), ours, n=1, cutoff=0.5)
    hint = f"did you mean {lowered[close[0]]!r}? " if close else ""
    return f"no env {env_id!r}{where}; {hint}`agentgym envs` lists all"


def _unknown_parameter(spec: EnvSpec, given: Iterable[str], error: TypeError) -> Exception:
    """A parameter the env doesn't have is the user's slip; any other TypeError is a bug."""
    if spec.entry_point is None:
        return error
    known = _parameters(spec)
    unknown = [key for key in given if key not in known]
    if not unknown:
        return error
    names = ", ".join(repr(key) for key in unknown)
    return ConfigError(f"{spec.id} takes no parameter {names}; it takes {', '.join(sorted(known))}")


def _is_plain(value: Any) -> bool:
    """Whether a parameter is data: copying it makes an equal one."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bytes | Number | PurePath | Endpoint)


def _as_json(spec: EnvSpec) -> str:
    """The spec as JSON; one that has no JSON form keeps its id and a description."""
    spec = dataclasses.replace(spec, kwargs=public_kwargs(spec.kwargs))
    try:
        return str(spec.to_json())
    except (TypeError, ValueError):
        return json.dumps({"id": spec.id, "kwargs": spec.kwargs}, default=repr)


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}:{name}"
