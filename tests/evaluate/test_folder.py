"""The folder of an evaluation: nothing played twice, nothing lost, nothing taken for another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agentgym.core import AgentEnv
from agentgym.errors import ConfigError
from agentgym.evaluate.columns import file_stems, scripted_column
from agentgym.evaluate.folder import alone_in
from agentgym.evaluate.harness import TRACES, Evaluation, evaluate
from agentgym.evaluate.result import read_result
from agentgym.evaluate.setting import EvaluationSetting, described
from agentgym.judge import Score
from agentgym.judges import Criterion, Rubric, RubricJudge
from agentgym.rollout import Limits
from agentgym.traces import TraceFile
from agentgym.types import Message, Task

ENV = "agentgym/ToolWorld-v0"
ROWS = "RowsOfTests-v0"


class _Told:
    """A judge with a text of its own, which its `repr` doesn't tell."""

    inline = True

    def __init__(self, wanted: str = "") -> None:
        self.wanted = wanted

    async def score(self, episode: Any) -> Score:
        return Score(total=1.0, correct=True)


class RowsEnv(AgentEnv):
    """A data set of somebody's: a task per row."""

    def __init__(self, rows: Any = (), wanted: str = "", ids: Any = None) -> None:
        super().__init__(tools=(), judge=_Told(wanted))
        self._rows = list(rows)
        self._ids = list(ids or (f"row/{n}" for n in range(len(self._rows))))

    def task_ids(self) -> list[str]:
        return self._ids

    def choose_task(self, options: Any) -> Task:
        return Task(task_id=options["task_id"])

    async def start(self, task: Task) -> list[Message]:
        text = self._rows[self._ids.index(task.task_id)]
        return [
            {"role": "system", "content": f"rules of {text}"},
            {"role": "user", "content": text},
        ]


@pytest.fixture(autouse=True)
def registered() -> Any:
    gymnasium.register(ROWS, entry_point=RowsEnv)
    yield
    del gymnasium.registry[ROWS]


def rows(*texts: str, **kwargs: Any) -> EvaluationSetting:
    return EvaluationSetting(
        ROWS, env_kwargs={"rows": list(texts), **kwargs}, score=lambda env, trace: True
    )


def played(folder: Path) -> list[tuple[str | None, int]]:
    files = sorted((folder / TRACES).glob("*.jsonl"))
    return [(trace.task_id, trace.sample) for file in files for trace in TraceFile(file)]


def test_two_rows_of_the_same_content_are_two_tasks(tmp_path: Path) -> None:
    """Case H11: identical rows were merged, and n was another."""
    setting = rows("How much is 2 + 2?", "How much is 2 + 2?")
    one, other = setting.tasks.values()
    assert one.content != other.content  # their ids are part of it
    result = evaluate(Evaluation(setting, [scripted_column("random")], out=tmp_path))
    assert len(result.tasks) == len(result.columns[0].attempts) == 2


def test_tasks_of_one_id_are_refused_rather_than_merged() -> None:
    with pytest.raises(ConfigError, match="2 tasks called 'a'; give each an id of its own"):
        rows("x", "y", ids=["a", "a"])


def test_no_task_at_all_is_a_clear_line() -> None:
    with pytest.raises(ConfigError, match="has no task in this split"):
        rows()
    with pytest.raises(ConfigError, match="tasks is empty"):
        EvaluationSetting(ENV, tasks=[])


def test_a_system_prompt_per_task_makes_no_other_episodes_of_those_there(tmp_path: Path) -> None:
    """Their prompts were part of every episode's hash: with one more task all were played again."""
    column = [scripted_column("random")]
    kwargs = {"rows": ["a", "b", "c"]}
    few = EvaluationSetting(ROWS, env_kwargs=kwargs, n=2, score=lambda env, trace: True)
    evaluate(Evaluation(few, column, out=tmp_path))
    more = EvaluationSetting(ROWS, env_kwargs=kwargs, score=lambda env, trace: True)
    assert Evaluation(more, column, out=tmp_path).missing() == {"random": 1}


