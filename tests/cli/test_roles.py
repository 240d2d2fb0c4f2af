"""`agentgym rollout` with models in every role: one file, checked first, recorded and replayed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agentgym.client import SamplingParams
from agentgym.clients import connect
from agentgym.errors import EndpointError, JudgeError, SimulatorError
from agentgym.judge import Score
from agentgym.judges import RubricJudge
from agentgym.testing.envs import CounterEnv
from agentgym.traces import read_traces
from agentgym.types import Message, Task

pytestmark = pytest.mark.thorough


class YesJudge:
    """Asks its model whether the episode was good."""

    inline = False

    def __init__(self, client: Any) -> None:
        self.client = client

    async def score(self, episode: Any) -> Score:
        try:
            reply = await self.client.complete(
                [{"role": "user", "content": f"Good? {episode.outcome}"}],
                (),
                SamplingParams(seed=0),
            )
        except EndpointError as error:
            raise JudgeError(str(error)) from error
        good = "yes" in reply.message["content"]
        return Score(total=float(good), correct=good)


class Desk(CounterEnv):
    """A counter with a model for a customer and a model for a judge."""

    awaits = True

    def __init__(self, simulator: Any, judge: Any) -> None:
        super().__init__(targets=(1, 2, 3))
        self.customer = connect(simulator, role="simulator")
        self.scoring = self.scoring.model_copy(
            update={"judge": YesJudge(connect(judge, role="judge"))}
        )
        self._needs_loop = True

    async def start(self, task: Task) -> list[Message]:
        ask = [{"role": "user", "content": f"Ask for {task.reference}."}]
        try:
            reply = await self.customer.complete(ask, (), SamplingParams(seed=0))
        except EndpointError as error:
            raise SimulatorError(str(error)) from error
        return [*await super().start(task), {"role": "user", "content": reply.message["content"]}]


@pytest.fixture(autouse=True)
def desk_env():
    gymnasium.register("CliDesk-v0", entry_point=Desk)
    yield "CliDesk-v0"
    del gymnasium.registry["CliDesk-v0"]


def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """One server for all roles, by the model's name."""
    message: dict[str, Any] = {"role": "assistant", "content": "yes, please"}
    if body["model"] == "player":
        name, arguments = "submit", "{}"
        if len(body["messages"]) < 4:
            name, arguments = "add", '{"amount": 1}'
        function = {"name": name, "arguments": arguments}
        calls = [{"id": "c", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return 200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


def roles_file(folder: Any, url: str, *, judge: str = "", more: str = "") -> str:
    path = folder / "roles.toml"
    path.write_text(
        f"""
        [policy]
        base_url = "{url}"
        model = "player"
        max_concurrency = 3
        prices = {{input = 1.0, output = 2.0}}

        [simulator]
        base_url = "{url}"
        model = "customer"

        [judge]
        base_url = "{url}"
        model = "critic"
        {judge}
        {more}
        """
    )
    return str(path)


def desk(*args: str) -> list[str]:
    return ["rollout", "--env", "CliDesk-v0", "--quiet", *args]


def models_asked(server: Any) -> list[str]:
    return [body["model"] for body in server.bodies]


def test_one_file_gives_every_role_its_model(agentgym_command, model_server, tmp_path):
    server = model_server(answer)
    roles = roles_file(tmp_path, server.url)
    code, out, err = agentgym_command(*desk("--roles", roles, "--out", "x"))
    assert (code, err) == (0, "")
    assert models_asked(server)[:3] == ["player", "customer", "critic"], "each is asked at first"
    traces = list(read_traces(tmp_path / "x" / "traces.jsonl"))
    assert [trace.reward for trace in traces] == [1.0] * 3
    for trace in traces:
        assert {role: usage.calls for role, usage in trace.usage.items()} == {
            "policy": 2, "simulator": 1, "judge": 1,
        }  # fmt: skip
    assert re.search(r"tokens policy +600 in .* 6 calls, \$0.0007$", out, re.MULTILINE)
    assert re.search(r"tokens judge +300 in .* 3 calls, cost unknown$", out, re.MULTILINE)
    assert re.search(r"cost +cost unknown$", out, re.MULTILINE)
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert (config["policy"], config["judge"], config["limits"]["concurrency"]) == (
        ("player", "critic", 3)
    )
    assert config["roles"]["simulator"] == {
        "base_url": server.url, "model": "customer", "role": "simulator",
    }  # fmt: skip


def test_flags_win_over_the_file(agentgym_command, model_server, tmp_path):
    server, other = model_server(answer), model_server(answer)
    roles = roles_file(tmp_path, server.url)
    code, _, _ = agentgym_command(
        *desk("--roles", roles, "--judge-url", other.url, "--judge-model", "other", "--out", "x")
    )
    assert code == 0
    assert set(models_asked(other)) == {"other"}
    assert "critic" not in models_asked(server)


def test_roles_by_flags_alone_and_a_policy_of_the_env(agentgym_command, model_server, tmp_path):
    server = model_server(answer)
    flags = ("--simulator-url", server.url, "--simulator-model", "customer")
    flags += ("--judge-url", server.url, "--judge-model", "critic", "-n", "1", "--out", "x")
    code, _, _ = agentgym_command(*desk("--policy", "random", *flags))
    assert code == 0
    assert set(models_asked(server)) == {"customer", "critic"}
    code, _, err = agentgym_command(
        *desk("--policy", "random", *flags, "--resume", "--judge-model", "milder")
    )
    assert code == 1
    assert "judge='critic', this is 'milder'" in err


def test_endpoints_in_effect_are_shown(agentgym_command, model_server, tmp_path, monkeypatch):
    monkeypatch.setenv("THE_KEY", "sk-test-123456")
    server = model_server(answer)
    url = server.url.replace("http://", "http://me:pa55word@")
    roles = roles_file(tmp_path, url, judge='api_key_env = "THE_KEY"')
    args = [arg for arg in desk("--roles", roles, "-n", "1") if arg != "--quiet"]
    _, out, err = agentgym_command(*args)
    assert f"policy     player at {server.url}, 3 requests at once, $1 in, 2 out per Mtok\n" in err
    assert f"judge      critic at {server.url}, 64 requests at once, key from THE_KEY\n" in err
    everything = out + err + "".join(p.read_text() for p in tmp_path.rglob("*.json*"))
    assert "pa55word" not in everything
    assert "sk-test-123456" not in everything


def test_missing_key_is_named_before_any_request(agentgym_command, model_server, tmp_path):
    server = model_server(answer)
    roles = roles_file(tmp_path, server.url, judge='api_key_env = "NO_SUCH_KEY_SET"')
    code, out, err = agentgym_command(*desk("--roles", roles, "--out", "x"))
    assert (code, out, server.bodies) == (1, "", [])
    assert "the judge 'critic'" in err
    assert "NO_SUCH_KEY_SET is not set" in err
    assert not (tmp_path / "x").exists()


def test_role_that_does_not_answer_stops_before_the_first_episode(
    agentgym_command, model_server, tmp_path
):
    def without_judge(body: dict[str, Any]) -> Any:
        if body["model"] == "critic":
            return 404, {"error": {"message": "no such model"}}
        return answer(body)

    server = model_server(without_judge)
    roles = roles_file(tmp_path, server.url)
    code, out, err = agentgym_command(*desk("--roles", roles, "--out", "x"))
    assert (code, out) == (1, "")
    assert err.startswith("agentgym: error: judge: ")
    assert "no such model" in err
    assert len(server.bodies) == 3
    assert not (tmp_path / "x").exists()


def test_role_that_the_env_does_not_take(agentgym_command, model_server, tmp_path):
    server = model_server(answer)
    shop = ("rollout", "--env", "agentgym/WebShop-v0", "--env-kwargs", "num_products=60")
    shop = (*shop, "--policy", "rule", "-n", "1", "--quiet")
    code, _, err = agentgym_command(*shop, "--simulator-url", server.url, "--simulator-model", "m")
    assert code == 1
    assert "takes no simulator; leave out --simulator-url" in err
    code, _, err = agentgym_command(*shop, "--roles", roles_file(tmp_path, server.url))
    assert code == 0
    assert "agentgym/WebShop-v0 takes no simulator; [simulator] is not used" in err
    assert server.bodies == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--roles", "none.toml"], "can't read none.toml"),
        (["--policy", "random", "--judge-model", "m"], "the judge has no base_url: give --judge-u"),
        (
            ["--policy", "random", "--judge-url", "ftp://h"],
            "judge has no model: give --judge-model",
        ),
        (
            ["--policy", "random", "--judge-url", "ftp://h", "--judge-model", "m"],
            "judge: base_url: base_url must start with http://",
        ),
        (
            ["--policy", "random", "--judge-url", "http://h:port/", "--judge-model", "m"],
            "no usable URL",
        ),
        (
            "--policy random --judge-url http://h/v1 --judge-model m --env-kwargs judge=x".split(),
            "the judge is given twice",
        ),
        (["--policy", "random", "--replay", "none.jsonl"], "can't read none.jsonl"),
    ],
)
def test_refusals_are_one_line(agentgym_command, tmp_path, args, message):
    if "--replay" in args:
        args = [*args, "--env", "agentgym/WebShop-v0", "--env-kwargs", "num_products=60"]
    code, out, err = agentgym_command(*desk(*args, "--out", "x"))
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


