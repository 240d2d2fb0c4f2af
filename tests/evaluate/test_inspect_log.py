"""Inspect's log format: held to a schema that `inspect_ai` made, and read by its own reader.

The schema is `EvalLog.model_json_schema()` of inspect_ai 0.3.285 (MIT). Its own reader can't be
installed beside this package, so that test runs where `AGENTGYM_INSPECT_PYTHON` names a Python that
has it:

    python -m venv inspect-env && inspect-env/bin/pip install inspect_ai
    AGENTGYM_INSPECT_PYTHON=inspect-env/bin/python pytest tests/evaluate/test_inspect_log.py
"""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentgym.errors import DataError
from agentgym.evaluate.attempts import attempt_of
from agentgym.evaluate.columns import scripted_column
from agentgym.evaluate.harness import Evaluation, evaluate
from agentgym.evaluate.inspect_log import export_inspect
from agentgym.evaluate.inspect_messages import from_openai
from agentgym.evaluate.result import Column, EvaluationResult, TaskFacts, write_result
from agentgym.evaluate.setting import EvaluationSetting
from agentgym.trace import Trace
from agentgym.traces import TraceWriter
from agentgym.types import Turn, Usage, Verdict

SCHEMA = json.loads(
    (Path(__file__).parent / "inspect_eval_log.schema.json").read_text(encoding="utf-8")
)
INSPECT_PYTHON = os.environ.get("AGENTGYM_INSPECT_PYTHON")


