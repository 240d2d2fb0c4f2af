"""Gold sets: what is saved is loaded, references included; what is wrong is named."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from agentgym.errors import DataError
from agentgym.judges.episodes import episode_from_messages
from agentgym.judges.gold import GoldCase, GoldSet
from agentgym.judges.health import length_of
from agentgym.judges.rescore import episode_of
from agentgym.judges.rubric import DEFAULT_RUBRIC
from agentgym.judges.transcript import render_transcript
from agentgym.rollout.canary import Canary
from agentgym.testing import check_conversation
from agentgym.trace import Trace
from agentgym.types import Task, Verdict

SHIPPED = GoldSet.shipped()


def case(case_id: str = "a", **fields) -> GoldCase:
    episode = episode_from_messages(
        [{"role": "user", "content": "Né?"}, {"role": "assistant", "content": "☃"}],
        task=Task(task_id="t/1", reference={"secret": [1, 2]}),
    )
    return GoldCase(**{"case_id": case_id, "episode": episode, "correct": True, **fields})


def test_what_is_saved_is_loaded_with_the_hidden_reference(tmp_path):
    path = tmp_path / "new" / "gold.jsonl"
    gold = GoldSet(cases=(case("a", expected={"task_solved": 1.0}, note="n"), case("b")))
    gold.save(path)
    loaded = GoldSet.load(path)
    assert loaded == gold
    assert loaded.cases[0].episode.task.reference == {"secret": [1, 2]}
    assert [p.name for p in path.parent.iterdir()] == ["gold.jsonl"]


def test_turns_that_do_not_follow_from_the_messages_are_kept(tmp_path):
    episode = case().episode
    turn = episode.turns[0].model_copy(update={"malformed_text": True})
    odd = case(episode=episode.model_copy(update={"turns": (turn,)}))
    GoldSet(cases=(odd,)).save(tmp_path / "g.jsonl")
    assert GoldSet.load(tmp_path / "g.jsonl").cases[0].episode.malformed_calls == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ('{"case_id": "b"}', "line 2: episode"),
        ('{"case_id": "b", "episode": {"messages": 3}}', "line 2: episode"),
        ("[]", "line 2"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, message):
    path = tmp_path / "g.jsonl"
    path.write_text(case().to_json_line() + line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        GoldSet.load(path)


def test_a_repeated_id_an_empty_file_and_a_missing_one_are_errors(tmp_path):
    path = tmp_path / "g.jsonl"
    path.write_text(case().to_json_line() * 2, encoding="utf-8")
    with pytest.raises(DataError, match="two cases are called 'a'"):
        GoldSet.load(path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match="at least one case"):
        GoldSet.load(path)
    with pytest.raises(DataError, match="can't read the gold set"):
        GoldSet.load(tmp_path / "none.jsonl")


def test_a_case_without_any_label_is_refused():
    with pytest.raises(ValueError, match="neither expected values nor correct"):
        case(correct=None)


def test_from_traces_with_labels():
    trace = Trace(
        trace_id="t1",
        env_spec='{"id": "x/Y-v0"}',
        task_id="t/1",
        messages=case().episode.messages,
        turns=case().episode.turns,
        terminated=True,
        termination_reason="answered",
        answer="☃",
        verdict=Verdict(reward=0.0),
        started_at="now",
    )
    gold = GoldSet.from_traces(
        [trace],
        {"t1": {"correct": 0, "grounded": 1.0}},
        source="two annotators",
        episode_of=episode_of,
    )
    (only,) = gold.cases
    assert (only.correct, only.expected, only.source) == (
        False,
        {"grounded": 1.0},
        "two annotators",
    )
    assert only.episode.answer == "☃"
    with pytest.raises(DataError, match="aren't there: t2"):
        GoldSet.from_traces([trace], {"t2": {}}, source="", episode_of=episode_of)


def test_a_gold_set_is_a_canary():
    """total = 1.0·task_solved + 0.3·grounded; cases without every label are left out."""
    gold = GoldSet(
        cases=(
            case("a", expected={"task_solved": 1.0, "grounded": 1.0}),
            case("b", expected={"task_solved": 0.0, "grounded": 1.0}, correct=False),
            case("c", expected={"task_solved": 1.0}),
        )
    )
    known = gold.known(DEFAULT_RUBRIC)
    assert [(score.total, score.correct) for _, score in known] == [(1.3, True), (0.3, False)]
    assert [episode for episode, _ in known] == list(gold.episodes[:2])
    Canary(known, every=10)
    with pytest.raises(DataError, match="no case labels all of task_solved, grounded"):
        GoldSet(cases=(case("c"),)).known(DEFAULT_RUBRIC)


# --- the set that is shipped ----------------------------------------------------------------------


def test_the_shipped_set_labels_the_default_rubric_and_is_balanced():
    names = {criterion.name for criterion in DEFAULT_RUBRIC.criteria}
    assert len(SHIPPED) >= 24
    for each in SHIPPED.cases:
        assert set(each.expected) == names
        assert each.correct == (each.expected["task_solved"] == 1.0)
        assert each.note
        assert each.source
    combinations = Counter(
        (each.expected["task_solved"], each.expected["grounded"]) for each in SHIPPED.cases
    )
    assert {(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)} == set(combinations)
    assert 0.3 < sum(each.correct for each in SHIPPED.cases) / len(SHIPPED) < 0.7


def test_in_the_shipped_set_length_says_little_about_being_right():
    """Or an honest judge would seem biased, and a biased one honest."""
    lengths = np.log([length_of(episode) for episode in SHIPPED.episodes])
    right = [each.correct for each in SHIPPED.cases]
    assert abs(np.corrcoef(lengths, right)[0, 1]) < 0.3
    assert np.exp(lengths.max() - lengths.min()) > 10


def test_shipped_conversations_are_valid_and_end_as_they_say():
    for each in SHIPPED.cases:
        check_conversation(each.episode.messages)
        assert each.episode.truncated or each.episode.answer is not None


def test_the_evidence_of_the_shipped_set_is_not_cut_out_of_the_transcript():
    """Names and figures of the references stand in what the judge is shown."""
    for case_id, evidence in [
        ("long-listing-right", "187.25"),
        ("long-listing-wrong", "187.25"),
        ("long-listing-extra", "Zhou"),
        ("many-turns-right", "T-301"),
    ]:
        (episode,) = (c.episode for c in SHIPPED.cases if c.case_id == case_id)
        results = [m["content"] for m in episode.messages if m["role"] == "tool"]
        assert any(evidence in text for text in results)
        shown = [line for line in render_transcript(episode).splitlines() if '"result"' in line]
        assert any(evidence in str(json.loads(line)["result"]) for line in shown)
