"""Rubrics: totals worked by hand, and everything that is refused before a call is paid for."""

from __future__ import annotations

import math

import pytest

from agentgym.errors import ConfigError
from agentgym.judges import DEFAULT_RUBRIC, RELATIVE_RUBRIC, Criterion, Rubric

GOOD = """\
name = "mine"
correct = "solved"
instructions = "Be fair."

[[criteria]]
name = "solved"
description = "It is done."

[[criteria]]
name = "style"
description = "It reads well."
kind = "graded"
weight = 0.5
low = 1
high = 5
"""


def written(folder, text):
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_default_is_solved_plus_a_third_of_grounded():
    """total = solved + 0.3·grounded, so the best is 1.3."""
    assert [(c.name, c.weight, c.kind) for c in DEFAULT_RUBRIC.criteria] == [
        ("task_solved", 1.0, "binary"),
        ("grounded", 0.3, "binary"),
    ]
    assert DEFAULT_RUBRIC.correct == "task_solved"
    assert DEFAULT_RUBRIC.total({"task_solved": 1, "grounded": 1}) == pytest.approx(1.3)
    assert DEFAULT_RUBRIC.total({"task_solved": 0, "grounded": 1}) == pytest.approx(0.3)
    assert DEFAULT_RUBRIC.highest == pytest.approx(1.3)
    assert RELATIVE_RUBRIC.highest == 1.0


def test_a_graded_criterion_adds_its_share_of_full_marks(tmp_path):
    """Worked by hand: 1 + 0.5·(4−1)/(5−1) = 1.375."""
    rubric = Rubric.from_toml(written(tmp_path, GOOD))
    assert rubric.total({"solved": 1, "style": 4}) == pytest.approx(1.375)
    assert rubric.total({"solved": 0, "style": 1}) == 0.0
    assert rubric.highest == 1.5


def test_a_file_gives_the_rubric_it_describes(tmp_path):
    rubric = Rubric.from_toml(written(tmp_path, GOOD))
    assert rubric == Rubric(
        name="mine",
        correct="solved",
        instructions="Be fair.",
        criteria=(
            Criterion(name="solved", description="It is done."),
            Criterion(
                name="style",
                description="It reads well.",
                kind="graded",
                weight=0.5,
                low=1.0,
                high=5.0,
            ),
        ),
    )
    unnamed = GOOD.replace('name = "mine"\n', "")
    assert Rubric.from_toml(written(tmp_path, unnamed)).name == "mine", "the file's own name"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("weight = 0.5", "weight = 0", "line 13, criteria.1.weight: .*greater than 0"),
        ("weight = 0.5", "weight = -0.5", r"criteria.1.weight: .*greater than 0 \(got -0.5\)"),
        ("weight = 0.5", "weight = nan", "line 13, criteria.1.weight"),
        ("weight = 0.5", "weight = inf", "line 13, criteria.1.weight: must be finite"),
        ("weight = 0.5", "weight = true", "line 13, criteria.1.weight: .*valid number"),
        ("weight = 0.5", 'weight = "0.5"', "line 13, criteria.1.weight: .*valid number"),
        ("high = 5", "high = 1", "line 9, criteria.1: low must be less than high, got 1 and 1"),
        ("high = 5", "high = 0", "line 9, criteria.1: low must be less than high, got 1 and 0"),
        ("high = 5", "high = nan", "line 15, criteria.1.high: must be finite"),
        ('kind = "graded"', 'kind = "binary"', "line 9, criteria.1: a binary criterion is 0 or 1"),
        ('kind = "graded"', 'kind = "stars"', "line 12, criteria.1.kind: .*'graded'"),
        ('name = "style"', 'name = "Solved"', "criteria: solved is there twice"),
        ('name = "style"', 'name = "reason"', "line 9, criteria.1: name must be letters"),
        ('name = "style"', 'name = "so so"', "line 9, criteria.1: name must be letters"),
        ('name = "style"\n', "", "line 9, criteria.1.name: Field required"),
        ('description = "It is done."', 'description = ""', "line 7, criteria.0.description"),
        ('description = "It is done."', 'description = " "', "line 5, criteria.0: .*is blank"),
        (
            "low = 1",
            "lowest = 1",
            "line 14, criteria.1.lowest: unknown field 'lowest'; did you mean 'low'",
        ),
        ('correct = "solved"', 'correct = "style"', r"correct must name a binary .*\(solved\)"),
        ('correct = "solved"', "correct = 5", "line 2, correct"),
        ("weight = 0.5", "weigth = 0.5", "line 13, criteria.1.weigth: .*did you mean 'weight'"),
        ("weight = 0.5", "zzz = 1", "criteria.1.zzz: unknown field 'zzz'; there are name, desc"),
        (
            'name = "mine"',
            'nmae = "mine"',
            "line 1, nmae: unknown field 'nmae'; did you mean 'name'",
        ),
        ("correct = ", "correct ", r"not valid TOML: .*line 2, column 9"),
        (GOOD, "", "criteria: Field required"),
        (GOOD, "criteria = []", "line 1, criteria: .*at least 1"),
        (GOOD, "criteria = 5", "line 1, criteria"),
    ],
)
def test_a_wrong_file_is_refused_with_file_line_and_field(tmp_path, old, new, message):
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=message) as refused:
        Rubric.from_toml(path)
    assert str(path) in str(refused.value)


def test_a_file_that_can_not_be_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="can't read the rubric .*nowhere.toml"):
        Rubric.from_toml(tmp_path / "nowhere.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "caf\xe9"')
    with pytest.raises(ConfigError, match="can't read the rubric .*latin.toml"):
        Rubric.from_toml(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    "fields",
    [
        {"weight": 0.0},
        {"weight": -1.0},
        {"weight": math.nan},
        {"weight": True},
        {"kind": "graded", "low": 1.0, "high": 1.0},
        {"kind": "graded", "low": 2.0, "high": 1.0},
        {"kind": "binary", "high": 10.0},
        {"name": ""},
        {"name": "criteria"},
        {"wieght": 1.0},
    ],
)
def test_a_wrong_criterion_is_refused_when_it_is_made(fields):
    with pytest.raises(ConfigError, match="criterion"):
        Criterion(**{"name": "a", "description": "d", **fields})


def test_the_only_criterion_is_told_what_is_wrong_with_it_and_nothing_else(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[[criteria]]\nname = "a"\ndescription = "d"\nweight = 0\n')
    with pytest.raises(ConfigError) as error:
        Rubric.from_toml(file)
    assert str(error.value).endswith("criteria.0.weight: Input should be greater than 0 (got 0)")


def test_a_rubric_without_criteria_or_with_one_twice_is_refused():
    one = Criterion(name="a", description="d")
    with pytest.raises(ConfigError, match="criteria"):
        Rubric(criteria=())
    with pytest.raises(ConfigError, match="a is there twice"):
        Rubric(criteria=(one, one))
    with pytest.raises(ConfigError, match="no rubric preset 'x'; there are default, relative"):
        Rubric.preset("x")


def test_a_rubric_says_what_else_it_wants_shown():
    rubric = Rubric(
        criteria=(Criterion(name="a", description="As in {reference}."),),
        instructions='{"outcome": 1}',
    )
    assert rubric.asks_for("reference")
    assert not rubric.asks_for("outcome")
