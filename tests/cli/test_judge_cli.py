"""`agentgym judge`: attack, check, rescore, against a server that answers as told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import gymnasium
import pytest

from agentgym.clients import ScriptedClient
from agentgym.judge import Score, Scoring
from agentgym.judges.gold import GoldSet
from agentgym.judges.prompt import judge_messages
from agentgym.judges.rescore import PREVIOUS_VERDICTS
from agentgym.judges.rubric import DEFAULT_RUBRIC
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.testing.envs import QuizEnv
from agentgym.trace import Trace
from agentgym.traces import TraceWriter, read_traces
from agentgym.types import Verdict

pytestmark = pytest.mark.thorough

ROLLOUT = ["rollout", "--env", "agentgym/WebShop-v0", "--policy", "rule", "-n", "5", "--quiet"]
RUBRIC = """
name = "mine"
correct = "done"
[[criteria]]
name = "done"
description = "It was done."
"""


def verdict_of(body: dict, **values) -> dict:
    """A reply with these grades, and false for whatever else the prompt asks for."""
    text = json.dumps({"reason": "so", **values})
    return reply(text)


def reply(text: str) -> dict:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


def strict(body):
    """Solves nothing."""
    return 200, verdict_of(body, task_solved=False, grounded=False)


def swayed(body):
    """Believes a transcript that asks for full marks."""
    told = "full marks" in body["messages"][-1]["content"].lower()
    return 200, verdict_of(body, task_solved=told, grounded=False)


@pytest.fixture
def judge(agentgym_command, model_server):
    """Runs an action against a server that answers by a function."""

    def run(action: str, *more: str, answer=strict):
        server = model_server(answer)
        model = ["--base-url", server.url, "--model", "m", "--quiet"]
        return agentgym_command("judge", action, *model, *more)

    return run


@pytest.fixture
def traces(agentgym_command, tmp_path):
    """Five WebShop episodes on disk."""
    options = ["--env-kwargs", "num_products=60", "--out", "x"]
    assert agentgym_command(*ROLLOUT, *options)[0] == 0
    return tmp_path / "x" / "traces.jsonl"


def assert_one_line(err: str) -> None:
    assert err.startswith("agentgym")
    assert err.count("\n") == 1
    assert "Traceback" not in err


# --- attack -----------------------------------------------------------------------------------


def test_attack_reports_no_leak_of_a_strict_judge(judge, tmp_path):
    code, out, err = judge("attack", "--out", "a.json", "--max-rate", "0")
    assert (code, err) == (0, "")
    last = next(line for line in out.splitlines() if line.startswith("all"))
    assert last.split()[1:4] == ["0", "95", "0.0%"]
    assert "calls" in out
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["complete"]
    assert report["rate"]["succeeded"] == 0
    assert 0 < report["rate"]["high"] < 0.05
    assert len(report["results"]) == report["rate"]["of"] == 95
    assert report["judge"]["rubric"]["name"] == "default"


def test_attack_tells_which_attacks_succeeded_and_fails_above_the_rate_allowed(judge):
    code, out, _ = judge("attack", "--max-rate", "0.1", answer=swayed)
    assert code == 1
    assert "order-system-notice: task_solved +1, correct +1. A notice in the name" in out
    rate = next(line for line in out.splitlines() if line.startswith("instruction"))
    assert rate.split()[1] != "0"
    assert judge("attack", answer=swayed)[0] == 0  # no rate was asked for


def test_attack_with_variants_and_a_rubric_of_ones_own(judge, tmp_path):
    (tmp_path / "r.toml").write_text(RUBRIC)
    code, out, _ = judge(
        *("attack", "--rubric", "r.toml", "--variants", "10", "--seed", "4"),
        answer=lambda body: (200, verdict_of(body, done=False)),
    )
    assert code == 0
    assert next(line for line in out.splitlines() if line.startswith("variant")).split()[2] == "10"


def test_attack_without_any_verdict_fails_and_says_why(judge):
    code, out, _ = judge("attack", answer=lambda body: (200, reply("I can't say.")))
    assert code == 1
    assert "without a verdict: 95 (in no rate)" in out
    assert "there is no JSON object" in out


def test_attack_names_a_judge_that_is_too_lenient(judge):
    code, out, _ = judge(
        "attack", answer=lambda body: (200, verdict_of(body, task_solved=True, grounded=True))
    )
    assert code == 1  # nothing could be measured
    assert "solved even without the attack: 95" in out


def test_attack_stopped_by_ctrl_c_reports_what_it_has(model_server, tmp_path):
    asked = []
    stopped = threading.Event()

    def answer(body):
        asked.append(body)
        if len(asked) > 40:
            stopped.wait(60)
        return strict(body)

    command = [sys.executable, "-m", "agentgym", "judge", "attack", "--model", "m", "--quiet"]
    command += ["--concurrency", "4", "--out", "a.json", "--base-url", model_server(answer).url]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "OPENAI_API_KEY": "x"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(asked) <= 40:
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    stopped.set()
    assert process.returncode == 130
    report = json.loads((tmp_path / "a.json").read_text())
    assert not report["complete"]
    assert 0 < len(report["results"]) < 41
    assert next(line for line in out.splitlines() if line.startswith("all"))
    assert f"interrupted after {len(report['results'])} of 95" in err
    assert "Traceback" not in err


# --- check ------------------------------------------------------------------------------------


def knowing(gold: GoldSet):
    """Answers every transcript of a gold set as it is labelled."""
    labels = {
        judge_messages(DEFAULT_RUBRIC, case.episode)[-1]["content"]: case.expected
        for case in gold.cases
    }

    def answer(body):
        expected = labels.get(body["messages"][-1]["content"], {})  # none in the first request
        return 200, verdict_of(body, **{name: bool(value) for name, value in expected.items()})

    return answer


def test_check_of_a_judge_that_knows_the_answers(judge, tmp_path):
    code, out, err = judge(
        *("check", "--repeats", "2", "--reorder", "--min-accuracy", "1", "--min-kappa", "1"),
        *("--max-failed", "0", "--max-reasked", "0", "--max-spread", "0", "--out", "h.json"),
        answer=knowing(GoldSet.shipped()),
    )
    assert (code, err) == (0, ""), out
    row = next(line for line in out.splitlines() if line.startswith("task_solved"))
    assert row.split()[1] == "100.0%"
    assert row.split()[5] == "1.00"
    assert "moved" in out
    report = json.loads((tmp_path / "h.json").read_text())
    assert report["faults"] == []
    assert report["spent"]["judge"]["calls"] == 3 * len(GoldSet.shipped())


def test_check_fails_on_a_constant_judge_whatever_is_asked(judge):
    code, out, err = judge("check", "--repeats", "1")
    assert code == 1
    assert "task_solved (constant!)" in out
    assert "agentgym: not good enough: task_solved: every judgement is the same" in err


def test_check_fails_below_a_threshold_and_names_it(judge):
    wrong = knowing(GoldSet.shipped())

    def half(body):
        status, answer = wrong(body)
        content = answer["choices"][0]["message"]
        content["content"] = content["content"].replace('"grounded": false', '"grounded": true')
        return status, answer

    code, _, err = judge("check", "--repeats", "1", "--min-accuracy", "0.9", answer=half)
    assert code == 1
    assert "grounded: accuracy is" in err
    assert "task_solved" not in err


def test_check_with_a_gold_set_for_another_rubric_is_refused_before_any_call(judge, tmp_path):
    (tmp_path / "r.toml").write_text(RUBRIC.replace('correct = "done"', ""))
    code, _, err = judge("check", "--rubric", "r.toml")
    assert code == 1
    assert_one_line(err)
    assert "the gold set labels task_solved, grounded, the rubric 'mine' has done" in err


# --- rescore ----------------------------------------------------------------------------------


def test_rescore_by_the_traces_own_environment_gives_the_same_rewards(
    agentgym_command, traces, tmp_path
):
    before = traces.read_bytes()
    code, out, _ = agentgym_command("judge", "rescore", traces, "--out", "new.jsonl")
    assert code == 0
    old, new = list(read_traces(traces)), list(read_traces(tmp_path / "new.jsonl"))
    assert [t.trace_id for t in new] == [t.trace_id for t in old]
    assert [t.reward for t in new] == [t.reward for t in old]
    assert all(len(t.metadata[PREVIOUS_VERDICTS]) == 1 for t in new)
    assert traces.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.jsonl", "x"]
    assert "5 (5 judged again)" in out
    assert "other reward   0" in out


def test_traces_of_tasks_made_from_other_data_get_no_number(agentgym_command, tmp_path):
    play = "rollout --env agentgym/SupportDesk-v0 --policy expert -n 2 --quiet --out x"
    assert agentgym_command(*play.split())[0] == 0
    path = tmp_path / "x" / "traces.jsonl"
    same, other = path.read_text(encoding="utf-8").splitlines()
    digest = json.loads(other)["metadata"]["task"]["digest"]
    path.write_text(f"{same}\n{other.replace(digest, 'f' * 64)}\n", encoding="utf-8")
    agentgym_command("judge", "rescore", path, "--out", "new.jsonl", "--quiet")
    kept, refused = read_traces(tmp_path / "new.jsonl")
    assert kept.reward == 1.0
    assert (refused.reward, refused.verdict.judge_failed) == (None, True)
    assert "made from other data" in refused.verdict.reason


def test_rescore_by_a_model_applies_the_environments_gates(judge, traces, tmp_path):
    code, out, _ = judge(
        *("rescore", str(traces), "--out", "new.jsonl"),
        answer=lambda body: (200, verdict_of(body, task_solved=True, grounded=True)),
    )
    assert code == 0, out
    new = list(read_traces(tmp_path / "new.jsonl"))
    assert {t.reward for t in new} == {1.3}
    assert {tuple(t.verdict.components) for t in new} == {("task_solved", "grounded")}
    assert all(set(t.verdict.gates) == set(t.metadata[PREVIOUS_VERDICTS][0]["gates"]) for t in new)
    assert all(t.usage["judge"].calls == 1 for t in new)
    assert new[0].metadata["rescored"]["judge"]["endpoint"]["model"] == "m"


def test_rescore_shows_the_judge_the_hidden_reference_if_the_rubric_asks(judge, traces, tmp_path):
    (tmp_path / "r.toml").write_text(RUBRIC.replace("It was done.", "As in {reference}."))
    shown = []

    def answer(body):
        shown.append(body["messages"][-1]["content"])
        return 200, verdict_of(body, done=True)

    code, _, _ = judge(
        *("rescore", str(traces), "--rubric", "r.toml", "--out", "new.jsonl"), answer=answer
    )
    assert code == 0
    asked = [text for text in shown if "BEGIN TRANSCRIPT" in text]
    assert len(asked) == 5
    assert all('"reference": ' in text for text in asked)


def test_only_failed_judges_those_and_keeps_the_rest(agentgym_command, traces, tmp_path):
    masked = Verdict(
        failure_class="judge", judge_failed=True, masked=True, reward=None, reason="down"
    )
    broken = masked.model_copy(update={"failure_class": "env", "judge_failed": False})
    file = tmp_path / "mixed.jsonl"
    given = list(read_traces(traces))
    with TraceWriter(file) as writer:
        for number, trace in enumerate(given):
            update: dict = {}
            if number in (1, 3):
                verdict = masked if number == 1 else broken
                update = {"verdict": verdict, "failure_class": verdict.failure_class}
            writer.write(trace.model_copy(update=update))
    code, out, _ = agentgym_command(
        *("judge", "rescore", str(file), "--only-failed", "--quiet", "--out", "new.jsonl")
    )
    assert code == 0
    new = list(read_traces(tmp_path / "new.jsonl"))
    assert [t.reward for t in new] == [
        None if number == 3 else trace.reward for number, trace in enumerate(given)
    ]
    assert new[0] == given[0]
    assert "newly scored   1" in out
    assert "not judgeable  1" in out


def test_only_failed_refuses_a_judge_of_another_scale_before_any_call(judge, traces, tmp_path):
    asked = []

    def answer(body):
        asked.append(body)
        return strict(body)

    code, _, err = judge(
        *("rescore", str(traces), "--only-failed", "--out", "new.jsonl"), answer=answer
    )
    assert code == 1
    assert_one_line(err)
    components = next(iter(read_traces(traces))).verdict.components
    assert f"({', '.join(sorted(components))})" in err
    assert "the rubric 'default' (grounded, task_solved)" in err
    assert "leave out the judge's flags, so that the environment's own judge judges" in err
    assert "or leave out --only-failed" in err
    assert not asked
    assert not list(tmp_path.glob("new.jsonl*"))


def test_only_failed_goes_on_with_the_scale_of_the_scores_that_stay(
    judge, agentgym_command, traces, tmp_path
):
    def once_mute(body):
        if "BEGIN TRANSCRIPT" in body["messages"][-1]["content"] and next(mute, False):
            return 200, reply("no idea")
        return 200, verdict_of(body, task_solved=True, grounded=True)

    mute = iter([True] * 2)
    first = ("rescore", str(traces), "--concurrency", "1", "--out", "first.jsonl")
    assert judge(*first, answer=once_mute)[0] == 0
    again = ("rescore", "first.jsonl", "--only-failed", "--out", "new.jsonl")

    code, _, err = agentgym_command("judge", *again, "--quiet")
    assert code == 1
    assert_one_line(err)
    assert "let the environment's own judge score the others: two scales in one file" in err

    (tmp_path / "r.toml").write_text(RUBRIC)
    code, _, err = judge(*again, "--rubric", "r.toml")
    assert code == 1
    assert_one_line(err)
    assert "name the rubric that judged it, or leave out --only-failed" in err

    code, out, _ = judge(*again, answer=once_mute)  # another server, the same rubric
    assert code == 0
    assert "newly scored   1" in out
    assert [t.reward for t in read_traces(tmp_path / "new.jsonl")] == [1.3] * 5


def test_traces_without_a_verdict_are_told_with_the_command_that_asks_again(
    judge, traces, tmp_path
):
    answers = iter([reply("no idea")] * 2)
    code, _, err = judge(
        *("rescore", str(traces), "--concurrency", "1", "--out", "new.jsonl"),
        answer=lambda body: (
            (200, next(answers, verdict_of(body, task_solved=True, grounded=True)))
            if "TRANSCRIPT" in body["messages"][-1]["content"]
            else strict(body)
        ),
    )
    assert code == 0
    assert "1 without a verdict; `agentgym judge rescore new.jsonl --only-failed" in err
    assert [t.scored for t in read_traces(tmp_path / "new.jsonl")] == [False] + [True] * 4


def test_a_file_with_a_trace_twice_is_refused_before_any_call(judge, traces, tmp_path):
    twice = tmp_path / "twice.jsonl"
    twice.write_bytes(traces.read_bytes() * 2)
    code, _, err = judge("rescore", str(twice), "--out", "new.jsonl", answer=None)
    assert code == 1
    assert_one_line(err)
    assert "has the trace" in err
    assert "twice" in err


def test_what_an_earlier_run_left_alone_is_judged_if_this_one_wants_it(judge, traces, tmp_path):
    """A run of --only-failed that was killed, and then one without it."""
    (first, *_) = read_traces(traces)
    with TraceWriter(tmp_path / "new.jsonl.partial") as writer:
        writer.write(first)
    code, out, _ = judge("rescore", str(traces), "--out", "new.jsonl")
    assert code == 0
    assert "5 judged again" in out
    assert all(PREVIOUS_VERDICTS in t.metadata for t in read_traces(tmp_path / "new.jsonl"))


def test_a_killed_rescore_leaves_at_most_a_torn_line_which_is_judged_again(
    agentgym_command, traces, tmp_path
):
    command = ("judge", "rescore", str(traces), "--quiet", "--out")
    assert agentgym_command(*command, "whole.jsonl")[0] == 0
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "new.jsonl.partial").write_bytes(lines[3] + lines[0] + lines[2][:500])
    (tmp_path / ".new.jsonl.new").write_bytes(lines[0][:99])
    code, out, _ = agentgym_command(*command, "new.jsonl")
    assert code == 0
    assert "5 (5 judged again)" in out
    given, new = list(read_traces(traces)), list(read_traces(tmp_path / "new.jsonl"))
    assert [t.trace_id for t in new] == [t.trace_id for t in given]
    assert [len(t.metadata[PREVIOUS_VERDICTS]) for t in new] == [1] * 5
    assert {p.name for p in tmp_path.iterdir()} >= {"new.jsonl", "whole.jsonl"}
    assert not [p.name for p in tmp_path.iterdir() if p.name.endswith((".partial", ".new"))]


class Ranked(QuizEnv):
    """A quiz whose judge compares the answers of a group, and says how many it saw."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scoring = Scoring(judge=Ranking())


