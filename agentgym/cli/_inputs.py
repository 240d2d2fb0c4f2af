"""What users type, checked, with one line for what is wrong with it."""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from agentgym.client import Endpoint, Role
from agentgym.durable import write_whole
from agentgym.errors import ConfigError

T = TypeVar("T")


def key_values(pairs: Iterable[str]) -> dict[str, Any]:
    """Read `KEY=VALUE` pairs; a value is JSON if it can be read as such, else text.

    Raises:
        ConfigError: If there is no `=`, or a key comes twice.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"expected KEY=VALUE, got {pair!r}")
        if key in found:
            raise ConfigError(f"{key} is given twice")
        try:
            found[key] = json.loads(text, parse_constant=_no_number)
        except (ValueError, RecursionError):
            found[key] = text
    return found


def _no_number(name: str) -> Any:
    """NaN and the infinities are no JSON; they stay text, which a numeric parameter refuses."""
    raise ValueError(name)


def checked(make: Callable[..., T], **fields: Any) -> T:
    """Make a config from those fields that are not None.

    Raises:
        ConfigError: If pydantic refuses a field; the text names the field and the value.
    """
    try:
        return make(**{key: value for key, value in fields.items() if value is not None})
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"])
        text = fault["msg"].removeprefix("Value error, ")
        if fault["type"] != "value_error":  # ours say themselves what they got
            text += f" (got {fault['input']!r})"
        raise ConfigError(f"{field}: {text}") from error


def fresh_folder(what: str) -> Path:
    """A name for a run's folder that no other run has, after an env id or a command."""
    name = what.rpartition("/")[2].lower()
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{name}-{stamp}-{secrets.token_hex(2)}"


def make_folder(path: Path) -> None:
    """Make a folder if it is missing.

    Raises:
        ConfigError: If it can't be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"can't make the folder {path}: {error.strerror or error}") from error


def write_json(path: Path, text: str) -> None:
    """Replace a file as a whole, so that nobody ever reads half of it; make its folder if missing.

    Raises:
        ConfigError: If it can't be written.
    """
    try:
        write_whole(path, text + "\n")
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error.strerror or error}") from error


def one_endpoint(args: argparse.Namespace, role: Role, *, who: str, **fields: Any) -> Endpoint:
    """The endpoint of the one role that a command asks, from --base-url and --model or --roles.

    Args:
        args: With `base_url`, `model`, `api_key_env` and `roles`.
        role: Which.
        who: What it does, for the error ("judges").
        **fields: Further fields of an endpoint that the flags name.

    Raises:
        ConfigError: If it is named twice or not at all.
    """
    from agentgym.roles import Roles

    if args.roles and (args.base_url or args.model or args.api_key_env):
        raise ConfigError("give either --roles, or --base-url and --model")
    if args.roles:
        found: Endpoint | None = getattr(Roles.from_toml(args.roles), role)
        if found is None:
            raise ConfigError(
                f"{args.roles} has no [{role}] table; add one with base_url and model"
            )
        return found
    if not (args.base_url and args.model):
        raise ConfigError(
            f"say who {who}: --base-url and --model, or --roles with a [{role}] table"
        )
    return checked(
        Endpoint,
        base_url=args.base_url,
        model=args.model,
        api_key_env=args.api_key_env,
        role=role,
        **fields,
    )
