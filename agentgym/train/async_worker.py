"""Our rollout engine as the worker of TRL's asynchronous trainer (`AsyncGRPOTrainer`).

That trainer takes scored rows from a queue while a worker fills it. TRL's own worker renders the
whole conversation anew in every turn and mends what then differs; this one plays episodes with the
rollout engine, against any number of vLLM servers, and hands over the ids that were sampled.

The process, the queues and the liveness of the worker are TRL's (`AsyncRolloutWorker`): a child
process without CUDA runs an `EpisodeLoop`, which gets nothing but what can be pickled. So a resumed
run goes on where it was, too. Each row says which weights its episode began with; the trainer drops
what is too old (`max_staleness`), and no group begins that would be.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing.queues
import queue
import time
import traceback
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, Field

from agentgym.client import Endpoint, SamplingParams
from agentgym.clients import BalancedClient
from agentgym.errors import ConfigError, unknown_name
from agentgym.rollout import Engine, EpisodeRequest, Limits, derived_seed
from agentgym.rollout.source import EnvSource
from agentgym.trace import Trace
from agentgym.train.async_admission import QueueAdmission
from agentgym.train.async_rows import group_metrics, rows_of_group
from agentgym.train.sync import Staleness
from agentgym.types import Finite, Record

with warnings.catch_warnings():  # that it is experimental is known, and the version pinned
    warnings.filterwarnings("ignore", message=".*importing from 'trl.experimental'")
    from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker

logger = logging.getLogger(__name__)

_BEAT_S = 0.2
"""Seconds between two looks at the weights' version and at whether to stop."""
_RETRY_S = 0.05
"""Seconds between two tries to put a row into a full queue, or to begin a group."""


class EpisodeSettings(Record):
    """What an `EpisodeLoop` plays; picklable, for it runs in a process of its own."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    env: str
    """Environment id; `module:id` for one that a module registers."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Its parameters; they must be picklable."""
    tasks: tuple[str, ...] = Field(min_length=1)
    """Task ids in the order they are played, over and over; one group each."""
    endpoints: tuple[Endpoint, ...] = Field(min_length=1)
    """The policy's servers, each with `tokens`."""
    group_size: int = Field(default=8, ge=2)
    """Episodes per task, the trainer's `num_generations`."""
    concurrency: int = Field(default=128, ge=1)
    """Episodes at once, the trainer's `max_inflight_tasks`."""
    max_turn_tokens: int = Field(default=256, ge=1)
    """Tokens the policy may sample per turn."""
    temperature: Finite = Field(default=1.0, gt=0)
    """The trainer's."""
    max_staleness: int = Field(default=4, ge=0)
    """The trainer's: no more groups begin than it can take before they are so many versions old."""
    seed: int = Field(default=0, ge=0)
    """Fixes every task seed and sampling seed."""