def called(name: str, arguments: Any, call_id: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


MESSAGES = (
    {"role": "system", "content": "Use the tools."},
    {"role": "user", "content": "How late is the book? \u2028 \u202e"},
    called("get_book", '{"book_id": "B1", "with": ["dates"]}', "c1"),
    {"role": "tool", "tool_call_id": "c1", "content": '{"due": "2026-01-01"}'},
    called("get_book", '{"book_id": ', "c2"),
    {"role": "tool", "tool_call_id": "c2", "content": "Error: no JSON"},
    {"role": "assistant", "content": "Answer: 3"},
)
USAGE = Usage(
    prompt_tokens=900, cached_tokens=600, completion_tokens=50, reasoning_tokens=7, calls=3,
    cost_usd=0.25,
)  # fmt: skip


def trace(task: str, **fields: Any) -> Trace:
    facts: dict[str, Any] = {
        "trace_id": f"id-{task}-{fields.get('sample', 0)}",
        "env_spec": "{}",
        "task_id": task,
        "messages": MESSAGES,
        "turns": tuple(Turn(index=n, message=MESSAGES[k]) for n, k in enumerate((2, 4, 6))),
        "terminated": True,
        "answer": "Answer: 3",
        "verdict": Verdict(reward=0.8, completed=True, gates={"malformed_call": True}),
        "started_at": "2026-01-01T10:00:00+00:00",
        "stage_s": {"run": 2.5},
        "usage": {"policy": USAGE, "judge": USAGE},
    }
    return Trace(**{**facts, **fields})


@pytest.fixture
def exported(tmp_path: Path) -> tuple[EvaluationResult, Path]:
    """A result with a solved, a failed and a broken episode, and its folder."""
    solved, failed = trace("t/1"), trace("t/2", verdict=Verdict(reward=-0.5, completed=True))
    broken = trace(
        "t/1",
        sample=1,
        verdict=Verdict(masked=True, reward=None, failure_class="infra"),
        failure_class="infra",
        error="Traceback\nEndpointError: gone",
        messages=MESSAGES[:2],
        turns=(),
    )
    cut = trace("t/2", sample=1, terminated=False, truncated=True, truncation_reason="turns")
    with TraceWriter(tmp_path / "traces" / "m.jsonl") as writer:
        for one in (solved, failed, broken, cut):
            writer.write(one)
    column = Column(
        name="m",
        kind="baseline",
        model="org/model",
        endpoint="https://host/v1",
        sampling={"temperature": 0.5, "top_p": 1.0, "max_tokens": 64, "min_p": 0.0},
        hashes={"judge": "abc"},
        code_version="0.1.0",
        trace_file="traces/m.jsonl",
        attempts=(
            attempt_of(solved, external=1.0, correct=True),
            attempt_of(broken, external=None, correct=None),
            attempt_of(failed, external=0.0, correct=False),
            attempt_of(cut, external=0.0, correct=False),
        ),
    )
    result = EvaluationResult(
        created_at="2026-01-01T11:00:00+00:00",
        env_id="agentgym/Test-v3",
        env_spec="{}",
        split="test",
        external_score="test/external",
        samples=2,
        seed=0,
        tasks={task: TaskFacts(content="h", family="f") for task in ("t/1", "t/2")},
        columns=(column,),
    )
    write_result(tmp_path / "result.json", result)
    return result, tmp_path


def log_of(result: EvaluationResult, folder: Path | None, path: Path) -> dict[str, Any]:
    export_inspect(result, result.columns[0], path, folder=folder)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def unknown_fields(value: Any, schema: Any, where: str = "log") -> list[str]:
    """Fields that a model of Inspect's doesn't have; the schema itself would let them pass."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, list):
        inner = schema.get("items")
        return [w for v in value for w in unknown_fields(v, inner, where)] if inner else []
    options = [o for o in schema.get("anyOf", ()) if o.get("type") != "null"]
    if len(options) == 1:
        return unknown_fields(value, options[0], where)
    known = schema.get("properties")
    if not isinstance(value, dict) or not known:
        return []
    found = [f"{where}.{key}" for key in value if key not in known]
    for key, item in value.items():
        if key in known:
            found += unknown_fields(item, known[key], f"{where}.{key}")
    return found


def check(log: dict[str, Any]) -> None:
    Draft202012Validator(SCHEMA).validate(log)
    assert unknown_fields(log, SCHEMA) == []


def test_a_log_is_as_inspect_has_it(exported: tuple[EvaluationResult, Path]) -> None:
    result, folder = exported
    log = log_of(result, folder, folder / "x.json")
    check(log)
    assert log["eval"]["model"] == "org/model"
    assert log["eval"]["task"] == "agentgym/Test-v3"
    assert log["eval"]["model_generate_config"] == {
        "temperature": 0.5, "top_p": 1.0, "max_tokens": 64,
    }  # fmt: skip
    assert [(s["id"], s["epoch"]) for s in log["samples"]] == [
        ("t/1", 1), ("t/2", 1), ("t/1", 2), ("t/2", 2),
    ]  # fmt: skip


def test_the_checks_see_what_is_wrong(exported: tuple[EvaluationResult, Path]) -> None:
    result, folder = exported
    log = log_of(result, folder, folder / "x.json")
    assert unknown_fields({**log, "verdikt": 1}, SCHEMA) == ["log.verdikt"]
    del log["eval"]["task"]
    assert list(Draft202012Validator(SCHEMA).iter_errors(log))


def test_scores_beside_each_other_and_none_for_what_broke(
    exported: tuple[EvaluationResult, Path],
) -> None:
    result, folder = exported
    log = log_of(result, folder, folder / "x.json")
    solved, failed, broken, cut = log["samples"]
    assert solved["scores"]["external"]["value"] == 1.0
    assert solved["scores"]["training_reward"]["value"] == 0.8
    assert failed["scores"]["external"]["value"] == 0.0
    assert broken["scores"] == {}
    assert "gone" in broken["error"]["message"]
    assert "error" not in failed
    assert cut["limit"] == {"type": "turn", "limit": 3, "reason": "turns"}
    external, reward = log["results"]["scores"]
    assert (external["scored_samples"], external["unscored_samples"]) == (3, 1)
    assert external["metrics"]["mean"]["value"] == pytest.approx(1 / 3)
    assert reward["metrics"]["mean"]["value"] == pytest.approx((0.8 - 0.5 + 0.8) / 3)


def test_cached_input_is_counted_apart(exported: tuple[EvaluationResult, Path]) -> None:
    """Inspect's input tokens leave out what a cache held; ours include it."""
    result, folder = exported
    usage = log_of(result, folder, folder / "x.json")["samples"][0]["model_usage"]["org/model"]
    assert usage == {
        "input_tokens": 300,
        "input_tokens_cache_read": 600,
        "output_tokens": 50,
        "reasoning_tokens": 7,
        "total_tokens": 950,
        "total_cost": 0.25,
    }


def test_calls_keep_their_arguments_and_say_where_they_have_none() -> None:
    made = from_openai(MESSAGES)
    assert made[2]["tool_calls"] == [
        {
            "id": "c1",
            "type": "function",
            "function": "get_book",
            "arguments": {"book_id": "B1", "with": ["dates"]},
        }
    ]
    assert made[3]["function"] == "get_book"
    assert made[4]["tool_calls"][0]["arguments"] == {}
    assert '{"book_id": ' in made[4]["tool_calls"][0]["parse_error"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(content=JSON, arguments=JSON, name=JSON)
def test_whatever_a_message_holds_becomes_one_of_inspects(
    content: Any, arguments: Any, name: Any
) -> None:
    message = {**called(name, arguments, "c"), "content": content}
    made = from_openai([message, {"role": "tool", "tool_call_id": "c", "content": content}])
    schema = {**SCHEMA, "$ref": "#/$defs/ChatMessageAssistant"}
    for key in ("properties", "required", "title", "type"):
        schema.pop(key, None)
    Draft202012Validator(schema).validate(made[0])


DEEP = "[" * 400 + "]" * 400


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        (called("f", '{"a": NaN}', "c")["tool_calls"], "NaN is no JSON"),
        (called("f", f'{{"a": {DEEP}}}', "c")["tool_calls"], "nested more than 100 deep"),
        ("abc", "'abc'"),
        ({"a": 1}, "{'a': 1}"),
        ([7], "7"),
        ([{"id": "c", "function": "f"}], "'function': 'f'"),
    ],
)
def test_calls_that_are_none_are_parse_errors(calls: Any, error: str) -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": calls}
    (call,) = from_openai([message])[0]["tool_calls"]
    assert call["arguments"] == {}
    assert error in call["parse_error"]
    json.dumps(call, allow_nan=False)


