"""What the contestants of `benchmarks/side_by_side.py` share: the task, and how they are measured.

A contestant is a script that reads one `Contest` as JSON from its command line, plays all of its
episodes, and prints one line of JSON. It may run in a virtual environment of its own.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agentgym.clients.transport import make_room_for_sockets
from agentgym.testing.fleet.workload import TOOL, Workload

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "Look something up.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "What."}},
                "required": ["query"],
            },
        },
    }
]


@dataclass(frozen=True)
class Contest:
    """What is played, and where.

    Args:
        urls: Base URLs of the servers, which share the work.
        url: Base URL of one server with all their slots, for whoever can't share out work.
        token_url: The same for whoever asks by token ids.
        workload: The episodes' turns, lengths and tool latencies.
        speed: Virtual seconds per second.
        episodes: How many, all at once.
        folder: For files.
    """

    urls: Sequence[str]
    url: str
    token_url: str
    workload: Workload
    speed: float
    episodes: int
    folder: str

    @classmethod
    def from_command_line(cls) -> Contest:
        """The contest that the first argument describes."""
        make_room_for_sockets(16_000)
        fields = json.loads(sys.argv[1])
        return cls(**{**fields, "workload": Workload(**fields["workload"])})

    @property
    def turns(self) -> int:
        """Of all episodes."""
        return sum(self.workload.turns(number) for number in range(self.episodes))

    async def tool(self, number: int, turn: int) -> str:
        """What the tool of a turn does."""
        await asyncio.sleep(self.workload.turn(number, turn).tool_s / self.speed)
        return self.workload.observation(number, turn)


@contextmanager
def measured(contest: Contest) -> Iterator[dict[str, Any]]:
    """Measure a block, and print the figures; the block may add to them.

    Everything that has to be there before the first episode belongs before the block.
    """
    figures: dict[str, Any] = {}
    wall, cpu = time.perf_counter(), time.process_time()
    yield figures
    cpu = time.process_time() - cpu
    wall = time.perf_counter() - wall
    figures = {
        "wall_s": round(wall, 3),
        "cpu_ms_per_turn": round(cpu / contest.turns * 1e3, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        **figures,
    }
    print(json.dumps(figures), flush=True)
