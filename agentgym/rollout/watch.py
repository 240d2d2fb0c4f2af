"""Says where a run is stuck: nothing moves any more, or something blocks the event loop.

A run that hangs looks like one that is slow, and the process that could tell is silent. So a run
in which no turn, no change of stage and no end of an episode has come for a minute says who waits
for what, and an event loop that is blocked is told on by a thread, with the line of code that
blocks it. Both warn again at growing intervals only.
"""

from __future__ import annotations

import asyncio
import linecache
import logging
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeVar

from agentgym.errors import ConfigError
from agentgym.rollout.status import Waiters, waits
from agentgym.rollout.tally import LagSamples
from agentgym.rollout.whereabouts import Whereabouts

logger = logging.getLogger(__name__)

BEAT_S = 0.1
"""Between two looks at how late the event loop is, seconds."""

_MAY_BLOCK: set[CodeType] = set()
_Function = TypeVar("_Function", bound=Callable[..., object])


def may_block(function: _Function) -> _Function:
    """Mark a function that works on the event loop on purpose; it isn't told on.

    Such as the sampler inside a trainer: while it computes there is nothing else to go on with, and
    a slow machine is no fault of anybody's code.
    """
    _MAY_BLOCK.add(function.__code__)
    return function


class StuckWatch:
    """Warns when nothing moves.

    Args:
        after_s: Seconds without a move after which it says so; None and 0 never do.
        policy: Says what the policy is, and which of its servers answer; asked when somebody waits
            for it.
        clock: Seconds, as `Whereabouts.since` counts them.

    Raises:
        ConfigError: If `after_s` is no time.
    """

    def __init__(
        self,
        after_s: float | None,
        *,
        policy: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if after_s is not None and not after_s >= 0:
            raise ConfigError(
                f"stuck_after_s must be 0 or more seconds, got {after_s:g}; 0 and None: no warning"
            )
        self._after_s = after_s or None
        self._policy = policy
        self._clock = clock
        self._seen: tuple[int, ...] = ()
        self._newest_s = 0.0
        self.begin()

    def begin(self) -> None:
        """A run starts: count the silence from here."""
        self._moved_s = self._clock()
        self._next_s = self._after_s

    def look(self, counters: tuple[int, ...], in_flight: Sequence[Whereabouts]) -> None:
        """See whether anything has moved since the last look.

        While no episode is in flight nobody is stuck: the source has no further request, or the
        traces are not taken, as when a trainer trains.

        Args:
            counters: Change whenever a policy answers or an episode ends.
            in_flight: The episodes begun and not over.
        """
        if self._after_s is None or self._next_s is None:
            return
        now = self._clock()
        silent_s = now - self._moved_s
        if not in_flight or self._has_moved(counters, in_flight):
            if self._next_s > self._after_s:
                logger.warning("moving again after %.0f s", silent_s)
            self._moved_s, self._next_s = now, self._after_s
        elif silent_s >= self._next_s:
            logger.warning("no progress for %.0f s: %s", silent_s, self._where(in_flight))
            while self._next_s <= silent_s:
                self._next_s *= 2

    def _where(self, in_flight: Sequence[Whereabouts]) -> str:
        groups = waits(in_flight)
        asked = any(group.waiting == "policy" for group in groups)
        about = self._policy() if asked else ""
        return f"{where(groups)}; {about}" if about else where(groups)

    def _has_moved(self, counters: tuple[int, ...], in_flight: Sequence[Whereabouts]) -> bool:
        if counters != self._seen:  # the usual case costs nothing, however many are in flight
            self._seen = counters
            self._newest_s = self._clock()
            return True
        newest_s = max((each.since for each in in_flight), default=self._newest_s)
        moved = newest_s > self._newest_s
        self._newest_s = max(newest_s, self._newest_s)
        return moved


def where(groups: Sequence[Waiters]) -> str:
    """Who waits for what, and whoever has waited longest for it, in one line."""
    first, *others = (
        f"{group.episodes} {{}}for {group.phrase} (longest: {group.longest})" for group in groups
    )
    verb = "episode waits " if groups[0].episodes == 1 else "episodes wait "
    return ", ".join([first.format(verb), *(other.format("") for other in others)])


class LoopWatch:
    """Measures how late an event loop is, and tells what blocks it.

    Args:
        samples: Gets the measurements.
        blocked_after_s: Seconds after which a loop that does nothing else counts as blocked; None
            never does.
        clock: Seconds, from any origin.
    """

    def __init__(
        self,
        samples: LagSamples,
        *,
        blocked_after_s: float | None = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._samples = samples
        self._blocked_after_s = blocked_after_s
        self._clock = clock
        self._due_s: float | None = None
        self._missed: tuple[float, bool] = (0.0, False)  # a beat found missing, and if it was told
        self._over = threading.Event()
        self._often = _Sparingly(clock)

    def start(self) -> None:
        """Watch the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._over = threading.Event()
        self._plan()
        if self._blocked_after_s is not None:
            args = (self._blocked_after_s, self._over)
            threading.Thread(
                target=self._guard, args=args, name="rollout-loop-watch", daemon=True
            ).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._over.set()
        self._due_s = None
        self._timer.cancel()

    @property
    def overdue_s(self) -> float:
        """How late the loop is just now, seconds; any thread may ask."""
        due_s = self._due_s
        return 0.0 if due_s is None else max(0.0, self._clock() - due_s)

    def _plan(self) -> None:
        self._due_s = self._clock() + BEAT_S
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        late_s, due_s = self.overdue_s, self._due_s
        self._samples.add(self._clock(), late_s)
        self._plan()
        if self._blocked_after_s is None or late_s < self._blocked_after_s:
            return
        missed, told = self._missed
        if missed == due_s:
            if told:
                logger.warning("the event loop goes on after %.1f s", late_s)
        elif (again := self._often.again("")) is not None:
            logger.warning("the event loop stood still for %.1f s: %s%s", late_s, _UNSEEN, again)

    def _guard(self, after_s: float, over: threading.Event) -> None:
        """Look for a missing beat, in a thread of its own."""
        nap_s = min(BEAT_S, after_s / 4)
        woken_s = self._clock()
        while not over.wait(nap_s):
            slept_s, woken_s = self._clock() - woken_s, self._clock()
            if slept_s > nap_s + after_s / 2:  # not even this thread could run: see how it is now
                continue
            due_s = self._due_s
            if due_s is None or due_s == self._missed[0]:
                continue
            late_s = self._clock() - due_s
            if late_s < after_s:
                continue
            frame = sys._current_frames().get(self._thread_id)
            if frame is None:  # the thread is gone, and the loop with it
                return
            if _is_on_purpose(frame):
                self._missed = (due_s, False)
                continue
            place, text = blocking_line(frame)
            again = self._often.again(place)
            self._missed = (due_s, again is not None)
            if again is not None:
                logger.warning("the event loop stands still for %.1f s: %s%s", late_s, text, again)


_UNSEEN = "code that doesn't let go of the interpreter (a C extension), or the process was paused"
_STARVED = "other threads keep the interpreter busy"
_ASYNCIO = str(Path(asyncio.__file__).parent)
_STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_AGENTGYM = str(Path(__file__).parents[1])
_BENEATH = tuple(
    f"{folder}/{package}"
    for folder in _INSTALLED
    for package in ("aiohttp", "gymnasium", "jsonschema", "numpy", "pydantic", "yarl")
)
"""What agentgym itself calls, so that being called by it doesn't make them the user's."""


def blocking_line(frame: FrameType) -> tuple[str, str]:
    """The line of code that keeps a thread busy.

    Args:
        frame: The innermost one of the thread that runs the event loop.

    Returns:
        The place, and a sentence about it. The place is in the user's own code if that takes part;
        else in what agentgym called, such as an environment that is installed as a package.
    """
    stack = [frame]
    while (outer := stack[-1].f_back) is not None and not _runs_callbacks(outer):
        stack.append(outer)
    if _is_in(frame, (_ASYNCIO,)) or frame.f_code.co_filename.endswith("selectors.py"):
        return "", _STARVED
    own = next(filter(_is_own, stack), None) or _installed(stack) or frame
    line = own.f_lineno or 0  # None between two lines
    place = f"{own.f_code.co_filename}:{line}"
    code = linecache.getline(own.f_code.co_filename, line).strip()
    text = f"{place}, in {own.f_code.co_name}"
    text += f": {code}" if code else ""
    if own is not frame:
        text += f" (now in {frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name})"
    if _is_in(own, (_AGENTGYM,)):  # no code of the user's takes part, so there is none to change
        return (
            place,
            f"{text}; agentgym's own work: too few cores for what runs here, or huge texts",
        )
    return place, f"{text}; make it async, or run it in a thread, so that the others can go on"


def _is_on_purpose(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _MAY_BLOCK:
            return True
        frame = frame.f_back
    return False


def _runs_callbacks(frame: FrameType) -> bool:
    return frame.f_code.co_name == "_run" and _is_in(frame, (_ASYNCIO,))


def _is_own(frame: FrameType) -> bool:
    return not (_is_standard(frame) or _is_in(frame, (*_INSTALLED, _AGENTGYM)))


def _is_standard(frame: FrameType) -> bool:
    # The folder of installed packages is inside the standard library's, in most set-ups.
    return _is_in(frame, _STANDARD) and not _is_in(frame, _INSTALLED)


def _installed(stack: Sequence[FrameType]) -> FrameType | None:
    """The frame to name where all code that takes part is installed.

    Args:
        stack: From the innermost frame to the outermost.
    """
    installed = [each for each in stack if not _is_standard(each)]
    foreign = (each for each in reversed(installed) if not _is_in(each, (_AGENTGYM, *_BENEATH)))
    return next(foreign, installed[0] if installed else None)


def _is_in(frame: FrameType, folders: Sequence[str]) -> bool:
    return frame.f_code.co_filename.startswith(tuple(f"{folder}/" for folder in folders))


class _Sparingly:
    """Decides when the same thing is told again: at growing intervals."""

    def __init__(self, clock: Callable[[], float], first_s: float = 60.0) -> None:
        self._clock = clock
        self._first_s = first_s
        self._known: dict[str, tuple[float, float, int]] = {}

    def again(self, key: str) -> str | None:
        """What to add to a warning if it is to be given now, or None if it isn't."""
        now = self._clock()
        next_s, pause_s, kept_back = self._known.get(key, (now, self._first_s, 0))
        if now < next_s:
            self._known[key] = (next_s, pause_s, kept_back + 1)
            return None
        self._known[key] = (now + pause_s, pause_s * 2, 0)
        return f" ({kept_back} times more since the last warning)" if kept_back else ""
