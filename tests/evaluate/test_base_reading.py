from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.registration import EnvSpec
from made_results import played, result

from agentgym.cli import main
from agentgym.errors import DataError
from agentgym.evaluate.base_episodes import base_episode
from agentgym.evaluate.base_reading import other_parameters, read_base
from agentgym.evaluate.difficulty import difficulty_parameters
from agentgym.evaluate.result import write_result
from agentgym.evaluate.scoring_findings import ceiling
from agentgym.trace import Trace
from agentgym.traces.jsonl import TraceWriter
from agentgym.types import ToolCall, Turn, Verdict

SPEC = EnvSpec("nowhere/Else-v0", entry_point="nowhere:Else").to_json()


def trace(task: str, sample: int = 0, *, solved: bool = False, **fields: Any) -> Trace:
    facts: dict[str, Any] = {
        "trace_id": f"{task}-{sample}",
        "env_spec": SPEC,
        "task_id": task,
        "sample": sample,
        "policy": {"model": "base"},
        "messages": ({"role": "user", "content": "go"},),
        "turns": (Turn(index=0, message={"role": "assistant", "content": "done"}),),
        "terminated": True,
        "termination_reason": "answered",
        "verdict": Verdict(reward=float(solved), correct=solved, completed=True),
        "started_at": "2026-01-01T00:00:00+00:00",
    }
    return Trace(**{**facts, **fields})


def write(path: Path, *traces: Trace) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with TraceWriter(path) as writer:
        for each in traces:
            writer.write(each)
    return path


def test_the_facts_of_an_episode_are_those_of_its_trace() -> None:
    call = ToolCall(id="a", name="look", arguments=None, status="malformed")
    facts = base_episode(
        trace(
            "t",
            terminated=False,
            termination_reason=None,
            truncated=True,
            truncation_reason="turns",
            verdict=Verdict(reward=-0.5, correct=False),
            turns=(
                Turn(index=0, message={"role": "assistant", "content": "x"}, calls=(call,)),
                Turn(index=1, message={"role": "assistant", "content": "y"}, cut_off=True),
            ),
            metadata={
                "task": {"family": "cancel", "digest": "abc"},
                "previous_verdicts": [Verdict(reward=1.0, correct=True).model_dump(mode="json")],
            },
        )
    )
    assert facts.unanswered_at_cap
    assert facts.cut_off
    assert facts.malformed
    assert facts.kinds == {"family": "cancel"}
    assert facts.correct_before is True
    assert (facts.reward, facts.correct, facts.turns) == (-0.5, False, 2)


def test_what_was_said_tells_rollouts_apart_but_not_by_the_ids_of_calls() -> None:
    def said(name: str, call_id: str) -> str | None:
        call = ToolCall(id=call_id, name=name, arguments={}, raw_arguments="{}")
        message = {"role": "assistant", "content": None}
        return base_episode(trace("t", turns=(Turn(index=0, message=message, calls=(call,)),))).said

    assert said("look", "a") == said("look", "b") != said("buy", "a")


def test_the_last_attempt_at_an_episode_counts(tmp_path: Path) -> None:
    broken = trace("t", verdict=Verdict(reward=None, masked=True), trace_id="first")
    path = write(tmp_path / "traces.jsonl", broken, trace("t", solved=True), trace("u"))
    found = read_base(path)
    assert [(e.task_id, e.correct) for e in found.episodes] == [("t", True), ("u", False)]
    assert found.policy == "base"
    assert read_base(tmp_path).episodes == found.episodes


def test_of_a_training_run_only_the_policy_before_the_first_update_is_read(tmp_path: Path) -> None:
    write(tmp_path / "traces-step000000.jsonl", trace("a"))
    write(tmp_path / "traces-step000001.jsonl", trace("b", solved=True))
    assert [e.task_id for e in read_base(tmp_path).episodes] == ["a"]
    write(tmp_path / "traces-held-out000000.jsonl", trace("c"))
    write(tmp_path / "traces-held-out000000-rank1.jsonl", trace("d"))
    write(tmp_path / "traces-held-out000010.jsonl", trace("c", solved=True))
    assert sorted(e.task_id for e in read_base(tmp_path).episodes) == ["c", "d"]


