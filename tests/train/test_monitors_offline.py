from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_runs import HEALTHY, SICK, Symptoms, flat, score_of, steps_of

from agentgym.cli import main
from agentgym.errors import TrainingError
from agentgym.traces import TraceWriter
from agentgym.train.monitors import Alarm, AlarmBook, diagnose
from agentgym.types import Usage

CLIPPED = replace(SICK["no_signal"], skill=flat(0.0), cut_off=flat(1.0), per_step=8)


def save(
    out: Path, symptoms: Symptoms, *, steps: int, metrics: bool = True, traces: bool = False
) -> Path:
    """The files that a run would have left."""
    out.mkdir(exist_ok=True, parents=True)
    for step, values, played in steps_of(symptoms, steps=steps):
        if metrics:
            with (out / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, **values}) + "\n")
        if traces:
            with TraceWriter(out / f"traces-step{step - 1:06d}.jsonl") as writer:
                for trace in played:
                    writer.write(trace)
    return out


def test_metrics_alone_are_enough(tmp_path: Path) -> None:
    found = diagnose(save(tmp_path / "x", CLIPPED, steps=8))
    assert [alarm.name for alarm in found.alarms] == ["token_limit", "no_signal"]
    assert {alarm.step for alarm in found.alarms} == {5}
    assert set(found.lasting) == {"token_limit", "no_signal"}
    assert found.steps == 8
    assert found.groups["expected"] == 1.0


def test_traces_alone_are_enough(tmp_path: Path) -> None:
    small = replace(CLIPPED, per_step=8, group_size=4)
    found = diagnose(save(tmp_path / "x", small, steps=6, metrics=False, traces=True))
    assert {alarm.name for alarm in found.alarms} == {"token_limit", "no_signal"}
    assert {moved.name: moved.last for moved in found.figures}["cut_off"] == 1.0


def test_metrics_of_other_trainers_are_completed_from_the_traces(tmp_path: Path) -> None:
    out = save(tmp_path / "x", CLIPPED, steps=6, metrics=False, traces=True)
    with (out / "metrics.jsonl").open("w") as file:
        for step in range(1, 7):
            line = {"step": step, "reward": 0.0, "completions/clipped_ratio": 0.97}
            file.write(json.dumps(line) + "\n")
    (token_limit, *_) = diagnose(out).alarms
    assert token_limit.numbers["clipped_ratio"] == pytest.approx(0.97)
    assert token_limit.numbers["share"] == 1.0


def test_a_resumed_run_counts_what_it_went_back_to_and_torn_lines_not(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY, steps=4)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    again = [json.dumps({**json.loads(lines[1]), "grad_norm": 9.0}), lines[2][:30]]
    (out / "metrics.jsonl").write_text("\n".join([*lines, *again]) + "\n")
    found = diagnose(out)
    assert found.steps == 2
    grad = next(moved for moved in found.figures if moved.name == "grad_norm")
    assert (grad.n, grad.last > 4) == (2, True)


def test_alarms_that_the_run_raised_are_kept_unless_asked_otherwise(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY, steps=6)
    early = Alarm(name="masked", step=2, seen="s", cause="c", change="x")
    AlarmBook(out / "alarms.jsonl").add([early])
    assert diagnose(out).alarms == (early,)
    assert diagnose(out).lasting == ()
    assert diagnose(out, thresholds=diagnose_thresholds()).alarms == ()


def diagnose_thresholds() -> object:
    from agentgym.train.monitors import Thresholds

    return Thresholds()


def test_the_runs_own_thresholds_hold(tmp_path: Path) -> None:
    out = save(tmp_path / "x", CLIPPED, steps=4)
    assert diagnose(out).alarms == ()
    (out / "train.json").write_text(json.dumps({"monitors": {"min_steps": 3}}))
    assert {alarm.step for alarm in diagnose(out).alarms} == {3}


def test_no_run_is_an_error_that_says_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no steps of a training run: .*--out"):
        diagnose(tmp_path)
    (tmp_path / "train.json").write_text("{")
    with pytest.raises(TrainingError, match="can't read the settings"):
        diagnose(tmp_path)


