"""Sessions over HTTP: what is asked, what is answered, and what never is."""

from __future__ import annotations

import asyncio
import contextlib
import json

import gymnasium
import httpx
import pytest
from session_stage import Clock, StageEnv, app_of, call, register

from agentgym.envs.registration import ENTRY_POINTS
from agentgym.serve.access import Caller, Tokens
from agentgym.serve.session_limits import SessionLimits
from agentgym.serve.sessions import Sessions

register()
MINE, YOURS = "my-token-0123456789", "your-token-0123456789"
TOKENS = Tokens({MINE: Caller("me"), YOURS: Caller("you")})


@contextlib.asynccontextmanager
async def running(sessions):
    """A service without a network: a client of its app, which lives in a task of its own."""
    app = app_of(sessions, TOKENS)
    up, down = asyncio.Event(), asyncio.Event()

    async def live():
        async with app.router.lifespan_context(app):
            up.set()
            await down.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(live())
        await up.wait()
        headers = {"Authorization": f"Bearer {MINE}"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://service/v1", headers=headers
        ) as client:
            client.sessions = sessions
            yield client
        down.set()


@pytest.fixture
async def service():
    async with running(Sessions(SessionLimits(), clock=Clock())) as client:
        yield client


async def created(client, env="stage/Stage-v0", **more):
    answer = await client.post("/sessions", json={"env": env, "reset": {"seed": 1}, **more})
    assert answer.status_code == 201, answer.text
    return f"/sessions/{answer.json()['session_id']}", answer.json()


