from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from parsed import Element, assert_inert, parse
from saved_runs import COLLAPSES, LEARNS, save
from synthetic_runs import HEALTHY, SICK, flat, score_of, steps_of

from agentgym.errors import TrainingError
from agentgym.report.plots.chart import Chart
from agentgym.report.run import is_waited_for, report_page
from agentgym.report.run.figure import data_table
from agentgym.report.run.making import ChartMaker
from agentgym.report.run.page import Page
from agentgym.report.run.record import read_training
from agentgym.report.run.training import header_facts, status_of, training_page
from agentgym.traces import TraceWriter
from agentgym.train.metrics import expected_without_signal
from agentgym.train.monitors import Alarm, AlarmBook, diagnose
from agentgym.train.starts import note_budget_end, note_start

pytestmark = pytest.mark.thorough  # pages of real runs, drawn

NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def learns_html() -> str:
    report = report_page(LEARNS, now=NOW, refresh_s=10)
    assert report.over
    return report.html


@pytest.fixture(scope="module")
def learns(learns_html: str) -> Element:
    return parse(learns_html)


@pytest.fixture(scope="module")
def collapses() -> Element:
    return parse(report_page(COLLAPSES, now=NOW).html)


def figure(page: Element, key: str) -> Element:
    (found,) = page.all("figure", id=f"fig-{key}")
    return found


def rows(fig: Element) -> list[list[str]]:
    """The data table of a figure, its header first."""
    (table,) = fig.all("table")
    return [[cell.text for cell in row.all("th") + row.all("td")] for row in table.all("tr")]


def page_of(out: Path) -> Page:
    """What a run's page is to say, before it is drawn."""
    return training_page(read_training(out, now=NOW))


def chart(page: Page, key: str) -> Chart:
    (found,) = [each for s in page.sections for each in s.charts if each.key == key]
    return found


def table(page: Page, key: str) -> list[list[str]]:
    """A chart's figures, the header first."""
    found = data_table(chart(page, key))
    return [list(found.header), *map(list, found.rows)]


def test_a_real_run_has_every_chart(learns: Element) -> None:
    keys = [f.attributes["id"].removeprefix("fig-") for f in learns.all("figure")]
    assert keys == [
        "held-out", "held-out-reward", "reward", "components-1", "components-2", "gates",
        "completion", "groups", "groups-why", "turns", "caps", "malformed", "masked",
        "masked-other", "entropy", "length", "logprob-gap", "ratio", "staleness", "gradient",
        "loss", "time", "speed", "prefix-cache", "tokens-in", "tokens-out", "dollars",
    ]  # fmt: skip
    assert "Not in the files" not in learns.text


def test_page_is_inert_and_every_plot_has_its_figures(learns: Element) -> None:
    assert_inert(learns)
    for fig in learns.all("figure"):
        if fig.all("svg", role="img"):
            assert fig.all("table")
            assert fig.all("svg", role="img")[0].children[1].tag == "desc"
            assert "n = 24 steps" in fig.all("figcaption")[0].text
        else:
            assert "Nothing to draw" in fig.text or "without a known price" in fig.text


def test_the_policy_of_the_page_allows_no_script_and_no_connection(learns: Element) -> None:
    (policy,) = learns.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert "default-src 'none'" in policy.attributes["content"]
    assert "script-src 'none'" in policy.attributes["content"]
    assert "unsafe" not in policy.attributes["content"]


def test_figures_are_those_of_the_files(learns: Element) -> None:
    lines = [json.loads(line) for line in (LEARNS / "metrics.jsonl").read_text().splitlines()]
    (header, *data) = rows(figure(learns, "completion"))
    assert header[0] == "training step"
    column = header.index("correct: the task is solved")
    assert [row[column] for row in data] == [f"{v['agentgym/correct']:.1%}" for v in lines]
    scores = [json.loads(line) for line in (LEARNS / "evaluations.jsonl").read_text().splitlines()]
    held_out = {row[0]: row for row in rows(figure(learns, "held-out"))[1:]}
    for score in scores:
        ends = [f"{score[name]:.1%}" for name in ("success", "low", "high")]
        assert held_out[str(score["step"])][1:4] == ends


