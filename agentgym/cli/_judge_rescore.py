"""What `agentgym judge rescore` does: read traces, judge them again, write them anew.

Results go to `OUT.partial` as they come, so that a run that was stopped goes on; the last step puts
them in the order of the original and gives the file its name. There is never half of an `OUT`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

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
        originals = self._originals()
        done = self._done(originals)
        try:
            asyncio.run(self._judge(originals, done))
        except KeyboardInterrupt:
            print("agentgym: interrupted; the same command judges the rest", file=sys.stderr)
            return 130
        self._write_all(originals)
        return self._report()

    async def _judge(self, originals: Mapping[str, Original], done: Collection[str]) -> None:
        from agentgym.clients.failures import secrets_of
        from agentgym.traces import TraceWriter

        missing = [trace_id for trace_id in originals if trace_id not in done]
        if self._named is not None and missing:
            await self._named.preflight()
        secrets = secrets_of(self._named.endpoint) if self._named is not None else ()
        failed = 0
        with (
            TraceWriter(self._partial, secrets=secrets) as writer,
            Counting("traces", len(missing), quiet=self._args.quiet) as counting,
        ):
            for spec in dict.fromkeys(originals[trace_id].spec for trace_id in missing):
                chosen = {t for t in missing if originals[t].spec == spec}
                async for result in self._rescored(spec, chosen, originals):
                    writer.write(result.trace)
                    failed += result.judged and not result.trace.scored
                    counting.add(f"{failed} failed" if failed else "")

    async def _rescored(
        self, spec: str, chosen: set[str], originals: Mapping[str, Original]
    ) -> AsyncIterator[Rescored]:
        from agentgym.judges.rescore import Rescoring

        home = TaskHome(spec)
        try:
            scoring = home.scoring if self._named is None else home.scoring_by(self._named.judge)
            if scoring.judges_groups:  # a group is compared whole, or not at all
                groups = {originals[trace_id].group for trace_id in chosen}
                chosen = {t for t, o in originals.items() if o.spec == spec and o.group in groups}
            rescoring = Rescoring(
                scoring,
                task_of=home.task_of,
                only_failed=self._args.only_failed,
                concurrency=self._args.concurrency,
                note=self._note,
            )
            traces = (trace for trace in self._traces(self._source) if trace.trace_id in chosen)
            async for result in rescoring.run(traces):
                yield result
        finally:
            home.close()

    # --- files --------------------------------------------------------------------------------

    def _traces(self, path: Path) -> Iterator[Trace]:
        """The traces of a file, read as they are needed; torn lines were told at the first look."""
        from agentgym.traces import read_traces

        return read_traces(path, on_torn=lambda _: None)

    def _originals(self) -> dict[str, Original]:
        """What must be known of the traces to be judged, by their id and in their order.

        Raises:
            DataError: If there are none, or two of one id.
            ConfigError: If some would keep a score of another scale than the new ones.
        """
        from agentgym.judges.rescore import is_wanted
        from agentgym.traces import read_traces

        found: dict[str, Original] = {}
        for trace in read_traces(self._source):
            if self._args.only_failed and trace.scored:
                self._check_scale(trace)
            if trace.trace_id in found:
                raise DataError(
                    f"{self._source} has the trace {trace.trace_id} twice, so that their verdicts "
                    "can't be told apart; leave one out"
                )
            found[trace.trace_id] = Original(
                spec=trace.env_spec,
                group=trace.group or trace.trace_id,
                verdicts=_verdicts(trace),
                wanted=is_wanted(trace, only_failed=self._args.only_failed),
            )
        if not found:
            raise DataError(f"{self._source} has no traces")
        return found

    def _check_scale(self, kept: Trace) -> None:
        """Refuse to judge some traces beside one that keeps its score if the scales differ.

        Raises:
            ConfigError: If they do, as far as the file can tell.
        """
        theirs = sorted(kept.verdict.components)
        said = f"--only-failed would keep trace {kept.trace_id}'s score"
        advice = "leave out --only-failed, so that all are judged by the one"
        if self._named is None:
            if _judged_by_named_model(kept):
                raise ConfigError(
                    f"{said}, which a model named to an earlier rescore gave, and let the "
                    "environment's own judge score the others: two scales in one file; name that "
                    f"model and rubric again, or {advice}"
                )
            return
        rubric = self._named.rubric
        ours = sorted(criterion.name for criterion in rubric.criteria)
        if theirs != ours:
            own = (
                "name the rubric that judged it"
                if _judged_by_named_model(kept)
                else "leave out the judge's flags, so that the environment's own judge judges"
            )
            raise ConfigError(
                f"{said} ({', '.join(theirs) or 'no components'}) and have the rubric "
                f"{rubric.name!r} ({', '.join(ours)}) score the others: two scales in one file; "
                f"{own}, or {advice}"
            )

    def _done(self, originals: Mapping[str, Original]) -> set[str]:
        """The ids of what an earlier run has judged, or rightly left alone.

        Raises:
            ConfigError: If it judged others, or in another way.
        """
        from agentgym.traces import read_traces

        done: set[str] = set()
        if not self._partial.exists():
            return done
        for trace in read_traces(self._partial):
            old = originals.get(trace.trace_id)
            judged = old is None or _verdicts(trace) > old.verdicts
            if old is None or (judged and trace.metadata.get(_NOTE) != self._note):
                raise ConfigError(
                    f"{self._partial} was begun with another file, judge, rubric or version; go "
                    "on with those, or remove it to start over"
                )
            if judged or not old.wanted:
                done.add(trace.trace_id)
        return done

    def _write_all(self, order: Iterable[str]) -> None:
        """Give the new file its name, whole and in order, and forget the partial one."""
        fresh = self._out.with_name(f".{self._out.name}.new")
        with self._partial.open("rb") as partial, fresh.open("wb") as file:
            places = _last_lines(partial)
            for trace_id in order:
                partial.seek(places[trace_id])
                file.write(partial.readline())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._out)
        self._partial.unlink()

    # --- reporting ----------------------------------------------------------------------------

    def _report(self) -> int:
        from agentgym.judges.rescore import Rescored, summary_of

        pairs = zip(self._traces(self._source), self._traces(self._out), strict=True)
        summary = summary_of(
            Rescored(trace=new, before=old.verdict, judged=_verdicts(new) > _verdicts(old))
            for old, new in pairs
        )
        print("\n".join(_lines(summary)))
        print(f"\n{self._out}")
        failed = summary.still_failed + summary.newly_failed
        if failed:
            print(
                f"agentgym: {failed} without a verdict; `agentgym judge rescore {self._out} "
                "--only-failed --out …` with the same judge asks about those once more",
                file=sys.stderr,
            )
        return int(bool(summary.judged) and failed == summary.judged)


class Original(NamedTuple):
    """What must be known of a trace to be judged, without holding it."""

    spec: str
    group: str
    verdicts: int
    """How many it has had."""
    wanted: bool
    """Whether it is to be judged."""


def _verdicts(trace: Trace) -> int:
    from agentgym.judges.rescore import PREVIOUS_VERDICTS

    return len(trace.metadata.get(PREVIOUS_VERDICTS, ()))


def _judged_by_named_model(trace: Trace) -> bool:
    """Whether an earlier rescore's model, and not the environment's judge, gave the verdict."""
    note = trace.metadata.get(_NOTE)
    return isinstance(note, Mapping) and isinstance(note.get("judge"), Mapping)


def _last_lines(file: BinaryIO) -> dict[str, int]:
    """Where the last line of each trace begins."""
    places: dict[str, int] = {}
    position = 0
    for line in file:
        with contextlib.suppress(ValueError):  # a torn line
            places[json.loads(line)["trace_id"]] = position
        position += len(line)
    return places


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
            DataError: If the environment gives another one, or the same one made from other data.
        """
        from agentgym.judges.rescore import check_data, task_again

        wanted = trace.task_id or ""
        if wanted not in self._tasks:
            self._tasks[wanted] = task_again(self._core, trace)
        check_data(trace, self._tasks[wanted])
        return self._tasks[wanted]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