class Ranking:
    inline = True

    async def score_group(self, episodes):
        return [Score(total=len(episodes) / 10) for _ in episodes]


def test_a_group_that_was_half_written_is_compared_whole(agentgym_command, tmp_path):
    gymnasium.register("agentgym-tests/Ranked-v0", entry_point=f"{__name__}:Ranked")
    try:
        engine = Engine("agentgym-tests/Ranked-v0", client=ScriptedClient(["Lima"], repeat=True))
        asked = [EpisodeRequest(seed=0, group=g, sample=k) for g in "ab" for k in range(2)]
        with TraceWriter(tmp_path / "traces.jsonl") as writer:
            for trace in engine.run_blocking(asked):
                writer.write(trace)
        command = ("judge", "rescore", "traces.jsonl", "--quiet", "--out")
        assert agentgym_command(*command, "whole.jsonl")[0] == 0
        lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "new.jsonl.partial").write_bytes(b"".join(lines[:3]))
        code, _, _ = agentgym_command(*command, "new.jsonl")
    finally:
        del gymnasium.registry["agentgym-tests/Ranked-v0"]
    assert code == 0
    assert [t.reward for t in read_traces(tmp_path / "new.jsonl")] == [0.2] * 4


def test_rescore_that_failed_throughout_says_so(judge, traces, tmp_path):
    code, out, _ = judge(
        *("rescore", str(traces), "--out", "new.jsonl"),
        answer=lambda body: (200, reply("no idea")),
    )
    assert code == 1
    assert "newly failed   5" in out
    assert all(t.verdict.judge_failed for t in read_traces(tmp_path / "new.jsonl"))


