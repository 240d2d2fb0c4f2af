"""Makes the folder's own modules importable, for the tests and for the processes they start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

RENDEZVOUS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _no_rank_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what TRL sets where a trainer is built without `make_trainer`.

    A process that a later test starts would otherwise take itself for a rank of that trainer.
    """
    for name in RENDEZVOUS:
        monkeypatch.setenv(name, "")  # remembers what was there, also if that is nothing
        monkeypatch.delenv(name)