def test_what_is_not_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="there is no folder .*/none"):
        diagnose(tmp_path / "none")
    out = save(tmp_path / "runs" / "one", CLIPPED, steps=1)
    with pytest.raises(TrainingError, match=r"metrics\.jsonl is a file"):
        diagnose(out / "metrics.jsonl")
    with pytest.raises(TrainingError, match="no steps of a training run, but its folder 'one' may"):
        diagnose(tmp_path / "runs")


@pytest.mark.parametrize(
    "settings", ["[1]", "{", '{"monitors": {"window": "x", "new": 1}}', "[" * 100_000]
)
def test_settings_of_another_version_are_told_in_one_line(tmp_path: Path, settings: str) -> None:
    out = save(tmp_path / "x", CLIPPED, steps=2)
    (out / "train.json").write_text(settings)
    with pytest.raises(TrainingError, match="can't read the") as caught:
        diagnose(out)
    assert len(str(caught.value).splitlines()) == 1
    assert "pydantic" not in str(caught.value)


STRANGE_LINES = [
    '{"step": Infinity, "reward": 1}', '{"step": 1e999}', '{"step": "9"}', '{"step": -4}',
    '{"step": true}', "[1]", "3", "null", "[" * 100_000,
    '{"step": 9, "reward": 1' + "0" * 400 + "}",
    '{"step": 10, "reward": 1e308, "kl": -1e300}', '{"step": 11, "rew',
]  # fmt: skip


def test_strange_lines_cost_themselves_alone(tmp_path: Path) -> None:
    out = save(tmp_path / "x", CLIPPED, steps=8)
    expected = diagnose(out).alarms
    with (out / "metrics.jsonl").open("a") as file:
        file.writelines(f"{line}\n" for line in STRANGE_LINES)
    found = diagnose(out)
    assert found.steps == 10
    assert found.alarms == expected


def test_shares_beyond_all_sense_stop_no_diagnosis(tmp_path: Path) -> None:
    out = tmp_path / "x"
    out.mkdir()
    with (out / "metrics.jsonl").open("w") as file:
        for step in range(1, 9):
            logged = {"step": step, "reward": 0.5, "agentgym/groups": 4.0}
            logged |= {"agentgym/groups_equal": 1.0, "agentgym/group_size": -4.0}
            logged["agentgym/correct"] = 3e38
            file.write(json.dumps(logged) + "\n")
    assert "no_signal" in {alarm.name for alarm in diagnose(out).alarms}


def test_traces_of_an_attempt_that_counts_no_more_are_left_out(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY, steps=3)
    save(out, CLIPPED, steps=9, metrics=False, traces=True)
    assert diagnose(out).steps == 3
    assert diagnose(out).alarms == ()


def test_a_step_that_is_being_played_is_no_step_yet(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY, steps=3, metrics=False, traces=True)
    assert diagnose(out).steps == 3
    newest = out / "traces-step000002.jsonl"
    newest.write_text("".join(newest.read_text().splitlines(keepends=True)[:-1]))
    assert diagnose(out).steps == 2  # 127 of 128 episodes, as many as the others had
    for old in (0, 1):
        (out / f"traces-step{old:06d}.jsonl").unlink()
    assert diagnose(out).steps == 3  # nobody can tell
    (out / "train.json").write_text(json.dumps({"tasks_per_step": 16, "group_size": 8}))
    with pytest.raises(TrainingError, match="no step that is done"):
        diagnose(out)


def test_an_evaluation_after_the_last_logged_step_counts(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY, steps=6)
    good, bad = score_of(HEALTHY, 0), score_of(replace(HEALTHY, held_out=flat(-9.0)), 9)
    lines = [score.model_dump_json() for score in (good, bad)]
    (out / "evaluations.jsonl").write_text("\n".join(lines))
    found = diagnose(out)
    assert [alarm.name for alarm in found.alarms] == list(found.lasting) == ["collapse"]


