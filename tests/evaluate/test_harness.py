"""The harness: every episode once, whatever happened before; external scores; nothing dropped."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentgym.client import Completion, Prices, SamplingParams
from agentgym.errors import BudgetStop, ConfigError, TraceError
from agentgym.evaluate.columns import ColumnSpec, model_column, read_columns, scripted_column
from agentgym.evaluate.harness import Evaluation, evaluate
from agentgym.evaluate.result import read_result
from agentgym.evaluate.setting import EvaluationSetting
from agentgym.judge import Score
from agentgym.rollout import Limits, Retry, RunBudget
from agentgym.rollout.progress import NoProgress
from agentgym.trace import Trace
from agentgym.traces import TraceFile
from agentgym.types import Usage

ENV = "agentgym/ToolWorld-v0"
NEVER = Retry(env=0, infra=0, simulator=0, judge=0)


def setting(**fields: Any) -> EvaluationSetting:
    return EvaluationSetting(ENV, **{"n": 5, **fields})


def lines(folder: Path, column: str = "expert") -> list[str]:
    """Every trace of a column as `task#sample`, those of all configurations."""
    files = sorted((folder / "traces").glob(f"{column}-*.jsonl"))
    return [f"{t.task_id}#{t.sample}" for file in files for t in TraceFile(file)]


def test_columns_play_the_same_tasks_with_the_same_seeds(tmp_path: Path) -> None:
    columns = [scripted_column("none"), scripted_column("expert")]
    result = evaluate(Evaluation(setting(), columns, out=tmp_path, samples=2))
    one, other = result.columns
    assert [(a.task_id, a.sample) for a in one.attempts] == [
        (a.task_id, a.sample) for a in other.attempts
    ]
    assert len(one.attempts) == 10
    assert {a.external for a in one.attempts} == {0.0}
    assert {a.external for a in other.attempts} == {1.0}
    assert read_result(tmp_path / "result.json") == result
    seeds = [
        {t.task_id: t.seed for t in TraceFile(tmp_path / str(column.trace_file))}
        for column in result.columns
    ]
    assert seeds[0] == seeds[1]


def test_a_second_run_plays_exactly_what_is_missing(tmp_path: Path) -> None:
    evaluate(Evaluation(setting(), [scripted_column("expert")], out=tmp_path))
    file = next((tmp_path / "traces").glob("expert-*.jsonl"))
    kept = file.read_text().splitlines(keepends=True)
    file.write_text("".join(kept[:3]) + kept[3][:50])  # a kill: two are gone, one is torn
    again = Evaluation(setting(), [scripted_column("expert")], out=tmp_path)
    assert again.missing() == {"expert": 2}
    result = evaluate(again)
    assert len(result.columns[0].attempts) == 5
    assert len(set(lines(tmp_path))) == len(lines(tmp_path)) == 5
    assert Evaluation(setting(), [scripted_column("expert")], out=tmp_path).missing() == {
        "expert": 0
    }


def test_more_samples_and_more_columns_add_to_what_is_there(tmp_path: Path) -> None:
    evaluate(Evaluation(setting(), [scripted_column("expert")], out=tmp_path))
    columns = [scripted_column("expert"), scripted_column("none")]
    more = Evaluation(setting(), columns, out=tmp_path, samples=2)
    assert more.missing() == {"expert": 5, "none": 10}


def test_another_sampling_is_another_episode(tmp_path: Path) -> None:
    """The cases behind it: answers at one temperature were reused for another."""

    def named(temperature: float, url: str = "http://127.0.0.1:1/v1") -> str:
        sampling = SamplingParams(temperature=temperature)
        column = model_column(f"m@{url}", sampling=sampling)
        return setting().config_hash(column, Limits())

    assert named(0.0) == named(0.0)
    hashes = {named(0.0), named(0.7), named(0.0, "http://127.0.0.1:2/v1")}
    hashes.add(setting(seed=1).config_hash(scripted_column("expert"), Limits()))
    hashes.add(setting().config_hash(scripted_column("expert"), Limits()))
    hashes.add(setting().config_hash(scripted_column("expert"), Limits(max_turns=3)))
    assert len(hashes) == 6


def test_prices_and_slots_make_no_other_episode() -> None:
    plain = model_column("m@http://127.0.0.1:1/v1", sampling=SamplingParams())
    dear = model_column(
        "m@http://127.0.0.1:1/v1",
        sampling=SamplingParams(),
        prices={"input": 1.0, "output": 2.0},
        max_concurrency=3,
    )
    assert setting().config_hash(plain, Limits()) == setting().config_hash(
        dear, Limits(concurrency=2)
    )


def test_traces_of_another_configuration_stay_and_are_not_counted(tmp_path: Path) -> None:
    evaluate(Evaluation(setting(), [scripted_column("expert")], out=tmp_path))
    changed = Evaluation(setting(seed=7), [scripted_column("expert")], out=tmp_path)
    assert changed.missing() == {"expert": 5}
    assert len(changed.other_traces()) == 1
    result = evaluate(changed)
    assert len(result.columns[0].attempts) == 5
    assert len(lines(tmp_path)) == 10


def test_ctrl_c_loses_nothing(tmp_path: Path) -> None:
    """Drained in the middle, the next run plays the rest, and no episode twice."""
    drain: list[Any] = []
    first = Evaluation(
        setting(n=8),
        [scripted_column("expert")],
        out=tmp_path,
        limits=Limits(concurrency=1, init_concurrency=1),
        progress=_AtFirstTrace(lambda: drain[0]()),
    )
    drain.append(first.drain)
    asyncio.run(first.play())
    before = lines(tmp_path)
    partial = first.write()
    assert 1 <= len(before) < 8
    assert len(partial.columns[0].attempts) == len(before)
    assert partial.n_planned == 8
    second = Evaluation(setting(n=8), [scripted_column("expert")], out=tmp_path)
    assert second.missing() == {"expert": 8 - len(before)}
    evaluate(second)
    assert len(set(lines(tmp_path))) == len(lines(tmp_path)) == 8


def test_ended_before_the_first_episode_it_can_be_begun_again(tmp_path: Path) -> None:
    first = Evaluation(setting(), [scripted_column("expert")], out=tmp_path)
    first.drain()
    assert evaluate(first).columns[0].attempts == ()
    assert not first.result_file.exists()
    again = Evaluation(setting(), [scripted_column("expert")], out=tmp_path)
    assert again.missing() == {"expert": 5}


class _AtFirstTrace(NoProgress):
    """Does something when the first episode is over."""

    def __init__(self, then: Any) -> None:
        self._then = then

    def finish(self, trace: Trace) -> None:
        self._then()


class _Refusing:
    """A policy server that fails on some tasks."""

    def __init__(self, tasks: set[str], *, tokens: int = 0) -> None:
        self._tasks = tasks
        self._usage = Usage(completion_tokens=tokens) if tokens else None
        self.calls = 0

    async def complete(self, messages, tools, sampling, *, session=None) -> Completion:
        from agentgym.errors import EndpointError

        self.calls += 1
        if any(str(m["content"]) in self._tasks for m in messages if m["role"] == "user"):
            raise EndpointError("http://gone: no connection", retryable=False)
        return Completion(
            message={"role": "assistant", "content": "Answer: none"}, usage=self._usage
        )

    async def release(self, session: str) -> None:
        pass

    async def aclose(self) -> None:
        pass


def test_failures_of_the_infrastructure_are_rows_without_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = setting(n=5)
    first = next(iter(chosen.tasks))
    opening, _ = chosen.core.reset(options={"task_id": first})
    client = _Refusing({str(opening[-1]["content"])})
    column = model_column("m@http://127.0.0.1:1/v1", sampling=SamplingParams())
    evaluation = Evaluation(chosen, [column], out=tmp_path, retry=NEVER)
    monkeypatch.setattr(evaluation, "_client", lambda spec: client)
    monkeypatch.setattr("agentgym.evaluate.asking._ask_first", _answered)
    result = evaluate(evaluation)
    by_task = {a.task_id: a for a in result.columns[0].attempts}
    assert len(by_task) == 5
    failed = by_task[first]
    assert (failed.external, failed.correct, failed.reward) == (None, None, None)
    assert failed.failure_class == "infra"
    assert "no connection" in str(failed.error)
    again = Evaluation(chosen, [column], out=tmp_path)
    assert again.missing() == {"m": 0}
    assert Evaluation(chosen, [column], out=tmp_path, retry_masked=True).missing() == {"m": 1}


async def _answered(client: Any, who: str, tools: Any) -> None:
    pass


def test_columns_at_once_share_the_slots(tmp_path: Path) -> None:
    columns = [scripted_column(name) for name in ("expert", "none", "guess")]
    evaluation = Evaluation(
        setting(), columns, out=tmp_path, at_once=True, limits=Limits(concurrency=2)
    )
    result = evaluate(evaluation)
    assert [len(column.attempts) for column in result.columns] == [5, 5, 5]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_column_that_breaks_off_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    chosen = setting(n=4)
    gone = _Refusing({str(chosen.core.reset(options={"task_id": t})[0][-1]["content"])
                      for t in chosen.tasks})  # fmt: skip
    columns = [model_column("m@http://127.0.0.1:1/v1", sampling=SamplingParams())]
    columns.append(scripted_column("expert"))
    evaluation = Evaluation(
        chosen,
        columns,
        out=tmp_path,
        at_once=at_once,
        limits=Limits(max_failure_rate=0.0, min_failures=1),
    )
    real = evaluation._client
    monkeypatch.setattr(
        evaluation, "_client", lambda spec: gone if spec.name == "m" else real(spec)
    )
    monkeypatch.setattr("agentgym.evaluate.asking._ask_first", _answered)
    result = evaluate(evaluation)
    assert list(evaluation.stopped) == ["m"]
    assert len(result.column("expert").attempts) == 4
    assert {a.external for a in result.column("m").attempts} == {None}


@pytest.mark.parametrize("at_once", [False, True])
def test_a_full_disk_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    def full(self: Any, trace: Trace) -> None:
        raise TraceError("can't write: No space left on device")

    monkeypatch.setattr("agentgym.evaluate.harness.TraceWriter.write", full)
    columns = [scripted_column("expert"), scripted_column("none")]
    evaluation = Evaluation(setting(), columns, out=tmp_path, at_once=at_once)
    with pytest.raises(TraceError, match="No space left"):
        evaluate(evaluation)


def test_a_budget_is_for_all_columns_and_goes_on_counting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first run spent is spent: a second one can't begin with a full purse."""
    limits = Limits(budget=RunBudget(tokens=100), concurrency=1, init_concurrency=1)
    columns = [model_column(f"{n}=m@http://127.0.0.1:1/v1", sampling=SamplingParams())
               for n in ("one", "two")]  # fmt: skip
    monkeypatch.setattr("agentgym.evaluate.asking._ask_first", _answered)
    calls: list[int] = []
    told = []
    for _ in range(3):
        evaluation = Evaluation(setting(), columns, out=tmp_path, limits=limits)
        client = _Refusing(set(), tokens=30)
        monkeypatch.setattr(evaluation, "_client", lambda spec, client=client: client)
        with pytest.raises(BudgetStop) as stop:
            evaluate(evaluation)
        calls.append(client.calls)
        told.append((stop.value.status, str(stop.value)))
    rows = [a for column in evaluation.result().columns for a in column.attempts]
    assert 1 <= len(rows) < 10
    assert calls[0] > calls[1] >= calls[2] == 0, calls
    # Of all columns, and of earlier parts, too: an engine knows its own column and this part only.
    status, text = told[-1]
    planned = 2 * len(evaluation.setting.tasks)
    assert (status.done, status.before) == (len(rows), len(rows))
    assert len(status.cut) + len(status.not_run) == planned - len(rows)
    left = f"{planned - len(rows)} are left"
    assert f"{len(rows)} of {planned} episodes are there (none of them new), {left}" in text
    assert told[0][0].before is None