def test_roles_that_inspect_does_not_know_are_the_users() -> None:
    roles = [{"role": "function", "content": "x"}, {"role": None, "content": "x"}, {}]
    assert {message["role"] for message in from_openai(roles)} == {"user"}


@pytest.mark.parametrize("task", ["a\ud800b", "../../x", "", "t\n\x00"])
def test_any_name_of_a_task_is_exported(tmp_path: Path, task: str) -> None:
    one = trace(task)
    attempt = attempt_of(one, external=1.0, correct=True)
    column = Column(name="m", kind="scripted", code_version="0.1.0", attempts=(attempt,))
    result = EvaluationResult(
        created_at="2026-01-01T11:00:00+00:00", env_id="x/T-v0", env_spec="{}", samples=1,
        external_score="e", tasks={task: TaskFacts(content="a")}, columns=(column,),
    )  # fmt: skip
    export_inspect(result, column, tmp_path / "x.eval")
    with zipfile.ZipFile(tmp_path / "x.eval") as archive:
        assert len(archive.namelist()) == 5


def test_traces_elsewhere_than_beside_the_result_are_not_read(
    exported: tuple[EvaluationResult, Path], tmp_path: Path
) -> None:
    """A result file of somebody else's names what it likes."""
    result, folder = exported
    for named in (str(folder / "traces" / "m.jsonl"), f"../{folder.name}/traces/m.jsonl"):
        column = result.columns[0].model_copy(update={"trace_file": named})
        assert export_inspect(result, column, tmp_path / "y.json", folder=folder) == 0


