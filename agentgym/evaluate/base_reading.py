"""Where base-model episodes come from: trace files, folders of runs, evaluation results."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec

from agentgym.core import AgentEnv
from agentgym.errors import AgentGymError, ConfigError, DataError
from agentgym.evaluate.base_episodes import BaseEpisode, base_episode
from agentgym.evaluate.determinism import Determinism, TraceComparison
from agentgym.evaluate.external import ExternalScore, ScoreFunction
from agentgym.evaluate.result import KIND, Attempt, Column, EvaluationResult, read_result
from agentgym.rollout.source import EnvSource
from agentgym.trace import Trace
from agentgym.traces.jsonl import TraceFile

RESULT_FILE = "result.json"
_IN_FOLDERS = ("traces.jsonl", "traces-held-out000000*.jsonl", "traces-step000000*.jsonl")
"""What a folder's episodes of the untrained policy are called: those of `agentgym rollout`, then of
a training run, on held-out tasks before the first step, or in it."""


@dataclass(frozen=True)
class BaseSet:
    """Episodes of one policy in one environment."""

    episodes: list[BaseEpisode]
    env_spec: str
    policy: str
    """What the policy is called."""
    source: str
    """The file or files."""
    files: tuple[Path, ...] = ()
    """Trace files behind it; none where a result came without."""
    repeats: Determinism | None = None
    """Same calls in the same states, by the traces."""
    unscored_because: str | None = None
    """Why there is no external score, in one line."""


def read_base(
    path: Path, *, column: str | None = None, score: ScoreFunction | None = None
) -> BaseSet:
    """Read the episodes of one policy.

    Args:
        path: A file of traces, a result of `agentgym eval run`, or a folder with either; of a
            training run, its episodes before the first update.
        column: Which system of a result; None takes the only one, or the only one to be trained.
        score: External score of traces; None takes the one that the environment ships. A result
            has its own.

    Raises:
        DataError: If there is nothing to read, or it is of several policies or environments.
        TraceError: If a trace file can't be read.
    """
    if path.is_dir():
        result = path / RESULT_FILE
        if result.is_file():
            return _of_result(result, column)
        found = next((files for name in _IN_FOLDERS if (files := _files(path, name))), None)
        if found is None:
            raise DataError(
                f"{path} has no episodes: no {RESULT_FILE}, no traces.jsonl, and no traces of a "
                "training run's first step; name the file"
            )
        return _no_column(_of_traces(tuple(found), score), column)
    if not path.exists():
        raise DataError(f"there is no {path}; name a trace file, a result or a run's folder")
    if _is_one_object(path):
        return _of_result(path, column)
    return _no_column(_of_traces((path,), score), column)


def _files(folder: Path, name: str) -> list[Path]:
    """Without what a step that was cut short left behind; its repetition played the same."""
    return [path for path in sorted(folder.glob(name)) if ".unused" not in path.name]


def traces_of(files: tuple[Path, ...]) -> Iterator[Trace]:
    """The traces that count, of files; the last attempt at an episode is the one that does."""
    for file in files:
        for trace, successor in TraceFile(file).with_successors():
            if successor is None:
                yield trace


def other_parameters(base: BaseSet, reference: BaseSet) -> str | None:
    """How a reference's environment was made otherwise, where it was.

    Raises:
        DataError: If it is of another environment: a task of the same name is then another task.
    """
    ours, theirs = _env_id(base.env_spec), _env_id(reference.env_spec)
    if ours != theirs:
        raise DataError(
            f"the reference played {theirs:.80} and not {ours:.80}; play it on the same tasks"
        )
    made, otherwise = _env_kwargs(base.env_spec), _env_kwargs(reference.env_spec)
    return None if made == otherwise else f"{otherwise:.150}, not {made:.150}"


@dataclass
class _Gathered:
    """What is kept of traces while they pass."""

    episodes: list[BaseEpisode] = field(default_factory=list)
    comparison: TraceComparison = field(default_factory=TraceComparison)
    envs: dict[str, None] = field(default_factory=dict)
    policies: dict[str, None] = field(default_factory=dict)

    def add(self, trace: Trace, scores: _Scores) -> None:
        self.envs.setdefault(trace.env_spec)
        self.policies.setdefault(str(trace.policy.get("model") or "unnamed"))
        self.comparison.add(trace)
        self.episodes.append(scores.scored(base_episode(trace), trace))


class _Scores:
    """The external scores of traces, as long as they can be had."""

    def __init__(self, function: ScoreFunction | None) -> None:
        self._function = function
        self._score: ExternalScore | None = None
        self.missing: str | None = None

    def scored(self, episode: BaseEpisode, trace: Trace) -> BaseEpisode:
        """An episode with its external score, which then says whether it is solved."""
        if self.missing is None and self._score is None:
            try:
                self._score = ExternalScore(env_of(trace.env_spec), self._function)
            except AgentGymError as error:
                if self._function is not None:  # asked for
                    raise
                self.missing = str(error)
        if self._score is None or not episode.scored:
            return episode
        found = self._score(trace)
        if found is None:
            return episode
        return episode.model_copy(update={"score": found.total, "correct": found.correct})


def env_of(env_spec: str) -> AgentEnv:
    """An environment as traces describe it.

    Raises:
        ConfigError: If it can't be made here.
    """
    try:
        env = EnvSource(EnvSpec.from_json(env_spec)).make().unwrapped
    except (ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"can't make {_env_id(env_spec)} of the traces again: {why}") from error
    if not isinstance(env, AgentEnv):
        raise ConfigError(f"{type(env).__name__} is no AgentEnv")
    return env


def _of_traces(files: tuple[Path, ...], score: ScoreFunction | None) -> BaseSet:
    gathered, scores = _Gathered(), _Scores(score)
    for trace in traces_of(files):
        gathered.add(trace, scores)
    source = ", ".join(map(str, files))
    if not gathered.episodes:
        raise DataError(f"{source} holds no episode; nothing was played, or all lines are torn")
    _is_one(source, "policies", gathered.policies)
    _is_one(source, "environments", dict.fromkeys(map(_env_id, gathered.envs)))
    _is_one(source, "settings of one environment", dict.fromkeys(map(_env_kwargs, gathered.envs)))
    return BaseSet(
        episodes=gathered.episodes,
        env_spec=next(iter(gathered.envs)),
        policy=next(iter(gathered.policies)),
        source=source,
        files=files,
        repeats=gathered.comparison.result,
        unscored_because=scores.missing,
    )


def _is_one(source: str, what: str, names: Collection[str]) -> None:
    if len(names) > 1:
        raise DataError(
            f"{source} has episodes of {len(names)} {what} ({', '.join(sorted(names)):.200}); "
            "a verdict is about one"
        )


def _of_result(path: Path, name: str | None) -> BaseSet:
    result = read_result(path)
    column = _chosen(result, name, path)
    file = None if column.trace_file is None else path.parent / column.trace_file
    details: dict[str | None, BaseEpisode] = {}
    repeats = None
    if file is not None and file.is_file():
        comparison = TraceComparison()
        for trace in traces_of((file,)):
            details[trace.trace_id] = base_episode(trace)
            comparison.add(trace)
        repeats = comparison.result
    episodes = [
        _of_attempt(attempt, details.get(attempt.trace_id), result) for attempt in column.attempts
    ]
    if not episodes:
        raise DataError(f"{path}: column {column.name!r} holds no episode")
    return BaseSet(
        episodes=episodes,
        env_spec=result.env_spec,
        policy=column.name,
        source=str(path),
        files=(file,) if repeats is not None and file is not None else (),
        repeats=repeats,
    )


def _chosen(result: EvaluationResult, name: str | None, path: Path) -> Column:
    if name is not None:
        return result.column(name)
    policies = [column for column in result.columns if column.kind == "policy"]
    for some in (policies, list(result.columns)):
        if len(some) == 1:
            return some[0]
    names = ", ".join(column.name for column in result.columns)
    raise DataError(f"{path} has the columns {names}; say which with --column")


def _of_attempt(
    attempt: Attempt, detail: BaseEpisode | None, result: EvaluationResult
) -> BaseEpisode:
    """A row's facts; the external score decides what is solved, its trace says how it went."""
    family = result.tasks[attempt.task_id].family
    if detail is None:
        detail = BaseEpisode(
            task_id=attempt.task_id,
            reward=attempt.reward,
            correct=attempt.correct,
            completed=attempt.completed,
            unanswered_at_cap=attempt.truncation_reason == "turns" and not attempt.completed,
            cut_off=None,
            context_full=attempt.truncation_reason == "context",
            malformed=attempt.malformed > 0,
            failure_class=attempt.failure_class,
            turns=attempt.turns,
            kinds={} if family is None else {"family": family},
        )
    return detail.model_copy(update={"correct": attempt.correct, "score": attempt.external})


def _no_column(found: BaseSet, column: str | None) -> BaseSet:
    if column is not None:
        raise DataError(f"{found.source} has no columns; a column is of an evaluation result")
    return found


def _is_one_object(path: Path) -> bool:
    """Whether a file is a result, or should be one, and not a trace on each line."""
    with path.open("rb") as file:
        return path.suffix == ".json" or KIND.encode() in file.read(200)


def _env_id(env_spec: str) -> str:
    found = _described(env_spec)
    return str(found.get("id") or found.get("entry_point") or env_spec)


def _env_kwargs(env_spec: str) -> str:
    return json.dumps(_described(env_spec).get("kwargs") or {}, sort_keys=True)


def _described(env_spec: str) -> dict[str, Any]:
    try:
        found = json.loads(env_spec)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
