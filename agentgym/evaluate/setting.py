"""What is the same for every column of an evaluation: tasks, their contents, the score, the hashes.

Two evaluations may be compared only where all of it agrees, and an episode may be reused only where
everything that its course depends on does. Both are decided by hashes, which are made here.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import agentgym
from agentgym.client import Endpoint, Role, public_url
from agentgym.core import AgentEnv
from agentgym.errors import ConfigError
from agentgym.evaluate.columns import ColumnSpec
from agentgym.evaluate.external import ExternalScore, ScoreFunction
from agentgym.evaluate.result import TaskFacts, content_hash
from agentgym.rollout.hosted import endpoints_in
from agentgym.rollout.limits import Limits
from agentgym.rollout.plan import named_tasks
from agentgym.rollout.source import EnvSource
from agentgym.types import Message

DEFAULT_SPLIT = "validation"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_GIT_S = 10.0
_DEEPEST = 4  # levels of an object's attributes


class EvaluationSetting:
    """An env, the tasks of it that are played, and how they are scored.

    Args:
        env: Env id, as for `Engine`.
        env_kwargs: Its parameters, the split and its own models among them. Where the env takes a
            split and none is given, it is `validation`.
        tasks: Task ids; None takes `n` of all.
        n: How many, spread evenly over the split; None takes all.
        score: The external score; None takes the env's own.
        seed: Every episode's seed follows from it and the task.

    Raises:
        ConfigError: If there is no such env, task or score, or the score is the reward's.
    """

    def __init__(
        self,
        env: str,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        tasks: Sequence[str] | None = None,
        n: int | None = None,
        score: ScoreFunction | None = None,
        seed: int = 0,
    ) -> None:
        self.env, self.seed = env, seed
        self.env_kwargs = dict(env_kwargs or {})
        if "split" not in self.env_kwargs and EnvSource(env).takes("split"):
            self.env_kwargs["split"] = DEFAULT_SPLIT
        source = EnvSource(env, self.env_kwargs)
        made = source.make()
        core = made.unwrapped
        if not isinstance(core, AgentEnv):
            raise ConfigError(f"{env} is no agentgym environment; `agentgym envs` lists them")
        self.core = core
        """Where tasks, tools and scripted policies are looked up; it plays nothing."""
        self.env_spec = source.spec_json
        self.env_id = made.spec.id if made.spec is not None else env
        self.split: str | None = self.env_kwargs.get("split")
        self.judges_groups = core.scoring.judges_groups
        self.keeps_unjudged = not core.scoring.inline
        known = core.task_ids()
        _check_ids(known, self.env_id)
        if tasks is not None and n is not None:
            raise ConfigError("give either n or tasks")
        chosen = _spread(known, n) if tasks is None else named_tasks(known, tasks)
        if not chosen:
            raise ConfigError("tasks is empty; name at least one, or leave it out for all")
        self._judge_hash = content_hash([described(core.scoring.judge), described(core.scoring)])
        self._prompts: set[str] = set()
        self.tasks = {task: self._facts(task) for task in chosen}
        self.tools = core.toolbox.specs
        """What a policy will be offered."""
        self.external = ExternalScore(core, score)

    @property
    def endpoints(self) -> dict[Role, Endpoint]:
        """The env's own models, by role."""
        return endpoints_in(self.env_kwargs)

    def hashes(self) -> dict[str, str]:
        """What a score hangs on beside the env's spec, each as a hash."""
        found = {"judge": self._judge_hash, "external": self.external.hash}
        if self._prompts:
            found["prompt"] = content_hash(sorted(self._prompts))
        if "simulator" in self.env_kwargs:
            found["simulator"] = content_hash(_identity(self.env_kwargs["simulator"]))
        return found

    def config_hash(self, column: ColumnSpec, limits: Limits) -> str:
        """What an episode's course and reward depend on; another hash is another episode.

        The external score is not part of it: it is computed from the trace, and a trace may be
        scored again. Neither are the tasks' contents: see `world_hash`.
        """
        return content_hash(
            {
                "agentgym": agentgym.__version__,
                "world": self.world_hash,
                "seed": self.seed,
                "judge": self._judge_hash,
                "max_turns": limits.max_turns,
                "max_episode_tokens": limits.max_episode_tokens,
                "column": column.name,
                "system": column.identity(),
            }
        )

    @property
    def world_hash(self) -> str:
        """Env and parameters: where they agree, a task's id should name the same task.

        That it does is for the folder of an evaluation to see to, which notes each task's content:
        as part of every episode's hash it would make all of them others once a task is added.
        """
        return content_hash({"env": self.env_id, "env_kwargs": _identity(self.env_kwargs)})

    def _facts(self, task_id: str) -> TaskFacts:
        """The hash of a task's content, from its opening where that asks no model."""
        if self.core.awaits:
            task = self.core.choose_task({"task_id": task_id})
            shown: dict[str, Any] = {}
        else:
            opening, info = self.core.reset(seed=0, options={"task_id": task_id})
            running = self.core.running
            assert running is not None  # it was reset
            task = running.task
            shown = {"opening": opening, "tools": info["tools"]}
            self._prompts.update(_system_texts(opening))
        content = {"task": task.model_dump(), "reference": described(task.reference), **shown}
        return TaskFacts(content=content_hash(content), family=task.metadata.get("family"))