def test_bands_are_intervals_of_neighbouring_steps(learns: Element) -> None:
    header, *data = rows(figure(learns, "reward"))
    assert header == ["training step", "reward", "mean of neighbours", "95 % from", "to"]
    assert all(float(row[3]) < float(row[2]) < float(row[4]) for row in data)
    said = figure(learns, "reward").all("figcaption")[0].text
    assert "mean of up to 11 neighbouring steps" in said
    assert "95 % t interval" in said


def test_header_says_what_the_run_is_and_what_was_resumed(learns: Element) -> None:
    (header,) = learns.all("header")
    for text in (
        "Training run learns", "Finished:", "24 of 24 steps", "agentgym/WebShop-v0",
        "difficulty='tiny'", "agentgym/train/tiny/weights", "16 tasks × 8 episodes", "trl 1.16.0",
        "every 6 steps", "R1 resumed", "after step 12", "changed: steps: 12 → 24",
    ):  # fmt: skip
        assert text in header.text
    marks = {text.text for text in figure(learns, "reward").all("text")}
    assert "R1" in marks


def test_alarms_stand_on_the_time_line_with_cause_and_first_change(collapses: Element) -> None:
    items = collapses.all("ul", **{"class": "alarms"})[0].all("li")
    alarms = [alarm.model_dump() for alarm in diagnose(COLLAPSES).alarms]
    assert len(items) == len(alarms) == 6
    assert alarms[0]["name"] == "collapse"  # and not what follows from it
    for number, (item, alarm) in enumerate(zip(items, alarms, strict=True), start=1):
        assert f"A{number} {alarm['name']}" in item.text
        assert f"at step {alarm['step']}" in item.text
        for part in ("seen", "cause", "change"):
            assert alarm[part] in item.text
    assert rows(figure(collapses, "alarm-times"))[1] == ["6", "A1"]
    marks = {text.text for text in figure(collapses, "reward").all("text")}
    assert {"A1", "A2", "A3", "A4", "A5"} <= marks


def test_an_alarm_that_is_over_says_so(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY, steps=6)
    AlarmBook(out / "alarms.jsonl").add(
        [Alarm(name="masked", step=2, seen="s", cause="c", change="x")]
    )
    (item,) = page_of(out).sections[0].items
    assert item.where == "at step 2, not at the end"
    assert item.over


def test_groups_are_held_against_the_prediction(learns: Element, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (LEARNS / "metrics.jsonl").read_text().splitlines()]
    header, *data = rows(figure(learns, "groups"))
    seen, predicted = header.index("seen"), header.index("predicted from the mean: p^G + (1-p)^G")
    for row, line in zip(data, lines, strict=True):
        assert row[seen] == f"{line['agentgym/groups_equal']:.1%}"
        if line["agentgym/masked"] == 0:
            p = line["agentgym/correct"]
            assert row[predicted] == f"{expected_without_signal(p, 8):.1%}"
    later = save(tmp_path / "x", replace(HEALTHY, tasks=40), steps=8)
    assert "predicted task by task" in table(page_of(later), "groups")[0]


def test_classes_of_failures_are_told_apart_and_zeros_are_only_named(tmp_path: Path) -> None:
    sick = replace(HEALTHY, masked=flat(0.2), masked_by="judge")
    masked = chart(page_of(save(tmp_path / "x", sick, steps=6)), "masked")
    assert [series.name for series in masked.series] == ["all", "judge"]
    assert "Always 0: simulator, environment, infrastructure." in masked.about
    assert masked.levels == ((0.05, "alarm masked"),)


def test_dollars_add_up_and_no_price_is_not_no_cost(tmp_path: Path, learns: Element) -> None:
    usage = {
        "agentgym/usage/judge/tokens_in": 100, "agentgym/usage/judge/tokens_out": 10,
        "agentgym/usage/judge/usd": 0.25,
    }  # fmt: skip
    page = page_of(save(tmp_path / "x", HEALTHY, steps=4, **usage))
    # The synthetic run's own roles have neither tokens nor prices; the judge has both.
    spent = [row[1] for row in table(page, "dollars")[1:]]
    assert spent == ["$0.2500", "$0.5000", "$0.7500", "$1.00"]
    (whole,) = page.sections[-1].tables
    assert ("judge", "400", "40", "$1.0000") in whole.rows
    assert not figure(learns, "dollars").all("svg")
    assert "without a known price, in no sum: policy" in figure(learns, "dollars").text
    assert "price unknown" in learns.all("section", id="spending")[0].all("table")[0].text


