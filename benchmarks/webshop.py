"""Speed and memory of `agentgym/WebShop-v0` at 1,000 products, against the original's figures.

    python benchmarks/webshop.py                    # the embedded catalogue
    python benchmarks/webshop.py --data FOLDER      # WebShop's own 1,000-product files

Every rate is that of whole `env.reset` or `env.step` calls, observation and info included, through
the plain environment. Searches all differ, so no cache answers them. The original's figures were
measured on two shared cores with the same 1,000 products; rates depend on the machine, the order of
magnitude does not.
"""

import argparse
import gc
import json
import os
import platform
import random
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentgym.envs.webshop.env import WebShopEnv

ORIGINAL_PER_S = {
    "reset": 152.0,
    "search": 26.7,
    "page turn": 19.0,
    "item click": 26.0,
    "option click": 33.0,
    "sub page": 84.0,
    "buy": 29.0,
}
"""Steps a second of the original in text mode."""
WANTED_RATIO = {name: 40.0 if name == "search" else 100.0 for name in ORIGINAL_PER_S}
MOST_MEMORY_MIB = 150.0
MOST_INSTANCE_KIB = 50.0


def resident_mib() -> float:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


class Clock:
    """Adds up the time of calls by name."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(ORIGINAL_PER_S, 0.0)
        self.calls = dict.fromkeys(ORIGINAL_PER_S, 0)

    def time(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Run ``call`` and book its time under ``name``."""
        start = time.perf_counter()
        result = call(*arguments)
        self.seconds[name] += time.perf_counter() - start
        self.calls[name] += 1
        return result

    def rate(self, name: str) -> float:
        """Calls a second."""
        return self.calls[name] / self.seconds[name]


def visit(env: WebShopEnv, clock: Clock, rng: random.Random) -> None:
    """One episode that takes every kind of step once or more."""
    clock.time("reset", env.reset)
    catalogue = env.world.shop.catalogue
    product = rng.choice(catalogue.products)
    words = [*product.title.split(), *rng.choice(catalogue.products).title.split()]
    query = " ".join(rng.sample(words, min(8, len(words))))
    clock.time("search", env.step, f"search[{query}]")
    clock.time("page turn", env.step, "click[next >]")
    info = clock.time("page turn", env.step, "click[< prev]")[-1]
    links = [name for name in info["available_actions"]["clickables"] if name not in _BUTTONS]
    if not links:
        return
    info = clock.time("item click", env.step, f"click[{rng.choice(links)}]")[-1]
    options = [name for name in info["available_actions"]["clickables"] if name not in _BUTTONS]
    for name in options[:3]:
        clock.time("option click", env.step, f"click[{name}]")
    for tab in ("description", "features"):
        clock.time("sub page", env.step, f"click[{tab}]")
        env.step("click[< prev]")
    clock.time("buy", env.step, "click[buy now]")


_BUTTON_LIST = "back to search|< prev|next >|description|features|reviews|attributes|buy now"
_BUTTONS = frozenset(_BUTTON_LIST.split("|"))


def instance_kib(make: Callable[[], WebShopEnv], count: int = 50) -> float:
    """Memory of one more instance, an episode running in it."""
    make().reset(seed=0)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    envs = [make() for _ in range(count)]
    for env in envs:
        env.reset(seed=0)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / count / 1024


def main() -> int:
    """Measure, print, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with WebShop's three files")
    parser.add_argument("--mode", default="text", choices=("text", "text_rich"))
    parser.add_argument("--goals", default="synthetic", choices=("human", "synthetic"))
    parser.add_argument("--episodes", type=int, default=1500)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    options = parser.parse_args()

    def make() -> WebShopEnv:
        return WebShopEnv(
            data=options.data, goals=options.goals, observation_mode=options.mode, max_turns=None
        )

    start = time.perf_counter()
    env = make()
    loading_s = time.perf_counter() - start
    clock, rng = Clock(), random.Random(0)
    env.reset(seed=0)
    for _ in range(options.episodes):
        visit(env, clock, rng)
    memory = resident_mib()
    extra = instance_kib(make)
    result = {
        "data": env.world.shop.catalogue.name,
        "goals": options.goals,
        "mode": options.mode,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "steps": {
            name: {
                "per_s": round(clock.rate(name)),
                "original_per_s": original,
                "ratio": round(clock.rate(name) / original, 1),
                "wanted": WANTED_RATIO[name],
            }
            for name, original in ORIGINAL_PER_S.items()
        },
        "loading_s": round(loading_s, 2),
        "resident_mib": round(memory),
        "extra_instance_kib": round(extra, 1),
    }
    report(result)
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(bool(missed_targets(result)))


def missed_targets(result: dict[str, Any]) -> list[str]:
    """Names of the targets that the figures miss."""
    missed = [name for name, step in result["steps"].items() if step["ratio"] < step["wanted"]]
    missed += ["memory"] * (result["resident_mib"] > MOST_MEMORY_MIB)
    missed += ["instance"] * (result["extra_instance_kib"] > MOST_INSTANCE_KIB)
    return missed


def report(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print(f"{'step':<14}{'per second':>12}{'original':>10}{'ratio':>9}{'wanted':>9}")
    for name, step in result["steps"].items():
        print(
            f"{name:<14}{step['per_s']:>12,}{step['original_per_s']:>10}{step['ratio']:>8.0f}x"
            f"{step['wanted']:>8.0f}x"
        )
    resident, extra = result["resident_mib"], result["extra_instance_kib"]
    print(
        f"loading {result['loading_s']} s, resident {resident} MiB (at most {MOST_MEMORY_MIB:.0f})"
    )
    print(f"an extra instance {extra} KiB (at most {MOST_INSTANCE_KIB:.0f})")
    print(f"missed: {', '.join(missed_targets(result)) or 'nothing'}")


if __name__ == "__main__":
    sys.exit(main())