class EpisodeLoop:
    """Plays groups of episodes and puts their rows into a queue, until it is told to stop.

    TRL makes one in the worker's process (`trl.experimental.async_grpo`, `_child_main`), calls
    `run`, and sets `_stop_event` on `_loop` to end it; what else it passes is shared with the
    trainer's process.

    Args:
        settings: What is played.
        rollout_buffer: Takes `RolloutSample`s.
        model_version_value: `value` is the version of the servers' weights.
        heartbeat_value: `value` is set to the time, again and again.
        failed_event: Set if the loop fails.
        exception_info_queue: Then takes name, message and traceback.
        metrics_queue: Takes metrics of each group.
        dataset_start_index: Groups that an earlier run has played.
        queue_maxsize: TRL's, for its messages.
    """

    def __init__(
        self,
        *,
        settings: EpisodeSettings,
        rollout_buffer: Any,
        model_version_value: Any,
        heartbeat_value: Any,
        failed_event: Any,
        exception_info_queue: Any,
        metrics_queue: Any,
        dataset_start_index: int = 0,
        queue_maxsize: int = 0,
    ) -> None:
        self._settings = settings
        self._buffer = rollout_buffer
        self._version = model_version_value
        self._heartbeat = heartbeat_value
        self._failed = failed_event
        self._failure = exception_info_queue
        self._metrics = metrics_queue
        self._start = dataset_start_index
        self._queue_maxsize = queue_maxsize
        self._loop = asyncio.new_event_loop()
        self._stop_event = asyncio.Event()
        self._begun: dict[str, int] = {}
        self._held_s = 0.0
        """Seconds for which no group was begun, since they were told last."""
        self._admission = QueueAdmission(
            Staleness(max_versions=settings.max_staleness), at_first=settings.concurrency
        )

    def run(self) -> None:
        """Play until stopped.

        Raises:
            AgentGymError: If it can't go on; the trainer is told as well.
        """
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._play())
            self._leave_the_rest()
        except BaseException as error:
            told = (type(error).__name__, str(error), traceback.format_exc())
            try:
                self._failure.put_nowait(told)
            except queue.Full:
                logger.warning("the trainer has not read of an earlier failure yet")
            self._failed.set()
            raise
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()

    def _leave_the_rest(self) -> None:
        """Let the process end though nobody reads what is still on its way into the queues.

        Else it waits for a reader, and TRL 1.16 ends it by force after 15 s.
        """
        for each in (self._buffer, self._metrics):
            if isinstance(each, multiprocessing.queues.Queue):
                each.cancel_join_thread()

    async def _play(self) -> None:
        """Fill the queue until somebody says stop."""
        s = self._settings
        client = BalancedClient(s.endpoints)
        engine = Engine(
            s.env,
            client=client,
            sampling=SamplingParams(temperature=s.temperature, max_tokens=s.max_turn_tokens),
            env_kwargs=s.env_kwargs,
            limits=Limits(
                concurrency=s.concurrency,
                init_concurrency=s.concurrency,
                eval_concurrency=s.concurrency,
                backlog=max(s.concurrency, s.group_size),
            ),
            policy_name=s.endpoints[0].model,
        )
        tasks: list[asyncio.Task[Any]] = []
        try:
            await client.preflight()
            works = (self._stop_event.wait(), self._beat(client), self._fill(engine))
            tasks += map(asyncio.create_task, works)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await engine.aclose()
            await client.aclose()

    async def _beat(self, client: BalancedClient) -> None:
        """Show that the loop is alive, and name the weights that turns are sampled with."""
        named = None
        while True:
            self._heartbeat.value = time.time()
            version = int(self._version.value)
            if version != named:
                client.set_weight_version(None, str(version))
                named = version
            await asyncio.sleep(_BEAT_S)

    async def _fill(self, engine: Engine) -> None:
        groups: dict[str, list[Trace]] = {}
        async for trace in engine.run(self._requests()):
            assert trace.group is not None
            group = groups.setdefault(trace.group, [])
            group.append(trace)
            if len(group) == self._settings.group_size:
                del groups[trace.group]
                await self._hand_over(trace.group, group)

    async def _requests(self) -> AsyncIterator[EpisodeRequest]:
        """Groups without end; each request is asked for when its episode may begin."""
        s = self._settings
        number = 0
        while True:
            task = s.tasks[(self._start + number) % len(s.tasks)]
            await self._admitted()
            self._begun[str(number)] = int(self._version.value)
            for sample in range(s.group_size):
                yield EpisodeRequest(
                    task_id=task,
                    seed=derived_seed(s.seed, "async", self._start + number),
                    group=str(number),
                    group_size=s.group_size,
                    sample=sample,
                )
            number += 1

    async def _admitted(self) -> None:
        """Wait until the rows of another group would be taken in time."""
        began = time.monotonic()
        while not self._has_room():  # noqa: ASYNC110  # the trainer's process sets no event
            await asyncio.sleep(_RETRY_S)
        self._held_s += time.monotonic() - began

    def _has_room(self) -> bool:
        waiting = self._buffer.qsize()
        self._admission.see(version=int(self._version.value), waiting=waiting)
        playing = len(self._begun) * self._settings.group_size
        # A trainer that waits for its batch gets it, however few rows the groups before came to.
        starved = not waiting and not playing
        return starved or self._admission.room(playing) >= self._settings.group_size

    async def _hand_over(self, group: str, traces: Sequence[Trace]) -> None:
        """Put the rows of a group into the queue; waits while it is full."""
        rows = rows_of_group(traces, group_id=int(group), version=self._begun[group])
        self._push({**group_metrics(traces), "agentgym/held_back_s": (self._held_s, 1.0)})
        self._held_s = 0.0
        for row in rows:
            row.enqueued_at = time.time()
            while True:
                try:
                    self._buffer.put_nowait(row)
                    break
                except queue.Full:
                    await asyncio.sleep(_RETRY_S)
            self._admission.put(row.model_version)
        del self._begun[group]

    def _push(self, metrics: Mapping[str, Any]) -> None:
        try:
            self._metrics.put_nowait(dict(metrics))
        except queue.Full:
            logger.debug("the trainer reads no metrics; those of a group are dropped")


class EpisodeWorker(AsyncRolloutWorker):
    """A `rollout_worker` for `AsyncGRPOTrainer` that plays episodes with the rollout engine.

    The trainer's own `reward_funcs`, `tools` and `environment_factory` are not used: the reward is
    the episode's verdict. Masked episodes make no rows.

    Args:
        settings: What is played.
        queue_maxsize: Rows that may wait for the trainer; 0 for any number.
        child_ready_timeout: Seconds until the worker's process must be up.

    Raises:
        ConfigError: If an endpoint has no `tokens`, or the environment no such tasks.

    Examples:
        >>> worker = EpisodeWorker(EpisodeSettings(env=…, tasks=…, endpoints=…))
        >>> trainer = AsyncGRPOTrainer(model, args=args, train_dataset=…, rollout_worker=worker)
    """

    _loop_cls: Any = EpisodeLoop

    def __init__(
        self,
        settings: EpisodeSettings,
        *,
        queue_maxsize: int = 0,
        child_ready_timeout: int = 300,
    ) -> None:
        without = [endpoint.base_url for endpoint in settings.endpoints if endpoint.tokens is None]
        if without:
            raise ConfigError(
                f"the endpoint {without[0]} is asked in messages, and a trainer needs ids: give it "
                "tokens=TokenPath(tokenizer=…)"
            )
        env: Any = EnvSource(settings.env, settings.env_kwargs).make()
        try:
            known = list(env.unwrapped.task_ids())
        finally:
            env.close()
        unknown = sorted(set(settings.tasks).difference(known))
        if unknown:
            raise ConfigError(f"{settings.env}: {unknown_name('task', unknown[0], known)[:300]}")
        super().__init__(
            queue_maxsize=queue_maxsize,
            child_ready_timeout=child_ready_timeout,
            settings=settings,
        )
