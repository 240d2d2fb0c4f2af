"""Prometheus metrics: what a real scrape says, counters that never fall, few series."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agentgym.client import Completion
from agentgym.clients import ScriptedClient
from agentgym.errors import ConfigError, MissingExtraError
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.rollout.metric_families import COUNTERS, GAUGES, HISTOGRAMS
from agentgym.rollout.metrics import EngineMetrics, start_metrics_server
from agentgym.rollout.status import EngineStatus, EpisodeCounts, Histogram
from agentgym.testing.envs import CounterEnv
from agentgym.types import Usage

SUBMIT = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "function": {"name": "submit", "arguments": "{}"}}],
}
USAGE = Usage(prompt_tokens=100, cached_tokens=40, completion_tokens=10, cost_usd=0.25)


class Priced(ScriptedClient):
    """A policy whose answers cost something."""

    async def complete(self, *args: Any, **kwargs: Any) -> Completion:
        completion = await super().complete(*args, **kwargs)
        return completion.model_copy(update={"usage": USAGE})


class Fixed:
    """Something with a status."""

    def __init__(self, **facts: Any) -> None:
        known: dict[str, Any] = {
            "runs": 0,
            "elapsed_s": 1.0,
            "episodes": EpisodeCounts(),
            "in_flight": 0,
        }
        self.now = EngineStatus(**{**known, **facts})

    def status(self) -> EngineStatus:
        return self.now


def engine() -> Engine:
    return Engine(CounterEnv, client=Priced([SUBMIT]))


def scrape(url_or_metrics: str | EngineMetrics) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and the values of its labels in the labels' order."""
    if isinstance(url_or_metrics, str):
        with urllib.request.urlopen(url_or_metrics, timeout=60) as reply:
            assert reply.headers["Content-Type"].startswith("text/plain")
            text = reply.read().decode()
    else:
        registry = CollectorRegistry()
        registry.register(url_or_metrics)
        text = generate_latest(registry).decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_says_what_the_engine_did():
    metrics, played = EngineMetrics(), engine()
    metrics.add(played, env="counter")
    with start_metrics_server(0, metrics) as server:
        played.run_blocking([EpisodeRequest(seed=k) for k in range(20)])
        found = scrape(f"http://127.0.0.1:{server.port}/metrics")
    assert found["agentgym_episodes_total", "counter", "none"] == 20
    assert found["agentgym_turns_total", "counter"] == 20
    assert found["agentgym_generated_tokens_total", "counter"] == 200
    assert found["agentgym_input_tokens_total", "counter", "policy"] == 2000
    assert found["agentgym_cached_input_tokens_total", "counter", "policy"] == 800
    assert found["agentgym_output_tokens_total", "counter", "policy"] == 200
    assert found["agentgym_cost_dollars_total", "counter", "policy"] == 5.0
    assert found["agentgym_stage_slots", "counter", "run"] == 64
    assert found["agentgym_episodes_in_flight", "counter", "run", "policy"] == 0
    assert found["agentgym_episode_turns_bucket", "counter", "1.0"] == 20
    assert found["agentgym_episode_turns_sum", "counter"] == 20
    assert found["agentgym_stage_seconds_count", "counter", "run"] == 20
    assert "process_resident_memory_bytes" in {name for name, *_ in found}


async def test_a_scrape_answers_while_a_run_goes_on():
    asked, release = asyncio.Event(), asyncio.Event()

    async def think(messages: Any) -> Any:
        asked.set()
        await release.wait()
        return SUBMIT

    metrics, played = EngineMetrics(), Engine(CounterEnv, client=ScriptedClient(think))
    metrics.add(played, env="counter")
    with start_metrics_server(0, metrics) as server:
        async with played:
            run = played.run([EpisodeRequest(seed=0)])
            first = asyncio.ensure_future(anext(run))
            await asked.wait()
            url = f"http://127.0.0.1:{server.port}/metrics"
            found = await asyncio.to_thread(scrape, url)
            release.set()
            await first
            await run.aclose()
    assert found["agentgym_runs", "counter"] == 1
    assert found["agentgym_episodes_in_flight", "counter", "run", "policy"] == 1
    assert found["agentgym_stage_active", "counter", "run"] == 1


def test_counters_of_an_engine_that_is_gone_stay():
    metrics, first, second = EngineMetrics(), engine(), engine()
    for played in (first, second):
        metrics.add(played, env="counter")
        played.run_blocking([EpisodeRequest(seed=k) for k in range(5)])
    before = scrape(metrics)
    metrics.remove(first)
    after = scrape(metrics)
    assert after["agentgym_episodes_total", "counter", "none"] == 10
    assert after["agentgym_stage_slots", "counter", "run"] == 64  # only one engine's
    assert {k: v for k, v in after.items() if v < before[k] and is_counter(k[0])} == {}
    metrics.remove(second)
    metrics.remove(second)
    last = scrape(metrics)
    assert last["agentgym_episodes_total", "counter", "none"] == 10
    assert last["agentgym_episode_turns_count", "counter"] == 10
    assert ("agentgym_stage_slots", "counter", "run") not in last


def is_counter(name: str) -> bool:
    return name.endswith(("_total", "_bucket", "_count", "_sum"))


