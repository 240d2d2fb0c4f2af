"""A copy is equal and shares nothing that can be changed."""

from __future__ import annotations

import copy
from collections import namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.copies import copied
from agentgym.types import Usage

ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.lists(inner).map(tuple)
        | st.sets(st.integers())
    ),
    max_leaves=12,
)


def parts(value):
    """The mutable objects in a value."""
    if isinstance(value, dict | list | set):
        yield id(value)
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from parts(item)


@given(VALUES)
def test_a_copy_is_what_deepcopy_gives(value):
    found = copied(value)
    assert repr(found) == repr(copy.deepcopy(value))
    assert not {*parts(found)} & {*parts(value)}


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize("value", [Pair([1], 2), Usage(prompt_tokens=3), {"a": (Pair([], []),)}])
def test_other_types_are_kept(value):
    found = copied(value)
    assert found == value
    assert type(found) is type(value)
    assert not {*parts(found)} & {*parts(value)}
