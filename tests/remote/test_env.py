"""An environment elsewhere, as an environment here: over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import subprocess
import sys
import threading

import aiohttp
import gymnasium
import httpx
import numpy as np
import pytest
from aiohttp import web
from gymnasium.utils.env_checker import check_env
from session_stage import Affine, Clock, StageEnv, app_of, call, register, served

from agentgym.errors import ActionError, ConfigError, EnvFault, ResetNeeded, UnknownTaskError
from agentgym.remote import RemoteEnv, ServiceError, http
from agentgym.serve.access import Caller, Quota, Tokens
from agentgym.serve.session_limits import SessionLimits
from agentgym.serve.sessions import Sessions
from agentgym.spaces import AssistantSpace

register()
TOKEN = "a-token-of-mine-0123456789"


@contextlib.contextmanager
def service(clock=None, tokens=None, **limits):
    sessions = Sessions(SessionLimits(**limits), clock=clock or Clock())
    with served(app_of(sessions, tokens)) as url:
        yield url, sessions


@pytest.fixture(scope="module")
def url():
    with service() as (found, _):
        yield found


@pytest.fixture(autouse=True)
def _fresh():
    StageEnv.done.clear()
    StageEnv.closed.clear()


@contextlib.contextmanager
def remote(url, env_id="stage/Stage-v0", **more):
    env = RemoteEnv(url, env_id, **more)
    try:
        yield env
    finally:
        env.close()


@contextlib.contextmanager
def proxied(url, fault):
    """A proxy that passes requests on; `fault` may do something else with an answer."""
    started, stop = threading.Event(), None
    place = {}

    async def main():
        nonlocal stop
        stop = asyncio.Event()

        async def handle(request):
            body = await request.read()
            async with (
                aiohttp.ClientSession() as http,
                http.request(
                    request.method, url + request.path_qs, data=body, headers=request.headers
                ) as answer,
            ):
                data = await answer.read()
                replaced = await fault(request)
                if replaced is not None:
                    return replaced
                return web.Response(
                    body=data, status=answer.status, content_type="application/json"
                )

        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{tail:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        place["url"] = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        place["loop"] = asyncio.get_running_loop()
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield place["url"]
    finally:
        place["loop"].call_soon_threadsafe(stop.set)
        thread.join()


async def at_once(seconds):
    await asyncio.sleep(0)


def played(env, seed, actions=None):
    """A random episode: everything that `reset` and `step` returned, and the actions."""
    observation, info = env.reset(seed=seed)
    record, taken = [(observation, info)], []
    env.action_space.seed(seed)
    over = False
    while not over:
        action = env.action_space.sample() if actions is None else actions[len(taken)]
        taken.append(action)
        step = env.step(action)
        record.append(step)
        over = step[2] or step[3]
    return record, taken


@pytest.mark.parametrize(
    "env_id",
    ["stage/Counter-v0", "stage/Quiz-v0", "agentgym/WebShop-v0", "agentgym/ToolWorld-v0"],
)
def test_a_remote_episode_equals_the_local_one(url, env_id):
    shown = SessionLimits().info_keys | {"tools", "verdict"}
    local = gymnasium.make(env_id).unwrapped
    with remote(url, env_id) as env:
        for seed in range(3):
            there, actions = played(env, seed)
            here, same = played(local, seed)
            assert same == actions  # the spaces sample alike
            for (obs, *rest, info), (obs_here, *rest_here, info_here) in zip(
                there, here, strict=True
            ):
                assert obs == obs_here
                assert rest == rest_here
                info_here = {key: info_here[key] for key in info_here.keys() & shown}
                if "verdict" in info_here:
                    info_here["verdict"] = info_here["verdict"].model_copy(update={"reason": None})
                    assert info.pop("masked") is False
                    assert info.pop("failure_class") == info["verdict"].failure_class
                assert json.loads(json.dumps(info, default=dict)) == json.loads(
                    json.dumps(info_here, default=dict)
                )
            assert list(env.messages) == local.running.messages


@pytest.mark.parametrize("env_id", ["stage/Counter-v0", "agentgym/WebShop-v0", "stage/Talk-v0"])
def test_gymnasiums_own_check_passes(url, env_id):
    with remote(url, env_id) as env:
        check_env(env, skip_render_check=True)


def test_a_vector_of_remote_envs(url):
    def make():
        return RemoteEnv(url, "stage/Affine-v0")

    envs = gymnasium.vector.SyncVectorEnv([make, make])
    envs.reset(seed=1)
    _, rewards, *_ = envs.step(np.array([1, 2]))
    assert list(rewards) == [1.0, 2.0]
    envs.close()


def test_spaces_are_rebuilt(url):
    with remote(url, "stage/Affine-v0") as env:
        assert env.action_space == Affine.action_space
        assert env.observation_space == Affine.observation_space
        observation, _ = env.reset()
        assert observation[1] == np.inf
        assert observation.dtype == np.float32
    with remote(url, "stage/Counter-v0") as env:
        assert isinstance(env.action_space, AssistantSpace)
        assert env.action_space.tools[0]["function"]["name"] == "add"


def test_eight_sessions_of_one_service_and_waiting_for_a_place():
    """Case E13."""
    with service() as (url, sessions), contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(remote(url))
        assert len(sessions) == 8
    with service(max_sessions=4) as (url, sessions):
        first = [RemoteEnv(url, "stage/Stage-v0") for _ in range(4)]
        waited = threading.Semaphore(0)

        async def sleep(seconds):
            assert seconds >= 1  # as the service asked
            waited.release()
            await asyncio.sleep(0.01)

        got = []

        def late():
            got.append(RemoteEnv(url, "stage/Stage-v0", sleep=sleep))

        threads = [threading.Thread(target=late) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            assert waited.acquire(timeout=10)
        assert got == []
        for env in first:
            env.close()
        for thread in threads:
            thread.join(10)
        assert len(got) == 4
        assert len(sessions) == 4
        for env in got:
            env.reset()
            env.close()


def test_no_place_within_the_deadline_is_an_error_that_says_so():
    tokens = Tokens({TOKEN: Caller("small", Quota(sessions=1))})
    with service(tokens=tokens) as (url, _), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTGYM_SERVICE_TOKEN", TOKEN)
        with remote(url), pytest.raises(ServiceError, match="1 sessions open"):
            RemoteEnv(
                url,
                "stage/Stage-v0",
                deadline_s=0.3,
                sleep=lambda seconds: asyncio.sleep(0.01),
            )


def test_waiting_is_told_after_the_second_attempt(url, caplog):
    """Case E19."""
    with pytest.raises(ServiceError):
        RemoteEnv("http://127.0.0.1:1", "stage/Stage-v0", deadline_s=0.2, sleep=at_once)
    assert "still waiting" in caplog.text
    assert "ssl:default" not in caplog.text


async def test_a_long_wait_is_told_ever_less_often(caplog):
    """A wrong port is one line and a few more, not one per attempt."""
    now = [0.0]

    async def sleep(seconds):
        now[0] += seconds

    client = http.ServiceClient("http://127.0.0.1:1", sleep=sleep, clock=lambda: now[0])
    with pytest.raises(ServiceError, match="is the service running there"):
        await client.ask("GET", "/sessions")
    await client.aclose()
    told = [r.getMessage() for r in caplog.records if "still waiting" in r.getMessage()]
    assert 2 <= len(told) <= 8
    assert "giving up in" in told[0]


def test_a_lost_answer_plays_no_turn_twice(url):
    """Case E17."""
    lost = []

    async def fault(request):
        if request.path.endswith("/step") and len(lost) < 3:
            lost.append(request.path)
            request.transport.close()  # after it was carried out
        return

    with proxied(url, fault) as proxy, remote(proxy, sleep=at_once) as env:
        env.reset(seed=1)
        observation, *_ = env.step(call("note", text="a"))
        env.step(call("note", text="b"))
    assert len(lost) == 3
    assert observation[0]["content"] == "noted a"
    assert StageEnv.done == ["a", "b"]


def test_an_answer_later_than_the_time_out_plays_no_turn_twice(url, monkeypatch):
    """Case E17: the server sleeps past the client's time-out after carrying it out."""
    asked, again = [], asyncio.Event()

    async def fault(request):
        if request.path.endswith("/step"):
            asked.append(1)
            if len(asked) == 1:
                await again.wait()
            again.set()

    monkeypatch.setattr(http, "_ANSWER_S", 0.5)
    with proxied(url, fault) as proxy, remote(proxy, sleep=at_once) as env:
        env.reset(seed=1)
        observation, *_ = env.step(call("note", text="a"))
    assert len(asked) >= 2
    assert observation[0]["content"] == "noted a"
    assert StageEnv.done == ["a"]