def test_counters_never_fall_over_runs():
    metrics, played = EngineMetrics(), engine()
    metrics.add(played, env="counter")
    before: dict[tuple[str, ...], float] = {}
    for _ in range(3):  # each on an event loop of its own, with stages of its own
        played.run_blocking([EpisodeRequest(seed=k) for k in range(3)])
        now = scrape(metrics)
        assert [k for k, v in before.items() if is_counter(k[0]) and now[k] < v] == []
        before = now


def test_engines_are_told_apart_by_labels_and_added_up_without():
    metrics = EngineMetrics(labels=("env", "job"))
    for job, turns in (("train", 3), ("train", 4), ("eval", 5)):
        metrics.add(Fixed(turns=turns), env="shop", job=job)
    found = scrape(metrics)
    assert found["agentgym_turns_total", "shop", "train"] == 7
    assert found["agentgym_turns_total", "shop", "eval"] == 5
    with pytest.raises(ConfigError, match="no label 'task': these metrics have env, job"):
        metrics.add(Fixed(), task="17")


def test_a_label_that_no_page_can_hold_is_cleaned():
    metrics = EngineMetrics()
    metrics.add(engine(), env='a"b\n\\\ud800')
    assert ("agentgym_runs", 'a"b\n\\\ufffd') in scrape(metrics)


def test_failures_and_limits_are_labels():
    counts = EpisodeCounts(
        finished=9, scored=4, masked={"infra": 3, "judge": 2}, truncated={"turns": 1}, reruns=6
    )
    metrics = EngineMetrics()
    metrics.add(Fixed(episodes=counts), env="e")
    found = scrape(metrics)
    assert found["agentgym_episodes_total", "e", "infra"] == 3
    assert found["agentgym_episodes_total", "e", "judge"] == 2
    assert found["agentgym_episodes_truncated_total", "e", "turns"] == 1
    assert found["agentgym_episode_reruns_total", "e"] == 6


def test_histogram_buckets_are_cumulative_and_end_in_infinity():
    metrics = EngineMetrics()
    histogram = Histogram(bounds=(1.0, 2.0), counts=(3, 2, 1), total=11.5)
    metrics.add(Fixed(histograms={"turns": histogram}), env="e")
    found = scrape(metrics)
    buckets = {k[2]: v for k, v in found.items() if k[0] == "agentgym_episode_turns_bucket"}
    assert buckets == {"1.0": 3, "2.0": 5, "+Inf": 6}
    assert found["agentgym_episode_turns_sum", "e"] == 11.5


def test_replicas_have_a_series_each():
    replica = {
        "name": "gpu1:8000",
        "state": "ejected",
        "in_flight": 3,
        "capacity": 8,
        "waiting": 2,
        "outstanding_tokens": 900,
        "answered": 70,
        "failed": 4,
        "cached_share": None,
    }
    metrics = EngineMetrics()
    metrics.add(Fixed(replicas=(replica,)), env="e")
    found = scrape(metrics)
    assert found["agentgym_replica_ready", "e", "gpu1:8000"] == 0
    assert found["agentgym_replica_answers_total", "e", "gpu1:8000"] == 70
    assert found["agentgym_replica_outstanding_tokens", "e", "gpu1:8000"] == 900
    assert ("agentgym_replica_cached_ratio", "e", "gpu1:8000") not in found


def test_the_number_of_series_does_not_grow_with_the_episodes():
    metrics, played = EngineMetrics(), engine()
    metrics.add(played, env="counter")
    played.run_blocking([EpisodeRequest(seed=k) for k in range(5)])
    few = set(scrape(metrics))
    played.run_blocking([EpisodeRequest(seed=k) for k in range(5, 60)])
    many = set(scrape(metrics))
    assert {key for key in many - few if key[0] != "agentgym_loop_lag_seconds"} == set()
    assert not [key for key in many if "counter/" in "".join(key)]


def test_every_metric_has_a_help_text_and_a_name_in_the_usual_form():
    families = [*COUNTERS, *GAUGES]
    names = [family.name for family in families] + [name for name, *_ in HISTOGRAMS]
    helps = [family.help for family in families] + [text for _, text, *_ in HISTOGRAMS]
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(r"agentgym_[a-z_]+", name)
        assert not name.endswith("_total"), "the exposition adds it"
    assert all(text.endswith(".") for text in helps)


def test_the_guide_names_metrics_that_exist():
    guide = (Path(__file__).parents[2] / "docs" / "observability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"agentgym_[a-z_]+", guide))
    counters = {f"{family.name}_total" for family in COUNTERS}
    histograms = {
        f"{name}_{part}" for name, *_ in HISTOGRAMS for part in ("bucket", "sum", "count")
    }
    assert named
    assert named - counters - {family.name for family in GAUGES} - histograms == set()


def test_a_port_in_use_is_one_clear_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as error:
            start_metrics_server(port, EngineMetrics())
    assert str(error.value) == (
        f"can't serve metrics on 127.0.0.1:{port}: Address already in use; choose another port, "
        "or 0 for any"
    )


def test_a_port_that_is_none_is_one_clear_line():
    with pytest.raises(ConfigError, match=r"can't serve metrics on 127.0.0.1:70000"):
        start_metrics_server(70000, EngineMetrics())


def test_without_the_client_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r'pip install "agentgym-envs\[serve\]"'):
        EngineMetrics()