def test_a_price_that_the_budget_needs_is_missed_before_any_column_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I05: the second column's, which would be found out when the first one is paid for."""
    columns = [model_column(f"{n}=m@http://127.0.0.1:1/v1", sampling=SamplingParams())
               for n in ("one", "two")]  # fmt: skip
    paid = columns[0].servers[0].model_copy(update={"prices": Prices(input=1, output=1)})
    columns[0] = columns[0].model_copy(update={"servers": (paid,)})
    asked = []

    async def ask(client: Any, *_: Any) -> None:
        asked.append(client)

    monkeypatch.setattr("agentgym.evaluate.asking._ask_first", ask)
    limits = Limits(budget=RunBudget(usd=1.0))
    with pytest.raises(ConfigError, match="'m' at http://127.0.0.1:1/v1 has no prices"):
        evaluate(Evaluation(setting(), columns, out=tmp_path, limits=limits))
    assert asked == []


def test_a_policy_that_hacks_the_reward_has_a_low_external_score(tmp_path: Path) -> None:
    """A judge that believes what it is told pays 1; the world shows that nothing was done."""
    kwargs = {"judge": _Believing()}
    hacked = EvaluationSetting(ENV, env_kwargs=kwargs, n=8)
    result = evaluate(Evaluation(hacked, [scripted_column("claim")], out=tmp_path))
    attempts = result.columns[0].attempts
    assert {a.reward for a in attempts} == {1.0}
    assert {a.external for a in attempts} == {0.0}
    assert {a.correct for a in attempts} == {False}


