"""Reading answers for evaluations: what is right in another form, and what only looks right."""

from __future__ import annotations

import pytest

from agentgym.envs.toolworld.answers import Answer
from agentgym.envs.toolworld.external import _answers, _canonical

NUMBER = Answer(kind="number", values=("1445.50",))
TIME = Answer(kind="time", values=("15:21",))
EARLY = Answer(kind="time", values=("03:21",))
NAME = Answer(kind="name", values=("Quentin Bergström",), among=("Quentin Bergström", "Ann Lee"))
MEETING = Answer(kind="name", values=("Kick-off",), among=("Kick-off", "Review"))
NOBODY = Answer(kind="names", values=(), among=("Ann Lee",))


@pytest.mark.parametrize(
    ("right", "text"),
    [
        (NUMBER, "Answer: 1445.50"),
        (NUMBER, "Answer: 1,445.5"),
        (NUMBER, "Answer: 1 445.50"),
        (NUMBER, "**Answer:** EUR1445.50"),
        (NUMBER, "Answer: 1445.50kg"),
        (TIME, "Answer: 3:21 pm"),
        (TIME, "Answer: 15:21"),
        (EARLY, "Answer: 3:21"),
        (NAME, "Answer: quentin bergstrom"),
        (MEETING, "Answer: Kick‑off"),
        (NOBODY, "Answer: No one"),
        (NOBODY, "Answer: N/A"),
    ],
)
def test_right_in_another_form(right: Answer, text: str) -> None:
    assert _answers(text, right)


@pytest.mark.parametrize(
    ("right", "text"),
    [
        (NUMBER, "Answer: −1445.50"),  # a minus, as typography has it
        (NUMBER, "Answer: 1445.50 or 1500"),
        (NUMBER, "Answer: " + "9" * 390),
        (EARLY, "Answer: 03:21 PM"),
        (TIME, "Answer: 03:21 am"),
        (NAME, "Answer: Quentin Bergström or Ann Lee"),
        (NOBODY, "Answer: No, Ann Lee"),
    ],
)
def test_wrong_however_it_looks(right: Answer, text: str) -> None:
    assert not _answers(text, right)


def test_a_number_without_end_in_the_world_is_a_wrong_state_and_breaks_nothing() -> None:
    assert _canonical({"t": [{"price": 10**400}]}) != _canonical({"t": [{"price": 5}]})
    assert _canonical({"t": [{"price": 5}]}) == _canonical({"t": [{"price": 5.0}]})