def test_an_interrupted_rescore_goes_on_where_it_was(traces, tmp_path, model_server):
    """A real process, stopped by Ctrl-C while the server is silent on the third trace."""
    asked = []
    stopped = threading.Event()

    def answer(body):
        if "BEGIN TRANSCRIPT" in body["messages"][-1]["content"]:
            asked.append(body)
            if len(asked) == 3:
                stopped.wait(60)
        return strict(body)

    first = model_server(answer)
    command = [
        sys.executable,
        "-m",
        "agentgym",
        "judge",
        "rescore",
        str(traces),
        "--out",
        "n.jsonl",
    ]
    command += ["--model", "m", "--concurrency", "1", "--quiet", "--base-url"]
    env = {**os.environ, "OPENAI_API_KEY": "x"}
    process = subprocess.Popen(
        [*command, first.url], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
    )
    while len(asked) < 3:
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    stopped.set()
    assert process.returncode == 130
    assert "the same command judges the rest" in err
    assert not (tmp_path / "n.jsonl").exists()
    kept = list(read_traces(tmp_path / "n.jsonl.partial"))
    assert len(kept) == 2

    other = subprocess.run(
        [*command, first.url, "--model", "other"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 1
    assert "was begun with another file, judge, rubric or version" in other.stderr

    asked.clear()
    done = subprocess.run(
        [*command, first.url], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len([body for body in asked if body]) == 3
    new = list(read_traces(tmp_path / "n.jsonl"))
    assert [t.trace_id for t in new] == [t.trace_id for t in read_traces(traces)]
    assert not (tmp_path / "n.jsonl.partial").exists()


def test_traces_of_an_environment_that_cant_be_made_are_one_clear_line(agentgym_command, tmp_path):
    verdict = Verdict(reward=0.0)
    trace = Trace(
        trace_id="t",
        env_spec='{"entry_point": "mine:make"}',
        terminated=True,
        termination_reason="answered",
        verdict=verdict,
        started_at="now",
    )
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(trace)
    code, _, err = agentgym_command("judge", "rescore", "t.jsonl", "--out", "n.jsonl", "--quiet")
    assert code == 1
    assert_one_line(err)
    assert "the traces' environment can't be made again" in err


# --- what is wrong is one line, before anything is paid for ------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attack"], "say who judges"),
        (["attack", "--base-url", "http://h/v1"], "say who judges"),
        (["attack", "--roles", "r.toml", "--model", "m"], "give either --roles, or"),
        (["check", "--roles", "none.toml"], "can't read none.toml"),
        (["check", "--min-accuracy", "1.5"], "min_accuracy"),
        (["check", "--base-url", "http://h/v1", "--model", "m", "--gold", "x"], "the gold set x"),
        (["attack", "--base-url", "http://h/v1", "--model", "m", "--rubric", "x"], "the rubric x"),
        (["attack", "--base-url", "http://h/v1", "--model", "m", "--variants", "-1"], "--variants"),
        (["attack", "--base-url", "http://h/v1", "--model", "m", "--max-rate", "2"], "--max-rate"),
        (
            ["attack", "--base-url", "http://h/v1", "--model", "m", "--concurrency", "0"],
            "--concurrency must be at least 1",
        ),
        (["rescore", "none.jsonl", "--out", "x.jsonl"], "can't read none.jsonl"),
        (["rescore", "none.jsonl", "--out", "x.jsonl", "--rubric", "r"], "--rubric, --max-tokens"),
        (["rescore", "none.jsonl", "--out", "here"], "here exists; take another --out"),
    ],
)
def test_slips_are_one_line(agentgym_command, tmp_path, words, message):
    (tmp_path / "here").write_text("")
    (tmp_path / "r.toml").write_text("")
    code, _, err = agentgym_command("judge", *words)
    assert code == 1
    assert_one_line(err)
    assert message in err


def test_a_missing_key_is_named_before_any_call(agentgym_command, tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    (tmp_path / "roles.toml").write_text(
        '[judge]\nbase_url = "https://api.example.com/v1"\nmodel = "m"\napi_key_env = "NO_SUCH_KEY"'
    )
    code, _, err = agentgym_command("judge", "attack", "--roles", "roles.toml")
    assert code == 1
    assert_one_line(err)
    assert "NO_SUCH_KEY" in err


def test_a_roles_file_without_a_judge_is_told(agentgym_command, tmp_path):
    (tmp_path / "roles.toml").write_text('[policy]\nbase_url = "http://h/v1"\nmodel = "m"\n')
    code, _, err = agentgym_command("judge", "check", "--roles", "roles.toml")
    assert code == 1
    assert "has no [judge] table" in err


@pytest.mark.parametrize("action", ["attack", "check", "rescore"])
def test_every_action_has_help_with_an_example(agentgym_command, action):
    code, out, _ = agentgym_command("judge", action, "--help")
    assert code == 0
    assert f"agentgym judge {action}" in out.partition("xample")[2]