def test_what_a_step_cut_short_left_behind_is_not_counted_twice(tmp_path: Path) -> None:
    for name in ("traces-step000000", "traces-step000000.unused1"):
        write(tmp_path / f"{name}.jsonl", trace("a"))
    assert [e.task_id for e in read_base(tmp_path).episodes] == ["a"]


def spec(**kwargs: object) -> str:
    return EnvSpec("nowhere/Else-v0", entry_point="nowhere:Else", kwargs=kwargs).to_json()


def test_an_environment_made_in_two_ways_is_two(tmp_path: Path) -> None:
    easy, hard = (trace(level, env_spec=spec(level=level)) for level in ("easy", "hard"))
    with pytest.raises(DataError, match=r"of 2 settings of one environment \(\{"):
        read_base(write(tmp_path / "traces.jsonl", easy, hard))


def test_a_reference_that_played_something_else_is_refused_or_said_to_differ(
    tmp_path: Path,
) -> None:
    easy, hard, other = (
        read_base(write(tmp_path / f"{i}.jsonl", trace("t", env_spec=each)))
        for i, each in enumerate([spec(level="easy"), spec(level="hard"), '{"id": "its/Own-v0"}'])
    )
    assert other_parameters(hard, hard) is None
    said = other_parameters(hard, easy)
    assert said == '{"level": "easy"}, not {"level": "hard"}'
    two = [episode.model_copy(update={"task_id": t}) for t in "ab" for episode in hard.episodes]
    found = ceiling(two, [e.model_copy(update={"correct": True}) for e in two], differs=said)
    assert found.status == "note"
    assert said in found.said
    with pytest.raises(DataError, match="played its/Own-v0 and not nowhere/Else-v0"):
        other_parameters(hard, other)


def test_an_environment_that_is_not_here_has_no_external_score_and_says_why(
    tmp_path: Path,
) -> None:
    found = read_base(write(tmp_path / "traces.jsonl", trace("t", solved=True)))
    assert found.episodes[0].score is None
    assert found.episodes[0].correct is True
    assert "nowhere/Else-v0" in (found.unscored_because or "")


