"""What holds for every test: no model hub, no usage reports, no time limit on a single example."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

from hypothesis import settings

# A shell starts background jobs with SIGINT ignored; every process started here would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

sys.path.insert(0, str(Path(__file__).parent / "support"))  # what several folders' tests share

# Read when transformers and vLLM are imported, in this process and in those it starts.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB

# A slow machine is no failure. On CI the examples are the same each time.
settings.register_profile("agentgym", deadline=None, derandomize="CI" in os.environ)
# The fast tests look at a few examples of each property, the thorough ones at all.
settings.register_profile("quick", settings.get_profile("agentgym"), max_examples=25)
settings.load_profile("agentgym")


def pytest_collection_finish() -> None:
    """Spare the garbage collector the loaded libraries: a second for each full collection."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let go of it all, or compiled modules that count their objects complain of leaks."""
    gc.unfreeze()
