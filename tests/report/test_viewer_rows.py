"""What the list has of an episode, and what its page gets."""

from __future__ import annotations

import json
import math

import trace_zoo as zoo

from agentgym.report.viewer.rows import COLUMNS, body_json, conversation_texts, row_of
from agentgym.types import Usage, Verdict


def row(trace) -> dict:
    return dict(zip(COLUMNS, row_of(trace, 3), strict=True))


def test_row_has_the_figures_of_the_trace():
    found = row(zoo.support_trace(0, 1))
    assert found["file"] == 3
    assert found["env"] == "agentgym/SupportDesk-v0"
    assert found["model"] == "small-model"
    assert found["reward"] == 0.3
    assert found["gates"] == ["malformed_call"]
    assert found["turns"] == 3
    assert found["calls"] == 2
    assert (found["tokensIn"], found["tokensCached"], found["tokensOut"]) == (2501, 1100, 101)
    assert math.isclose(found["cost"], 0.0042 + 0.0004)
    assert math.isclose(found["seconds"], 2.91)
    assert found["ended"] == "answered"
    assert found["opening"] == zoo.CUSTOMERS[0]


def test_what_is_unknown_is_none_and_no_zero():
    unpriced = {"policy": Usage(prompt_tokens=5), "judge": zoo.usage(1, 0, 1, 0.1)}
    assert row(zoo.make_trace("a", usage=unpriced))["cost"] is None
    unasked = row(zoo.make_trace("a", stage_s={}))
    assert unasked["tokensIn"] is None
    assert unasked["seconds"] is None
    masked = row(zoo.support_trace(0, 3))
    assert masked["reward"] is None
    assert masked["failureClass"] == "judge"
    assert masked["ended"] == "failed in eval"


def test_blame_for_a_scored_failure_is_no_failure_class():
    """It is the policy's, and in nearly every row; the failure class is for what has no score."""
    verdict = Verdict(reward=0.0, correct=False, failure_class="policy")
    assert row(zoo.make_trace("a", verdict=verdict))["failureClass"] is None


def test_env_that_has_no_readable_specification():
    assert row(zoo.make_trace("a", env_spec="My-v0"))["env"] == "My-v0"
    assert row(zoo.make_trace("a", env_spec="[1]"))["env"] == "[1]"


def test_body_leaves_token_ids_out_and_tells_of_them():
    turn = zoo.text_turn(
        0, "x", prompt_ids=(1, 2, 3), completion_ids=(7, 8), logprobs=(-0.5, math.nan)
    )
    body = json.loads(body_json(zoo.make_trace("a", turns=[turn, zoo.text_turn(1, "y")])))
    assert body["ids"] == [{"prompt": 3, "sampled": 2, "mean_logprob": -0.5}, None]
    assert body["trace"]["turns"][0]["prompt_ids"] is None
    assert body["trace"]["turns"][0]["logprobs"] is None


def test_body_keeps_numbers_that_javascript_would_round():
    trace = zoo.make_trace("a", seed=2**62 + 1, outcome={"n": [-(2**60) - 1, 2**53 - 1, 7]})
    body = json.loads(body_json(trace))["trace"]
    assert body["seed"] == str(2**62 + 1)
    assert body["outcome"]["n"] == [str(-(2**60) - 1), 2**53 - 1, 7]


def test_search_looks_at_what_was_said_called_judged_and_went_wrong():
    trace = zoo.support_run()[-1]
    texts = "\n".join(conversation_texts(trace))
    for part in ("kettle", "charged twice", "refundable", "4713", "manner: friendly", "503 from"):
        assert (part in texts) is (part != "kettle"), part
    assert "The policy allows it" in texts
    assert "small-model" not in texts


def test_env_that_is_endless_brackets_is_shown_as_it_is():
    assert row(zoo.make_trace("a", env_spec="[" * 100_000))["env"] == "[" * 100