def test_time_is_split_and_adds_up_to_the_step(learns: Element) -> None:
    lines = [json.loads(line) for line in (LEARNS / "metrics.jsonl").read_text().splitlines()]
    header, *data = rows(figure(learns, "time"))
    assert header == ["training step", "rollout", "judge", "sync", "update"]
    for row, line in zip(data, lines, strict=True):
        whole = sum(float(cell.removesuffix(" s")) for cell in row[1:])
        assert whole == pytest.approx(line["agentgym/time_s/step"], rel=1e-4)


@pytest.mark.thorough
def test_same_run_gives_the_same_page(learns_html: str) -> None:
    assert report_page(LEARNS, now=NOW, refresh_s=10).html == learns_html


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> $\\frac{ \u202e\x1b[31m\ud800"


@pytest.mark.thorough
def test_hostile_names_are_text(tmp_path: Path) -> None:
    out = save(
        tmp_path / "x", replace(HEALTHY, gate=flat(0.9)), steps=6, eval_every=3,
        **{f"agentgym/components/{HOSTILE}": 0.5, f"agentgym/gates/{HOSTILE}": 1.0,
           f"agentgym/usage/{HOSTILE}/tokens_in": 7, f"agentgym/usage/{HOSTILE}/usd": 0.1},
    )  # fmt: skip
    config = {"env": HOSTILE, "model": HOSTILE, "env_kwargs": {HOSTILE: HOSTILE}, "steps": 9}
    (out / "train.json").write_text(json.dumps(config))
    named = out.rename(tmp_path / "<script>alert(3)</script>".replace("/", "∕"))
    html = report_page(named, now=NOW).html
    page = parse(html)
    assert_inert(page)
    assert "<script" not in html
    assert "\u202e" not in html
    assert "\x1b" not in html
    assert html.count("&lt;script&gt;alert(1)") > 8
    html.encode()


def test_secrets_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "key-of-the-environment")
    out = save(tmp_path / "x", HEALTHY, steps=3)
    config = {
        "env": "e", "model": "m", "steps": 3, "grpo": {"hub_token": "token-of-the-hub-1"},
        "policy": {"servers": ["http://user:pass1234@gpu:8000"]},
        "env_kwargs": {"note": "key-of-the-environment",
                       "judge": {"base_url": "http://j", "model": "j", "api_key": "k-123456789"}},
    }  # fmt: skip
    (out / "train.json").write_text(json.dumps(config))
    page = page_of(out)
    said = page.settings + repr(page.facts)
    for secret in ("token-of-the-hub-1", "pass1234", "key-of-the-environment", "k-123456789"):
        assert secret not in said
    assert "http://gpu:8000" in said


@pytest.mark.parametrize(("quiet", "word"), [(5.0, "Going:"), (7200.0, "Killed or stopped:")])
def test_a_run_that_is_not_over_is_shown_as_far_as_it_went(
    tmp_path: Path, quiet: float, word: str
) -> None:
    out = tmp_path / "x"
    shutil.copytree(LEARNS, out)
    lines = (LEARNS / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(lines[:7]) + lines[7][:100])  # torn by a kill
    written = (out / "metrics.jsonl").stat().st_mtime
    now = datetime.fromtimestamp(written, UTC) + timedelta(seconds=quiet)
    page = training_page(read_training(out, now=now))
    assert page.status[0] == word
    assert page.status[1].startswith("7 of 24 steps")
    assert "1 line(s) of metrics.jsonl could not be read" in page.notes[0]
    assert len(table(page, "reward")) == 8


def test_a_run_that_goes_on_refreshes_its_page(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY, steps=1)
    (out / "train.json").write_text(json.dumps({"steps": 9}))
    report = report_page(out, now=NOW, refresh_s=10)
    assert not report.over
    (refresh,) = parse(report.html).all("meta", **{"http-equiv": "refresh"})
    assert refresh.attributes["content"] == "10"


def test_a_run_that_is_over_does_not(learns: Element) -> None:
    assert not learns.all("meta", **{"http-equiv": "refresh"})


def test_a_run_that_an_alarm_ended_says_so(tmp_path: Path) -> None:
    out = save(tmp_path / "x", SICK["masked"], steps=5)
    (out / "train.json").write_text(json.dumps({"steps": 50, "stop_on": ["masked"]}))
    record = read_training(out, now=NOW)
    assert [alarm.name for alarm in record.alarms] == ["masked"]
    assert status_of(record)[0] == "Stopped by an alarm:"


def test_one_step_is_shown_without_bands(tmp_path: Path) -> None:
    page = page_of(save(tmp_path / "x", HEALTHY, steps=1))
    assert table(page, "reward")[0] == ["training step", "reward"]
    assert "fewer than 3, so there is no band" in chart(page, "reward").about
    assert "too few steps to tell" in page.sections[0].intro
    assert "held-out evaluations (eval.every)" in page.missing


def test_a_long_run_stays_readable(tmp_path: Path) -> None:
    out = tmp_path / "x"
    out.mkdir()
    with (out / "metrics.jsonl").open("w") as file:
        for step in range(1, 601):
            file.write(json.dumps({"step": step, "reward": step / 600, "grad_norm": 0.5}) + "\n")
    page = page_of(out)
    assert 100 < len(table(page, "reward")) < 160
    assert "Points: means of a few steps" in chart(page, "reward").about


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda out: (out / "train.json").write_text("{}"), "no step is done yet"),
        (lambda out: (out / "train.json").write_text("{"), "can't read the settings"),
        (lambda out: (out / "metrics.jsonl").write_text(""), "has no steps of a training run"),
        (
            lambda out: (out / "metrics.jsonl").write_text('{"step": 1, "accuracy": 0.5}\n'),
            "1 steps and no metric of TRL's or agentgym's",
        ),
        (lambda out: (out / "metrics.jsonl").write_text('{"epoch": 1}\n["x"]\n'), "has no steps"),
    ],
)
def test_what_is_no_run_is_one_clear_line(
    tmp_path: Path, make: Callable[[Path], object], error: str
) -> None:
    make(tmp_path)
    with pytest.raises(TrainingError, match=error) as caught:
        report_page(tmp_path, now=NOW)
    assert len(str(caught.value).splitlines()) == 1


