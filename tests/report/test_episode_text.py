"""An episode in the terminal: all there is, nothing that a terminal obeys."""

from __future__ import annotations

import io

import pytest
import trace_zoo as zoo
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentgym.report.episode_text import FOLD_LINES, folded, print_episode, readable


def printed(trace, *, width=80, full=False, terminal=False) -> str:
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        markup=False,
        emoji=False,
        highlight=False,
        force_terminal=terminal,
        color_system="standard" if terminal else None,
    )
    print_episode(trace, console, full=full)
    return file.getvalue()


def test_episode_is_printed_turn_by_turn():
    text = printed(zoo.support_trace(0, 1))
    positions = [
        text.index(part)
        for part in (
            "desk/refund/0 · sample 1",
            "agentgym/SupportDesk-v0 · model small-model · split test",
            "system ──",
            "My kettle arrived broken",
            "turn 1 · assistant · 900 in (0% cached), 40 out · policy 0.8 s · env 30 ms",
            '→ find_order {"order": 4711}',
            "tool: find_order",
            "error: order takes a number",
            "turn 3 · reasoning",
            "I looked it up, but I can't find anything",
            "verdict ──",
            "reward 0.3, not solved, completed, answered",
            "grounded",
            "gate malformed_call  tripped",
            "tokens judge         900 in (0% cached), 80 out, 1 calls, $0.0004",
            "manner: friendly",
        )
    ]
    assert positions == sorted(positions)
    assert all(line == line.rstrip() and len(line) <= 80 for line in text.splitlines())


def test_episode_without_a_score_says_whose_fault_it_was():
    text = printed(zoo.support_run()[3])
    assert "masked (judge): no score" in text
    assert "reward" not in text
    again = printed(zoo.support_run()[-1])
    assert "earlier attempt 1: infra" in again
    assert "EndpointError: 503" in again


def test_terminal_gets_no_command_of_the_model_or_a_tool():
    evil, huge, _, empty = zoo.hostile_traces()
    for trace in (evil, empty, huge):
        text = printed(trace, full=trace is not huge)
        assert text.replace("\n", "").isprintable()
    text = printed(evil, full=True, width=300)
    assert r"\x1b[2J\x1b]0;owned\x07\x00\x08" in text
    assert r"pay \u202egpj.exe\u202c now" in text
    assert "<script>alert(1)</script>" in text


def test_no_text_is_read_as_markup():
    trace = zoo.make_trace("a", turns=[zoo.text_turn(0, "[red]x[/red] :smile: [link=http://x]y")])
    text = printed(trace, terminal=True)
    assert "[red]x[/red] :smile: [link=http://x]y" in text


def test_long_texts_are_folded():
    lines = "\n".join(f"line {k}" for k in range(500))
    text = folded(lines, full=False)
    assert f"line {FOLD_LINES - 1}\n… " in text
    assert f"line {FOLD_LINES}\n" not in text
    assert "more characters (--full shows all)" in text
    assert folded(lines, full=True) == lines
    assert folded("y" * 10_000, full=False).endswith("\n… 8,400 more characters (--full shows all)")
    barely = "y" * 1_700
    assert folded(barely, full=False) == barely


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a    b\nc"),
        ("a\r\nb\rc", "a\nb\\rc"),
        ("über 漢字 שלום", "über 漢字 שלום"),
        ("a\u200bb", r"a\u200bb"),
        ("x\ud800y", r"x\ud800y"),
    ],
)
def test_what_cannot_be_seen_is_escaped(text, shown):
    assert readable(text) == shown


@given(st.text())
def test_readable_text_is_printable(text):
    assert readable(text).replace("\n", "").isprintable()


def test_calls_of_an_example_are_shown_too():
    asked = {"id": "c", "function": {"name": "find_order", "arguments": '{"order": 99}'}}
    example = ({"role": "assistant", "content": None, "tool_calls": [asked, "odd"]},)
    text = printed(zoo.make_trace("a", opening=example, turns=[zoo.text_turn(0, "done")]))
    assert '→ find_order {"order": 99}' in text


def test_call_in_the_text_is_shown_where_it_went_wrong():
    calls = [
        zoo.ToolCall(id="c", name="buy", arguments=None, raw_arguments="[", status=status)
        for status in ("malformed", "ok")
    ]
    bad, good = (zoo.text_turn(k, "buy[", calls=(call,)) for k, call in enumerate(calls))
    text = printed(zoo.make_trace("a", turns=[bad, good]))
    assert text.count("→ buy [") == 1
    assert "[malformed]" in text


def test_turn_says_how_the_model_ended_and_what_it_took():
    turns = [
        zoo.text_turn(0, "a", finish_reason="stop", attempts=1),
        zoo.text_turn(1, "b", finish_reason="content_filter", attempts=3),
        zoo.text_turn(2, "c", finish_reason="length", cut_off=True),
    ]
    lines = printed(zoo.make_trace("a", turns=turns), width=200).splitlines()
    heads = [line for line in lines if line.startswith("turn ")]
    assert "finish" not in heads[0] + heads[2]
    assert "requests" not in heads[0]
    assert "finish content_filter · 3 requests" in heads[1]
    assert "cut off by the output limit" in heads[2]
