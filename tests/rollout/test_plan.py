"""Which episodes a run consists of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import ConfigError, UnknownTaskError
from agentgym.rollout.plan import first_tasks, named_tasks, plan_requests
from agentgym.rollout.request import derived_seed

TASKS = [f"t/{k}" for k in range(20)]


def test_a_hundred_indices_are_a_hundred_tasks():
    """D07: WebShop#44."""
    ids = [f"t/{k}" for k in range(500)]
    assert first_tasks(ids, None) == ids[:100]
    assert first_tasks(ids, 120) == ids[:120]
    assert first_tasks(TASKS, None) == TASKS


@pytest.mark.parametrize("n", [0, -1, 21])
def test_more_tasks_than_there_are_is_an_error(n):
    with pytest.raises(ConfigError, match="1 to 20"):
        first_tasks(TASKS, n)


def test_named_tasks_must_exist():
    assert named_tasks(TASKS, ["t/3", "t/1", "t/3"]) == ["t/3", "t/1"]
    with pytest.raises(UnknownTaskError, match=r"no task 't/99'.*'t/0' to 't/19'"):
        named_tasks(TASKS, ["t/99"])


def test_resume_asks_for_exactly_what_is_missing():
    """H05: inspect_ai#913."""
    done = {(f"t/{k}", 0) for k in range(12)}
    missing = plan_requests(TASKS, done=done)
    assert [request.task_id for request in missing] == TASKS[12:]
    assert missing == plan_requests(TASKS)[12:]


def test_resume_plays_a_half_done_group_as_a_whole_where_it_is_judged_as_one():
    done = {*((task, k) for task in TASKS[:2] for k in range(4)), ("t/2", 0), ("t/2", 3)}
    missing = plan_requests(TASKS[:4], samples=4, done=done, whole_groups=True)
    assert missing == plan_requests(TASKS[:4], samples=4)[8:]
    alone = plan_requests(TASKS[:4], samples=4, done=done)
    assert [(r.sample, r.group_size) for r in alone[:2]] == [(1, 2), (2, 2)]


def test_samples_of_a_task_form_a_group_with_one_seed():
    requests = plan_requests(TASKS[:2], samples=3, seed=5)
    assert [(r.task_id, r.sample, r.group) for r in requests[:4]] == [
        ("t/0", 0, "t/0"),
        ("t/0", 1, "t/0"),
        ("t/0", 2, "t/0"),
        ("t/1", 0, "t/1"),
    ]
    assert len({r.seed for r in requests}) == 2
    assert plan_requests(TASKS[:1])[0].group is None


def test_run_seed_changes_every_episode_seed():
    first, second = (plan_requests(TASKS, seed=seed) for seed in (0, 1))
    assert not {r.seed for r in first} & {r.seed for r in second}


@given(st.integers(0, 2**63), st.lists(st.integers() | st.text(), max_size=3))
def test_derived_seeds_are_small_and_repeatable(seed, parts):
    found = derived_seed(seed, *parts)
    assert 0 <= found < 2**31
    assert found == derived_seed(seed, *parts)


def test_derived_seed_is_the_same_in_every_version():
    assert derived_seed(0, 0, 0) == 1849625595
