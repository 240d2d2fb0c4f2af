"""An episode's tools for any agent framework: the official MCP client against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json

import gymnasium
import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from session_stage import StageEnv, app_of, call, register, served

from agentgym.envs.toolworld.policies import ExpertPolicy
from agentgym.envs.webshop.policies import OraclePolicy
from agentgym.serve.access import Caller, Tokens
from agentgym.serve.session_limits import SessionLimits
from agentgym.serve.sessions import Sessions
from agentgym.trace import Trace

register()
MINE, YOURS = "my-token-0123456789", "your-token-0123456789"
TOKENS = Tokens({MINE: Caller("me"), YOURS: Caller("you")})
MODES = ["legacy", "auto"]  # with a handshake, and the protocol without one


@pytest.fixture(scope="module")
def service():
    sessions = Sessions()
    with (
        served(app_of(sessions, TOKENS)) as url,
        httpx.Client(base_url=f"{url}/v1", headers={"Authorization": f"Bearer {MINE}"}) as http,
    ):
        http.sessions = sessions
        yield http


@pytest.fixture(autouse=True)
def _fresh():
    StageEnv.done.clear()


@contextlib.asynccontextmanager
async def agent(service, session_id, *, token=MINE, mode="auto"):
    """The official client, at one session's endpoint."""
    headers = {"Authorization": f"Bearer {token}"}
    url = str(service.base_url.join(f"sessions/{session_id}/mcp"))
    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def created(service, env, **reset):
    answer = service.post("/sessions", json={"env": env, "reset": reset})
    assert answer.status_code == 201, answer.text
    return answer.json()["session_id"]


def texts(result):
    return [block.text for block in result.content]


@pytest.mark.parametrize("mode", MODES)
async def test_a_whole_toolworld_episode_to_its_verdict(service, mode):
    """The expert sees nothing but what MCP shows, and answers through `final_answer`."""
    session_id = created(service, "agentgym/ToolWorld-v0", seed=5)
    async with agent(service, session_id, mode=mode) as client:
        prompt = await client.get_prompt("task")
        system, asked = (message.content.text for message in prompt.messages)
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert "final_answer" in names
        messages = [{"role": "system", "content": system}, {"role": "user", "content": asked}]
        expert = ExpertPolicy()
        for _ in range(30):
            action = expert(messages, {})
            if isinstance(action, str):
                result = await client.call_tool("final_answer", {"text": action})
                break
            function = action["tool_calls"][0]["function"]
            assert function["name"] in names
            result = await client.call_tool(function["name"], json.loads(function["arguments"]))
            assert not result.is_error
            messages.append({"role": "tool", "content": texts(result)[0]})
        assert texts(result) == ["The episode is over."]
        late = await client.call_tool("final_answer", {"text": "again"})
        assert late.is_error
        assert "the episode is over" in texts(late)[0]
    view = service.get(f"/sessions/{session_id}").json()
    assert view["state"] == "over"
    assert view["last"]["verdict"]["correct"] is True
    trace = Trace.model_validate(service.get(f"/sessions/{session_id}/trace").json())
    assert trace.reward == view["last"]["reward"] > 0.9
    assert len(trace.turns) == view["turn"] == len(messages) - 1


@pytest.mark.parametrize("mode", MODES)
async def test_a_whole_webshop_episode_to_its_verdict(service, mode):
    session_id = created(service, "agentgym/WebShop-v0", seed=3)
    twin = gymnasium.make("agentgym/WebShop-v0").unwrapped
    observation, info = twin.reset(seed=3)
    oracle, over = OraclePolicy(twin), False
    async with agent(service, session_id, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "click"}  # prose means nothing to this env
        assert tools["search"].input_schema["required"] == ["query"]
        resource = await client.read_resource("episode://task")
        assert observation[-1]["content"] in resource.contents[0].text
        while not over:
            action = oracle(twin.messages, info)
            name, _, argument = action.partition("[")
            arguments = {{"search": "query", "click": "target"}[name]: argument[:-1]}
            result = await client.call_tool(name, arguments)
            observation, reward, over, _, info = twin.step(action)
            shown = [observation[0]["content"]] + ["The episode is over."] * over
            assert texts(result) == shown
    assert reward == 1.0
    assert service.get(f"/sessions/{session_id}").json()["last"]["reward"] == 1.0
    assert service.get(f"/sessions/{session_id}/trace").json()["verdict"]["correct"] is True


async def test_nothing_but_the_tools_and_what_they_said_is_shown(service):
    session_id = created(service, "stage/Stage-v0")
    async with agent(service, session_id) as client:
        result = await client.call_tool("final_answer", {"text": "done"})
        assert set(result.meta) >= {"agentgym/turn", "agentgym/terminated", "agentgym/truncated"}
        shown = result.model_dump_json()
    assert "SECRET" not in shown
    assert "reward" not in shown


