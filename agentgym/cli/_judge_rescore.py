"""What `agentgym judge rescore` does: read traces, judge them again, write them anew.

Results go to `OUT.partial` as they come, so that a run that was stopped goes on; the last step puts
them in the order of the original and gives the file its name. There is never half of an `OUT`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agentgym
from agentgym.cli._columns import cost_line, figure
from agentgym.cli._counting import Counting
from agentgym.cli._judge_model import NamedJudge, names_a_model
from agentgym.core import AgentEnv
from agentgym.errors import AgentGymError, ConfigError, DataError
from agentgym.judge import Scoring
from agentgym.trace import Trace
from agentgym.types import Task

if TYPE_CHECKING:
    from agentgym.judges.rescore import Rescored, RescoreSummary

_NOTE = "rescored"


class RescoreCommand:
    """One invocation.

    Args:
        args: The command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._source: Path = args.traces
        self._out: Path = args.out
        self._partial = self._out.with_name(f"{self._out.name}.partial")
        self._named = NamedJudge(args) if names_a_model(args) else None
        if self._named is None and (args.rubric or args.max_tokens or args.api_key_env):
            raise ConfigError(
                "--rubric, --max-tokens and --api-key-env go with a model: give --base-url and "
                "--model, or --roles; without one the traces' own environment judges"
            )
        if args.concurrency < 1:
            raise ConfigError(f"--concurrency must be at least 1, got {args.concurrency}")
        if self._out.exists():
            raise ConfigError(f"{self._out} exists; take another --out")
        judge = "the environment's" if self._named is None else self._named.facts
        facts = {"agentgym": agentgym.__version__, "judge": judge, "only_failed": args.only_failed}
        self._note = json.loads(json.dumps(facts))  # as it reads in a file

    def run(self) -> int:
        """Judge what is missing, and write everything.

        Returns:
            0; 1 if traces were judged and none of them could be scored; 130 after Ctrl-C.
        """
        from agentgym.traces import TraceFile

        traces = list(TraceFile(self._source))
        if not traces:
            raise DataError(f"{self._source} has no traces")
        done = self._done(traces)
        missing = [trace for trace in traces if trace.trace_id not in done]
        try:
            asyncio.run(self._judge(missing))
        except KeyboardInterrupt:
            print("agentgym: interrupted; the same command judges the rest", file=sys.stderr)
            return 130
        found = self._done(traces)
        self._write_all([found[trace.trace_id] for trace in traces])
        return self._report(traces, found)

    async def _judge(self, missing: Sequence[Trace]) -> None:
        from agentgym.clients.failures import secrets_of
        from agentgym.traces import TraceWriter

        if self._named is not None and missing:
            await self._named.preflight()
        secrets = secrets_of(self._named.endpoint) if self._named is not None else ()
        failed = 0
        with (
            TraceWriter(self._partial, secrets=secrets) as writer,
            Counting("traces", len(missing), quiet=self._args.quiet) as counting,
        ):
            for spec in dict.fromkeys(trace.env_spec for trace in missing):
                batch = [trace for trace in missing if trace.env_spec == spec]
                async for result in self._rescored(spec, batch):
                    writer.write(result.trace)
                    failed += result.judged and not result.trace.scored
                    counting.add(f"{failed} failed" if failed else "")

    async def _rescored(self, spec: str, traces: Sequence[Trace]) -> AsyncIterator[Rescored]:
        from agentgym.judges.rescore import Rescoring

        home = TaskHome(spec)
        try:
            rescoring = Rescoring(
                home.scoring if self._named is None else home.scoring_by(self._named.judge),
                task_of=home.task_of,
                only_failed=self._args.only_failed,
                concurrency=self._args.concurrency,
                note=self._note,
            )
            async for result in rescoring.run(traces):
                yield result
        finally:
            home.close()

    # --- files --------------------------------------------------------------------------------

    def _done(self, traces: Sequence[Trace]) -> dict[str, Trace]:
        """What an earlier run has judged, by trace id.

        Args:
            traces: The originals.

        Raises:
            ConfigError: If it judged others, or in another way.
        """
        from agentgym.traces import TraceFile

        if not self._partial.exists():
            return {}
        found = {trace.trace_id: trace for trace in TraceFile(self._partial)}
        originals = {trace.trace_id: trace for trace in traces}
        for trace_id, trace in found.items():
            old = originals.get(trace_id)
            judged = old is None or trace.metadata != old.metadata
            if judged and (old is None or trace.metadata.get(_NOTE) != self._note):
                raise ConfigError(
                    f"{self._partial} was begun with another file, judge, rubric or version; go "
                    "on with those, or remove it to start over"
                )
        return found

    def _write_all(self, traces: Sequence[Trace]) -> None:
        """Give the new file its name, whole, and forget the partial one."""
        fresh = self._out.with_name(f".{self._out.name}.{os.getpid()}")
        with fresh.open("w", encoding="utf-8") as file:
            file.writelines(trace.to_json_line() for trace in traces)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._out)
        self._partial.unlink()

    # --- reporting ----------------------------------------------------------------------------

    def _report(self, before: Sequence[Trace], now: dict[str, Trace]) -> int:
        from agentgym.judges.rescore import Rescored, summary_of

        results = [
            Rescored(
                trace=now[old.trace_id],
                before=old.verdict,
                judged=now[old.trace_id].metadata != old.metadata,
            )
            for old in before
        ]
        summary = summary_of(results)
        print("\n".join(_lines(summary)))
        print(f"\n{self._out}")
        return int(bool(summary.judged) and not any(r.judged and r.trace.scored for r in results))


