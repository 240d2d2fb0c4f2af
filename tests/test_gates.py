"""Gates that are told something, own predicates, and how they are written in a config."""

from __future__ import annotations

import asyncio
import sys
import tomllib
import types

import numpy as np
import pytest

from agentgym.errors import ConfigError
from agentgym.gates import Gate, custom_gate, forbidden_tool, over_token_budget, resolve_gates
from agentgym.judge import Score, Scoring
from agentgym.testing.messages import calling, tool_call
from agentgym.types import Episode, Task, ToolCall, Turn, Usage


class AlwaysOne:
    inline = True

    async def score(self, episode):
        return Score(total=1.0, correct=True)


def episode(*turns):
    return Episode(
        env_id="t/T-v0",
        task=Task(task_id="t/0"),
        messages=(),
        turns=turns,
        terminated=True,
        truncated=False,
        termination_reason="answered",
        answer="done",
    )


def said(text, **fields):
    return Turn(index=0, message={"role": "assistant", "content": text}, **fields)


def called(name, status="ok"):
    call = ToolCall(id="c", name=name, arguments={}, status=status)
    return Turn(index=0, message={"role": "assistant", "content": None}, calls=(call,))


def verdict(gate, played):
    return asyncio.run(Scoring(judge=AlwaysOne(), gates=resolve_gates([gate])).verdict(played))


@pytest.mark.parametrize(
    ("turn", "tokens"),
    [
        (said("x", usage=Usage(completion_tokens=10, reasoning_tokens=4)), 10),
        (said("x", completion_ids=tuple(range(10))), 10),
        (said("x" * 40), 10),
        (said("x" * 37), 10),
        (Turn(index=0, message=calling(tool_call("find", q="xx"))), 12),
    ],
)
def test_token_budget_counts_what_the_policy_generated_however_it_is_known(turn, tokens):
    """Worked by hand: 48 characters of the call's JSON, at four a token, are 12 of them."""
    within = verdict({"name": "over_tokens", "limit": 2 * tokens}, episode(turn, turn))
    assert (within.gates, within.reward) == ({"over_tokens": False}, 1.0)
    over = verdict({"name": "over_tokens", "limit": 2 * tokens - 1}, episode(turn, turn))
    assert (over.gates, over.reward) == ({"over_tokens": True}, 0.8)


def test_forbidden_tool_counts_every_attempt_and_pins_the_reward():
    gate = {"name": "forbidden_tool", "tools": ["refund", "delete"]}
    honest = verdict(gate, episode(called("search"), called("refund_status")))
    assert (honest.reward, honest.gate_counts) == (1.0, {"forbidden_tool": 0})
    attack = verdict(gate, episode(called("refund"), called("delete", "error"), called("search")))
    assert (attack.reward, attack.gate_counts) == (-1.0, {"forbidden_tool": 2})
    assert (attack.failure_class, attack.masked) == ("policy", False)
    assert verdict(gate, episode(called("refund", "malformed"))).gates == {"forbidden_tool": True}


@pytest.mark.parametrize("status", ["cut_off", "not_run"])
def test_a_forbidden_call_that_never_ran_does_not_count(status):
    found = verdict(forbidden_tool("refund"), episode(called("refund", status)))
    assert (found.reward, found.gates) == (1.0, {"forbidden_tool": False})


def test_a_penalty_is_taken_once_and_the_count_is_kept():
    gate = forbidden_tool(["refund"], name="refunds", penalty=0.25, floor=False)
    found = verdict(gate, episode(called("refund"), called("refund"), called("refund")))
    assert (found.reward, found.gate_counts) == (0.75, {"refunds": 3})


@pytest.mark.parametrize(
    ("said_by_predicate", "count"),
    [(True, 1), (np.True_, 1), (3, 3), (np.int64(2), 2), ("yes", 1), (False, 0), (None, 0)],
)
def test_a_predicate_may_say_whether_or_how_often(said_by_predicate, count):
    gate = custom_gate(lambda e: said_by_predicate, name="mine", penalty=0.5)
    found = verdict(gate, episode())
    assert found.gate_counts == {"mine": count}
    assert found.reward == (0.5 if count else 1.0)