def test_lost_resets_and_creations_start_nothing_twice():
    lost = set()

    async def fault(request):
        if request.method == "POST" and request.path not in lost:
            lost.add(request.path)
            request.transport.close()
        return

    with (
        service() as (url, sessions),
        proxied(url, fault) as proxy,
        remote(proxy, sleep=at_once) as env,
    ):
        env.reset(seed=1)
        assert sessions.status().created == 1
        assert env._episode == 1
    assert len(lost) == 2


def test_a_gateway_that_is_down_for_a_moment_is_waited_out(url):
    down = []

    async def fault(request):
        if len(down) < 2:
            down.append(1)
            return web.Response(text="<html>Bad Gateway</html>", status=502)
        return None

    with proxied(url, fault) as proxy, remote(proxy, sleep=at_once) as env:
        assert env.reset(seed=1)
    assert len(down) == 2


@pytest.mark.parametrize(
    ("kwargs", "error", "says"),
    [
        ({"env_id": "stage/None-v0"}, ConfigError, "no env"),
        ({"env_kwargs": {"nonsense": 1}}, ConfigError, "nonsense"),
    ],
)
def test_what_cannot_be_made_is_an_error_at_once(url, kwargs, error, says):
    with pytest.raises(error, match=says):
        RemoteEnv(url, **{"env_id": "stage/Stage-v0", **kwargs})


