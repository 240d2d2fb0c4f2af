"""Figures in README.md and the cards are those of committed benchmark outputs."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def _result(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def _episodes(estimate: dict[str, Any]) -> int:
    """Episodes of a mean, under the name it has now or had when the file was written."""
    return int(estimate["n"] if "n" in estimate else estimate["n_episodes"])


def test_the_readme_quotes_the_learning_benchmark() -> None:
    learning = _result("learning.json")
    first = learning["runs"][0]
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    quoted = (
        f"{first['before']['success']['mean']:.1%}".replace("%", " %")
        + " to "
        + f"{first['after']['success']['mean']:.1%}".replace("%", " %")
    )
    assert (first["seed"], first["shuffled"], first["steps"]) == (0, False, 30)
    assert quoted in text
    tasks, episodes = learning["tasks"], learning["episodes_per_evaluation"]
    assert f"({tasks} tasks, {episodes} episodes" in text


def test_learning_shows_on_every_seed_and_not_with_shuffled_rewards() -> None:
    runs = _result("learning.json")["runs"]
    true = [run for run in runs if not run["shuffled"]]
    control = [run for run in runs if run["shuffled"]]
    assert len(true) >= 3
    assert len(control) >= 3
    for run in true:
        assert _episodes(run["before"]["success"]) >= 300
        assert run["after"]["success"]["low"] > run["before"]["success"]["high"]
    for run in control:
        assert run["after"]["success"]["low"] <= run["before"]["success"]["high"]


def test_the_webshop_card_quotes_the_speed_benchmark() -> None:
    steps = _result("webshop.json")["steps"]
    card = (ROOT / "agentgym" / "envs" / "webshop" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z ]+) \| ([\d.]+) \| ([\d,]+) \| ([\d,]+)× \|$", card, re.MULTILINE)
    assert {name for name, *_ in rows} == set(steps)
    for name, original, here, ratio in rows:
        assert float(original) == steps[name]["original_per_s"]
        assert int(here.replace(",", "")) == steps[name]["per_s"]
        assert int(ratio.replace(",", "")) == round(steps[name]["ratio"])


def test_the_readme_quotes_the_engines_side_by_side() -> None:
    rows = _result("side_by_side.json")["contestants"]
    quoted = {
        "aiohttp loop by hand, no traces, no retries": "aiohttp loop, by hand",
        "agentgym, verdicts and traces included": "**agentgym**",
        "TRL 1.16, asynchronous worker": "TRL 1.16, async worker",
        "openai SDK in a loop": "openai SDK loop",
        "verifiers 0.4, evaluation": "verifiers 0.4, evaluation",
    }
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for shown, name in quoted.items():
        cpu, over = rows[name]["cpu_ms_per_turn"], rows[name]["over_bound"]
        assert f"| {shown} | {cpu:.2f} ms | {over:.2f} × |" in readme


def test_what_the_readme_says_of_the_engine_was_measured() -> None:
    runs = _result("fleet.json")["runs"]
    alike = [run for run in runs if run["fleet"].isdigit() and run["routing"] == "balanced"]
    assert {run["replicas"] for run in alike} == {1, 4, 16}
    assert all(run["ratio"] <= 1.05 for run in alike)
    assert round(_result("judge_overlap.json")["hidden_share"], 2) == 0.97


def test_the_page_on_tokens_quotes_the_learning_run() -> None:
    steps = _result("token_path.json")["steps"]
    sampled = sum(step["sampled_tokens"] for step in steps)
    matched = sum(step["matched_tokens"] for step in steps)
    prompt = sum(step["prompt_tokens"] for step in steps)
    cached, possible = (
        sum(step[name] * step["prompt_tokens"] for step in steps) / prompt
        for name in ("cached_share", "possible_share")
    )
    text = " ".join((ROOT / "docs" / "tokens.md").read_text(encoding="utf-8").split())
    assert f"a learning run of {len(steps)} steps" in text
    assert f"{matched:,} of {sampled:,} sampled tokens" in text
    assert sum(step["trained_unsampled_tokens"] for step in steps) == 0
    quoted = f"{cached:.1%} of the prompt tokens came from the prefix cache, of {possible:.1%}"
    assert quoted.replace("%", " %") in text
    assert f"by more than {max(step['gap_max'] for step in steps):.1e}" in text


def test_the_readme_quotes_the_rollouts_against_trls_loop() -> None:
    cases = _result("trl_loop.json")["cases"]
    rows = {
        "WebShop, tools that take log-normal time": "WebShop, log-normal tool latencies",
        "1 to 12 turns, tools that take log-normal time": (
            "1 to 12 turns, log-normal tool latencies"
        ),
        "WebShop as it is": "WebShop as it is",
        "1 to 12 turns, tools that take none": "1 to 12 turns",
    }
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(rows.values()) == set(cases)
    for row, case in rows.items():
        seeded, unseeded = (
            f"{statistics.median(cases[case][name]['wall']):.2f} ×"
            for name in ("ratio", "ratio_unseeded")
        )
        assert f"| {row} | {seeded} | {unseeded} |" in text


def _solved(runs: list[dict[str, Any]], when: str = "after") -> str:
    shares = [run[when]["success"]["mean"] for run in runs]
    return f"{statistics.fmean(shares):.1%}".replace("%", " %")


def test_the_page_on_the_objective_quotes_what_failed_judgements_did() -> None:
    found = _result("learning_variants.json")
    runs = found["variants"]
    assert all([run["seed"] for run in of_seeds] == [0, 1, 2] for of_seeds in runs.values())
    page = (ROOT / "docs" / "objective.md").read_text(encoding="utf-8")
    text = " ".join(page.split())
    for row, masked, zero in (
        ("10 % of all, at random", "masked", "zero"),
        ("30 % of all, at random", "masked-30", "zero-30"),
        ("half of those of four turns and more", "masked-long", "zero-long"),
    ):
        assert f"| {row} | {_solved(runs[masked])} | {_solved(runs[zero])} |" in text
    assert f"Before training {_solved(runs['as-it-is'], 'before')} of the tasks" in text
    assert f"| none | {_solved(runs['as-it-is'])} | |" in text
    lost = [
        100 * (masked["after"]["success"]["mean"] - zero["after"]["success"]["mean"])
        for masked, zero in zip(runs["masked-30"], runs["zero-30"], strict=True)
    ]
    assert f"30 % cost each seed {min(lost):.1f} points or more" in text
    harder = (_solved(runs["harder"], "before"), _solved(runs["harder"]))
    assert f"{harder[0]} before, {harder[1]} after) and training without gates" in text
    assert f"({_solved(runs['no-gates'])}; this policy" in text
    told = {t["failed"]: t for t in found["told"] if t["failing"] == 0.1}
    for row, shown in (
        ("wrong sign", lambda t: f"{t['wrong_sign']:.1%}".replace("%", " %")),
        ("get a false one", lambda t: f"{t['false_groups']:.1%}".replace("%", " %")),
        ("the true ones", lambda t: f"{t['cosine']:.2f}"),
        (f"of {told['zero']['true_reward']:.3f}", lambda t: f"{t['reward']:.3f}"),
    ):
        assert f"{row} | {shown(told['masked'])} | {shown(told['zero'])} |" in text


def test_failures_that_have_a_cause_do_harm_as_zeros_on_every_seed_and_none_when_masked() -> None:
    runs = _result("learning_variants.json")["variants"]
    for masked, zero in zip(runs["masked-long"], runs["zero-long"], strict=True):
        assert masked["after"]["success"]["low"] > masked["before"]["success"]["high"]
        assert zero["after"]["success"]["high"] < zero["before"]["success"]["mean"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"masked, {_solved(runs['masked-long'])} of the tasks are solved" in readme
    assert f"reward 0, it is {_solved(runs['zero-long'])}, less than before" in readme