# --- record and replay ------------------------------------------------------------------------


def facts(path: Any) -> dict[str | None, Any]:
    return {t.task_id: (t.messages, t.verdict, t.usage) for t in read_traces(path)}


def test_recorded_run_is_replayed_without_a_server(agentgym_command, model_server, tmp_path):
    server = model_server(answer)
    roles = roles_file(tmp_path, server.url)
    agentgym_command(*desk("--roles", roles, "--out", "x", "--record", "calls.jsonl"))
    asked = len(server.bodies)
    replay = desk("--roles", roles, "--replay", "calls.jsonl")
    code, _, err = agentgym_command(*replay, "--out", "y")
    assert (code, err) == (0, "")
    assert len(server.bodies) == asked
    assert facts(tmp_path / "x" / "traces.jsonl") == facts(tmp_path / "y" / "traces.jsonl")
    code, _, err = agentgym_command(*replay, "--out", "z", "--seed", "5")
    assert code == 1
    assert "ReplayMiss" in err or "nothing is recorded of that episode" in err


def test_interrupted_recording_goes_on_with_the_run(agentgym_command, model_server, tmp_path):
    server = model_server(answer)
    roles = roles_file(tmp_path, server.url)
    record = desk("--roles", roles, "--out", "x", "--record", "calls.jsonl")
    agentgym_command(*record, "-n", "1")
    agentgym_command(*record, "-n", "3", "--resume")
    code, out, _ = agentgym_command(
        *desk("--roles", roles, "--out", "y", "--replay", "calls.jsonl")
    )
    assert code == 0
    assert "3 (3 scored" in out


