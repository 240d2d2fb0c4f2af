"""Gymnasium spaces as JSON, for environments whose observations and actions aren't messages.

Gymnasium can write samples of a space as JSON, but not the space itself. The usual ones are
described here, so that a client can rebuild them; any other is named, and its client has to know
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from agentgym.errors import ActionError, ConfigError
from agentgym.remote.wire import strict_json

_BOUNDS = ("low", "high")


def described(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """A space as JSON: its kind under `type`, and the arguments that make it again."""
    kind = {"type": type(space).__name__}
    match space:
        case spaces.Discrete():
            return {**kind, "n": int(space.n), "start": int(space.start)}
        case spaces.Box():
            bounds = {"low": _bound(space.low), "high": _bound(space.high)}
            return {**kind, **bounds, "shape": list(space.shape), "dtype": str(space.dtype)}
        case spaces.MultiBinary():
            return {**kind, "n": list(space.shape)}
        case spaces.MultiDiscrete():
            return {**kind, "nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case spaces.Text():
            lengths = {"min_length": space.min_length, "max_length": space.max_length}
            return {**kind, **lengths, "charset": "".join(sorted(space.character_set))}
        case spaces.Tuple():
            return {**kind, "spaces": [described(part) for part in space.spaces]}
        case spaces.Dict():
            return {**kind, "spaces": {key: described(part) for key, part in space.spaces.items()}}
    return kind


def _bound(bound: np.ndarray[Any, Any]) -> Any:
    """A box's bound as JSON; one number where all are the same, as in every picture."""
    first = bound.flat[0] if bound.size else None
    return strict_json(first if first is not None and (bound == first).all() else bound)


def rebuilt(description: Mapping[str, Any]) -> gymnasium.Space[Any]:
    """The space of a description.

    Raises:
        ConfigError: If it is of a kind that can't be described.
    """
    given = dict(description)
    match given.pop("type", None):
        case "Discrete":
            return spaces.Discrete(**given)
        case "Box":
            dtype: Any = np.dtype(given["dtype"])
            shape = tuple(given["shape"])
            low, high = (
                np.broadcast_to(np.asarray(given[end], dtype=dtype), shape) for end in _BOUNDS
            )
            return spaces.Box(low=low, high=high, shape=shape, dtype=dtype)
        case "MultiBinary":
            return spaces.MultiBinary(given["n"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(given["nvec"], start=given["start"])
        case "Text":
            return spaces.Text(**given)
        case "Tuple":
            return spaces.Tuple([rebuilt(part) for part in given["spaces"]])
        case "Dict":
            return spaces.Dict({key: rebuilt(part) for key, part in given["spaces"].items()})
    raise ConfigError(
        f"the env has a space of kind {description.get('type')!r:.60}, which a remote client can't "
        "rebuild; there are Discrete, Box, MultiBinary, MultiDiscrete, Text, Tuple and Dict"
    )


def to_wire(space: gymnasium.Space[Any], sample: Any) -> Any:
    """One sample as strict JSON, nested as the space is."""
    match space:
        case spaces.Tuple():
            return [to_wire(*pair) for pair in zip(space.spaces, sample, strict=True)]
        case spaces.Dict():
            return {key: to_wire(part, sample[key]) for key, part in space.spaces.items()}
    return strict_json(space.to_jsonable([sample])[0])


def from_wire(space: gymnasium.Space[Any], value: Any) -> Any:
    """One sample back from JSON.

    Raises:
        ActionError: If it would have to be rounded.
        Exception: Whatever the space's own reader stumbles over, if it is none.
    """
    match space:
        case spaces.Tuple():
            return tuple(from_wire(*pair) for pair in zip(space.spaces, value, strict=True))
        case spaces.Dict():
            return {key: from_wire(part, value[key]) for key, part in space.spaces.items()}
    sample = space.from_jsonable([value])[0]
    whole = space.dtype is not None and np.issubdtype(space.dtype, np.integer)
    if whole and not np.array_equal(np.asarray(value), np.asarray(sample)):
        raise ActionError(f"{value!r:.60} are no whole numbers")
    return sample
