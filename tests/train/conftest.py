"""Makes the folder's own modules importable, for the tests and for the processes they start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def tied_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy whose embeddings are its output layer.

    vLLM 0.31 on a CPU packs other layers anew when it reloads them; a tied one it does not.
    """
    import tiny_policy

    return tiny_policy.save_policy(tmp_path_factory.mktemp("tied"), tied=True)


@pytest.fixture(scope="session")
def live_server(tied_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real `vllm serve` with that policy, for full weights and adapters; one for all modules.

    It has whatever weights the last test brought it.
    """
    from policy_server import CONTEXT, RANK, SERVED_NAME, policy_server

    log = tmp_path_factory.mktemp("server") / "vllm.log"
    options = {"max_context": CONTEXT, "served_name": SERVED_NAME, "rank": RANK}
    with policy_server(tied_policy, log, kind="lora", **options) as url:
        yield url
