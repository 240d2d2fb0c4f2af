"""What goes over the wire: strict JSON, bounded, and spaces that can be rebuilt."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import ActionError, ConfigError
from agentgym.remote.spaces import described, from_wire, rebuilt, to_wire
from agentgym.remote.wire import strict_json
from agentgym.serve.session_view import bounded, public_info

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.builds(object)
    | st.builds(np.float32, st.floats(width=32)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_every_value_becomes_strict_json(value):
    text = json.dumps(strict_json(value), allow_nan=False, ensure_ascii=False)
    text.encode()


@given(VALUES)
def test_strict_json_stays_as_it_is(value):
    once = strict_json(value)
    assert strict_json(once) == once


@given(st.lists(st.text(max_size=60), max_size=6), st.integers(64, 200))
def test_bounded_messages_keep_their_number_and_order_and_fit(texts, limit):
    messages = [
        {"role": "tool", "tool_call_id": str(n), "content": text} for n, text in enumerate(texts)
    ]
    kept, cut = bounded(messages, limit)
    assert [message["tool_call_id"] for message in kept] == [str(n) for n in range(len(texts))]
    whole = sum(len(text.encode()) for text in texts)
    assert cut == (whole > limit)
    if not cut:
        assert kept == messages
    marks = sum("[truncated: " in message["content"] for message in kept)
    assert sum(len(m["content"].encode()) for m in kept) <= limit + marks * 40


def test_a_cut_never_splits_a_character():
    (message,), cut = bounded([{"role": "user", "content": "aü" * 100}], 65)
    assert cut
    assert message["content"] == "aü" * 21 + "a" + "ü" * 0 + "\n[truncated: 236 bytes left out]"


def test_images_that_are_too_large_are_named_and_left_out():
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 500}}]
    (small, large), cut = bounded(
        [{"role": "user", "content": "see"}, {"role": "user", "content": picture}], 100
    )
    assert cut
    assert small["content"] == "see"
    assert large["content"].startswith("[truncated: ")


def test_info_shows_the_listed_keys_alone():
    info = {"task_id": "t", "goal": "hidden", "turns_left": np.int64(3)}
    assert public_info(info, {"task_id", "turns_left", "split"}) == {
        "task_id": "t",
        "turns_left": 3,
    }


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=-1),
        spaces.Box(-1, 1, (2, 3), np.float64),
        spaces.Box(0, 255, (2, 2), np.uint8),
        spaces.Box(np.array([0, 1], np.int64), np.array([5, 6], np.int64), dtype=np.int64),
        spaces.Box(-np.inf, np.inf, (3,), np.float32),
        spaces.MultiBinary((2, 2)),
        spaces.MultiDiscrete([3, 4]),
        spaces.Text(5, charset="abc"),
        spaces.Tuple((spaces.Discrete(2), spaces.Text(3))),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (1,), np.float32)}),
    ],
    ids=repr,
)
def test_spaces_survive_the_wire(space):
    again = rebuilt(json.loads(json.dumps(described(space), allow_nan=False)))
    assert again == space
    space.seed(0)
    sample = space.sample()
    text = json.dumps(to_wire(space, sample), allow_nan=False)
    there = from_wire(again, json.loads(text))
    assert space.contains(there)
    assert json.dumps(to_wire(again, there)) == text


def test_a_large_box_with_one_bound_is_described_briefly():
    picture = spaces.Box(0, 255, (4096, 4096, 3), np.uint8)
    assert len(json.dumps(described(picture))) < 200


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Discrete(4), 1.7),
        (spaces.Discrete(4), "1"),
        (spaces.MultiDiscrete([3, 4]), [1.5, 2]),
        (spaces.MultiBinary(2), [0.3, 1]),
        (spaces.Box(0, 255, (2,), np.uint8), [1.2, 3]),
        (spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))), [0, 0.5]),
    ],
    ids=repr,
)
def test_what_is_no_whole_number_is_not_rounded_to_one(space, value):
    with pytest.raises(ActionError):
        from_wire(space, value)


def test_whole_numbers_may_be_written_as_floats():
    assert from_wire(spaces.Discrete(4), 1.0) == 1
    assert from_wire(spaces.MultiDiscrete([3, 4]), [1.0, 2]).tolist() == [1, 2]


def test_a_space_that_cannot_be_rebuilt_says_which_can():
    odd = spaces.Graph(spaces.Discrete(2), None)
    with pytest.raises(ConfigError, match="'Graph'"):
        rebuilt(described(odd))