class _Believing:
    """A reward that can be had for the asking."""

    inline = True

    async def score(self, episode: Any) -> Score:
        solved = float("solved" in (episode.answer or ""))
        return Score(total=solved, correct=bool(solved))


def test_a_score_is_computed_anew_without_playing(tmp_path: Path) -> None:
    evaluate(Evaluation(setting(), [scripted_column("expert")], out=tmp_path))
    rescored = Evaluation(
        setting(score=lambda env, trace: len(trace.turns) <= 2),
        [scripted_column("expert")],
        out=tmp_path,
    )
    assert rescored.missing() == {"expert": 0}
    turns = {a.task_id: a.turns for a in rescored.result().columns[0].attempts}
    correct = {a.task_id: a.correct for a in rescored.result().columns[0].attempts}
    assert correct == {task: n <= 2 for task, n in turns.items()}


def test_tasks_are_spread_over_the_split() -> None:
    families = {facts.family for facts in setting(n=7).tasks.values()}
    assert len(families) == 7


def test_the_split_is_held_out_unless_said_otherwise() -> None:
    assert setting().split == "validation"
    assert setting(env_kwargs={"split": "train"}).split == "train"


def test_a_task_of_the_same_name_and_another_content_has_another_hash() -> None:
    one, other = setting(), setting(env_kwargs={"task_seed": 1})
    assert list(one.tasks) == list(other.tasks)
    assert one.tasks != other.tasks
    assert one.tasks == setting().tasks


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([], "who plays"),
        ([scripted_column("expert")] * 2, "2 columns are called 'expert'"),
        ([scripted_column("expart")], "has no policy 'expart'"),
    ],
)
def test_columns_that_cannot_be_played(
    tmp_path: Path, columns: list[ColumnSpec], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Evaluation(setting(), columns, out=tmp_path)


def test_a_folder_holds_one_evaluation(tmp_path: Path) -> None:
    evaluate(Evaluation(setting(), [scripted_column("none")], out=tmp_path))
    other = setting(env_kwargs={"split": "train"})
    with pytest.raises(ConfigError, match=r"validation; take another --out"):
        Evaluation(other, [scripted_column("none")], out=tmp_path)


def test_columns_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "columns.toml"
    file.write_text(
        '[columns.rule]\npolicy = "rule"\n'
        '[columns.large]\nkind = "baseline"\nbase_url = "https://host/v1"\nmodel = "big"\n'
        "prices = {input = 1.0, output = 2.0}\nsampling = {max_tokens = 99}\n"
        '[judge]\nbase_url = "http://localhost:1/v1"\nmodel = "critic"\n'
    )
    columns, tables = read_columns(file, sampling=SamplingParams(temperature=0.5))
    rule, large = columns
    assert (rule.kind, rule.policy) == ("scripted", "rule")
    assert (large.kind, large.model) == ("baseline", "big")
    assert (large.sampling.temperature, large.sampling.max_tokens) == (0.5, 99)
    assert large.servers[0].prices is not None
    assert tables["judge"]["model"] == "critic"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column"),
        ('[column.a]\npolicy = "x"', r"unknown table 'column'; did you mean 'columns'"),
        ('[columns.a]\npolicy = "x"\nmodel = "y"', "a policy of the env's has no model"),
        ('[columns.a]\nmodle = "y"\nbase_url = "http://h/v1"', "unknown field 'modle'"),
        ('[columns.a]\nmodel = "y"\nbase_url = "http://h/v1"\nkind = "big"', "kind"),
        ("columns = 3", "has no column"),
        ("[columns", "not valid TOML"),
    ],
)
def test_a_slip_in_the_columns_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "columns.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        read_columns(file, sampling=SamplingParams())
    assert "\n" not in str(raised.value)


def test_a_result_names_no_secret(tmp_path: Path) -> None:
    column = model_column("m@http://user:hunter22@127.0.0.1:1/v1", sampling=SamplingParams())
    evaluation = Evaluation(setting(), [column], out=tmp_path)
    assert "hunter22" not in evaluation.result().to_json()
    assert "hunter22" not in json.dumps(column.identity())


def _score_of_reward(env: Any, trace: Trace) -> float | None:
    return trace.reward


def _score_by_judge(env: Any, trace: Trace) -> Any:
    from agentgym.sync import run_inline

    return run_inline(env.scoring.judge.score(None))


@pytest.mark.parametrize("score", [_score_of_reward, _score_by_judge])
def test_a_score_that_reads_the_reward_gives_none(tmp_path: Path, score: Any) -> None:
    evaluate(Evaluation(setting(), [scripted_column("expert")], out=tmp_path))
    hacked = Evaluation(setting(score=score), [scripted_column("expert")], out=tmp_path)
    with pytest.raises(ConfigError, match="no verdict and no reward|asks the judge"):
        hacked.result()
