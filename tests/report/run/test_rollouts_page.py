from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from parsed import assert_inert, parse
from synthetic_runs import HEALTHY, Symptoms, flat, steps_of

from agentgym.errors import DataError
from agentgym.report.plots.chart import Chart
from agentgym.report.run import kind_of, report_page
from agentgym.report.run.page import Page
from agentgym.report.run.rollouts import rollouts_page
from agentgym.rollout.summary import summarize_file
from agentgym.traces import TraceWriter

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def save(out: Path, symptoms: Symptoms, *, steps: int = 1) -> Path:
    out.mkdir()
    with TraceWriter(out / "traces.jsonl") as writer:
        for _, _, traces in steps_of(symptoms, steps=steps):
            for trace in traces:
                writer.write(trace)
    config = {"env": "agentgym/X-v0", "policy": "m", "samples": 8, "seed": 0, "n": 16}
    (out / "config.json").write_text(json.dumps(config))
    return out


def save_episodes(out: Path, episodes: list[tuple[int, float]]) -> Path:
    """A run of episodes of so many turns and such a reward."""
    _, _, traces = next(steps_of(replace(HEALTHY, masked=flat(0.0)), steps=1))
    turn = traces[0].turns[0]
    out.mkdir()
    with TraceWriter(out / "traces.jsonl") as writer:
        for number, (turns, reward) in enumerate(episodes):
            verdict = traces[0].verdict.model_copy(update={"reward": reward})
            names = {"trace_id": f"e{number}", "task_id": f"t{number}", "verdict": verdict}
            played = tuple(turn.model_copy(update={"index": n}) for n in range(turns))
            writer.write(traces[0].model_copy(update={**names, "turns": played}))
    return out


def chart(page: Page, key: str) -> Chart:
    (found,) = [each for s in page.sections for each in s.charts if each.key == key]
    return found


def bars(found: Chart, series: int = 0) -> dict[str, float]:
    return {found.categories[int(p.x)]: p.y for p in found.series[series].points}


def test_figures_are_those_of_the_summary(tmp_path: Path) -> None:
    out = save(tmp_path / "x", replace(HEALTHY, masked=flat(0.1), capped=flat(0.5)))
    summary, page = summarize_file(out / "traces.jsonl"), rollouts_page(out, now=NOW)
    shares = bars(chart(page, "outcomes-shares"))
    assert shares["solved"] == pytest.approx(summary.success.of_scored)
    assert shares["completed: an answer came"] == pytest.approx(summary.completion.of_scored)
    cut = summary.truncation_reasons["turns"] / summary.n_scored
    assert shares["cut by turns"] == pytest.approx(cut)
    assert bars(chart(page, "components"))["reward"] == pytest.approx(summary.reward.mean)
    gates = {name: rate.of_scored for name, rate in summary.gates.items()}
    assert bars(chart(page, "gates")) == pytest.approx(gates)
    assert f"{summary.n_failed} without a score are in no bar" in chart(page, "gates").about
    assert sum(bars(chart(page, "rewards")).values()) == summary.n_scored
    assert sum(bars(chart(page, "turns")).values()) == summary.n_total
    assert "agentgym/X-v0" in dict(page.facts)["environment"]


def test_intervals_are_clustered_by_task(tmp_path: Path) -> None:
    page = rollouts_page(save(tmp_path / "x", HEALTHY), now=NOW)
    (solved, *_) = chart(page, "outcomes-shares").series[0].points
    assert solved.low is not None
    assert solved.low < solved.y < (solved.high or 0.0)
    assert solved.about.endswith("episodes, 16 tasks")


def test_an_attempt_that_a_later_one_supersedes_is_in_no_bar(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY)
    before = sum(bars(chart(rollouts_page(out, now=NOW), "turns")).values())
    (_, _, traces) = next(steps_of(HEALTHY, steps=1))
    with TraceWriter(out / "traces.jsonl") as writer:
        writer.write(traces[0].model_copy(update={"trace_id": "again"}))
    assert sum(bars(chart(rollouts_page(out, now=NOW), "turns")).values()) == before


def test_page_is_inert_whatever_things_are_called(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY)
    hostile = "<script>alert(1)</script>$\\frac{\u202e"
    text = (out / "traces.jsonl").read_text().replace('"polite"', json.dumps(hostile))
    (out / "traces.jsonl").write_text(text)
    (out / "config.json").write_text(json.dumps({"env": hostile, "env_kwargs": {hostile: hostile}}))
    assert kind_of(out) == "rollouts"
    report = report_page(out, now=NOW)
    assert_inert(parse(report.html))
    assert "<script" not in report.html
    assert "\u202e" not in report.html
    assert not report.over


def test_a_run_whose_every_episode_failed_is_shown(tmp_path: Path) -> None:
    out = save(tmp_path / "x", replace(HEALTHY, masked=flat(1.0)))
    page = rollouts_page(out, now=NOW)
    assert page.sections[0].charts == ()
    assert "No episode has a score" in page.sections[0].intro
    assert sum(bars(chart(page, "turns")).values()) == 128
    assert "0 of them scored" in page.status[1]


def test_no_episode_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "traces.jsonl").write_text("")
    with pytest.raises(DataError, match=r"traces\.jsonl has no episode yet"):
        report_page(tmp_path, now=NOW)


def test_a_torn_config_costs_only_the_settings(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY)
    (out / "config.json").write_text('{"env": ')
    page = rollouts_page(out, now=NOW)
    assert page.settings == ""
    assert chart(page, "turns").series


def test_the_longest_episodes_are_in_the_chart_of_turns(tmp_path: Path) -> None:
    page = rollouts_page(save_episodes(tmp_path / "x", [(n, 0.5) for n in range(1, 81)]), now=NOW)
    turns = chart(page, "turns")
    assert sum(bars(turns).values()) == 80
    assert len(turns.categories) <= 30
    assert turns.categories[0] == "1 to 3 turns"
    assert turns.categories[-1] == "79 to 81 turns"


def test_rewards_close_together_are_all_in_the_chart_of_rewards(tmp_path: Path) -> None:
    run = save_episodes(tmp_path / "x", [(1, 1000 + n / 1000) for n in range(50)])
    assert sum(bars(chart(rollouts_page(run, now=NOW), "rewards")).values()) == 50


def test_values_that_are_all_the_same_are_not_called_certain(tmp_path: Path) -> None:
    page = rollouts_page(save_episodes(tmp_path / "x", [(1, 0.25)] * 6), now=NOW)
    (reward, *_) = chart(page, "components").series[0].points
    assert (reward.y, reward.low, reward.high) == (0.25, None, None)
    for key in ("outcomes-shares", "gates", "components"):
        assert "95 % intervals clustered by task" in chart(page, key).about
