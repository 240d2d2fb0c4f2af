"""How long `import agentgym` takes, beside `import gymnasium`, which it cannot do without.

Run with `python benchmarks/import_time.py`. Each figure is the median of fresh interpreters, taken
in turns so that both see the same machine; the interpreter's own start is taken off.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

LIMIT_S = 0.5


def run_once(program: str) -> float:
    """Seconds that a fresh interpreter takes to run a program."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - begun


def main() -> None:
    """Measure and print; exit with 1 over the limit."""
    parser = argparse.ArgumentParser(description="Time `import agentgym` beside gymnasium.")
    parser.add_argument("-n", type=int, default=15, help="interpreters per program (default: 15)")
    count = parser.parse_args().n
    programs = {
        "bare": "pass",
        "gymnasium": "import gymnasium",
        "agentgym": "import agentgym",
        "agentgym, all public names": "from agentgym import *",
    }
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(count):
        for name, program in programs.items():
            seconds[name].append(run_once(program))
    bare = statistics.median(seconds.pop("bare"))
    medians = {name: statistics.median(each) - bare for name, each in seconds.items()}
    for name, median in medians.items():
        ratio = median / medians["gymnasium"]
        print(f"{name:28} {median * 1e3:6.0f} ms   {ratio:5.2f} x gymnasium")
    if medians["agentgym"] > LIMIT_S:
        sys.exit(f"import agentgym takes over {LIMIT_S} s")


if __name__ == "__main__":
    main()