async def test_a_users_replies_are_what_saying_something_returns(service):
    session_id = created(service, "stage/Talk-v0", seed=1)
    async with agent(service, session_id) as client:
        assert "send_message" in {tool.name for tool in (await client.list_tools()).tools}
        assert texts(await client.call_tool("send_message", {"text": "hello"})) == [
            "You said hello."
        ]
        said = await client.call_tool("send_message", {"text": "bye"})
        assert texts(said) == ["Bye!", "The episode is over."]


@pytest.mark.parametrize("arguments", [{}, {"text": 7}, {"words": "x"}, None])
async def test_an_answer_without_text_is_no_turn(service, arguments):
    session_id = created(service, "stage/Quiz-v0", seed=1)
    async with agent(service, session_id) as client:
        result = await client.call_tool("final_answer", arguments)
        assert result.is_error
    assert service.get(f"/sessions/{session_id}").json()["turn"] == 0


async def test_faults_of_the_policy_are_turns_with_an_error(service):
    """Case J08: there is no tool 'judge'."""
    session_id = created(service, "stage/Counter-v0")
    async with agent(service, session_id) as client:
        for name, arguments, says in (
            ("judge", {}, "no tool 'judge'"),
            ("add", {"amount": "many"}, "amount"),
            ("reset_to", {"value": -1}, "can't be set"),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert says in texts(result)[0]
        assert not (await client.call_tool("add", {"amount": 1})).is_error
    assert service.get(f"/sessions/{session_id}").json()["turn"] == 4


@pytest.mark.parametrize("mode", MODES)
async def test_parallel_calls_are_turns_one_after_the_other(service, mode):
    session_id = created(service, "stage/Stage-v0")
    async with agent(service, session_id, mode=mode) as client:
        results = await asyncio.gather(
            *(client.call_tool("note", {"text": str(n)}) for n in range(8))
        )
    assert [texts(result) for result in results] == [[f"noted {n}"] for n in range(8)]
    assert sorted(StageEnv.done) == [str(n) for n in range(8)]
    assert sorted(result.meta["agentgym/turn"] for result in results) == list(range(1, 9))


async def test_an_episode_that_breaks_is_over_and_masked(service):
    for tool in ("crash", "hang"):
        session_id = created(service, "stage/Stage-v0")
        session = service.sessions.find(session_id, "me")
        session._player._limits = SessionLimits(step_timeout_s=0.05)
        async with agent(service, session_id) as client:
            assert texts(await client.call_tool(tool, {})) == ["The episode is over."]
            assert (await client.list_tools()).tools == []
        assert service.get(f"/sessions/{session_id}").json()["last"]["masked"] is True


async def test_without_an_episode_there_is_a_hint_and_no_task(service):
    session_id = service.post("/sessions", json={"env": "stage/Counter-v0"}).json()["session_id"]
    async with agent(service, session_id) as client:
        result = await client.call_tool("add", {"amount": 1})
        assert result.is_error
        assert "reset" in texts(result)[0]
        with pytest.raises(MCPError, match="reset"):
            await client.get_prompt("task")


async def test_unknown_prompts_and_resources_are_errors(service):
    session_id = created(service, "stage/Counter-v0")
    async with agent(service, session_id) as client:
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["task"]
        uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
        assert uris == ["episode://task"]
        with pytest.raises(MCPError, match="task"):
            await client.get_prompt("rubric")
        with pytest.raises(MCPError, match="episode://task"):
            await client.read_resource("episode://reference")


async def test_an_answer_tools_name_does_not_clash_with_an_envs_own():
    from agentgym.serve.mcp_tools import text_tool

    class Env:
        hears_text = "answer"
        tools = ({"function": {"name": "final_answer"}},)

    assert text_tool(Env()) == "episode_final_answer"


@pytest.mark.parametrize("mode", MODES)
async def test_another_token_finds_no_session(service, mode):
    session_id = created(service, "stage/Counter-v0")
    for token, place in ((YOURS, session_id), (MINE, "unknown")):
        with pytest.raises(ExceptionGroup, match="unhandled") as caught:
            async with agent(service, place, token=token, mode=mode):
                pass
        assert "Not Found" in repr(caught.value)
    assert service.get(f"/sessions/{session_id}").json()["turn"] == 0


async def test_calls_and_steps_may_be_mixed(service):
    session_id = created(service, "stage/Stage-v0")
    async with agent(service, session_id) as client:
        await client.call_tool("note", {"text": "a"})
        step = {"turn": 1, "action": call("note", text="b")}
        assert service.post(f"/sessions/{session_id}/step", json=step).json()["turn"] == 2
        result = await client.call_tool("note", {"text": "c"})
        assert result.meta["agentgym/turn"] == 3
    assert StageEnv.done == ["a", "b", "c"]