RECORDING = Path(__file__).parents[1] / "recordings" / "webshop-smollm2.jsonl"


def test_real_models_run_is_replayed_with_its_figures(agentgym_command, tmp_path):
    """SmolLM2-135M on vLLM, recorded once; no server and no model is needed to have it again.

    When the shop's pages change, record anew: the command below with the server's URL, and
    `--record` for `--replay`; the figures are those that it prints.
    """
    code, out, _ = agentgym_command(
        *("rollout", "--env", "agentgym/WebShop-v0", "--split", "validation", "--quiet"),
        *("--env-kwargs", "num_products=60", "page_size=3", "-n", "4", "--seed", "1"),
        *("--max-turns", "3", "--max-tokens", "32", "--out", "x"),
        *("--base-url", "http://127.0.0.1:9/v1", "--model", "smollm2", "--replay", RECORDING),
    )
    assert code == 0
    assert "4 (4 scored, 4 tasks)" in out
    assert re.search(r"reward +-0\.6500 ± 0\.0866$", out, re.MULTILINE)
    assert re.search(r"malformed +50\.0% \(2/4\)", out)
    assert "6,203 in (0 cached), 335 out (0 reasoning), 12 calls" in out
    turns = [turn for t in read_traces(tmp_path / "x" / "traces.jsonl") for turn in t.turns]
    assert sum(turn.cut_off for turn in turns) >= 4
    assert any(turn.message["content"] == "beeksmart\n" for turn in turns)


# --- canary -----------------------------------------------------------------------------------


class RubricDesk(Desk):
    """A desk whose judge is a model with the default rubric."""

    def __init__(self, simulator: Any, judge: Any) -> None:
        super().__init__(simulator, judge)
        graded = RubricJudge(connect(judge, role="judge"))
        self.scoring = self.scoring.model_copy(update={"judge": graded})


def lenient(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Like `answer`, with a judge that is content with anything."""
    status, reply = answer(body)
    if body["model"] == "critic":
        verdict = '{"reason": "fine", "task_solved": 1, "grounded": 1}'
        reply["choices"][0]["message"] = {"role": "assistant", "content": verdict}
    return status, reply


def test_canary_finds_a_judge_that_is_content_with_anything(
    agentgym_command, model_server, tmp_path, monkeypatch
):
    monkeypatch.setattr(gymnasium.registry["CliDesk-v0"], "entry_point", RubricDesk)
    server = model_server(lenient)
    roles = roles_file(tmp_path, server.url)
    canary = desk("--roles", roles, "--canary", "shipped", "--canary-every", "2")
    code, out, _ = agentgym_command(*canary, "--out", "x")
    assert code == 0
    assert re.search(r"canary: 1 checks, 1 found drift; at the last, the judge is 0\.\d+ off", out)
    assert "bias +" in out
    code, _, err = agentgym_command(*canary, "--canary-stop", "--out", "y")
    assert code == 1
    assert "stopped after 2 episodes: the judge is" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--canary-stop"], "go with --canary"),
        (["--canary", "shipped"], "is for envs whose judge is a model with a rubric"),
    ],
)
def test_canary_that_makes_no_sense_is_refused(agentgym_command, args, message):
    shop = ("rollout", "--env", "agentgym/WebShop-v0", "--env-kwargs", "num_products=60")
    code, _, err = agentgym_command(*shop, "--policy", "rule", "-n", "1", "--quiet", *args)
    assert code == 1
    assert message in err