@pytest.mark.parametrize("value", [{1, 2}, np.int64(3), float("nan")], ids=repr)
def test_what_json_cannot_hold_is_told_by_name(url, value):
    with pytest.raises(ConfigError, match="env_kwargs of a remote env must be JSON values"):
        RemoteEnv(url, "stage/Stage-v0", env_kwargs={"bulk": value})
    with remote(url) as env, pytest.raises(ConfigError, match="options of a remote env"):
        env.reset(options={"max_turns": value})


def test_a_reset_after_one_that_was_given_up_on_starts_an_episode_of_its_own(url):
    """The service did the first one all the same; nothing that asks otherwise may be stuck."""
    with remote(url) as env:
        path = f"{url}/v1/sessions/{env.session_id}/reset"
        httpx.post(path, json={"seed": 1, "episode": 1})  # as the client would have asked
        env.reset(seed=2)
        assert env.step(call("note", text="a"))[0][0]["content"] == "noted a"
        env.reset(seed=3)


def test_a_reset_waits_for_a_turn_that_was_given_up_on(url):
    waits = []

    async def until_it_is_over(seconds):
        waits.append(seconds)
        Affine.block.set()

    Affine.block.clear()
    with remote(url, "stage/Affine-v0", sleep=until_it_is_over) as env:
        env.reset(seed=1)
        path = f"{url}/v1/sessions/{env.session_id}/step"
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(path, json={"turn": 0, "action": 4}, timeout=0.2)
        env.reset(seed=1)
        assert waits
        assert env.step(1)[1] == 1.0


@pytest.mark.parametrize(
    "kwargs", [{"url": "localhost:8000"}, {"deadline_s": 0}, {"render_mode": "human"}]
)
def test_parameters_are_checked(url, kwargs):
    with pytest.raises(ConfigError):
        RemoteEnv(**{"url": url, "env_id": "stage/Stage-v0", **kwargs})


def test_nobody_there_is_an_error_within_the_deadline():
    with pytest.raises(ServiceError, match="no answer for"):
        RemoteEnv("http://127.0.0.1:1", "stage/Stage-v0", deadline_s=0.2, sleep=at_once)


