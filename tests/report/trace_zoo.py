"""Traces for the tests of the pages: a run with a bit of everything, a hostile one, a large one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from agentgym.trace import EarlierAttempt, Trace
from agentgym.traces import TraceWriter
from agentgym.types import ToolCall, Turn, Usage, Verdict

ENV_SPEC = json.dumps({"id": "agentgym/SupportDesk-v0", "kwargs": {}})
SYSTEM = {"role": "system", "content": "You answer at a support desk. Follow the refund policy."}
TOOL = {
    "type": "function",
    "function": {"name": "find_order", "parameters": {"type": "object", "properties": {}}},
}
CUSTOMERS = (
    "My kettle arrived broken. I want my money back, order 4711.",
    "Where is my parcel? I ordered a lamp nine days ago.",
    "I was charged twice for order 4802.",
)
STYLES = (  # one per rollout of a task: how it answers, and what it gets
    ("I looked it up: the order qualifies, and the refund is on its way.", 1.0, True),
    ("I looked it up, but I can't find anything that entitles you to a refund.", 0.3, False),
    ("Let me see … one moment please …", -0.5, False),
    ("", None, None),
)


def usage(prompt: int, cached: int, out: int, cost: float | None = None) -> Usage:
    return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=out, cost_usd=cost)


def call_turn(index: int, arguments: object, result: str, **fields) -> Turn:
    """A turn that calls a tool."""
    text = json.dumps(arguments)
    asked = {"id": f"c{index}", "type": "function"}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**asked, "function": {"name": "find_order", "arguments": text}}],
    }
    call = ToolCall(id=f"c{index}", name="find_order", arguments=arguments, duration_s=0.02)
    reply = {"role": "tool", "tool_call_id": f"c{index}", "content": result}
    given = {
        "calls": (call,),
        "usage": usage(900 + 300 * index, 850 * bool(index), 40),
        "policy_s": 0.8,
        "at_s": 1.0 * index,
        "env_s": 0.03,
        "finish_reason": "tool_calls",
    }
    return Turn(index=index, message=message, replies=(reply,), **{**given, **fields})


def text_turn(index: int, text: str, **fields) -> Turn:
    given = {"usage": usage(1200 + 300 * index, 1100, 60), "policy_s": 1.1, "env_s": 0.001}
    return Turn(index=index, message={"role": "assistant", "content": text}, **{**given, **fields})


def make_trace(trace_id: str, *, opening: Sequence[dict] = (), turns=(), **fields) -> Trace:
    messages = list(opening)
    for turn in turns:
        messages += [turn.message, *turn.replies]
    given = {
        "trace_id": trace_id,
        "env_spec": ENV_SPEC,
        "task_id": "desk/refund/0",
        "policy": {"model": "small-model", "temperature": 0.7},
        "tools": (TOOL,),
        "verdict": Verdict(reward=1.0, correct=True, completed=True),
        "terminated": True,
        "termination_reason": "answered",
        "started_at": "2026-11-30T10:00:00+00:00",
        "stage_s": {"init": 0.01, "run": 2.5, "eval": 0.4},
    }
    return Trace(messages=tuple(messages), turns=tuple(turns), **{**given, **fields})


def support_trace(task: int, style: int) -> Trace:
    """One of the rollouts of a task: solved, wrong, cut off, or without a score."""
    answer, reward, correct = STYLES[style]
    opening = (SYSTEM, {"role": "user", "content": CUSTOMERS[task]})
    found = json.dumps({"order": 4711 + task, "status": "delivered", "refundable": True}, indent=1)
    turns = [call_turn(0, {"order": 4711 + task}, found)]
    if style == 1:
        turns.append(call_turn(1, {"order": "?"}, "error: order takes a number", env_s=0.002))
    turns.append(text_turn(len(turns), answer or "…", reasoning="The policy allows it. " * 3))
    masked = reward is None
    verdict = Verdict(
        reward=reward,
        correct=correct,
        completed=style < 2,
        masked=masked,
        judge_failed=masked,
        failure_class="judge" if masked else None if correct else "policy",
        components={} if masked else {"task_solved": float(bool(correct)), "grounded": reward / 2},
        gates={} if masked else {"truncated": style == 2, "malformed_call": style == 1},
        gate_counts={} if masked else {"truncated": int(style == 2), "malformed_call": 2},
        reason="no verdict in the reply of the judge: it was cut off"
        if masked
        else "grounded: the order was looked up\nmanner: friendly, and to the point",
    )
    failed = {"failure_class": "judge", "failed_stage": "eval", "error": "JudgeError: cut off"}
    cut = {"terminated": False, "truncated": True, "truncation_reason": "turns"}
    return make_trace(
        f"{task}{style}" + "ab12cd34" * 3,
        opening=opening,
        turns=turns,
        task_id=f"desk/refund/{task}",
        split="test",
        seed=1000 + task,
        group=f"desk/refund/{task}",
        sample=style,
        verdict=verdict,
        usage={
            "policy": usage(2500 + style, 1100, 100 + style, 0.0021 * (style + 1)),
            "judge": usage(900, 0, 80, 0.0004),
        },
        answer=answer or None,
        outcome={"refunded": bool(correct)},
        metadata={"task": {"family": "refund"}},
        **(failed if masked else {}),
        **({**cut, "termination_reason": None} if style == 2 else {}),
    )


def support_run() -> list[Trace]:
    """Three tasks with four rollouts each; the first rollout of the last was played twice."""
    traces = [support_trace(task, style) for task in range(3) for style in range(4)]
    lost = EarlierAttempt(
        failure_class="infra",
        failed_stage="run",
        error="EndpointError: 503 from http://localhost:8000/v1",
        usage={"policy": usage(900, 0, 10, 0.001)},
    )
    first = traces[8]
    again = first.model_copy(update={"trace_id": "again" + first.trace_id, "earlier": (lost,)})
    return [*traces, again]


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
EVIL_URL = "http://attacker.example/steal"
RTL = "pay \u202egpj.exe\u202c now"
CONTROL = "\x1b[2J\x1b]0;owned\x07\x00\x08 \u200b\u200e\ufeff \U000e0041\U000e0042 \ud800 end"
HUGE_CHARS = 5_000_000


def hostile_traces() -> list[Trace]:
    """Markup, control characters, text that runs backwards, 5 MB of text, odd messages."""
    remote = {"type": "image_url", "image_url": {"url": EVIL_URL}}
    evil_opening = (
        {"role": EVIL, "content": EVIL},
        {"role": "user", "content": [{"type": "text", "text": EVIL}, remote]},
        {"role": "user", "content": f'<a href="javascript:alert(3)">x</a><iframe src={EVIL_URL}>'},
    )
    evil_call = ToolCall(id="c0", name=EVIL, arguments=None, raw_arguments=EVIL, status="malformed")
    evil_turn = text_turn(
        0,
        f"{CONTROL}\n{RTL}\n{EVIL}",
        reasoning=EVIL,
        calls=(evil_call,),
        replies=({"role": "tool", "content": EVIL, "tool_call_id": "c0"},),
        finish_reason=EVIL,
        replica=EVIL,
        weight_version=EVIL,
    )
    evil = make_trace(
        EVIL,
        opening=evil_opening,
        turns=[evil_turn],
        task_id=f"task {EVIL} {RTL}",
        group=EVIL,
        policy={"model": EVIL},
        env_spec=json.dumps({"id": EVIL}),
        verdict=Verdict(
            reward=0.0, components={EVIL: 0.5}, gates={EVIL: True}, reason=EVIL, correct=False
        ),
        metadata={EVIL: EVIL, "__proto__": {"polluted": True}},
        seed=2**62 + 1,
        outcome={"constructor": EVIL, "big": 2**80},
        termination_reason=EVIL,
    )
    words = "lorem ipsum " * (HUGE_CHARS // 24)
    solid = "x" * (HUGE_CHARS // 2)
    huge_turns = [
        call_turn(0, {"order": 1}, words),
        call_turn(1, {"order": 2}, solid),
        call_turn(2, {"order": 3}, "\x00\x01\u202e" * 100_000),
        text_turn(3, "done"),
    ]
    huge = make_trace("huge", opening=evil_opening[:1], turns=huge_turns, group=EVIL, sample=1)
    many = make_trace("many", turns=[text_turn(k, f"turn {k}") for k in range(300)], sample=2)
    empty = make_trace(
        "empty",
        task_id=None,
        verdict=Verdict(reward=None, masked=True, failure_class="env"),
        failed_stage="init",
        failure_class="env",
        error="EnvFault: " + CONTROL,
    )
    return [evil, huge, many, empty]


def write_traces(path: Path, traces: Sequence[Trace]) -> Path:
    with TraceWriter(path) as writer:
        for trace in traces:
            writer.write(trace)
    return path


def write_many(path: Path, count: int) -> Path:
    """A file of many episodes, quickly: one conversation under many names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [support_trace(0, style).to_json_line() for style in range(3)]
    with path.open("w", encoding="utf-8") as file:
        for k in range(count):
            style = k % 3
            line = lines[style].replace(f"0{style}" + "ab12cd34" * 3, f"{k:032x}", 1)
            file.write(line.replace("desk/refund/0", f"desk/refund/{k // 3}"))
    return path
