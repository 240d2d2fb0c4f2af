"""Python's garbage collector, told that a rollout makes much and leaves little.

With a thousand episodes in flight there are millions of live objects, and nearly all that is made
is freed by reference counts at once. Collecting after every 700 new objects then costs a quarter of
the CPU of a turn, and a full collection holds up the event loop for a tenth of a second.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (10_000, 10, 10)


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Let the collector look seldom inside the block, and never at what was there before.

    It is the whole process that this changes, so programs do it and libraries don't: the commands
    of agentgym, your own script around `Engine.run`.

    Example:
        >>> with collecting_seldom():
        ...     traces = engine.run_blocking(requests)
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
