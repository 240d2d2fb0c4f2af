"""The scripted policies: the expert at the top, every shortcut at the bottom."""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from agentgym.client import SamplingParams
from agentgym.envs.supportdesk.env import DEFAULT_MAX_TURNS, SupportDeskEnv
from agentgym.envs.supportdesk.policies import POLICIES
from agentgym.envs.supportdesk.stubs import STUBS
from agentgym.envs.supportdesk.tasks.table import SPLITS
from agentgym.rollout.policies import named_policy, random_policy

pytestmark = pytest.mark.thorough

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "supportdesk.json"


def _verdicts(play, policy, ids, seed=0):
    env = SupportDeskEnv()
    return [play(env, policy, task_id, seed=seed)["verdict"] for task_id in ids]


@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_solves_every_split(play, split):
    ids = SupportDeskEnv(split=split).task_ids()
    verdicts = _verdicts(play, POLICIES["expert"](None, 0), ids)
    assert fmean(bool(v.correct) for v in verdicts) >= 0.95
    assert fmean(v.reward for v in verdicts) >= 0.95


@pytest.mark.parametrize("seed", [1, 2])
def test_the_expert_solves_them_whatever_the_user_says_it_with(play, seed):
    ids = SupportDeskEnv().task_ids()[seed::7]
    verdicts = _verdicts(play, POLICIES["expert"](None, 0), ids, seed=seed)
    assert fmean(bool(v.correct) for v in verdicts) >= 0.95


def test_the_expert_solves_another_shop(play):
    env = SupportDeskEnv(data_seed=7, tasks_per_family=2)
    verdicts = [
        play(env, POLICIES["expert"](None, 0), task_id)["verdict"] for task_id in env.task_ids()
    ]
    assert fmean(bool(v.correct) for v in verdicts) >= 0.95


def test_ten_shortcuts_and_more_are_known():
    assert len(STUBS) >= 11
    assert "nothing" in STUBS


@pytest.mark.parametrize("name", STUBS)
def test_a_shortcut_is_at_the_bottom(play, name):
    ids = [t for t in SupportDeskEnv().task_ids() if t.endswith("/7")]
    verdicts = _verdicts(play, STUBS[name], ids)
    assert fmean(bool(v.correct) for v in verdicts) <= 0.05
    assert fmean(v.reward for v in verdicts) <= -0.85


@pytest.mark.parametrize("name", ["nothing", "refuse", "transfer", "claim", "recite", "snoop"])
def test_a_blind_policy_gets_the_floor_in_every_task(play, name):
    ids = [t for t in SupportDeskEnv().task_ids() if t.endswith("/4")]
    assert {v.reward for v in _verdicts(play, STUBS[name], ids)} == {-1.0}


def test_doing_nothing_never_beats_trying(play):
    ids = [t for t in SupportDeskEnv().task_ids() if t.endswith("/4")]
    idle = [v.reward for v in _verdicts(play, STUBS["nothing"], ids)]
    for name in POLICIES:
        tried = [v.reward for v in _verdicts(play, POLICIES[name](None, 0), ids)]
        assert all(low <= reward for low, reward in zip(idle, tried, strict=True))


def test_the_random_policy_is_at_the_bottom(play):
    policy = lambda messages, info: random_policy(  # noqa: E731
        messages, info, SamplingParams(seed=len(messages))
    )
    ids = [t for t in SupportDeskEnv().task_ids() if t.endswith("/0")]
    assert {v.reward for v in _verdicts(play, policy, ids)} == {-1.0}


def test_policies_are_found_by_name():
    env = SupportDeskEnv()
    for name in ("expert", "nothing", "random"):
        assert callable(named_policy(env, name, seed=0))


def test_the_cap_leaves_room_for_half_as_much_again_as_the_expert_takes(play):
    env = SupportDeskEnv()
    longest = 0
    for task_id in env.task_ids()[::4]:
        play(env, POLICIES["expert"](None, 0), task_id)
        longest = max(longest, len(env.running.records))
    assert 1.5 * longest <= DEFAULT_MAX_TURNS


def test_the_committed_scores_are_those_of_the_code(play):
    committed = json.loads(RESULTS.read_text(encoding="utf-8"))
    env = SupportDeskEnv()
    assert committed["digest"] == env.table.digest, "run benchmarks/supportdesk.py again"
    assert set(committed["scores"]) == {*POLICIES, "random"}
    for name in ("expert", "one_excuse"):
        verdicts = _verdicts(play, POLICIES[name](None, 0), env.table.ids("validation"))
        assert committed["scores"][name]["validation"] == {
            "success": round(fmean(bool(v.correct) for v in verdicts), 4),
            "reward": round(fmean(v.reward for v in verdicts), 4),
        }


def _bold(text):
    return re.sub(r"(W\d{7}|\$[\d,.]+\d)", r"**\1**", text).replace("'", "’")


def _listed(text):
    """A proposal as a model lays it out: an introduction, a list, a question."""
    plan, asks, _ = text.partition(" Shall I go ahead?")
    points = "\n".join(f"- **Point:** {part}" for part in plan.split(". "))
    return f"Here's what I would do:\n\n{points}\n\nAre you okay with this?" if asks else text


MANNERS = {
    "listed": _listed,
    "foreign": lambda text: text.replace("Shall I go ahead?", "You are agree that I do it?"),
    "terse": lambda text: text.replace("Shall I go ahead?", "OK?"),
    "warm": lambda text: f"I completely understand. {text}\n\nLet me know if you have questions.",
    "formal": lambda text: text.replace(
        "Shall I go ahead?", "Please confirm with yes if you'd like me to proceed, or no if not."
    ),
    "casual": lambda text: text.replace("Shall I go ahead?", "Sound good? Just say yes!"),
    "checking": lambda text: f"One moment, let me check that for you... Okay! {text}",
    "apologetic": lambda text: f"I apologize for this. {text} Is there anything else I can do?",
    "bold": _bold,
}


@pytest.mark.parametrize("manner", MANNERS)
def test_the_scripted_user_understands_other_manners_of_speaking(play, manner):
    meant = {}

    def policy(messages, info):
        read = [{**m, "content": meant.get(m.get("content"), m.get("content"))} for m in messages]
        action = POLICIES["expert"](None, 0)(read, info)
        if not isinstance(action, str):
            return action
        said = MANNERS[manner](action)
        meant[said] = action
        return said

    ids = [t for t in SupportDeskEnv().task_ids() if t.endswith("/5")]
    verdicts = _verdicts(play, policy, ids)
    assert fmean(v.reward for v in verdicts) >= 0.95
