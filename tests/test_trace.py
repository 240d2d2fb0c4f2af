"""A trace is one line of strict JSON, whatever an episode put into it."""

from __future__ import annotations

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentgym.trace import Trace
from agentgym.types import Turn, Usage, Verdict

# Text as models and files have it; st.text() alone hardly ever draws a surrogate.
broken = st.text() | st.lists(st.sampled_from("a\ud83d\udf78\ud800é"), max_size=9).map("".join)


def trace(**changes):
    fields = {
        "trace_id": "t1",
        "env_spec": "{}",
        "started_at": "2026-01-01T00:00:00+00:00",
        "verdict": Verdict(reward=1.0),
    }
    return Trace(**{**fields, **changes})


def refuse(name):
    raise AssertionError(f"{name} in the trace")


def test_a_line_reads_back_as_the_same_trace():
    turn = Turn(
        index=0, message={"role": "assistant", "content": "x"}, usage=Usage(prompt_tokens=2),
        prompt_ids=(1, 2), completion_ids=(3,), logprobs=(-0.5,),
    )  # fmt: skip
    whole = trace(turns=(turn,), messages=({"role": "user", "content": "naïve\n价格"},), seed=3)
    assert Trace.model_validate_json(whole.to_json_line()) == whole


def test_an_infinite_logprob_survives_and_is_strict_json():
    whole = trace(turns=(Turn(index=0, message={}, logprobs=(-math.inf, -1.0)),))
    line = whole.to_json_line()
    json.loads(line, parse_constant=refuse)
    assert Trace.model_validate_json(line) == whole


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | broken
        | st.binary()
        | st.builds(object)
        | st.just(np.float32(1.5))
        | st.just(np.int64(3))
        | st.sampled_from(["a\u2028b", "a\x85b", "a\u2029b", "a\x0bb\x1c\n"]),
        lambda inner: st.lists(inner) | st.dictionaries(broken, inner),
        max_leaves=8,
    )
)
def test_anything_is_one_line_of_strict_json(value):
    """A19: writing a trace never raises."""
    line = trace(metadata={"x": value}).to_json_line()
    line.encode()
    assert line.splitlines(keepends=True) == [line]
    json.loads(line, parse_constant=refuse)


def test_numpy_numbers_stay_numbers():
    line = trace(metadata={"i": np.int64(3), "f": np.float32(1.5)}).to_json_line()
    assert json.loads(line)["metadata"] == {"i": 3, "f": 1.5}


def test_derived_figures():
    masked = trace(verdict=Verdict(reward=None, masked=True))
    assert (masked.reward, masked.scored) == (None, False)
    assert (trace().reward, trace().scored, trace().malformed_calls) == (1.0, True, 0)