def _lines(summary: RescoreSummary) -> Iterator[str]:
    """The summary as text."""
    yield f"traces         {summary.n} ({summary.judged} judged again)"
    yield f"newly scored   {summary.newly_scored}"
    yield f"still failed   {summary.still_failed}"
    yield f"newly failed   {summary.newly_failed}"
    yield f"not judgeable  {summary.not_judgeable} (something other than the judge broke)"
    yield f"other reward   {summary.changed}"
    yield f"solved         {summary.solved_before} before, {summary.solved_now} now"
    means = figure(summary.mean_reward_before, 4), figure(summary.mean_reward_now, 4)
    yield f"mean reward    {means[0]} before, {means[1]} now, over those scored both times"
    for role, usage in summary.spent.items():
        yield cost_line(role, usage)


class TaskHome:
    """The environment that traces came from, for its tasks and its scoring.

    No episode is started in it, so no simulator is called.

    Args:
        spec: `Trace.env_spec`.

    Raises:
        DataError: If the environment can't be made from it.
    """

    def __init__(self, spec: str) -> None:
        from gymnasium.envs.registration import EnvSpec

        from agentgym.rollout.source import EnvSource

        try:
            found = EnvSpec.from_json(spec)
            found.additional_wrappers = ()  # a logger among them would write
            self._env = EnvSource(found).make()
        except AgentGymError as error:
            raise DataError(f"the traces' environment can't be made again: {error}") from error
        except Exception as error:
            raise DataError(
                f"the traces' environment can't be made again from {spec:.200}: "
                f"{type(error).__name__}: {error}; agentgym.judges.rescore.rescore does it in "
                "Python, with tasks and scoring of your own"
            ) from error
        env = self._env.unwrapped
        if not isinstance(env, AgentEnv):
            raise DataError(f"the traces' environment is no agentgym environment: {spec:.200}")
        self._core = env
        self._tasks: dict[str, Task] = {}

    @property
    def scoring(self) -> Scoring:
        """The environment's own judge, gates and range."""
        return self._core.scoring

    def scoring_by(self, judge: Any) -> Scoring:
        """Another judge, with the environment's gates."""
        low, high = self._core.scoring.reward_range
        top = max(high, getattr(judge, "highest", high))
        return Scoring(judge=judge, gates=self._core.scoring.gates, reward_range=(low, top))

    def task_of(self, trace: Trace) -> Task:
        """A trace's task, with its hidden reference.

        Raises:
            DataError: If the environment gives another one.
        """
        from gymnasium.utils import seeding

        wanted = trace.task_id or ""
        if wanted not in self._tasks:
            self._core.np_random = seeding.np_random(trace.seed)[0]
            task = self._core.choose_task({"task_id": trace.task_id})
            if task.task_id != wanted:
                raise DataError(
                    f"asked for task {wanted!r}, the environment gives {task.task_id!r}"
                )
            self._tasks[wanted] = task
        return self._tasks[wanted]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
