"""Plays the columns of an evaluation on the same tasks, and goes on where an earlier run ended.

The rollout engine plays; what is added here is that every column plays the same tasks with the same
seeds, and that each episode is played once. An episode is known by column, task, sample and the
hash of all that its course depends on. Traces are appended as they finish, in one file per column
and hash, so a kill loses what was in flight and nothing else, a changed temperature never meets old
traces, and what is missing follows from the files alone, never from how a run ended.

The result is made from the files: scoring and reading again costs no episode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.client import Endpoint, ModelClient
from agentgym.clients import BalancedClient, ScriptedClient, connect
from agentgym.clients.failures import secrets_of
from agentgym.errors import BudgetStop, ConfigError, RolloutStopped
from agentgym.evaluate.asking import check_keys, preflight, status_of_all
from agentgym.evaluate.bar import SharedProgress
from agentgym.evaluate.columns import ColumnSpec, check_names
from agentgym.evaluate.folder import alone_in, check_tasks, keep_aside, note_tasks
from agentgym.evaluate.on_disk import MARK, TRACES, ColumnOnDisk, usage_in
from agentgym.evaluate.result import EvaluationResult, read_result, write_result
from agentgym.evaluate.setting import EvaluationSetting, code_version
from agentgym.evaluate.where import Where, engine_at
from agentgym.rollout import Engine, Ledger, Limits, Progress, Retry, Stages
from agentgym.rollout.journal import Journal
from agentgym.rollout.policies import named_policy
from agentgym.rollout.progress import progress_for
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.spending import SPENT_FILE, Spending, read_spending
from agentgym.traces import TraceWriter

if TYPE_CHECKING:
    from agentgym.remote.engine import RemoteEngine

RESULT = "result.json"
MOST_EPISODES = 10_000_000
"""Of one evaluation; the requests alone take gigabytes then."""


class Evaluation:
    """An evaluation in a folder: what is there of it, and what is missing.

    Args:
        setting: Env, tasks, score.
        columns: The systems to play.
        out: The folder; its `result.json` is the result, `traces/` has a file per column.
        samples: Episodes per task and column.
        limits: Concurrency and limits of an episode; `budget` is for all columns together.
        retry: What is tried again after a failure that is not the policy's.
        retry_masked: Whether episodes without a score count as missing.
        at_once: Whether the columns play at the same time and share the slots of `limits`; else one
            after the other.
        progress: True for a live bar, or a `Progress`; for all columns together.
        where: Whether calls are recorded or replayed, or a service plays; default: this process
            plays and asks servers.

    Raises:
        ConfigError: If the columns can't be told apart, a policy is unknown, or the folder holds
            another evaluation.
    """

    def __init__(
        self,
        setting: EvaluationSetting,
        columns: Sequence[ColumnSpec],
        *,
        out: Path,
        samples: int = 1,
        limits: Limits | None = None,
        retry: Retry | None = None,
        retry_masked: bool = False,
        at_once: bool = False,
        progress: bool | Progress | None = None,
        where: Where | None = None,
    ) -> None:
        if samples < 1:
            raise ConfigError(f"samples must be at least 1, got {samples}")
        planned = self._planned = samples * len(setting.tasks) * len(columns)
        if planned > MOST_EPISODES:
            raise ConfigError(
                f"{planned:,} episodes are more than can be kept track of: {len(columns)} columns, "
                f"{len(setting.tasks)} tasks, {samples:,} samples; the most is {MOST_EPISODES:,}"
            )
        if not columns:
            raise ConfigError("say who plays: name at least one policy or model")
        check_names(columns)
        self.setting, self.out, self.samples = setting, out, samples
        self._limits = limits or Limits()
        self._retry, self._at_once, self._where = retry, at_once, where or Where()
        self._bar = SharedProgress(progress_for(progress))
        self._check_same_evaluation()
        for column in columns:
            if column.policy is not None:
                named_policy(setting.core, column.policy, seed=setting.seed)  # is it there?
        self._columns = [
            ColumnOnDisk(column, setting.config_hash(column, self._limits), out / TRACES, samples)
            for column in columns
        ]
        check_tasks(out, setting.world_hash, setting.tasks)
        self._retry_masked = retry_masked
        self._missing = self._look()
        self._engines: list[Engine | RemoteEngine] = []
        self._is_drained = False
        self._code = code_version()
        self.stopped: dict[str, str] = {}
        """Columns that broke off, and why."""
        self.kept: Path | None = None
        """Where a former result is kept that had episodes which the one written lacks."""

    # --- what there is ------------------------------------------------------------------------

    @property
    def result_file(self) -> Path:
        """Where the result is written."""
        return self.out / RESULT

    def missing(self) -> dict[str, int]:
        """Episodes that were missing by column, when this was made or last began to play."""
        return {name: len(requests) for name, requests in self._missing.items()}

    def other_traces(self) -> list[Path]:
        """Trace files of these columns by other configurations, which are not used."""
        ours = {column.traces for column in self._columns}
        found = {path for column in self._columns for path in column.others}
        return sorted(found - ours)

    def result(self) -> EvaluationResult:
        """What is on disk, scored; episodes that are still missing have no row.

        Raises:
            ConfigError: If the external score breaks or gives no score.
            TraceError: If a file can't be read.
        """
        setting = self.setting
        return EvaluationResult(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            env_id=setting.env_id,
            env_spec=setting.env_spec,
            split=setting.split,
            external_score=setting.external.name,
            samples=self.samples,
            seed=setting.seed,
            limits=self._limits.model_dump(
                include={"max_turns", "max_episode_tokens"}, exclude_none=True
            ),
            tasks=setting.tasks,
            columns=tuple(column.column(setting) for column in self._columns),
        )

    def write(self) -> EvaluationResult:
        """`result`, also into `result.json`, which is replaced as a whole.

        Nothing is written while there is no episode: such a file would be no result. A file with
        columns, tasks or samples that this one lacks is kept under another name: see `kept`.
        """
        result = self.result()
        if any(column.attempts for column in result.columns):
            self.kept = keep_aside(self.result_file, result)
            write_result(self.result_file, result)
        return result

    # --- playing ------------------------------------------------------------------------------

    async def play(self) -> None:
        """Play what is missing; a column that breaks off doesn't hold up the others.

        Raises:
            ConfigError: If a key is missing, or a price that a budget needs.
            EndpointError: If a model doesn't answer to a first small request; nothing is played.
            BudgetStop: If the budget is used up.
        """
        with alone_in(self.out / TRACES):
            self._missing = self._look()  # what was there before may be played by now
            try:
                await self._play_missing()
            except BudgetStop as stop:
                status = status_of_all(
                    stop.status, self._planned, sum(self.missing().values()), self._look()
                )
                raise BudgetStop(str(status), status) from stop

    async def _play_missing(self) -> None:
        todo = [column for column in self._columns if self._missing[column.spec.name]]
        if not todo:
            return
        self._where.check(self.missing(), [column.spec for column in self._columns], self._limits)
        await self._where.greet()
        if self._where.asks_models:
            check_keys([column.spec for column in self._columns], self.setting)
        ledger = self._ledger()
        clients = [self._client(column.spec) for column in todo]
        if self._where.asks_models:
            await preflight(self._columns, todo, clients, self.setting)
        stages = Stages(self._limits) if self._at_once else None
        note_tasks(self.out, self.setting.world_hash, self.setting.tasks)
        self._bar.open(sum(len(self._missing[column.spec.name]) for column in todo))
        plays = [
            self._play_one(column, client, stages, ledger)
            for column, client in zip(todo, clients, strict=True)
        ]
        try:
            if self._at_once:
                await _together(plays)
            else:
                for play in plays:
                    await play
        finally:
            if ledger is not None:
                ledger.keep()
            for play in plays:
                play.close()  # those that an error kept from beginning
            self._bar.close()

    def drain(self) -> None:
        """Begin no further episode; those that have begun finish."""
        self._is_drained = True
        for engine in self._engines:
            engine.drain()

    def in_flight(self) -> int:
        """Episodes that have begun and aren't over."""
        return sum(engine.status().in_flight for engine in self._engines)

    async def _play_one(
        self,
        column: ColumnOnDisk,
        client: ModelClient,
        stages: Stages | None,
        ledger: Ledger | None,
    ) -> None:
        if self._is_drained:
            return
        spec, secrets = column.spec, self._secrets(column.spec)
        self._bar.note("all columns" if self._at_once else f"column {spec.name}")
        mark = {"column": spec.name, "config": column.config, "code": self._code}
        file = self._where.files(each.spec.name for each in self._columns)[spec.name]
        with (
            self._where.calls(file, column.traces, self._missing[spec.name]) as calls,
            self._journal(column, secrets) as journal,
            TraceWriter(column.traces, secrets=secrets) as writer,
        ):
            engine = engine_at(
                self._where,
                self.setting.env,
                calls.policy(client, spec),
                spec,
                env_kwargs=self.setting.env_kwargs,
                sampling=spec.sampling,
                limits=self._limits,
                writer=calls.sink(writer),
                progress=self._bar,
                policy_name=spec.model or spec.policy,
                metadata={MARK: mark},
                stages=stages,
                retry=self._retry,
                journal=journal,
                ledger=ledger,
            )
            self._engines.append(engine)
            try:
                async with engine:
                    async for _ in engine.run(self._missing[spec.name]):
                        pass
            except BudgetStop as stop:
                cut = tuple(f"{spec.name}: {episode}" for episode in stop.status.cut)
                status = stop.status.model_copy(update={"cut": cut})
                raise BudgetStop(str(status), status) from stop
            except RolloutStopped as error:
                self.stopped[spec.name] = str(error)
            finally:
                self._engines.remove(engine)
        column.forget_judged()

    def _journal(
        self, column: ColumnOnDisk, secrets: Iterable[str]
    ) -> AbstractContextManager[Journal | None]:
        if not self.setting.keeps_unjudged or self._where.service is not None:
            return nullcontext()
        return Journal(column.unjudged, secrets=secrets)

    def _secrets(self, spec: ColumnSpec) -> list[str]:
        endpoints = (*spec.servers, *self.setting.endpoints.values())
        return [secret for endpoint in endpoints for secret in secrets_of(endpoint)]

    def _client(self, spec: ColumnSpec) -> ModelClient:
        """The policy, with as many requests at once as there are episodes."""
        if spec.policy is not None:
            policy = named_policy(self.setting.core, spec.policy, seed=self.setting.seed)
            return ScriptedClient(policy)
        servers = [_with_room(server, self._limits.concurrency) for server in spec.servers]
        return connect(servers[0]) if len(servers) == 1 else BalancedClient(servers)

    def _ledger(self) -> Ledger | None:
        """One for all columns; what earlier runs of this evaluation spent counts."""
        if self._limits.budget is None:
            return None
        has_model = any(column.spec.servers for column in self._columns)
        ledger = Ledger(self._limits.budget, free_roles=() if has_model else ("policy",))
        servers = [server for column in self._columns for server in column.spec.servers]
        ledger.check_prices((*servers, *self.setting.endpoints.values()))
        told = usage_in(self.out / TRACES)
        # What was paid for and has no trace is charged again as it comes out of a recording.
        known = Spending() if self._where.record else read_spending(self.out / SPENT_FILE)
        spent = known.at_least(told)
        ledger.spent_before(spent.billed, unbilled=spent.unbilled)
        ledger.keep_in(self.out / SPENT_FILE)
        return ledger

    def _look(self) -> dict[str, list[EpisodeRequest]]:
        return {
            column.spec.name: column.missing(self.setting, retry_masked=self._retry_masked)
            for column in self._columns
        }

    def _check_same_evaluation(self) -> None:
        """A folder has one result; another env's would take its place."""
        if not self.result_file.exists():
            return
        before = read_result(self.result_file)
        if (before.env_id, before.split) != (self.setting.env_id, self.setting.split):
            raise ConfigError(
                f"{self.out} holds an evaluation of {before.env_id}, split {before.split}; "
                "take another --out"
            )


def evaluate(evaluation: Evaluation) -> EvaluationResult:
    """Play what is missing, score it, and write the result; from plain code.

    Raises:
        AgentGymError: As `Evaluation.play` and `Evaluation.result`.
    """
    asyncio.run(evaluation.play())
    return evaluation.write()


def _with_room(endpoint: Endpoint, requests: int) -> Endpoint:
    if "max_concurrency" in endpoint.model_fields_set:
        return endpoint
    return endpoint.model_copy(update={"max_concurrency": requests})


async def _together(plays: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all at the same time; the first error ends the others and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for play in plays:
                group.create_task(play)
    except BaseExceptionGroup as errors:
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