def strictly(answer):
    """The answer's JSON, as a strict reader has it."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(answer.content, parse_constant=refuse)


async def test_a_whole_episode(service):
    path, view = await created(service, "stage/Counter-v0", env_kwargs={"targets": [3]})
    assert view["state"] == "running"
    assert view["started"]["observation"][1]["content"].startswith("Bring the counter")
    answer = await service.post(
        f"{path}/step", json={"turn": 0, "action": call("add", amount=3), "episode": 1}
    )
    result = strictly(answer)
    assert result["observation"] == [
        {"role": "tool", "tool_call_id": "c", "content": "The counter stands at 3."}
    ]
    assert (result["reward"], result["terminated"], result["masked"]) == (0.0, False, False)
    result = strictly(
        await service.post(f"{path}/step", json={"turn": 1, "action": call("submit")})
    )
    assert (result["reward"], result["terminated"], result["truncated"]) == (1.0, True, False)
    assert result["verdict"]["correct"] is True
    trace = strictly(await service.get(f"{path}/trace"))
    assert trace["verdict"]["reward"] == 1.0
    assert len(trace["turns"]) == 2
    view = strictly(await service.get(path))
    assert (view["state"], view["turn"], view["last"]) == ("over", 2, result)
    assert (await service.get("/sessions")).json()["sessions"][0]["messages"] == []
    assert (await service.delete(path)).status_code == 204
    assert (await service.get(path)).status_code == 404


async def test_a_reset_needs_no_body(service):
    path, _ = await created(service)
    assert (await service.post(f"{path}/reset")).json()["episode"] == 2


async def test_a_masked_episode_has_null_and_not_zero(service):
    path, _ = await created(service)
    answer = await service.post(f"{path}/step", json={"turn": 0, "action": call("crash")})
    result = strictly(answer)
    assert result["reward"] is None
    assert result["masked"] is True
    assert result["verdict"]["reward"] is None


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("POST", "/reset"),
        ("POST", "/step"),
        ("POST", "/truncate"),
        ("GET", "/trace"),
        ("POST", "/keepalive"),
        ("DELETE", ""),
        ("POST", "/mcp"),
    ],
)
async def test_other_tokens_find_nothing(service, method, path):
    """Case J13."""
    mine, _ = await created(service)
    body = {"/step": {"turn": 0, "action": "x"}, "/truncate": {"reason": "time"}}.get(path, {})
    answers = [
        await service.request(method, place + path, json=body, headers=headers)
        for place, headers in (
            (mine, {"Authorization": f"Bearer {YOURS}"}),
            ("/sessions/unknown", {}),
        )
    ]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].json() == answers[1].json()
    answer = await service.request(
        method, mine + path, json=body, headers={"Authorization": "Bearer nonsense-0123456789"}
    )
    assert answer.status_code == 401
    assert len(service.sessions) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", {}),
        ("", {"env": "stage/Stage-v0", "judge": "mine"}),
        ("", {"env": "stage/Stage-v0", "reset": {"seed": -1}}),
        ("/{}/step", {"action": "x"}),
        ("/{}/step", {"turn": -1, "action": "x"}),
        ("/{}/step", {"turn": 0, "action": "x", "reward": 1}),
        ("/{}/truncate", {"reason": "fault"}),
        ("/{}/reset", {"options": {"judging": "deferred"}}),
    ],
)
async def test_what_makes_no_sense_is_refused_in_one_form(service, path, body):
    _, view = await created(service)
    answer = await service.post("/sessions" + path.format(view["session_id"]), json=body)
    assert answer.status_code == 422
    assert set(answer.json()["error"]) == {"code", "message"}
    assert len(service.sessions) == 1


async def test_an_unknown_field_and_broken_json_are_told_in_plain_words(service):
    answer = await service.post("/sessions", json={"env": "stage/Stage-v0", "judge": "mine"})
    assert "judge: there is no such field" in answer.json()["error"]["message"]
    headers = {"Content-Type": "application/json"}
    answer = await service.post("/sessions", content=b'{"env": ', headers=headers)
    assert answer.status_code == 400
    assert "body: no JSON from character" in answer.json()["error"]["message"]


async def test_actions_nested_without_end_are_refused(service):
    path, _ = await created(service)
    action = "x"
    for _ in range(300):
        action = [action]
    answer = await service.post(f"{path}/step", json={"turn": 0, "action": action})
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "bad_action"


async def test_text_that_cannot_be_encoded_and_numbers_that_are_none(service):
    path, _ = await created(service)
    body = rb'{"turn": 0, "action": {"role": "assistant", "content": "\ud83d", "x": NaN}}'
    answer = await service.post(
        f"{path}/step", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 200
    assert strictly(answer)["message"]["content"] == "\ufffd"


async def test_a_creation_whose_reset_fails_leaves_nothing(service):
    ask = {"env": "stage/Counter-v0", "reset": {"options": {"task_id": "none"}}}
    answer = await service.post("/sessions", json=ask)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "unknown_task"
    assert len(service.sessions) == 0


async def test_a_repeated_creation_gives_the_same_session(service):
    ask = {"env": "stage/Stage-v0", "key": "w1", "reset": {"seed": 1}}
    answers = await asyncio.gather(*(service.post("/sessions", json=ask) for _ in range(5)))
    assert len({answer.json()["session_id"] for answer in answers}) == 1
    assert {answer.json()["episode"] for answer in answers} == {1}


async def test_the_service_closes_every_env_at_its_end():
    StageEnv.closed.clear()
    async with running(Sessions()) as client:
        await created(client)
        await created(client)
    assert len(StageEnv.closed) == 2


async def test_the_openapi_page_shows_the_routes(service):
    page = (await service.get("http://service/openapi.json")).json()
    paths = {path for path in page["paths"] if path.startswith("/v1/sessions")}
    assert "/v1/sessions/{session_id}/step" in paths
    step = page["paths"]["/v1/sessions/{session_id}/step"]["post"]
    assert "TurnResult" in json.dumps(step["responses"]["200"])


# --- nothing hidden goes out (case J08) ---------------------------------------------------------


def hidden_texts(env):
    """What a task's reference says that the policy isn't told in the opening messages."""
    task = env.running.task
    told = json.dumps([env.messages, env.toolbox.specs, task.model_dump()], ensure_ascii=False)
    return {text for text in texts_in(task.reference) if text not in told}


def texts_in(value):
    if isinstance(value, str):
        return {value} if len(value) >= 8 else set()
    if isinstance(value, dict):
        return set().union(*map(texts_in, value.values()), set())
    if isinstance(value, list | tuple | set | frozenset):
        return set().union(*map(texts_in, value), set())
    fields = getattr(value, "__dict__", None) or {
        name: getattr(value, name) for name in getattr(type(value), "__slots__", ())
    }
    return texts_in(fields) if fields else set()


@pytest.mark.parametrize("env_id", sorted(ENTRY_POINTS))
@pytest.mark.thorough
async def test_hundred_episodes_of_every_env_show_no_internals(service, env_id):
    """Case J08: no reference object, rubric or judge's remark in any answer, before or after."""
    path, view = await created(service, env_id)
    allowed_info = SessionLimits().info_keys
    session = service.sessions.find(view["session_id"], "me")
    looked_for = set()
    for seed in range(100):
        answer = await service.post(f"{path}/reset", json={"seed": seed})
        seen = [answer.text]
        env = session.env.agent
        hidden = hidden_texts(env)
        assert set(answer.json()["info"]) <= allowed_info
        env.action_space.seed(seed)
        result = None
        for turn in range(3):
            action = call("judge") if turn == 0 else env.action_space.sample()
            answer = await service.post(f"{path}/step", json={"turn": turn, "action": action})
            result = answer.json()
            seen.append(answer.text)
            if turn == 0:
                assert "no tool 'judge'" in result["observation"][0]["content"]
            assert set(result["info"]) <= allowed_info
            # What the world itself told the policy is no secret.
            told = json.dumps(result["observation"], ensure_ascii=False)
            hidden = {text for text in hidden if text not in told}
            if result["terminated"] or result["truncated"]:
                break
        else:
            answer = await service.post(f"{path}/truncate", json={"reason": "time"})
            result = answer.json()
            seen.append(answer.text)
        assert result["verdict"]["reason"] is None
        seen.append((await service.get(path)).text)
        trace = await service.get(f"{path}/trace")
        assert trace.json()["outcome"] == {}
        seen.append(trace.text)
        looked_for |= hidden
        leaked = {text for text in hidden for page in seen if text in page}
        assert leaked == set(), (env_id, seed, leaked)
    assert looked_for  # else there was nothing to find


class SlowStart(StageEnv):
    """Waits in `reset` until the gate is opened."""

    there = asyncio.Event()

    async def start(self, task):
        SlowStart.there.set()
        await self.gate.wait()
        return await super().start(task)


gymnasium.register("stage/SlowStart-v0", SlowStart)


async def test_a_creation_sent_again_while_its_reset_goes_on_waits_for_it(service):
    """The first request's client gave up waiting; the second gets that session, not `busy`."""
    ask = {"env": "stage/SlowStart-v0", "key": "k", "reset": {"seed": 1, "episode": 1}}
    StageEnv.made.clear()
    first = asyncio.create_task(service.post("/sessions", json=ask))
    await SlowStart.there.wait()
    again = asyncio.create_task(service.post("/sessions", json=ask))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not again.done()
    StageEnv.made[0].gate.set()
    views = [(await answer).json() for answer in (first, again)]
    assert views[0]["session_id"] == views[1]["session_id"]
    assert [view["episode"] for view in views] == [1, 1]
