"""What a training run is, in one frozen record that a TOML file fills.

The fields say what is particular to training on an environment: what is played, in groups of what
size, by a policy that is where, and what is kept and watched. Everything else about the
optimisation is TRL's, set by TRL's own names in the table `[grpo]` and checked before anything is
loaded.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from agentgym.errors import ConfigError, unknown_name
from agentgym.train.algorithms import Algorithm
from agentgym.train.grpo_table import check_names
from agentgym.train.lora import LoraSettings
from agentgym.train.monitors import ALARMS, Thresholds
from agentgym.train.objective import TRUNCATED, CutBy, TruncatedAs
from agentgym.types import Finite, Record


class TrainConfig(Record):
    """A GRPO run on one environment.

    One step plays `tasks_per_step * group_size` episodes, and makes one optimiser step from them.
    """

    env: str
    """Environment id, such as `agentgym/WebShop-v0`."""
    model: str
    """Folder or hub id of the policy; its tokenizer needs a chat template."""
    out: Path
    """Folder for checkpoints, traces, metrics and the trained model (`OUT/model`)."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the environment. `split` is "train" unless given, where the env has splits."""
    roles: Path | None = None
    """TOML file with the environment's models, tables `[simulator]` and `[judge]`; see
    docs/endpoints.md. None leaves the environment its own."""
    steps: int = Field(default=100, ge=1)
    """Training steps."""
    tasks_per_step: int = Field(default=16, ge=1)
    """Tasks in each step, each with a group of its own."""
    group_size: int = Field(default=8, ge=2)
    """Episodes per task, compared with each other; one alone has no baseline."""
    micro_batch: int | None = Field(default=None, ge=1)
    """Episodes per forward and backward pass and process; bounds memory, changes nothing else.
    None is `group_size`."""
    algorithm: Algorithm | None = None
    """Which baseline and loss; see docs/objective.md. None leaves TRL's defaults: GRPO's baseline,
    every token of the step weighing the same."""
    refill: int | None = Field(default=None, ge=0)
    """Rounds in which groups without signal give their place to further tasks. None is 4 with
    `algorithm="dapo"`, else 0."""
    truncated: TruncatedAs | dict[CutBy, TruncatedAs] = Field(default_factory=dict)
    """What an episode cut by a limit is to the optimiser: "train" takes its reward as it is, "mask"
    leaves it out, "floor" gives it the lowest reward. For all limits, or a table by limit
    (`turns`, `tokens`, `context`, `time`); left out: "train", and "mask" for `time`."""
    lora: LoraSettings | None = None
    """Train an adapter instead of all weights."""
    policy_servers: tuple[str, ...] = ()
    """URLs of vLLM servers that sample, such as `http://gpu1:8000`. None: a vLLM in the trainer's
    own process does."""
    policy_model: str | None = None
    """What the servers call the model; None asks them."""
    sync: Literal["folder", "lora", "nccl"] = "folder"
    """How the servers get new weights: "folder", "lora" (the adapter alone) or "nccl"."""
    sync_folder: Path | None = None
    """A folder that trainer and servers share, for weights on their way."""
    service: str | None = None
    """URL of a rollout service that plays the episodes, such as `http://rollouts:8800`; it asks the
    policy servers. None plays them here."""
    learning_rate: Finite = Field(default=1e-6, gt=0)
    """Of AdamW, with TRL's linear decay unless `grpo.lr_scheduler_type` says otherwise."""
    temperature: Finite = Field(default=1.0, gt=0)
    """Of sampling, and of the log-probabilities trained on."""
    max_turn_tokens: int = Field(default=256, ge=1)
    """Tokens the policy may sample per turn."""
    max_episode_tokens: int | None = Field(default=None, ge=1)
    """Tokens the policy may sample per episode, whatever the environment says in between; at the
    limit the episode is truncated (`tokens`). None is no limit but `max_context`."""
    max_context: int | None = Field(default=None, ge=16)
    """Tokens of a whole episode; longer ones are truncated (`context`). None is the model's own
    limit, at most 4096."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Fixes the order of tasks and every sampling seed, also across a resume."""
    save_every: int = Field(default=50, ge=1)
    """Steps between checkpoints."""
    check_every: int = Field(default=10, ge=1)
    """Steps between checks that the sampler has the trainer's weights."""
    keep_traces_every: int = Field(default=1, ge=1)
    """Steps between those whose traces are kept; 1 keeps all."""
    eval_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations on held-out tasks, before the first and after the last included;
    see docs/monitors.md. None evaluates never."""
    eval_tasks: int = Field(default=64, ge=2)
    """Held-out tasks, at most."""
    eval_samples: int = Field(default=1, ge=1)
    """Episodes per held-out task."""
    eval_env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the environment that differ in evaluations. `split` is "validation" unless
    given, where the env has splits; without splits some tasks are kept from training."""
    monitors: Thresholds = Thresholds()
    """Where alarms begin, and how much evidence they need."""
    stop_on: tuple[str, ...] = ()
    """Alarms that end the run, such as `["no_signal", "gate:truncated"]`."""
    grpo: dict[str, Any] = Field(default_factory=dict)
    """Anything else of TRL's GRPOConfig, by its names (`beta`, `loss_type`, `num_iterations`)."""

    @field_validator("grpo")
    @classmethod
    def _leaves_ours_alone(cls, grpo: dict[str, Any]) -> dict[str, Any]:
        check_names(grpo)
        return grpo

    @field_validator("truncated", mode="before")
    @classmethod
    def _for_all_limits_or_by_limit(cls, rules: Any) -> Any:
        for limit, choice in rules.items() if isinstance(rules, Mapping) else [(None, rules)]:
            if limit is not None and limit not in TRUNCATED:
                raise ValueError(unknown_name("limit", str(limit), TRUNCATED))
            if choice not in get_args(TruncatedAs):
                raise ValueError(unknown_name("choice", str(choice), get_args(TruncatedAs)))
        return rules

    @field_validator("stop_on", mode="before")
    @classmethod
    def _one_alarm_is_a_list(cls, names: Any) -> Any:
        return (names,) if isinstance(names, str) else names

    @field_validator("stop_on")
    @classmethod
    def _names_alarms(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name.partition(":")[0] not in ALARMS:
                raise ValueError(unknown_name("alarm", name, ALARMS))
        return names

    @field_validator("policy_servers", mode="before")
    @classmethod
    def _one_is_a_list(cls, servers: Any) -> Any:
        return (servers,) if isinstance(servers, str) else servers

    @model_validator(mode="after")
    def _servers_get_weights(self) -> Self:
        if not self.policy_servers:
            for name in ("service", "sync_folder", "policy_model"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} is for a policy on servers; name them in policy_servers "
                        "(--policy-server), or leave it out"
                    )
            return self
        if self.sync != "nccl" and self.sync_folder is None:
            raise ValueError(
                f'sync="{self.sync}" needs sync_folder (--sync-folder), a folder that trainer and '
                "servers share"
            )
        if self.sync == "lora" and self.lora is None:
            raise ValueError('sync="lora" brings adapters: train one, such as lora.rank=32')
        return self

    @property
    def truncated_as(self) -> dict[CutBy, TruncatedAs]:
        """What becomes of truncated episodes, for every limit."""
        if isinstance(self.truncated, str):
            return dict.fromkeys(TRUNCATED, self.truncated)
        return {**TRUNCATED, **self.truncated}

    @property
    def episodes_per_step(self) -> int:
        """Episodes of one step, over all processes."""
        return self.tasks_per_step * self.group_size

    def accumulation_steps(self, processes: int) -> int:
        """Backward passes per optimiser step.

        Raises:
            ConfigError: If the step's episodes can't be dealt out evenly.
        """
        at_once = (self.micro_batch or self.group_size) * processes
        if self.episodes_per_step % at_once:
            raise ConfigError(
                f"tasks_per_step * group_size = {self.episodes_per_step} episodes can't be dealt "
                f"out to {processes} process(es) in micro batches of "
                f"{self.micro_batch or self.group_size}; choose a micro_batch that divides them"
            )
        return self.episodes_per_step // at_once