def test_a_task_that_has_changed_since_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edited prompt or data file under the same name: its old episodes are another task's."""
    column = [scripted_column("random")]
    evaluate(Evaluation(rows("a", "b"), column, out=tmp_path))

    async def start(self: RowsEnv, task: Task) -> list[Message]:
        return [{"role": "user", "content": "something else"}]

    monkeypatch.setattr(RowsEnv, "start", start)
    with pytest.raises(ConfigError, match=r"'row/0' as it was before.*take another --out"):
        Evaluation(rows("a", "b"), column, out=tmp_path)


def test_another_rubric_of_the_same_name_is_another_judge() -> None:
    """Case H08: a changed judge prompt is a miss."""

    def judge(text: str) -> Any:
        client: Any = None
        rubric = Rubric(name="mine", criteria=(Criterion(name="good", description=text),))
        return described(RubricJudge(client, rubric=rubric))

    assert judge("It is polite.") == judge("It is polite.") != judge("It is right.")


def test_another_judge_of_the_env_is_another_episode() -> None:
    column = scripted_column("random")
    one, other = rows("a"), rows("a")
    assert one.config_hash(column, Limits()) == other.config_hash(column, Limits())
    assert one.hashes()["judge"] != rows("a", wanted="more").hashes()["judge"]


def test_played_twice_by_the_same_object_nothing_is_played_twice(tmp_path: Path) -> None:
    """As in a notebook: the cell that was interrupted is run again."""
    evaluation = Evaluation(EvaluationSetting(ENV, n=3), [scripted_column("none")], out=tmp_path)
    assert evaluate(evaluation).columns == evaluate(evaluation).columns
    assert len(played(tmp_path)) == len(set(played(tmp_path))) == 3
    assert evaluation.missing() == {"none": 0}


def test_two_processes_do_not_play_in_one_folder(tmp_path: Path) -> None:
    evaluation = Evaluation(EvaluationSetting(ENV, n=3), [scripted_column("none")], out=tmp_path)
    with (
        alone_in(tmp_path / TRACES),
        pytest.raises(ConfigError, match="another process plays in .*; wait for its end"),
    ):
        evaluate(evaluation)
    assert len(evaluate(evaluation).columns[0].attempts) == 3


def test_what_another_process_has_played_meanwhile_is_not_played_again(tmp_path: Path) -> None:
    setting, column = EvaluationSetting(ENV, n=3), [scripted_column("none")]
    first, second = (Evaluation(setting, column, out=tmp_path) for _ in range(2))
    evaluate(first)
    evaluate(second)
    assert len(played(tmp_path)) == 3


def test_a_result_with_fewer_columns_or_tasks_does_not_take_the_old_ones_place(
    tmp_path: Path,
) -> None:
    setting = EvaluationSetting(ENV, n=3)
    evaluate(Evaluation(setting, [scripted_column("none")], out=tmp_path))
    before = read_result(tmp_path)
    other = Evaluation(setting, [scripted_column("expert")], out=tmp_path)
    evaluate(other)
    assert other.kept is not None
    assert read_result(other.kept) == before
    both = Evaluation(setting, [scripted_column(n) for n in ("none", "expert")], out=tmp_path)
    assert both.missing() == {"none": 0, "expert": 0}
    evaluate(both)
    assert both.kept is None
    assert [column.name for column in read_result(tmp_path).columns] == ["none", "expert"]


def test_more_episodes_than_fit_are_refused_at_once(tmp_path: Path) -> None:
    setting = EvaluationSetting(ENV, n=3)
    with pytest.raises(ConfigError, match="more than can be kept track of"):
        Evaluation(setting, [scripted_column("none")], out=tmp_path, samples=10**9)


def test_columns_have_files_of_their_own() -> None:
    assert file_stems(["a/b", "a_b", "模型", "基线", "A_B"]) == [
        *("a_b", "a_b-2", "column", "column-2", "A_B-3"),
    ]
    assert max(map(len, file_stems(["x" * 300, "x" * 299]))) < 110