def test_names_may_hold_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x"
    out.mkdir()
    name = "a\n\x1b[31mALARM b\u2028c"
    with (out / "metrics.jsonl").open("w") as file:
        for step in range(1, 9):
            logged = {"step": step, "reward": 0.1, "agentgym/groups": 16.0}
            logged |= {f"agentgym/gates/{name}": 1.0, f"agentgym/components/{name}": 0.5}
            logged |= {f"agentgym/usage/{name}/tokens_in": 5}
            file.write(json.dumps(logged, ensure_ascii=False) + "\n")
    score = score_of(HEALTHY, 0)
    score = score.model_copy(update={"tasks": {name: (0, 2), "t": (1, 2)}})
    (out / "evaluations.jsonl").write_text(score.model_dump_json() + "\n")
    found = diagnose(out)
    AlarmBook(out / "alarms.jsonl").add(found.alarms)
    assert diagnose(out).alarms == found.alarms
    assert [alarm.name for alarm in found.alarms] == [f"gate:{name}"]
    assert found.held_out == (score,)
    assert main(["diagnose", str(out)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\u2028" not in text
    assert sum(line.startswith("ALARM") for line in text.splitlines()) == 1


def test_command_names_cause_and_first_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = save(tmp_path / "x", CLIPPED, steps=8)
    with (out / "evaluations.jsonl").open("w") as file:
        file.writelines(score_of(HEALTHY, step).model_dump_json() + "\n" for step in (0, 4, 8))
    assert main(["diagnose", str(out)]) == 0
    text = capsys.readouterr().out
    assert "ALARM no_signal (step 5)" in text
    assert "clipped_ratio 1.00" in text
    assert "a higher max_turn_tokens" in text
    assert "predicts p^G + (1-p)^G = 100%" in text
    assert text.count("solved (") == 3
    assert max(map(len, text.splitlines())) <= 110


def test_command_for_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sick, well = save(tmp_path / "a", CLIPPED, steps=6), save(tmp_path / "b", HEALTHY, steps=6)
    assert main(["diagnose", str(sick), "--strict"]) == 1
    assert main(["diagnose", str(well), "--strict"]) == 0
    assert "no alarm" in capsys.readouterr().out
    assert main(["diagnose", str(well), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 6
    assert main(["diagnose", str(well), "--strict", "--set", "turn_cap=0.0"]) == 1
    capsys.readouterr()
    assert main(["diagnose", str(well), "--set", "turncap=0.0"]) == 1
    assert "did you mean 'turn_cap'?" in capsys.readouterr().err
    assert main(["diagnose", str(well), "--set", "window=2"]) == 1
    assert "window=2 is less than min_steps=5" in capsys.readouterr().err


def test_a_run_of_three_steps_is_too_short_to_be_called_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = save(tmp_path / "x", CLIPPED, steps=3)
    assert main(["diagnose", str(out)]) == 0
    text = capsys.readouterr().out
    assert "no alarm: too few steps to tell" in text
    (line,) = [line for line in text.splitlines() if line.startswith("reward ")]
    assert len(line.split()) == 2
    assert main(["diagnose", str(out), "--strict", "--set", "min_steps=2"]) == 1
    assert "ALARM" in capsys.readouterr().out


def test_tokens_and_dollars_are_added_up_by_role(tmp_path: Path) -> None:
    out = tmp_path / "x"
    out.mkdir()
    judge = Usage(prompt_tokens=100, completion_tokens=10, cost_usd=0.5)
    for step, _, traces in steps_of(replace(HEALTHY, per_step=1, group_size=2), steps=3):
        with TraceWriter(out / f"traces-step{step - 1:06d}.jsonl") as writer:
            for trace in traces:
                writer.write(trace.model_copy(update={"usage": {"judge": judge}}))
    usage = diagnose(out).usage
    assert usage == {"judge": {"tokens_in": 600.0, "tokens_out": 60.0, "usd": 3.0}}


def test_dollars_of_some_steps_only_are_no_total(tmp_path: Path) -> None:
    used = {"agentgym/usage/judge/tokens_in": 100.0, "agentgym/usage/judge/tokens_out": 0.0}
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step in range(1, 4):
            price = {"agentgym/usage/judge/usd": 0.5} if step > 1 else {}
            file.write(json.dumps({"step": step, "reward": 0.0, **used, **price}) + "\n")
    assert diagnose(tmp_path).usage == {"judge": {"tokens_in": 300.0, "tokens_out": 0.0}}
