"""Blocking code beside an event loop, in daemon threads.

A thread pool would lose a worker to every call that hangs, and would keep the process from ending.
Here every call has a daemon thread to itself; so many run at once and no more, further ones wait
for a place. A call that outlives its caller is left behind: it is counted until it ends, somebody
else has its place, and when as many have been left behind as may run, the next one is an error
rather than yet another thread. Starting a thread costs more than many a call, so one whose call has
ended waits a while for the next; a call that was left behind takes its thread with it.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, ClassVar, TypeVar

from agentgym.deadline import queued
from agentgym.errors import EnvFault

T = TypeVar("T")

MOST = 256
"""Blocking calls at once, where nobody says otherwise."""
MOST_IDLE = 32
"""Threads that wait for a call, in the whole process."""
_IDLE_S = 10.0

_left_behind: set[object] = set()


def abandoned() -> int:
    """Calls of this process that nobody waits for any more, and whose threads still go on."""
    return len(_left_behind)


def idle() -> int:
    """Threads of this process that wait for a call; at most `MOST_IDLE`, and each not for long."""
    return len(_Worker.idle)


class Threads:
    """Places for blocking calls; any event loop and any thread may use them.

    Args:
        most: Calls at once; as many may be left behind.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.running = 0
        """Calls that somebody waits for."""
        self.abandoned = 0
        """Calls that have been left behind and go on."""
        self._lock = threading.Lock()
        self._queue: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""
        return len(self._queue)

    async def run(
        self,
        function: Callable[[], T],
        *,
        name: str = "agentgym-blocking",
        unwanted: Callable[[T], object] | None = None,
        begun: Callable[[], object] | None = None,
    ) -> T:
        """Run a blocking function in a thread, with the caller's context variables.

        If the caller is cancelled it returns at once; the thread goes on and its result is dropped.

        Args:
            function: What to run. Calls from inside it go on its own place.
            name: The thread's, meanwhile.
            unwanted: Gets a result that comes too late, to free what it holds; also runs in a
                thread.
            begun: Called once a thread has it, after which it runs to its end.

        Raises:
            EnvFault: If too many calls have been left behind and still go on.
        """
        nested = self in _inside.get()
        if not nested:
            await self._take_place()
        call = _Call(self, function, unwanted, holds_place=not nested)
        context = contextvars.copy_context()
        context.run(_inside.set, (*_inside.get(), self))
        try:
            _start(lambda: call.work(context), name)
        except RuntimeError as error:  # the system has no more
            self.over(holds_place=not nested, was_abandoned=False)
            raise EnvFault(f"no thread could be started: {error}") from error
        if begun is not None:
            begun()
        try:
            assert call.future is not None
            result: T = await call.future
            return result
        except asyncio.CancelledError:
            call.leave_behind()
            raise
        finally:
            call.future = None  # the thread may still hold the call

    async def _take_place(self) -> None:
        with self._lock:
            self._check()
            if self.running < self.most:
                self.running += 1
                return
            loop = asyncio.get_running_loop()
            waiter = (loop, loop.create_future())
            self._queue.append(waiter)
        try:
            with queued():
                await waiter[1]
            self._check()
        except BaseException:
            with self._lock:
                if waiter in self._queue:
                    self._queue.remove(waiter)
                else:  # the place had been given to it
                    self._pass_on()
            raise

    def _check(self) -> None:
        if self.abandoned >= self.most:
            raise EnvFault(
                f"{self.abandoned} blocking calls that were given up are still running in this "
                "process; make the tool or the env honour its own time-out, or make it async"
            )

    def _pass_on(self) -> None:
        """Give a place back, under the lock: to whoever has waited longest."""
        while self._queue:
            loop, future = self._queue.popleft()
            with suppress(RuntimeError):  # its loop was closed meanwhile
                loop.call_soon_threadsafe(_grant, future)
                return
        self.running -= 1

    def over(self, *, holds_place: bool, was_abandoned: bool) -> None:
        """A call has ended; from its thread."""
        with self._lock:
            if was_abandoned:
                self.abandoned -= 1
            elif holds_place:
                self._pass_on()

    def gave_up(self, *, holds_place: bool) -> None:
        """Nobody waits for a call any more, which goes on: somebody else may have its place."""
        with self._lock:
            self.abandoned += 1
            if holds_place:
                self._pass_on()