def test_a_missing_or_wrong_token_is_an_error_that_shows_none(monkeypatch):
    with service(tokens=Tokens({TOKEN: Caller("me")})) as (url, sessions):
        monkeypatch.delenv("AGENTGYM_SERVICE_TOKEN", raising=False)
        with pytest.raises(ServiceError, match="token"):
            RemoteEnv(url, "stage/Stage-v0")
        monkeypatch.setenv("MINE", TOKEN[::-1])
        with pytest.raises(ServiceError, match="token") as caught:
            RemoteEnv(url, "stage/Stage-v0", token_env="MINE")
        assert TOKEN[::-1] not in str(caught.value)
        monkeypatch.setenv("MINE", TOKEN)
        with remote(url, token_env="MINE") as env:
            env.reset()
        assert len(sessions) == 0


def test_errors_are_those_of_a_local_env(url):
    with remote(url, "stage/Counter-v0") as env:
        with pytest.raises(ResetNeeded):
            env.step("x")
        with pytest.raises(UnknownTaskError):
            env.reset(options={"task_id": "counter/none"})
        with pytest.raises(ConfigError):
            env.reset(options={"judging": "deferred"})
        env.reset(options={"task_id": "counter/3"})
        with pytest.raises(ActionError):
            env.step(17)
        with pytest.raises(ActionError):
            env.step({**call("add", amount=1), "logprobs": "none"})
        env.step(call("add", amount=3))
        assert env.step(call("submit"))[1] == 1.0
        with pytest.raises(ResetNeeded):
            env.step(call("read"))
    with pytest.raises(ResetNeeded, match="closed"):
        env.reset()
    env.close()


def test_a_masked_episode_says_so(url):
    with remote(url) as env:
        env.reset(seed=1)
        _, reward, terminated, truncated, info = env.step(call("crash"))
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert info["masked"]
        assert info["verdict"].reward is None
        assert env.trace().failure_class == "env"
        env.reset(seed=2)
        env.step(call("note", text="a"))


def test_an_env_of_another_package_that_breaks_raises(url):
    with remote(url, "stage/Affine-v0") as env:
        env.reset()
        with pytest.raises(EnvFault, match="broke"):
            env.step(3)
        with pytest.raises(ResetNeeded):
            env.step(1)
        env.reset()
        assert env.step(1)[1] == 1.0


def test_a_session_that_expired_is_an_error_in_an_episode_and_none_at_a_reset():
    clock = Clock()
    with service(clock) as (url, sessions), remote(url) as env:
        env.reset(seed=1)
        first = env.session_id
        clock.now += 10_000
        assert httpx.post(f"{url}/reap").json() == 1
        with pytest.raises(EnvFault, match="expired"):
            env.step(call("note", text="a"))
        with pytest.raises(ResetNeeded):
            env.step(call("note", text="a"))
        env.reset(seed=1)
        assert env.session_id != first
        env.step(call("note", text="b"))
    assert StageEnv.done == ["b"]
    assert len(sessions) == 0


def test_the_heart_beats_while_the_policy_thinks():
    beats = threading.Semaphore(0)

    async def fault(request):
        if request.path.endswith("/keepalive"):
            beats.release()
        return

    with service(idle_ttl_s=0.15) as (url, _), proxied(url, fault) as proxy, remote(proxy) as env:
        env.reset()
        for _ in range(3):
            assert beats.acquire(timeout=10)
        env.step(call("note", text="a"))


def test_an_env_that_nobody_has_any_more_stops_its_heart(url):
    env = RemoteEnv(url, "stage/Stage-v0")
    lease = env._lease
    del env
    gc.collect()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), lease._loop).result(10)
    assert lease._heart is None


def test_rendering_is_the_conversation(url):
    with remote(url, "stage/Quiz-v0", render_mode="ansi") as env:
        assert env.render() is None
        env.reset(options={"task_id": "quiz/Peru"})
        env.step("Lima")
        assert env.render().endswith("[assistant] Lima")


@pytest.mark.thorough
def test_the_client_needs_no_more_than_the_plain_install():
    text = """if True:
        import sys
        from agentgym.remote import RemoteEnv
        extra = {"fastapi", "uvicorn", "mcp", "starlette", "prometheus_client"}
        assert not extra & sys.modules.keys()
    """
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)
