"""The nouns: what they refuse, what follows from them, and clean text."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentgym.types import (
    Episode,
    Task,
    ToolCall,
    Turn,
    Usage,
    Verdict,
    clean_json,
    clean_text,
)

# Text as models and files have it; st.text() alone hardly ever draws a surrogate.
broken = st.text() | st.lists(st.sampled_from("a\ud83d\udf78\ud800é"), max_size=9).map("".join)

ENDED = {"env_id": "t/T-v0", "task": Task(task_id="t/0"), "messages": ()}


def test_usage_adds_up():
    one = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=5, reasoning_tokens=3)
    other = Usage(prompt_tokens=1, completion_tokens=2, calls=2, estimated=True)
    assert one + other == Usage(
        prompt_tokens=11,
        cached_tokens=4,
        completion_tokens=7,
        reasoning_tokens=3,
        calls=3,
        estimated=True,
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Usage(prompt_tokens=-1),
        lambda: Usage(tokens=1),
        lambda: Task(task_id="t", answer="x"),
        lambda: Verdict(reward=math.nan),
        lambda: Verdict(reward=math.inf),
        lambda: Verdict(reward=0.0, components={"x": math.nan}),
        lambda: ToolCall(id="c", name="n", arguments=None, status="fine"),
    ],
)
def test_wrong_fields_are_refused(make):
    with pytest.raises(ValidationError):
        make()


def test_records_are_frozen():
    task = Task(task_id="t/0")
    with pytest.raises(ValidationError, match="frozen"):
        task.task_id = "t/1"


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ({"terminated": True, "truncated": True}, "either terminated or truncated"),
        ({"terminated": False, "truncated": False}, "either terminated or truncated"),
        ({"terminated": True, "truncated": False}, "termination_reason goes with"),
        ({"terminated": False, "truncated": True}, "truncation_reason goes with"),
        (
            {
                "terminated": True,
                "truncated": False,
                "termination_reason": "answered",
                "truncation_reason": "turns",
            },
            "truncation_reason goes with",
        ),
    ],
)
def test_an_episode_ends_one_way_and_says_why(ending, message):
    """C22."""
    with pytest.raises(ValidationError, match=message):
        Episode(**ENDED, **ending)


def test_malformed_and_cut_off_are_counted_apart():
    """A12."""
    calls = tuple(
        ToolCall(id=str(n), name="x", arguments=None, status=status)
        for n, status in enumerate(["ok", "malformed", "cut_off", "error", "not_run"])
    )
    turns = (
        Turn(index=0, message={}, calls=calls, cut_off=True, usage=Usage(prompt_tokens=3)),
        Turn(index=1, message={}, malformed_text=True),
        Turn(index=2, message={}, usage=Usage(prompt_tokens=4)),
    )
    episode = Episode(
        **ENDED, terminated=True, truncated=False, termination_reason="finished", turns=turns
    )
    assert episode.malformed_calls == 2
    assert episode.cut_off_calls == 1
    assert (episode.usage.prompt_tokens, episode.usage.calls) == (7, 2)


def test_reference_is_in_no_dump():
    """J08."""
    task = Task(task_id="t/0", reference="the secret")
    assert task.reference == "the secret"
    assert "secret" not in repr(task) + task.model_dump_json() + str(task.model_dump())


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("naïve 价格", "naïve 价格"),
        ("\ud83c\udf78", "🍸"),
        ("ok \ud83d end", "ok \ufffd end"),
        ("\udf78\ud83c", "\ufffd\ufffd"),
    ],
)
def test_surrogates_are_joined_or_replaced(text, clean):
    """A19."""
    assert clean_text(text) == clean


@given(broken)
def test_clean_text_can_be_encoded_and_is_clean_already(text):
    """A19."""
    cleaned = clean_text(text)
    cleaned.encode()
    assert clean_text(cleaned) == cleaned


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | broken,
        lambda inner: st.lists(inner) | st.dictionaries(broken, inner),
        max_leaves=8,
    )
)
def test_clean_json_can_be_encoded(value):
    """A19."""
    json.dumps(clean_json(value), ensure_ascii=False).encode()
