"""What a training run is, in one frozen record that a TOML file fills.

The fields say what is particular to training on an environment: what is played, in groups of what
size, by a policy that is where, and what is kept and watched. They come in tables of a dozen names
or fewer, so that `agentgym train --set help` can be read. Everything else about the optimisation is
TRL's, set by TRL's own names in the table `[grpo]` and checked before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from agentgym.errors import ConfigError, unknown_name
from agentgym.rollout.budget import RunBudget
from agentgym.train.algorithms import Algorithm
from agentgym.train.grpo_table import check_names
from agentgym.train.lora import LoraSettings
from agentgym.train.monitors import ALARMS, Thresholds
from agentgym.train.objective import TRUNCATED, CutBy, TruncatedAs
from agentgym.types import Finite, Record


class SamplingSettings(Record):
    """How the policy samples, and how much; table `[sampling]`."""

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


class ObjectiveSettings(Record):
    """What is optimised; table `[objective]`, see docs/objective.md."""

    algorithm: Algorithm | None = None
    """Which baseline and loss. None leaves TRL's defaults: GRPO's baseline, every token of the step
    weighing the same."""
    refill: int | None = Field(default=None, ge=0)
    """Rounds in which groups without signal give their place to further tasks. None is 4 with
    `algorithm="dapo"`, else 0."""
    truncated: TruncatedAs | dict[CutBy, TruncatedAs] = Field(default_factory=dict)
    """What an episode cut by a limit is to the optimiser: "train" takes its reward as it is, "mask"
    leaves it out, "floor" gives it the lowest reward. For all limits, or a table by limit
    (`turns`, `tokens`, `context`, `time`); left out: "train", and "mask" for `time`."""

    @field_validator("truncated", mode="before")
    @classmethod
    def _for_all_limits_or_by_limit(cls, rules: Any) -> Any:
        for limit, choice in rules.items() if isinstance(rules, Mapping) else [(None, rules)]:
            if limit is not None and limit not in TRUNCATED:
                raise ValueError(unknown_name("limit", str(limit), TRUNCATED))
            if choice not in get_args(TruncatedAs):
                raise ValueError(unknown_name("choice", str(choice), get_args(TruncatedAs)))
        return rules

    @property
    def truncated_as(self) -> dict[CutBy, TruncatedAs]:
        """What becomes of truncated episodes, for every limit."""
        if isinstance(self.truncated, str):
            return dict.fromkeys(TRUNCATED, self.truncated)
        return {**TRUNCATED, **self.truncated}


class PolicySettings(Record):
    """Where the policy samples and how it gets its weights: `[policy]`, see docs/weight_sync.md."""

    servers: tuple[str, ...] = ()
    """URLs of vLLM servers that sample, such as `http://gpu1:8000`. None: a vLLM in the trainer's
    own process does."""
    served_name: str | None = None
    """What the servers call the model; None asks them."""
    sync: Literal["folder", "lora", "nccl"] = "folder"
    """How the servers get new weights: "folder", "lora" (the adapter alone) or "nccl"."""
    sync_folder: Path | None = None
    """A folder that trainer and servers share, for weights on their way."""
    service: str | None = None
    """URL of a rollout service that plays the episodes, such as `http://rollouts:8800`; it asks the
    policy servers. None plays them here."""
    check_every: int = Field(default=10, ge=1)
    """Steps between checks that the sampler has the trainer's weights."""

    @field_validator("servers", mode="before")
    @classmethod
    def _one_is_a_list(cls, servers: Any) -> Any:
        return (servers,) if isinstance(servers, str) else servers

    @model_validator(mode="after")
    def _servers_get_weights(self) -> Self:
        if not self.servers:
            for name in ("service", "sync_folder", "served_name"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} is for a policy on servers; name them in policy.servers "
                        "(--policy-server), or leave it out"
                    )
        elif self.sync != "nccl" and self.sync_folder is None:
            raise ValueError(
                f'sync="{self.sync}" needs sync_folder (--sync-folder), a folder that trainer and '
                "servers share"
            )
        return self