def read_config(values: Mapping[str, Any], *, source: str = "the training config") -> TrainConfig:
    """A config from plain values, with errors in one line each.

    Raises:
        ConfigError: On an unknown field or a value that isn't allowed.
    """
    for name in values:
        if name not in TrainConfig.model_fields:
            raise ConfigError(
                f"{source}: {unknown_name('field', name, sorted(TrainConfig.model_fields))}"
            )
    try:
        return TrainConfig.model_validate(dict(values))
    except ValidationError as error:
        faults = [_fault(fault) for fault in error.errors(include_url=False)]
        raise ConfigError(f"{source}: {'; '.join(faults)}") from error


def _fault(fault: Mapping[str, Any]) -> str:
    """What pydantic found wrong, as the settings are named."""
    where = ".".join(str(part) for part in fault["loc"] if part != "[key]")
    if fault["type"] == "missing":
        return f"{where}: is missing"
    if fault["type"] == "value_error":  # of our own, with all there is to say
        said = fault["msg"].removeprefix("Value error, ")
        return f"{where}: {said}" if where else said
    return f"{where}: {fault['msg']}, got {fault['input']!r}"


def load_config(
    path: Path | None,
    *,
    defaults: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    **fields: Any,
) -> TrainConfig:
    """A config from defaults, a file, `key=value` settings and fields, the later ones winning.

    Args:
        path: A TOML file, the `train.json` of an earlier run, or None.
        defaults: Values by field name, for what nothing else sets.
        settings: Such as `steps=20` or `grpo.beta=0.04`; values are TOML, or else text.
        **fields: Values by field name; None is left out.

    Raises:
        ConfigError: If the file can't be read or a value isn't allowed.
    """
    values: dict[str, Any] = {}
    if path is not None:
        values = _read_file(path)
    for setting in settings:
        _apply(values, setting)
    values.update({name: value for name, value in fields.items() if value is not None})
    values = {**(defaults or {}), **values}
    return read_config(values, source=str(path) if path else "the training config")


def _read_file(path: Path) -> dict[str, Any]:
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}") from error
    except ValueError as error:  # not TOML, not JSON, not UTF-8
        raise ConfigError(f"{path} is not valid {kind}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold one JSON object, the settings by name")
    return values


def _apply(values: dict[str, Any], setting: str) -> None:
    key, separator, text = setting.partition("=")
    if not separator or not all(part.strip() for part in key.split(".")):
        raise ConfigError(f"--set takes key=value, got {setting!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *tables, name = key.strip().split(".")
    field = tables[0] if tables else name
    if field not in TrainConfig.model_fields:
        raise ConfigError(
            f"--set {setting}: {unknown_name('field', field, sorted(TrainConfig.model_fields))}"
        )
    for table in tables:
        inner = values.setdefault(table, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {setting}: {table!r} is not a table")
        values = inner
    values[name] = value