def test_a_result_gives_its_column_and_the_external_score_decides(tmp_path: Path) -> None:
    columns = [
        played("base", {"a": [True, False], "b": [None, False]}, trace_file="base.jsonl"),
        played("strong", {"a": [True, True], "b": [True, True]}, kind="baseline"),
    ]
    path = tmp_path / "result.json"
    write_result(path, result(*columns))
    found = read_base(path)
    assert found.policy == "base"
    assert [(e.correct, e.score) for e in found.episodes] == [
        (True, 1.0), (False, 0.0), (None, None), (False, 0.0),
    ]  # fmt: skip
    assert {e.cut_off for e in found.episodes} == {None}  # no traces beside it
    assert [e.correct for e in read_base(path, column="strong").episodes] == [True] * 4
    assert read_base(tmp_path, column="strong").policy == "strong"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "none", "there is no "),
        (lambda p: p, "has no episodes: no result.json, no traces.jsonl"),
        (lambda p: write(p / "traces.jsonl"), "holds no episode"),
        (
            lambda p: write(p / "t.jsonl", trace("a"), trace("b", policy={"model": "other"})),
            r"episodes of 2 policies \(base, other\)",
        ),
        (
            lambda p: write(p / "t.jsonl", trace("a"), trace("b", env_spec='{"id": "x/Y-v0"}')),
            "episodes of 2 environments",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_base(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_columns_that_do_not_exist_are_named(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_result(path, result(played("a", {"t": [True]}), played("b", {"t": [True]})))
    with pytest.raises(DataError, match="has the columns a, b; say which with --column"):
        read_base(path)
    with pytest.raises(DataError, match="no column 'c'"):
        read_base(path, column="c")
    traces = write(tmp_path / "traces.jsonl", trace("t"))
    with pytest.raises(DataError, match="has no columns"):
        read_base(traces, column="a")


def test_parameters_that_make_tasks_easier_are_found_with_their_values() -> None:
    shop = '{"id": "agentgym/WebShop-v0", "kwargs": {"difficulty": "hard"}}'
    assert difficulty_parameters(shop) == {"difficulty": "hard"}
    world = difficulty_parameters('{"id": "agentgym/ToolWorld-v0", "kwargs": {}}')
    assert world == {"distractors": "4"}
    assert difficulty_parameters(SPEC) == difficulty_parameters("torn") == {}


# --- the command ----------------------------------------------------------------------------------


def rollout(out: Path, *flags: str, policy: str = "random", samples: int = 3) -> Path:
    given = ["--env", "agentgym/WebShop-v0", "--policy", policy, "--out", str(out)]
    code = main(["rollout", *given, "--quiet", "--samples", str(samples), *flags])
    assert code == 0
    return out


@pytest.mark.thorough
def test_command_on_a_real_rollout_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = rollout(tmp_path / "base", "-n", "35")
    reference = rollout(tmp_path / "oracle", "-n", "35", policy="oracle", samples=1)
    capsys.readouterr()
    code = main(
        ["eval", "verdict", str(base), "--reference", str(reference), "--replay", "2", "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    by_name = {each["name"]: each for each in found["findings"]}
    assert code == 3
    assert found["conclusion"] in ("simplify", "fix_first")
    assert found["n_episodes"] == 105
    assert by_name["determinism"]["status"] == "ok"
    assert by_name["determinism"]["numbers"]["compared"] > 100
    assert by_name["ceiling"]["numbers"]["reference"] == 1.0
    assert by_name["reward_above_evaluation"]["numbers"]["n"] == 105
    assert main(["eval", "verdict", str(base)]) == 3
    text = capsys.readouterr().out
    assert text.startswith("should you train? not")
    assert all(len(line) <= 100 for line in text.splitlines())


def test_a_policy_without_variety_is_told_before_its_tasks_are_blamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = rollout(tmp_path / "rule", "-n", "30", policy="rule", samples=2)
    capsys.readouterr()
    assert main(["eval", "verdict", str(base)]) == 3
    text = capsys.readouterr().out
    assert "fix what is in the way first" in text
    assert "temperature = 1.0" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--group-size", "1"], "--group-size is at least 2, got 1"),
        (["--min-informative", "20"], "--min-informative is a share from 0 to 1, got 20"),
        (["--replay", "-1"], "--replay is a number of episodes"),
        (["--judge", "traces.jsonl"], "no report of `agentgym judge check --out`"),
        (["--judge", "missing.json"], "can't read missing.json"),
        (["--score", "nothing"], "expected MODULE:FUNCTION"),
        (["--replay", "1"], "nowhere/Else-v0"),
        (["--reference", "missing"], "there is no missing"),
    ],
)
def test_flags_that_cannot_be_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("traces.jsonl"), trace("a"), trace("b"))
    assert main(["eval", "verdict", "traces.jsonl", *flags]) == 1
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_the_report_of_a_judge_check_is_taken_with_its_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proportion = {"count": 6.0, "n": 10}
    criterion = {
        "accuracy": proportion, "kappa": 0.2, "mean_error": 0.1, "length_bias": None,
        "spread": None, "flips": {"count": 0, "n": 0}, "moved": {"count": 0, "n": 0},
        "constant": False,
    }  # fmt: skip
    report = {
        "judge": {"model": "m"}, "complete": True, "faults": ["helpful: kappa is 0.200, below 0.6"],
        "n_cases": 10, "repeats": 1, "criteria": {"helpful": criterion},
        "failed": {"count": 0, "n": 10}, "reasked": {"count": 0, "n": 10},
        "median_latency_s": 1.0, "p95_latency_s": 1.0,
    }  # fmt: skip
    (tmp_path / "gold.json").write_text(json.dumps(report))
    path = write(tmp_path / "traces.jsonl", trace("a"), trace("b"))
    assert main(["eval", "verdict", str(path), "--judge", str(tmp_path / "gold.json")]) == 3
    text = " ".join(capsys.readouterr().out.split())
    assert "fix what is in the way first" in text
    assert "helpful is right in 60%" in text
    assert "not good enough: helpful: kappa is 0.200, below 0.6" in text
