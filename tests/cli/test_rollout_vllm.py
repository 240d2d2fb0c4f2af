"""`agentgym rollout` against a real vLLM server with a real small model."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_server import MODEL, VllmServer

from agentgym.cli import main
from agentgym.clients import ChatClient
from agentgym.traces import read_traces

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

CONTEXT = 2048


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    found = VllmServer(tmp_path_factory.mktemp("vllm") / "server.log", context=CONTEXT)
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def vllm_server(server: VllmServer) -> str:
    """The server's root URL, without /v1."""
    return server.url


def rollout(url: str, out: Path, *more: str) -> int:
    return main(
        [
            *("rollout", "--env", "agentgym/WebShop-v0", "--split", "validation"),
            *("--base-url", f"{url}/v1", "--model", MODEL, "--out", str(out)),
            *("--env-kwargs", "page_size=3", *more),
        ]
    )


@pytest.fixture
def preflight_tokens(monkeypatch) -> list[int]:
    """What each preflight generated, by the client's own count; it is in no trace."""
    found: list[int] = []
    preflight = ChatClient.preflight

    async def counted(client, *args):
        await preflight(client, *args)
        found.append(client.usage.completion_tokens)

    monkeypatch.setattr(ChatClient, "preflight", counted)
    return found


def test_twenty_webshop_episodes_on_vllm(server, vllm_server, tmp_path, capsys, preflight_tokens):
    before = server.counted("generation_tokens_total")
    more = ("-n", "20", "--max-turns", "3", "--max-tokens", "40", "--temperature", "0.7")
    # So small a model rarely writes an action by itself; the server can hold it to the grammar.
    grammar = json.dumps({"regex": r"(search|click)\[[a-z]{3,8} [a-z]{3,8}\]"})
    held = ("--tool-calls", "text", "--extra-body", f"structured_outputs={grammar}")
    assert rollout(vllm_server, tmp_path / "x", *more, *held) == 0
    out = capsys.readouterr().out
    with capsys.disabled():
        print("\n" + out)
    traces = list(read_traces(tmp_path / "x" / "traces.jsonl"))
    assert len({trace.task_id for trace in traces}) == len(traces) == 20
    assert all(trace.scored for trace in traces), [trace.error for trace in traces]
    assert all(1 <= len(trace.turns) <= 3 for trace in traces)
    for turn in (turn for trace in traces for turn in trace.turns):
        assert turn.finish_reason is not None
        assert turn.policy_s > 0
        assert turn.cut_off == (turn.usage.completion_tokens >= 40)
    calls = [call for trace in traces for turn in trace.turns for call in turn.calls]
    assert {call.name for call in calls if call.status in ("ok", "error")} <= {"search", "click"}
    assert sum(call.status == "ok" for call in calls) >= 10
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    usage = summary["usage"]["policy"]
    assert not usage["estimated"]
    (preflight,) = preflight_tokens
    assert 1 <= preflight <= 16
    generated = server.counted("generation_tokens_total") - before
    assert usage["completion_tokens"] + preflight == generated
    for word in ("reward", "±", "success", "completion", "truncation", "malformed", "masked"):
        assert word in out


def test_native_tool_calls_on_vllm(vllm_server, tmp_path):
    written = (
        r'<tool_call>\n\{"name": "search", "arguments": \{"query": "[a-z]{3,8} [a-z]{3,8}"\}\}'
        r"\n</tool_call>"
    )
    held = ("--extra-body", f"structured_outputs={json.dumps({'regex': written})}")
    more = ("-n", "4", "--max-turns", "2", "--max-tokens", "64", "--temperature", "0.7")
    assert rollout(vllm_server, tmp_path / "x", *more, *held) == 0
    turns = [turn for t in read_traces(tmp_path / "x" / "traces.jsonl") for turn in t.turns]
    called = [turn for turn in turns if turn.message.get("tool_calls")]
    assert len(called) >= 4, [turn.message for turn in turns]
    for turn in called:
        (call,), (reply,) = turn.calls, turn.replies
        assert (call.status, call.name) == ("ok", "search")
        assert (reply["role"], reply["tool_call_id"]) == ("tool", call.id)
        assert "Total results" in reply["content"]


def test_conversation_that_no_longer_fits_is_truncated(vllm_server, tmp_path, capsys):
    more = ("-n", "2", "--max-tokens", str(CONTEXT))
    assert rollout(vllm_server, tmp_path / "x", *more) == 0
    traces = list(read_traces(tmp_path / "x" / "traces.jsonl"))
    assert [trace.truncation_reason for trace in traces] == ["context"] * 2
    assert "context 2" in capsys.readouterr().out


def test_wrong_model_name_is_one_line(vllm_server, tmp_path, capsys):
    assert rollout(vllm_server, tmp_path / "x", "--model", "nobody") == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "nobody" in err
    assert not (tmp_path / "x").exists()
