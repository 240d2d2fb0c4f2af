"""Log every episode of a plain Gymnasium loop, in the form that rollouts write.

Whatever drives the environment (a notebook, a vector env, somebody's own trainer), its episodes can
then be read, compared and reported with the same tools as those of the rollout engine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
import traceback
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs

from agentgym.durable import append_line
from agentgym.errors import ActionError, ConfigError, ResetNeeded, TraceError
from agentgym.metering import Meter
from agentgym.redaction import Redactor
from agentgym.roles import public_kwargs
from agentgym.running import RunningEpisode
from agentgym.trace import Trace
from agentgym.types import FailureClass, Verdict
from agentgym.wrappers.base import AgentWrapper, Step, agent_env

Sink = Callable[[Trace], Any]


class TraceLogger(AgentWrapper, RecordConstructorArgs):
    """Writes one trace per episode: one line of JSON with messages, turns, usage and verdict.

    Usage, finish reasons, token ids and the like are in it where the actions carried them (see
    `AgentEnv`), and what the env's simulator and judge cost. Every episode that took at least one
    turn is written exactly once:

    - at its end, with the env's verdict;
    - when a step (or the set-up in `reset`) raised, masked, with failure class `env` and the error;
    - when it was abandoned by `reset` or `close`, masked, with failure class `infra`, neither
      terminated nor truncated.

    Episodes with `options["judging"] = "deferred"` are not written, since their verdict comes later
    and elsewhere. Put the logger inside `gymnasium.wrappers.Autoreset`, not around it.

    Args:
        env: An agent environment.
        sink: A file to append to, made with its folders if missing; credentials of the environment
            and what has the form of a key stay out of it (`agentgym.redaction`). Or a function that
            takes each `Trace`, as it is.

    Raises:
        ConfigError: If `env` is not an agent environment.
        TraceError: When the file can't be written.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], sink: str | Path | Sink) -> None:
        sink = str(sink) if isinstance(sink, Path) else sink  # a spec with it then goes to JSON
        RecordConstructorArgs.__init__(self, sink=sink)
        AgentWrapper.__init__(self, env)
        self._base = agent_env(env, wrapper="TraceLogger", instead="its episodes have no messages")
        self._sink: Sink = FileSink(Path(sink)) if isinstance(sink, str) else sink
        self._env_spec = _spec_json(env)
        self._pending: _Pending | None = None

    def on_reset(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Write the episode that this reset abandons, if any."""
        self._write_abandoned()
        deferred = (options or {}).get("judging") == "deferred"
        self._pending = None if deferred else _Pending(seed)
        return options

    def after_reset(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Note that the episode runs."""
        if self._pending is not None:
            self._pending.begin()
        return observation, info

    def after_step(self, result: Step) -> Step:
        """Write the episode if this was its end."""
        _, _, terminated, truncated, info = result
        if (terminated or truncated) and self._pending is not None:
            verdict: Verdict = info["verdict"]
            failure = verdict.failure_class
            broken = failure is not None and failure != "policy"
            self._write(
                verdict,
                terminated=terminated,
                truncated=truncated,
                termination_reason=info["termination_reason"],
                truncation_reason=info["truncation_reason"],
                outcome=self._base.outcome(),
                failure_class=failure if broken else None,
                failed_stage=("eval" if verdict.judge_failed else "run") if broken else None,
                error=verdict.reason if broken else None,
            )
        return result

    def on_error(self, error: BaseException) -> None:
        """Write the episode that the error ended; the caller's own mistakes don't end one."""
        if isinstance(error, ActionError | ConfigError | ResetNeeded):
            return
        if not isinstance(error, Exception) or isinstance(error, asyncio.CancelledError):
            self._write_unscored("infra", f"{type(error).__name__} during a step")
            return
        self._write_unscored("env", "".join(traceback.format_exception(error)))

    def close(self) -> None:
        """Write the episode in progress, if any, and close the env."""
        self._write_abandoned()
        super().close()

    def _write_abandoned(self) -> None:
        running = self._base.running
        if running is not None and running.records:
            self._write_unscored("infra", "abandoned: reset or closed before its end")
        self._pending = None

    def _write_unscored(self, failure_class: FailureClass, error: str) -> None:
        if self._pending is None:
            return
        reason = error.strip().splitlines()[-1]
        self._write(
            Verdict(failure_class=failure_class, masked=True, reward=None, reason=reason),
            failure_class=failure_class,
            failed_stage="init" if self._pending.began is None else "run",
            error=error,
        )

    def _write(self, verdict: Verdict, **ending: Any) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        recorded = {}
        if pending.began is not None and self._base.running is not None:
            recorded = _recorded(self._base.running, verdict)
        self._sink(
            Trace(
                trace_id=uuid.uuid4().hex,
                env_spec=self._env_spec,
                seed=pending.seed,
                started_at=pending.started_at,
                stage_s=pending.stages(),
                tools=self._base.toolbox.specs,
                verdict=verdict,
                **recorded,
                **ending,
            )
        )


class FileSink:
    """Appends traces to a file, one line each, under a lock that several writers share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._redact = Redactor()

    def __call__(self, trace: Trace) -> None:
        """Append one trace.

        Raises:
            TraceError: If the file can't be written.
        """
        line = self._redact(trace.to_json_line()).encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                append_line(file, line)
            finally:
                os.close(file)
        except OSError as error:
            raise TraceError(f"can't write the trace to {self.path}: {error}") from error


class _Pending:
    """When the episode in progress began, and from which seed."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.started_at = datetime.now(UTC).isoformat()
        self.asked = time.perf_counter()
        self.began: float | None = None

    def begin(self) -> None:
        self.began = time.perf_counter()

    def stages(self) -> dict[str, float]:
        now = time.perf_counter()
        if self.began is None:
            return {"init": now - self.asked}
        return {"init": self.began - self.asked, "run": now - self.began}


def _recorded(running: RunningEpisode, verdict: Verdict) -> dict[str, Any]:
    """What the env itself recorded, as fields of a `Trace`."""
    turns = tuple(record.turn(index) for index, record in enumerate(running.records))
    spent = Meter()
    by_policy = [("policy", turn.usage) for turn in turns if turn.usage is not None]
    for role, usage in (*by_policy, *running.meter.by_role.items(), *verdict.spent.items()):
        spent.add(role, usage)
    return {
        "task_id": running.task.task_id,
        "split": running.task.split,
        "metadata": {"task": running.task.metadata} if running.task.metadata else {},
        "messages": tuple(running.messages),
        "turns": turns,
        "answer": running.answer,
        "usage": spent.by_role,
    }


def _spec_json(env: gymnasium.Env[Any, Any]) -> str:
    """The spec that makes this env again; without one, at least the name of its class."""
    for candidate in (env, env.unwrapped):
        try:
            spec = candidate.spec
            if spec is not None:
                return dataclasses.replace(spec, kwargs=public_kwargs(spec.kwargs)).to_json()
        except (TypeError, ValueError):  # arguments that have no JSON form
            continue
    kind = type(env.unwrapped)
    return EnvSpec(id=kind.__name__, entry_point=f"{kind.__module__}:{kind.__qualname__}").to_json()
