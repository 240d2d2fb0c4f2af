from __future__ import annotations

import random

import pytest

from agentgym.train.tiny.demonstrations import make_shop
from agentgym.train.tiny.shopper import Shopper, Slips, Wish


def _play(slips: Slips, tasks: int = 60) -> list[bool]:
    env, solved = make_shop("train"), []
    for number, task in enumerate(env.task_ids()[:tasks]):
        shopper, ended = Shopper(random.Random(number), slips), False
        messages, _ = env.reset(options={"task_id": task})
        while not ended:
            messages, _, terminated, truncated, info = env.step(shopper(messages[-1]["content"]))
            ended = terminated or truncated
        solved.append(info["verdict"].correct is True)
    return solved


def test_a_shopper_who_never_slips_solves_nearly_everything():
    assert sum(_play(Slips(keep_word=1, fitting=1, option=1, go_back=1))) >= 58


def test_a_slipping_shopper_solves_some_and_fails_some():
    assert 15 <= sum(_play(Slips())) <= 45


def test_same_draws_make_the_same_visits():
    assert _play(Slips(), 10) == _play(Slips(), 10)


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        (
            "i need a mild glossy soap with mint scent, and price lower than 50.00 dollars",
            Wish(("mild", "glossy"), "soap", "mint", 50.0),
        ),
        ("find me a wooden chair", Wish(("wooden",), "chair", None, float("inf"))),
    ],
)
def test_reads_instructions(text, wish):
    assert Wish.read(f"WebShop [SEP] Instruction: [SEP] {text} [SEP] Search") == wish


def test_another_levels_instruction_is_refused():
    with pytest.raises(ValueError, match="tiny level"):
        Wish.read("Instruction: [SEP] Looking for shoes! [SEP] Search")


def test_a_product_over_the_limit_does_not_fit():
    wish = Wish(("mild",), "soap", None, 50.0)
    assert wish.fits("glossy mild soap", 50.0)
    assert not wish.fits("glossy mild soap", 50.01)
    assert not wish.fits("glossy pure soap", 10.0)
