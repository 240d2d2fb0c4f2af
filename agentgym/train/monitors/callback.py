"""The monitors of a run while it goes: a TRL callback, and a listener of its rollouts.

It sees what is logged, so it judges a run exactly as `agentgym diagnose` judges its files later.
Beside that it measures what nobody else can: where a step's time goes, and how the tasks' earlier
success predicts the groups of this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from agentgym.errors import TrainingError
from agentgym.train.batch import PlayedBatch
from agentgym.train.files import ALARMS_FILE, EVALUATIONS_FILE
from agentgym.train.gathering import gather_of
from agentgym.train.monitors.alarm import Alarm, AlarmBook
from agentgym.train.monitors.checks import look
from agentgym.train.monitors.history import OURS, RunHistory, Thresholds
from agentgym.train.monitors.offline import read_steps
from agentgym.train.monitors.scores import HeldOutScore, read_scores
from agentgym.train.monitors.tasks import TaskHistory, outcomes_of


class RunMonitor(TrainerCallback):
    """Raises alarms while a trainer trains.

    Add it with `trainer.add_callback(monitor)`. With a trainer of your own whose rollouts are
    `agentgym.train.rollout_func`, it listens to them by itself. Of other trainers of TRL
    (`RLOOTrainer`, `AsyncGRPOTrainer`) it sees what they log.

    Args:
        trainer: The `GRPOTrainer`, or another that logs a `reward`.
        out: The run's folder, for `alarms.jsonl`, and for what was there before a resume; None
            keeps nothing.
        thresholds: Where alarms begin.
        stop_on: Kinds of alarms that end the run, such as `no_signal`, or names (`gate:truncated`).
        tell: Shows a line to whoever watches.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        out: Path | None = None,
        thresholds: Thresholds | None = None,
        stop_on: Collection[str] = (),
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.history = RunHistory(thresholds)
        self.book = AlarmBook()
        self.stopped_by: Alarm | None = None
        """The alarm that ended the run, if one did."""
        self._trainer = trainer
        self._out = out
        self._stop_on = frozenset(stop_on)
        self._tell = tell or (lambda line: None)
        self._tasks = TaskHistory()
        self._started: float | None = None
        self._spent: dict[str, float] = {}
        listeners = getattr(getattr(trainer, "rollout_func", None), "listeners", None)
        if listeners is not None:
            listeners.append(self.take)

    @property
    def alarms(self) -> list[Alarm]:
        """Those raised so far, a resumed run's earlier ones included."""
        return self.book.alarms

    def take(self, batch: PlayedBatch) -> None:
        """Note what a batch of episodes says beyond its own metrics."""
        if not batch.training:
            return
        # A group may be spread over processes.
        outcomes = gather_of(self._trainer.accelerator)(outcomes_of(batch.traces))
        expected = self._tasks.expect(outcomes)
        if expected is not None:
            self._log("groups_equal_expected_by_task", expected)
        stages = [trace.stage_s for trace in batch.traces]
        active = sum(sum(each.values()) for each in stages)
        judging = sum(each.get("eval", 0.0) for each in stages) / active if active > 0 else 0.0
        self._spend("judge", batch.seconds * judging)
        self._spend("rollout", batch.seconds * (1 - judging))

    def take_score(self, score: HeldOutScore) -> None:
        """Note a held-out evaluation."""
        self.history.add_evaluation(score)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take up what was known before a resume, and time the weight syncs."""
        if self._out is not None and state.is_world_process_zero:
            self.book = AlarmBook(self._out / ALARMS_FILE, done=state.global_step)
            if state.global_step:
                self._take_up(self._out, state.global_step)
        self._time_syncs()

    def _take_up(self, out: Path, done: int) -> None:
        """Read what a run had logged up to a step."""
        for step, values in read_steps(out):
            if step <= done:
                self.history.add(step, values)
        for score in read_scores(out / EVALUATIONS_FILE):
            if score.step <= done:
                self.history.add_evaluation(score)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A training step starts; its rollout is part of it."""
        self._started = time.perf_counter()
        self._spent = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say where the step's time went."""
        if self._started is None:
            return
        whole = time.perf_counter() - self._started
        self._spend("update", max(0.0, whole - sum(self._spent.values())))
        for name, seconds in {"step": whole, **self._spent}.items():
            self._log(f"time_s/{name}", seconds)
        self._log("alarms", float(len(self.alarms)))
        self._started = None

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Look at the run as it stands after a step."""
        if not logs or "reward" not in logs:
            return
        stop: list[Alarm | None] = [None]
        if state.is_world_process_zero:
            self.history.add(state.global_step, logs)
            for alarm in self.book.add(look(self.history)):
                self._tell(f"alarm at step {alarm.step}: {alarm.text()}")
                if self._stop_on & {alarm.name, alarm.kind}:
                    stop[0] = stop[0] or alarm
        if self._stop_on and self._trainer.accelerator.num_processes > 1:
            from accelerate.utils import broadcast_object_list

            broadcast_object_list(stop)  # all must stop at the same step
        if stop[0] is not None:
            self.stopped_by = stop[0]
            control.should_training_stop = True
            control.should_save = True

    def raise_if_stopped(self) -> None:
        """End a run that an alarm has stopped; its checkpoint is saved.

        Raises:
            TrainingError: With the alarm.
        """
        if self.stopped_by is not None:
            raise TrainingError(
                f"stopped at step {self.stopped_by.step} by the alarm {self.stopped_by.text()} "
                "(a checkpoint is saved; --resume goes on all the same)"
            )

    def _spend(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds

    def _log(self, name: str, value: float) -> None:
        """Add to what the trainer logs next; TRL 1.16 has no public way but from a reward."""
        metrics = getattr(self._trainer, "_metrics", None)  # TRL's trainers have it
        if metrics is not None:
            metrics["train"][OURS + name].append(value)

    def _time_syncs(self) -> None:
        generation = getattr(self._trainer, "vllm_generation", None)
        if generation is None or getattr(generation.sync_weights, "timed", False):
            return
        sync = generation.sync_weights

        def timed_sync(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return sync(*args, **kwargs)
            finally:
                self._spend("sync", time.perf_counter() - started)

        timed_sync.timed = True  # type: ignore[attr-defined]
        generation.sync_weights = timed_sync
