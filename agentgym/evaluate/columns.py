"""Columns: the systems that an evaluation plays side by side.

A column is one of the env's own policies, or a model behind an endpoint: the policy in training by
its server, a checkpoint, a hosted model that nobody here could train. They come from flags or from
a TOML file with one table per column, whose fields are those of an endpoint (docs/endpoints.md):

    [columns.rule]
    policy = "rule"

    [columns.before]
    base_url = "http://localhost:8000/v1"
    model = "my-policy"
    sampling = {temperature = 1.0, max_tokens = 512}

    [columns.large]
    kind = "baseline"
    base_url = "https://api.deepinfra.com/v1/openai"
    model = "zai-org/GLM-5.1"
    api_key_env = "DEEPINFRA_API_KEY"
    prices = {input = 1.05, cached = 0.205, output = 3.50}
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from agentgym.client import Endpoint, SamplingParams, public_url
from agentgym.errors import ConfigError, unknown_name
from agentgym.evaluate.result import ColumnKind
from agentgym.roles import read_policy
from agentgym.types import Record, in_one_line

_PLAIN_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_STEM = 100  # characters, of the 255 that a file's name may have
_ANSWERS_DEPEND_ON = ("model", "dialect", "extra_body", "tokens")


class ColumnSpec(Record):
    """One system to play."""

    name: str = Field(min_length=1)
    """What it is called in tables."""
    kind: ColumnKind = "policy"
    """`policy`, `baseline` or `scripted`."""
    policy: str | None = None
    """One of the env's own policies, such as `random`; None for a model."""
    servers: tuple[Endpoint, ...] = ()
    """Where the model is: one server, or several of the same weights."""
    sampling: SamplingParams = SamplingParams()
    """How it samples; each turn's seed follows from the episode's."""

    @model_validator(mode="after")
    def _is_one_system(self) -> ColumnSpec:
        if (self.policy is None) == (not self.servers):
            raise ValueError("name either a policy or the servers of a model")
        return self

    @property
    def model(self) -> str | None:
        """The model's name; None for a scripted policy."""
        return self.servers[0].model if self.servers else None

    @property
    def file_stem(self) -> str:
        """The name as part of a file's name."""
        return file_stem(self.name)

    def identity(self) -> dict[str, Any]:
        """What its answers depend on: no prices, no limits, nothing secret."""
        if not self.servers:
            return {"policy": self.policy}
        public = self.servers[0].public()
        facts = {name: public.get(name) for name in _ANSWERS_DEPEND_ON}
        urls = sorted(public_url(server.base_url) for server in self.servers)
        return {**facts, "urls": urls, "sampling": self.sampling.model_dump(mode="json")}


def file_stem(name: str) -> str:
    """A column's name as part of a file's name."""
    return _PLAIN_NAME.sub("_", name)[:_LONGEST_STEM].strip("._") or "column"


def file_stems(names: Sequence[str]) -> list[str]:
    """The same for several columns, no two alike: `a/b` and `a_b` would be one."""
    found: list[str] = []
    for name in names:
        stem = own = file_stem(name)
        number = 2
        while own.casefold() in map(str.casefold, found):  # as some file systems see it
            own, number = f"{stem}-{number}", number + 1
        found.append(own)
    return found


def scripted_column(name: str) -> ColumnSpec:
    """One of the env's own policies, under its own name."""
    return ColumnSpec(name=name, kind="scripted", policy=name)


def model_column(text: str, *, sampling: SamplingParams, **fields: Any) -> ColumnSpec:
    """A model from `[NAME=]MODEL@URL`; several URLs, with commas, are servers of one model.

    Args:
        text: As the command line has it.
        sampling: How it samples.
        **fields: Further fields of its endpoint.

    Raises:
        ConfigError: If it can't be read so.
    """
    left, at, urls = text.partition("@http")
    if not (left and at):
        raise ConfigError(
            f"--model {text!r}: expected [NAME=]MODEL@URL, such as my-policy@http://localhost:8000/v1"
        )
    name, equals, model = left.partition("=")
    servers = read_policy(
        {**fields, "model": model if equals else left, "base_url": f"http{urls}".split(",")},
        where=f"--model {name}",
    )
    return ColumnSpec(name=name or left, servers=servers, sampling=sampling)


def read_columns(
    path: str | os.PathLike[str], *, sampling: SamplingParams
) -> tuple[list[ColumnSpec], dict[str, Any]]:
    """The columns of a TOML file, and its tables for the env's own models.

    Args:
        path: With a table `[columns.NAME]` each, and `[simulator]` and `[judge]` where wanted.
        sampling: How models sample that don't say it themselves.

    Raises:
        ConfigError: If it can't be read, or something in it isn't allowed; one line.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    columns = tables.pop("columns", None)
    for name in tables:
        if name not in ("simulator", "judge"):
            known = ("columns", "simulator", "judge")
            raise ConfigError(f"{path}: {unknown_name('table', name, known)}")
    if not isinstance(columns, Mapping) or not columns:
        raise ConfigError(f"{path} has no column; add a table [columns.NAME]")
    found = [
        _read_column(n, v, sampling, where=f"{path}: [columns.{n}]") for n, v in columns.items()
    ]
    return found, tables


def _read_column(name: str, values: Any, sampling: SamplingParams, *, where: str) -> ColumnSpec:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a table")
    fields = dict(values)
    own = fields.pop("sampling", {})
    kind = fields.pop("kind", None)
    policy = fields.pop("policy", None)
    if policy is not None and fields:
        raise ConfigError(f"{where}: a policy of the env's has no {', '.join(sorted(fields))}")
    try:
        if policy is not None:
            return ColumnSpec(name=name, kind=kind or "scripted", policy=policy)
        merged = {**sampling.model_dump(exclude_unset=True), **own}
        return ColumnSpec(
            name=name,
            kind=kind or "policy",
            servers=read_policy(fields, where=where),
            sampling=SamplingParams.model_validate(merged),
        )
    except ValidationError as error:
        raise ConfigError(f"{where}: {in_one_line(error)}") from error


def check_names(columns: Iterable[ColumnSpec]) -> None:
    """See that every column has a name of its own.

    Raises:
        ConfigError: If two have the same.
    """
    for name, count in Counter(column.name for column in columns).items():
        if count > 1:
            raise ConfigError(
                f"{count} columns are called {name!r}; name them: --model NAME=MODEL@URL, or "
                "tables [columns.NAME] in a file"
            )
