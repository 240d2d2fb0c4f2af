"""How the processes of a run find each other, kept to that run.

TRL sets the rendezvous for vLLM in the environment of the process, also for a run of one process.
Runs that start together, or one after the other, would take each other for ranks of themselves.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def rendezvous_of_its_own() -> Iterator[None]:
    """Build a trainer in it: it has a port of its own, and leaves the environment as it was.

    A process started from here later, another training run for one, would take itself for a rank of
    this one and fail at the port.
    """
    before = {name: os.environ.get(name) for name in _VARIABLES}
    try:
        _claim_a_port()
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def _claim_a_port() -> None:
    """Give a run of one process a rendezvous port of its own.

    TRL 1.16 takes 29500 if nobody listens there at that moment, so of two runs that start together
    one dies in `init_process_group`. Launchers of several processes set the port themselves.
    """
    if "WORLD_SIZE" in os.environ or os.environ.get("MASTER_PORT"):
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(probe.getsockname()[1])