def test_columns_whose_names_look_alike_have_logs_of_their_own(
    exported: tuple[EvaluationResult, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from agentgym.cli import main

    result, folder = exported
    columns = tuple(
        result.columns[0].model_copy(update={"name": name}) for name in ("org/m", "org_m", "模型")
    )
    write_result(folder / "result.json", result.model_copy(update={"columns": columns}))
    out = folder / "logs"
    assert main(["eval", "export", str(folder), "--format", "inspect", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        *("column.eval", "org_m-2.eval", "org_m.eval"),
    ]
    assert "conversations" not in capsys.readouterr().err  # found beside the result in the folder
    ids = set()
    for path in out.iterdir():
        with zipfile.ZipFile(path) as archive:
            ids.add(json.loads(archive.read("header.json"))["eval"]["eval_id"])
    assert len(ids) == 3


def test_without_traces_there_are_scores_and_no_conversation(
    exported: tuple[EvaluationResult, Path], tmp_path: Path
) -> None:
    result, folder = exported
    (folder / "traces" / "m.jsonl").unlink()
    assert export_inspect(result, result.columns[0], tmp_path / "y.json", folder=folder) == 0
    log = json.loads((tmp_path / "y.json").read_text())
    check(log)
    assert log["samples"][0]["scores"]["external"]["value"] == 1.0
    assert log["samples"][0]["messages"] == []


def test_an_archive_has_what_the_json_has(exported: tuple[EvaluationResult, Path]) -> None:
    result, folder = exported
    log = log_of(result, folder, folder / "x.json")
    export_inspect(result, result.columns[0], folder / "x.eval", folder=folder)
    with zipfile.ZipFile(folder / "x.eval") as archive:
        header = json.loads(archive.read("header.json"))
        assert header == {key: value for key, value in log.items() if key != "samples"}
        names = [f"samples/{s['id']}_epoch_{s['epoch']}.json" for s in log["samples"]]
        assert [json.loads(archive.read(name)) for name in names] == log["samples"]
        assert len(json.loads(archive.read("summaries.json"))) == 4


def test_an_unfinished_evaluation_says_so(exported: tuple[EvaluationResult, Path]) -> None:
    result, folder = exported
    column = result.columns[0]
    part = column.model_copy(update={"attempts": column.attempts[:2]})
    result = result.model_copy(update={"columns": (part,)})
    assert log_of(result, folder, folder / "x.json")["status"] == "cancelled"


def test_bad_targets_are_one_line(exported: tuple[EvaluationResult, Path]) -> None:
    result, folder = exported
    with pytest.raises(DataError, match=r"\.json or \.eval"):
        export_inspect(result, result.columns[0], folder / "x.txt", folder=folder)
    empty = result.columns[0].model_copy(update={"attempts": ()})
    with pytest.raises(DataError, match="no episode"):
        export_inspect(result, empty, folder / "x.json", folder=folder)


def test_a_played_evaluation_validates(tmp_path: Path) -> None:
    setting = EvaluationSetting("agentgym/SupportDesk-v0", n=2)
    result = evaluate(Evaluation(setting, [scripted_column("expert")], out=tmp_path))
    log = log_of(result, tmp_path, tmp_path / "x.json")
    check(log)
    calls = [c for m in log["samples"][0]["messages"] for c in m.get("tool_calls", ())]
    assert calls[0]["function"].startswith("find_customer")
    assert calls[0]["arguments"]


_READ = """
import json, sys
from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries
for path in sys.argv[1:]:
    log, head = read_eval_log(path), read_eval_log(path, header_only=True)
    print(json.dumps({
        "status": log.status,
        "model": log.eval.model,
        "mean": head.results.scores[0].metrics["mean"].value,
        "ids": [[s.id, s.epoch] for s in log.samples],
        "scores": [{k: v.value for k, v in (s.scores or {}).items()} for s in log.samples],
        "calls": [c.arguments for m in log.samples[0].messages if m.role == "assistant"
                  for c in m.tool_calls or []],
        "tokens": log.samples[0].model_usage["org/model"].total_tokens,
        "errors": [s.error is not None for s in log.samples],
        "summaries": len(read_eval_log_sample_summaries(path)),
    }))
"""


@pytest.mark.skipif(INSPECT_PYTHON is None, reason="AGENTGYM_INSPECT_PYTHON names no Python")
def test_inspects_own_reader_reads_both_forms(exported: tuple[EvaluationResult, Path]) -> None:
    result, folder = exported
    paths = [folder / "x.json", folder / "x.eval"]
    for path in paths:
        export_inspect(result, result.columns[0], path, folder=folder)
    ran = subprocess.run(
        [str(INSPECT_PYTHON), "-c", _READ, *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
    )
    from_json, from_archive = map(json.loads, ran.stdout.splitlines())
    assert from_json == from_archive
    assert from_json["status"] == "success"
    assert from_json["ids"] == [["t/1", 1], ["t/2", 1], ["t/1", 2], ["t/2", 2]]
    assert from_json["scores"][0] == {"external": 1.0, "training_reward": 0.8}
    assert from_json["calls"] == [{"book_id": "B1", "with": ["dates"]}, {}]
    assert from_json["tokens"] == 950
    assert from_json["errors"] == [False, False, True, False]
    assert from_json["summaries"] == 4