class _Call:
    """One function in its thread; what it comes to goes to `future`, on the caller's loop."""

    def __init__(
        self,
        threads: Threads,
        function: Callable[[], Any],
        unwanted: Callable[[Any], object] | None,
        *,
        holds_place: bool,
    ) -> None:
        self._threads = threads
        self._function: Callable[[], Any] | None = function
        self._outcome: tuple[Any, BaseException | None] = (None, None)
        self._unwanted = unwanted
        self._holds_place = holds_place
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._ended = False
        self.future: asyncio.Future[Any] | None = self._loop.create_future()

    def work(self, context: contextvars.Context) -> bool:
        """Run the function; in its thread.

        Returns:
            Whether the thread may have another call: not if this one had been left behind.
        """
        # Nothing of the call may be held here once the caller goes on: not what it called, which
        # may be an environment that the caller then frees, and not what came of it.
        function, self._function = self._function, None
        assert function is not None
        try:
            self._outcome = context.run(function), None
        except StopIteration as raised:  # a future can't carry it
            self._outcome = None, RuntimeError(f"StopIteration: {raised}")
        except BaseException as raised:  # carried over to the caller
            self._outcome = None, raised
        del function
        with self._lock:
            self._ended = True
            was_abandoned = self in _left_behind
            _left_behind.discard(self)
        self._threads.over(holds_place=self._holds_place, was_abandoned=was_abandoned)
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:  # the loop was closed meanwhile, with whoever waited
            self.future = None
            self._settle()
        return not was_abandoned

    def _settle(self) -> None:
        (result, error), self._outcome = self._outcome, (None, None)
        future = self.future
        if future is None or future.done():
            if error is None:
                self._drop(result)
        elif error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def leave_behind(self) -> None:
        """The caller was cancelled."""
        future = self.future
        assert future is not None
        if future.done() and not future.cancelled() and future.exception() is None:
            self._drop(future.result())  # cancelled between the result and its turn to take it
        with self._lock:
            if self._ended:
                return
            _left_behind.add(self)
            self._threads.gave_up(holds_place=self._holds_place)

    def _drop(self, result: Any) -> None:
        if self._unwanted is not None:
            unwanted = self._unwanted

            def work() -> bool:
                unwanted(result)
                return True

            _start(work, "agentgym-unwanted")


def _grant(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Worker:
    """A daemon thread that does one thing after another, and ends if nothing comes for a while."""

    idle: ClassVar[list[_Worker]] = []
    """Those that wait, the one that has waited least last; lists are safe among threads."""

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[Callable[[], bool]] = queue.SimpleQueue()
        self._taken = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self, work: Callable[[], bool], name: str) -> None:
        """Do this first.

        Raises:
            RuntimeError: If the system has no more threads.
        """
        self._thread.start()
        self.give(work, name)

    def give(self, work: Callable[[], bool], name: str) -> None:
        """Do this next, under this name.

        Returns when it is begun, as starting a thread does: so what is given first is begun first.
        """
        self._thread.name = name
        self._given.put(work)
        self._taken.acquire()

    def _run(self) -> None:
        while True:
            try:
                work = self._given.get(timeout=_IDLE_S)
            except queue.Empty:
                if self._is_over():
                    return
                continue
            self._taken.release()
            may_go_on = work()
            del work  # and with it, what it came to
            if not may_go_on:
                return
            self._thread.name = "agentgym-idle"
            self.idle.append(self)
            if len(self.idle) > MOST_IDLE and self._is_over():
                return

    def _is_over(self) -> bool:
        """Stop waiting; False if somebody has just picked this one, so that work is on its way."""
        try:
            self.idle.remove(self)
        except ValueError:
            return False
        return True


os.register_at_fork(after_in_child=_Worker.idle.clear)  # the child has none of the threads


def _start(work: Callable[[], bool], name: str) -> None:
    """Have a thread do something.

    Args:
        work: What; returns whether its thread may do something else afterwards.
        name: The thread's, meanwhile.
    """
    try:
        worker = _Worker.idle.pop()
    except IndexError:
        _Worker().begin(work, name)
    else:
        worker.give(work, name)


_inside: ContextVar[tuple[Threads, ...]] = ContextVar("agentgym_inside_threads", default=())
_current: ContextVar[Threads | None] = ContextVar("agentgym_threads", default=None)
_shared = Threads()


@contextmanager
def using_threads(threads: Threads) -> Iterator[None]:
    """Have the blocking calls inside the block, those of tasks started there too, use `threads`."""
    token = _current.set(threads)
    try:
        yield
    finally:
        _current.reset(token)


async def in_thread(
    function: Callable[[], T],
    *,
    name: str = "agentgym-blocking",
    unwanted: Callable[[T], object] | None = None,
    begun: Callable[[], object] | None = None,
) -> T:
    """`Threads.run` on the threads in use, or on those that the whole process shares."""
    threads = _current.get() or _shared
    return await threads.run(function, name=name, unwanted=unwanted, begun=begun)