def test_a_negative_count_masks():
    found = verdict(Gate(name="mine", tripped=lambda e: -1), episode())
    assert (found.reward, found.judge_failed) == (None, True)
    assert "at least 0" in found.reason


def test_gates_are_written_in_toml(monkeypatch):
    module = types.ModuleType("my_gates")
    module.shouts = lambda e: e.answer.isupper()
    monkeypatch.setitem(sys.modules, "my_gates", module)
    text = """
    gates = [
      "no_answer",
      {name = "truncated", penalty = 0.4},
      {name = "over_tokens", limit = 2000, penalty = 0.1},
      {name = "forbidden_tool", tools = ["delete"], floor = true},
      {kind = "forbidden_tool", name = "refunds", tools = ["refund"], penalty = 0.2, floor = false},
      {kind = "custom", name = "shouts", predicate = "my_gates:shouts", penalty = 0.3},
    ]
    """
    gates = resolve_gates(tomllib.loads(text)["gates"])
    assert [(g.name, g.penalty, g.floor) for g in gates] == [
        ("no_answer", 0.5, False),
        ("truncated", 0.4, False),
        ("over_tokens", 0.1, False),
        ("forbidden_tool", 0.0, True),
        ("refunds", 0.2, False),
        ("shouts", 0.3, False),
    ]
    assert gates[-1].count(episode().model_copy(update={"answer": "HI"})) == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("over_tokens", "gate 'over_tokens' needs limit"),
        ({"name": "over_tokens", "limit": 0}, "limit is a whole number of tokens >= 1, got 0"),
        ({"name": "over_tokens", "limit": True}, "got True"),
        ({"name": "over_tokens", "limit": 9, "penalty": -1}, "gate 'over_tokens': penalty"),
        ({"name": "over_tokens", "limit": 9, "tools": []}, "takes limit, penalty and floor, not"),
        ({"name": "forbidden_tool"}, "needs tools"),
        ({"name": "forbidden_tool", "tools": []}, "tools is a list of tool names"),
        ({"name": "forbidden_tool", "tools": 5}, "tools is a list of tool names, got 5"),
        ({"name": "forbidden_tool", "tools": [""]}, "tools is a list of tool names"),
        ({"kind": "custom", "name": "m"}, "needs predicate"),
        ({"kind": "custom", "name": "m", "predicate": 5}, "predicate is a function"),
        ({"kind": "custom", "name": "m", "predicate": "nowhere:f"}, "no predicate 'nowhere:f'"),
        ({"kind": "custom", "name": "m", "predicate": "math:f"}, "no predicate 'math:f'"),
        ({"kind": "custom", "name": "m", "predicate": "math"}, "no predicate 'math'"),
        ({"kind": "custom", "name": "", "predicate": "math:isfinite"}, "name: .*at least 1 char"),
        ({"kind": "strict", "name": "m"}, "no standard gate 'strict'"),
        ({"name": "truncated", "kind": ["x"]}, "no standard gate"),
        ({"kind": "truncated", "name": 5}, "name"),
    ],
)
def test_wrong_specs_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        resolve_gates([spec])


def test_a_gate_can_be_made_in_one_line():
    gate = over_token_budget(100, floor=True)
    assert (gate.name, gate.floor, gate.count(episode(said("x" * 500)))) == ("over_tokens", True, 1)


@pytest.mark.parametrize(
    ("source", "message"), [("1 / 0", "ZeroDivisionError: division"), ("def", "SyntaxError")]
)
def test_a_predicates_module_that_cant_be_imported_is_told(tmp_path, monkeypatch, source, message):
    (tmp_path / "gates_that_crash.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"importing gates_that_crash .* failed: {message}"):
        resolve_gates([{"kind": "custom", "name": "m", "predicate": "gates_that_crash:f"}])