def test_traces_of_a_first_step_that_is_not_over_are_no_step(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps({"steps": 9}))
    (_, _, traces) = next(steps_of(HEALTHY, steps=1))
    with TraceWriter(tmp_path / "traces-step000000.jsonl") as writer:
        writer.write(traces[0])
    with pytest.raises(TrainingError, match="no step is done yet"):
        report_page(tmp_path, now=NOW)
    assert is_waited_for(tmp_path)
    (tmp_path / "train.json").unlink()  # somebody's own trainer, whose only file this is
    assert not is_waited_for(tmp_path)
    assert read_training(tmp_path, now=NOW).steps == 1


def test_missing_steps_are_told(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY, steps=6)
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(lines[:2] + lines[4:]))
    page = training_page(read_training(out, now=NOW))
    assert any("2 of the steps up to 6 are not in the files" in note for note in page.notes)
    assert any("no train.json" in note for note in page.notes)


def test_series_that_few_steps_have_say_so() -> None:
    record = read_training(COLLAPSES, now=NOW)
    make = ChartMaker(record)
    charts = list(
        make.over_steps("x", "X", {"a": "components/r_att", "b": "reward/mean"}, what="About.")
    )
    assert "some of it in only 3 steps" in charts[0].about


def test_a_resume_with_other_versions_says_which(tmp_path: Path) -> None:
    out = tmp_path / "x"
    shutil.copytree(LEARNS, out)
    starts = [json.loads(line) for line in (out / "starts.jsonl").read_text().splitlines()]
    starts[1]["versions"]["trl"] = "1.17.0"
    (out / "starts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in starts))
    facts = dict(header_facts(read_training(out, now=NOW)))
    assert "trl 1.16.0 → 1.17.0" in facts["R1 resumed"]
    assert "trl 1.17.0" in facts["versions"]


@pytest.mark.thorough
def test_reading_a_run_loads_no_training_stack() -> None:
    code = (
        "import sys\nfrom pathlib import Path\nimport agentgym.report.run\n"
        "from agentgym.report.run.record import read_training\n"
        "from agentgym.report.run.training import training_page\n"
        f"assert training_page(read_training(Path({str(LEARNS)!r}))).sections\n"
        "print(*{'torch', 'trl', 'vllm', 'transformers', 'ray', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_usage_of_a_role_named_with_slashes_is_whole(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY, steps=3, **{"agentgym/usage/a/b/tokens_in": 5})
    assert "a/b" in table(page_of(out), "tokens-in")[0]


def test_a_run_that_its_budget_ended_was_not_killed(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY, steps=3)
    (out / "train.json").write_text(json.dumps({"steps": 9}))
    note_budget_end(out, step=3, budget="$0.08 of $0.10 are spent; --resume goes on")
    report = report_page(out, now=NOW)
    assert report.over  # --watch ends
    (header,) = parse(report.html).all("header")
    assert "Ended by its budget:" in header.text
    assert "3 of 9 steps" in header.text
    assert "$0.08 of $0.10 are spent" in header.text
    assert "Killed" not in header.text


def test_held_out_reward_has_its_interval_where_the_file_keeps_it(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY, steps=3)
    old = score_of(HEALTHY, 0)
    new = score_of(HEALTHY, 3).model_copy(update={"reward_low": 0.125, "reward_high": 0.875})
    lines = [old.model_dump_json(exclude={"reward_low", "reward_high"}), new.model_dump_json()]
    (out / "evaluations.jsonl").write_text("\n".join(lines))
    page = page_of(out)
    assert "where it is kept (1 of 2)" in chart(page, "held-out-reward").about
    header, first, *_, last = table(page, "held-out-reward")
    assert header[2:4] == ["95 % from", "to"]
    assert first[2:4] == ["–", "–"]
    assert last[2:4] == ["0.125", "0.875"]


def test_a_share_of_tokens_is_no_share_of_groups(tmp_path: Path) -> None:
    cached = {"agentgym/prefix_cache_share": 0.5}
    said = chart(page_of(save(tmp_path / "x", HEALTHY, steps=6, **cached)), "prefix-cache")
    assert "Wilson" not in said.about
    assert {(p.low, p.high) for p in said.series[0].points} == {(0.5, 0.5)}


def test_alarms_of_one_step_are_all_in_the_figures(tmp_path: Path) -> None:
    sick = replace(SICK["no_signal"], skill=flat(0.0), cut_off=flat(1.0))
    page = page_of(save(tmp_path / "x", sick, steps=6))
    assert table(page, "alarm-times")[1:] == [["5", "A1, A2"]]


def test_settings_that_a_record_lacks_are_not_told(tmp_path: Path) -> None:
    out = save(tmp_path / "run" / "train", HEALTHY, steps=3)
    (out / "train.json").write_text(json.dumps({"env": "x", "learning_rate": 0.1}))
    page = page_of(out)
    assert page.title == "Training run run/train"
    facts = dict(page.facts)
    assert facts["algorithm"] == "TRL's GRPO, learning rate 0.1"
    assert "None" not in " ".join(facts.values())


def test_secrets_that_a_resume_changed_are_left_out(tmp_path: Path) -> None:
    out = save(tmp_path / "x", HEALTHY, steps=3)
    settings: list[dict[str, Any]] = [
        {
            "policy": {"servers": [f"http://me:pass{n}xyz@localhost:8000"], "check_every": n},
            "grpo": {"hub_token": f"token-of-the-hub-{n}"},
            "env_kwargs": {
                "judge": {"base_url": "http://j", "model": "m", "api_key": f"key-{n}-j"}
            },
            "temperature": 0.5 + n,
        }
        for n in (1, 2)
    ]
    (out / "train.json").write_text(json.dumps(settings[0]))
    note_start(out, settings[1], checkpoint=out / "checkpoint-2", processes=1)
    said = " ".join(dict(page_of(out).facts).values())
    assert "temperature: 1.5 → 2.5" in said
    assert "policy.check_every: 1 → 2" in said
    for secret in ("pass1xyz", "pass2xyz", "token-of-the-hub", "key-1-j", "key-2-j"):
        assert secret not in said