def _spread(known: Sequence[str], n: int | None) -> list[str]:
    """So many tasks, evenly spread: the first ones may all be of one family.

    Raises:
        ConfigError: If there are fewer.
    """
    if n is None:
        return list(known)
    if not 1 <= n <= len(known):
        raise ConfigError(f"there are {len(known)} tasks, so n must be 1 to {len(known)}, got {n}")
    return [known[i * len(known) // n] for i in range(n)]


def _check_ids(known: Sequence[str], env_id: str) -> None:
    """See that there are tasks, and that each has an id of its own.

    Rows of a data set may be equal; under one id they would be merged, and n be another.

    Raises:
        ConfigError: If not.
    """
    if not known:
        raise ConfigError(f"{env_id} has no task in this split; take another --split")
    for task_id, count in Counter(known).items():
        if count > 1:
            raise ConfigError(
                f"{env_id} has {count} tasks called {task_id!r}; give each an id of its own, such "
                "as its row's number, also where their contents are the same"
            )


def described(value: Any, depth: int = 0) -> Any:
    """A value in words and numbers that are the same in every process.

    An object's `repr` is often short for it: a rubric's judge tells its name, not its criteria. So
    its public attributes count too.
    """
    told = _ADDRESS.sub("", repr(value))
    if depth >= _DEEPEST or isinstance(value, str | int | float | type | BaseModel | None):
        return told
    if hasattr(value, "complete"):  # a client, which counts its calls
        return told
    if isinstance(value, Mapping):
        return {str(key): described(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [described(item, depth + 1) for item in value]
    inside = getattr(value, "__dict__", {})
    public = {k: described(v, depth + 1) for k, v in inside.items() if not k.startswith("_")}
    return [told, public] if public else told


def _system_texts(opening: Sequence[Message]) -> list[str]:
    return [str(m.get("content")) for m in opening if m.get("role") == "system"]


def _identity(value: Any) -> Any:
    """A parameter without what changes no episode: prices, limits and secrets of endpoints."""
    if isinstance(value, Endpoint):
        public = value.public()
        facts = {key: public.get(key) for key in ("model", "dialect", "extra_body", "tokens")}
        return {**facts, "url": public_url(value.base_url)}
    if isinstance(value, Mapping):
        return {str(key): _identity(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_identity(item) for item in value]
    return value if isinstance(value, str | int | float | None) else described(value)


def code_version() -> str:
    """The version of agentgym, with the commit where it runs from a checkout of its own."""
    root = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(root), "rev-parse", "--show-toplevel", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=True)
        top, commit = found.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError):
        return agentgym.__version__
    is_ours = Path(top).resolve() == root
    return f"{agentgym.__version__}+{commit}" if is_ours else agentgym.__version__
