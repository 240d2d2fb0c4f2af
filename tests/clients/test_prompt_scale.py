"""What a prompt may have at most, learned from those before it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.client import Endpoint, Prices
from agentgym.clients.budget import Budget
from agentgym.clients.prompt_scale import PromptScale
from agentgym.types import Usage


def test_a_template_that_multiplies_the_greeting_adds_little_to_a_long_prompt():
    """1,000 tokens of a server's own before a greeting of 50, and before 8,000."""
    scale = PromptScale()
    scale.learn(50, 1050)
    assert scale.at_most(60) == 1260
    assert scale.at_most(8000) == 32_000 + 21 * 64  # no such prompt was seen yet
    scale.learn(8000, 9000)
    assert scale.at_most(8100) == pytest.approx(8100 * 9 / 8, abs=1)
    assert scale.at_most(60) == 1260


def test_prompts_of_no_size_that_was_seen_are_like_the_nearest():
    scale = PromptScale()
    assert scale.at_most(700) == 700
    scale.learn(1000, 1500)
    assert scale.at_most(4000) == 6000
    assert scale.at_most(100) == 150


def test_a_language_that_the_tokenizer_hardly_knows_i07():
    """Case I07: SmolLM2's makes 2,340 tokens of 3,600 bytes of Thai, estimated at 900."""
    scale = PromptScale()
    scale.learn(45, 117)
    assert scale.at_most(900) >= 2340


def test_the_worst_is_remembered_and_an_outlier_forgotten_in_time():
    scale = PromptScale()
    scale.learn(1000, 2000)
    scale.learn(1000, 1000)
    assert scale.at_most(1000) == 1999
    for _ in range(5000):
        scale.learn(1000, 1000)
    assert scale.at_most(1000) < 1010


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)), min_size=1))
def test_what_was_seen_last_fits_and_no_estimate_is_lowered(seen):
    scale = PromptScale()
    for estimated, tokens in seen:
        assert scale.at_most(estimated) >= estimated
        scale.learn(estimated, tokens)
        assert scale.at_most(estimated) >= tokens - 1e-6 * tokens


async def test_a_budget_holds_no_more_for_a_long_prompt_than_it_may_have():
    """It stopped at a twentieth of its limit: a greeting had 21 times its estimate."""
    prices = Prices(input=1, output=1)
    budget = Budget(Endpoint(base_url="http://test/v1", model="m", prices=prices, budget_usd=0.05))
    budget.learn(50, Usage(prompt_tokens=1050))
    first = await budget.hold(1, 2000, 100)
    budget.let_go(first)
    budget.learn(2000, Usage(prompt_tokens=3000))
    assert (await budget.hold(2, 2000, 100)).most_usd == pytest.approx(3100e-6)