class EvalSettings(Record):
    """Evaluations on held-out tasks while the run goes; table `[eval]`, see docs/monitors.md."""

    every: int | None = Field(default=None, ge=1)
    """Steps between evaluations, before the first and after the last included. None evaluates
    never."""
    tasks: int = Field(default=64, ge=2)
    """Held-out tasks, at most."""
    samples: int = Field(default=1, ge=1)
    """Episodes per held-out task."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the environment that differ in evaluations. `split` is "validation" unless
    given, where the env has splits; without splits some tasks are kept from training."""


class KeepSettings(Record):
    """What stays on disk; table `[keep]`."""

    checkpoints_every: int = Field(default=50, ge=1)
    """Steps between checkpoints."""
    traces_every: int = Field(default=1, ge=1)
    """Steps between those whose traces are kept; 1 keeps all."""


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
    learning_rate: Finite = Field(default=1e-6, gt=0)
    """Of AdamW, with TRL's linear decay unless `grpo.lr_scheduler_type` says otherwise."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Fixes the order of tasks and every sampling seed, also across a resume."""
    stop_on: tuple[str, ...] = ()
    """Alarms that end the run, such as `["no_signal", "gate:truncated"]`."""
    budget: RunBudget | None = None
    """Dollars and tokens that the episodes' models may spend; the run ends at a step boundary, with
    a checkpoint. The policy's own GPUs cost no dollars here."""
    sampling: SamplingSettings = SamplingSettings()
    """How the policy samples, and how much."""
    objective: ObjectiveSettings = ObjectiveSettings()
    """What is optimised."""
    policy: PolicySettings = PolicySettings()
    """Where the policy samples, and how it gets its weights."""
    lora: LoraSettings | None = None
    """Train an adapter instead of all weights."""
    eval: EvalSettings = EvalSettings()
    """Evaluations on held-out tasks while the run goes."""
    keep: KeepSettings = KeepSettings()
    """What stays on disk."""
    monitors: Thresholds = Thresholds()
    """Where alarms begin, and how much evidence they need."""
    grpo: dict[str, Any] = Field(default_factory=dict)
    """Anything else of TRL's GRPOConfig, by its names (`beta`, `loss_type`, `num_iterations`)."""

    @field_validator("grpo")
    @classmethod
    def _leaves_ours_alone(cls, grpo: dict[str, Any]) -> dict[str, Any]:
        check_names(grpo)
        return grpo

    @field_validator("group_size", mode="before")
    @classmethod
    def _has_a_baseline(cls, size: Any) -> Any:
        if size == 1:
            raise ValueError(
                "one episode alone has nothing to be compared with, and teaches nothing: at least "
                "2 per task, better 4 to 16"
            )
        return size

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

    @model_validator(mode="after")
    def _adapters_are_trained(self) -> Self:
        if self.policy.servers and self.policy.sync == "lora" and self.lora is None:
            raise ValueError('sync="lora" brings adapters: train one, such as lora.rank=32')
        return self

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if said := self._uneven(1):  # by more processes even less; that is known when they are
            raise ValueError(said)
        return self

    @property
    def episodes_per_step(self) -> int:
        """Episodes of one step, over all processes."""
        return self.tasks_per_step * self.group_size

    def accumulation_steps(self, processes: int) -> int:
        """Backward passes per optimiser step.

        Raises:
            ConfigError: If the step's episodes can't be dealt out evenly.
        """
        if said := self._uneven(processes):
            raise ConfigError(said)
        return self.episodes_per_step // ((self.micro_batch or self.group_size) * processes)

    def _uneven(self, processes: int) -> str | None:
        """Why a step's episodes can't be dealt out, and what could be; None if they can."""
        micro, episodes = self.micro_batch or self.group_size, self.episodes_per_step
        if episodes % (micro * processes) == 0:
            return None
        fitting = [n for n in range(1, micro + 1) if episodes % (n * processes) == 0]
        return (
            f"tasks_per_step * group_size = {episodes} episodes can't be dealt out to {processes} "
            f"process(es) in micro batches of {micro}; choose a micro_batch that divides them"
            + (f", such as {fitting[-1]}" if fitting else "")
        )
