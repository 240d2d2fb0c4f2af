"""Python's garbage collector, told that a rollout makes much and leaves little.

With a thousand episodes in flight there are millions of live objects, and nearly all that is made
is freed by reference counts at once. Collecting after every 700 new objects then costs a quarter of
the CPU of a turn, and a full collection holds up the event loop for a tenth of a second.

What is looked at in one go is a pause of everybody, a microsecond or two an object. So small
collections stay small (a few milliseconds), and those that look at more are rare: fewer than one in
a hundred wake-ups of the loop meets one. Cycles that nothing refers to are found after a million
new objects at the latest.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (2_000, 20, 25)


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Let the collector look seldom inside the block, and never at what was there before.

    It is the whole process that this changes, so programs do it and libraries don't: the commands
    of agentgym, your own script around `Engine.run`.

    Examples:
        >>> with collecting_seldom():
        ...     traces = engine.run_blocking(requests)
    """
    before = gc.get_threshold()
    gc.collect()
    frozen = gc.get_freeze_count() > 0  # by the program, or by a block around this one
    if not frozen:
        gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()
