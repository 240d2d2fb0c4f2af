"""One call of `Engine.run`: what is begun, what has finished, and when it ends.

A run ends when everything that was asked for is over, when it has enough, when it is drained, when
its reader leaves, or with an error. What it leaves unfinished is cancelled, or carried on in the
background until the engine's next run reads it; so a run can have several members, itself and those
carried over from before. With a budget it also ends, with `BudgetStop`, when no further episode can
be paid for; what is in flight then still finishes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Sized
from typing import Any

from agentgym.errors import RolloutStopped
from agentgym.rollout.admission import Slip
from agentgym.rollout.backend import Backend, Batch, Played, Playing
from agentgym.rollout.canary import Canary
from agentgym.rollout.enough import Enough, Goal, Shelf, Unit
from agentgym.rollout.failure import first_cause
from agentgym.rollout.leash import begin_task
from agentgym.rollout.ledger import Ledger, is_refusal
from agentgym.rollout.limits import FailureWatch
from agentgym.rollout.observer import Observer
from agentgym.rollout.outbox import Outbox
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.requests import Requests, Source
from agentgym.rollout.run_payer import RunPayer
from agentgym.rollout.turns import Setting
from agentgym.traces import TraceSink


class Run:
    """A run of an engine.

    Args:
        backend: Where episodes are played.
        setting: What they share.
        observer: Is told what happens.
        writer: Keeps each trace before it can be read.
        enough: When to end early; None is never.
        ledger: What the episodes are paid from; None where nobody minds.
        is_here: Whether they are played in this process, so that their bills come as they arise.
    """

    def __init__(
        self,
        backend: Backend,
        setting: Setting,
        observer: Observer,
        *,
        writer: TraceSink | None,
        enough: Enough | None,
        ledger: Ledger | None = None,
        is_here: bool = True,
    ) -> None:
        self._payer = RunPayer(ledger, is_here=is_here)
        self._backend = backend
        self._setting = setting
        self._observer = observer
        self._writer = writer
        self._goal = None if enough is None else Goal(enough)
        self._carries = enough is not None and enough.unfinished == "carry"
        self._shelf = Shelf(keeps=enough is not None)
        self._watch = FailureWatch(setting.limits)
        self._playing: dict[Playing, EpisodeRequest] = {}
        self._at_hand: EpisodeRequest | None = None
        """Taken, and waiting for room."""
        self._unbegun: list[EpisodeRequest] = []
        """Had been taken when it turned out that nothing further is to begin."""
        self._is_drained = False
        self._is_carried = False
        self._is_cut_short = False
        self._has_enough = False
        self._tasks: asyncio.TaskGroup
        self._batch: Batch
        self._feeder: asyncio.Task[None] | None = None
        self._is_feeding = False
        self._task: asyncio.Task[None]
        # As the one that is read, and as a member of one that is.
        self.outbox = Outbox(setting.limits.backlog)
        self._members: list[Run] = []
        self._error: BaseException | None = None
        self._reader: Run | None = self
        self._unread: list[Unit] = []

    # --- being read ---------------------------------------------------------------------------

    def begin(self, requests: Requests, carried: Sequence[Run]) -> None:
        """Start playing.

        Args:
            requests: What to play.
            carried: Earlier runs that go on; what they finish is read here.

        Raises:
            ConfigError: If the requests are none; nothing has begun then.
        """
        first = [request for run in carried for request in run._unbegun]
        again = len(first) + sum(run._still_to_come for run in carried)
        total = len(requests) + again if isinstance(requests, Sized) else None
        self._source = Source(first, requests)
        self._observer.begin(total, again=again)
        before = [run._feeder for run in carried if run._feeder is not None]
        self._task = asyncio.create_task(self._play(before))
        self._members = [self, *carried]
        self._task.add_done_callback(self._tell_over)
        for member in carried:
            member._unbegun = []
            if self._has_enough and self._carries:  # by what those before it had ready
                continue
            member._reader = self
            unread, member._unread = member._unread, []
            self._receive(unread)
            if member._task.done():
                member._tell_over(member._task)

    def end(self) -> None:
        """Called when nothing is left to read.

        Raises:
            BaseException: What stopped the run, if it was stopped.
        """
        if self._error is not None:
            raise self._error

    async def leave(self) -> list[Run]:
        """Nobody reads any more: cancel what is still played, and wait for it to be gone.

        Returns:
            The runs that go on, if this one ended with enough and carries.
        """
        try:
            if self._has_enough and self._carries and self._error is None:
                return [run for run in self._members if run._has_more]
            for member in self._members:
                member._task.cancel()
            await asyncio.gather(*(run._task for run in self._members), return_exceptions=True)
            return []
        finally:
            self._observer.end()

    def cancel_soon(self) -> None:
        """End a carried run, without waiting for it."""
        self._task.cancel()

    async def cancel(self) -> None:
        """End a carried run."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def drain(self) -> None:
        """Begin nothing further."""
        for member in self._members:
            member._is_drained = True
            member._stop_feeding()

    @property
    def requests_out(self) -> tuple[EpisodeRequest, ...]:
        """Those that have begun and aren't over, and those that were about to begin."""
        at_hand = () if self._at_hand is None else (self._at_hand,)
        return (*self._playing.values(), *at_hand, *self._unbegun)

    @property
    def _still_to_come(self) -> int:
        """Episodes of a carried run that go on, and those that its groups still lack."""
        taken = (self._at_hand is not None) + self._source.ahead
        return len(self._playing) + max(taken, self._shelf.missing().total())

    @property
    def _has_more(self) -> bool:
        """Whether there is anything for the next run to read."""
        failed = self._task.done() and not self._task.cancelled() and self._task.exception()
        return bool(not self._task.done() or self._unread or self._unbegun or failed)

    def _receive(self, units: Sequence[Unit]) -> None:
        for number, unit in enumerate(units):
            if self._has_enough:  # the rest of what a carried run had ready
                self._keep_for_later(units[number:])
                return
            self.outbox.put(unit.traces)
            if self._goal is not None and self._goal.reached_by(unit):
                self._end_early()

    def _keep_for_later(self, units: Sequence[Unit]) -> None:
        if self._carries:
            self._unread.extend(units)
        else:
            self.outbox.put(trace for unit in units for trace in unit.traces)

    def _end_early(self) -> None:
        self._has_enough = True
        if not self._carries:
            for member in self._members:
                member._cut_short()
            return
        for member in self._members:  # if requests raise here, the error is still read
            member._carry_on()
        for member in self._members:
            member._reader = None
        self.outbox.close()

    def _tell_over(self, task: asyncio.Task[None]) -> None:
        """This member is over; whoever reads it must know."""
        error = None if task.cancelled() else task.exception()
        reader = self._reader
        if reader is None:
            return
        if error is not None and reader._error is None:
            reader._error = error
            for member in reader._members:
                member._task.cancel()
        if all(member._task.done() for member in reader._members):
            reader.outbox.close()

    # --- playing ------------------------------------------------------------------------------

    async def _play(self, before: Sequence[asyncio.Task[None]]) -> None:
        """Play everything.

        Args:
            before: Begin theirs first, since the rest of their groups may come from our source.

        Raises:
            BaseException: What stopped it.
        """
        try:
            watching = self._observer.watching(self._backend, held_up=self._is_held_up)
            with self._payer.paying():
                async with watching, asyncio.TaskGroup() as tasks:
                    self._tasks = tasks
                    self._batch = self._backend.batch(tasks)
                    self._feeder = tasks.create_task(self._feed(before))
            self._payer.tell_if_it_stopped_the_run()
        except BaseExceptionGroup as failures:
            raise first_cause(failures) from None
        except asyncio.CancelledError:
            if not self._is_cut_short:
                raise
        finally:
            self._deliver(self._shelf.leftovers())

    def _is_held_up(self) -> bool:
        """Whether nothing more can begin until the reader goes on."""
        return self.outbox.is_full

    async def _feed(self, before: Sequence[asyncio.Task[None]]) -> None:
        """Begin one episode after the other, as room comes."""
        self._is_feeding = True
        try:
            if before:
                await asyncio.wait(before)
            while not self._has_begun_enough:
                self._at_hand = await self._source.next()
                if self._at_hand is None:
                    break
                await self.outbox.room()
                slip = await self._payer.admit()
                if slip is None and self._payer.is_limited:
                    self._leave_the_rest()
                    break
                try:
                    await self._batch.admit()
                    request, self._at_hand = self._at_hand, None
                    self._begin(request, slip)
                except BaseException:
                    if slip is not None:
                        slip.close()
                    raise
        except asyncio.CancelledError:
            if not self._has_begun_enough:
                raise
        self._batch.no_more()
        self._deliver(self._shelf.no_more())

    def _leave_the_rest(self) -> None:
        """No further episode can be paid for; note those that will not be played."""
        rest, knows_all = self._source.never_to_come()
        at_hand = [] if self._at_hand is None else [self._at_hand]
        self._at_hand = None
        self._payer.stopped_before((*at_hand, *rest), knows_all=knows_all)

    @property
    def _has_begun_enough(self) -> bool:
        """Whether it is drained; or carried, and no group that has begun lacks a rollout."""
        return self._is_drained or (self._is_carried and not self._shelf.missing())

    def _carry_on(self) -> None:
        """Begin nothing but what the groups that have begun still lack."""
        if self._is_carried:
            return
        self._is_carried = True
        missing = self._shelf.missing()
        if missing:
            self._source.take_ahead(missing, self._at_hand)
        else:
            self._unbegun = self._source.taken()
            if self._at_hand is not None:
                self._unbegun.insert(0, self._at_hand)
            self._stop_feeding()

    def _stop_feeding(self) -> None:
        self._at_hand = None
        if self._is_feeding and self._feeder is not None:  # else it will see for itself
            self._feeder.cancel()

    def _cut_short(self) -> None:
        """Cancel what is played; it is no error."""
        self._is_cut_short = True
        self._task.cancel()

    def _begin(self, request: EpisodeRequest, slip: Slip | None) -> None:
        playing = self._batch.begin(request)
        if slip is not None:
            self._payer.begin(playing, slip)
        self._shelf.begin(request)
        self._playing[playing] = request
        task = self._tasks.create_task(self._play_one(playing, request))
        # Also if it is cancelled before it has begun to run.
        task.add_done_callback(lambda _: self._forget(playing))

    def _forget(self, playing: Playing) -> None:
        playing.over()
        self._payer.forget(playing)
        if self._playing.pop(playing, None) is not None:
            self._observer.drop(playing.spent)

    async def _play_one(self, playing: Playing, request: EpisodeRequest) -> None:
        played = await playing.play()
        del self._playing[playing]
        is_cut = not played.trace.scored and is_refusal(played.fatal)
        trace = self._payer.cut_off(played.trace, request) if is_cut else played.trace
        self._payer.finish(playing, is_cut=is_cut)
        traces = (*played.replaced, trace)
        for trace in traces:
            if self._writer is not None:
                self._writer.write(trace)
            self._observer.finish(trace)
        self._payer.keep()
        self._deliver(self._shelf.finish(request, traces))
        if is_cut:
            return
        for trace in traces:
            self._watch.count(trace)
        if played.fatal is not None:
            raise RolloutStopped(
                f"stopped, since no other episode would fare better: {played.fatal}"
            )
        self._check_judge_if_due(played)

    def _deliver(self, units: Sequence[Unit]) -> None:
        if self._reader is None:
            self._unread.extend(units)
        else:
            self._reader._receive(units)

    def _check_judge_if_due(self, played: Played) -> None:
        canary: Canary | None = self._setting.canary
        if canary is None or played.scoring is None:
            return
        if (finished := canary.due()) is not None:
            judge = canary.judge or played.scoring.judge
            begin_task(self._tasks, self._check_judge(canary, judge, finished))

    async def _check_judge(self, canary: Canary, judge: Any, finished: int) -> None:
        """Ask the judge about the canary's episodes, beside the run."""
        check = await canary.check(judge, after_episodes=finished)
        self._observer.note(f"judge drift ×{canary.drifts}" if canary.drifts else "")
        if check.drifted and canary.stop:
            raise RolloutStopped(f"stopped after {check.after_episodes} episodes: {check}")
