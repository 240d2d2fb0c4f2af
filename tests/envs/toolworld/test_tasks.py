"""The tasks: enough of them, well posed, in splits that share no family."""

import json
from collections import Counter

import pytest

from agentgym.envs.toolworld.domains import CATALOGUES
from agentgym.envs.toolworld.env import ToolWorldEnv
from agentgym.envs.toolworld.tasks import changes

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def drawn():
    """Every task, by id."""
    env = ToolWorldEnv()
    tasks = env.tasks
    return {
        f"toolworld/{name}/{n}": tasks.draw(family, n)
        for name, family in tasks.families.items()
        for n in range(tasks.per_family)
    }


def test_there_are_many_tasks_of_many_kinds(drawn):
    assert len(drawn) >= 240
    assert len({task_id.rsplit("/", 1)[0] for task_id in drawn}) >= 12
    assert list(drawn) == list(ToolWorldEnv().task_ids())
    assert len({(task.prompt, json.dumps(task.state)) for task in drawn.values()}) == len(drawn)


@pytest.mark.parametrize("catalogue", CATALOGUES.values(), ids=list(CATALOGUES))
def test_a_domain_has_six_to_ten_tools_and_some_of_them_write(catalogue):
    effects = Counter(tool.effect for tool in catalogue.domain.tools())
    assert 6 <= effects.total() <= 10
    assert effects["read"] >= 4
    assert effects.total() - effects["read"] >= 2


def test_tasks_ask_for_values_for_changes_and_for_none(drawn):
    references = [task.reference for task in drawn.values()]
    assert sum(bool(reference.changes) for reference in references) > 100
    assert sum(not reference.answer.values for reference in references) > 20
    assert {"number", "date", "time", "name", "names"} == {r.answer.kind for r in references}


def test_none_is_a_small_share_of_every_familys_right_answers(drawn):
    """Otherwise an agent that always says none would be worth something."""
    nothing = Counter(
        task_id.rsplit("/", 1)[0]
        for task_id, task in drawn.items()
        if not task.reference.answer.values
    )
    assert max(nothing.values()) <= 0.5 * 12
    assert nothing.total() < 0.15 * len(drawn)


@pytest.mark.parametrize("seed", [0, 5])
def test_every_ten_tasks_have_their_share_of_none_and_no_wording_tells(seed):
    tasks = ToolWorldEnv(task_seed=seed, tasks_per_family=20).tasks
    worded = Counter()
    for family in tasks.families.values():
        none = [not tasks.draw(family, number).reference.answer.values for number in range(20)]
        for ten in (none[:10], none[10:]):
            assert abs(sum(ten) - 10 * family.template.none_share) < 1, family.name
        worded.update(number % 2 for number in range(20) if none[number])
    assert abs(worded[0] - worded[1]) < 0.3 * worded.total()


def test_no_number_is_the_answer_to_many_tasks_of_a_family(drawn):
    """Otherwise always saying it would be worth something."""
    numbers = Counter(
        (task_id.rsplit("/", 1)[0], str(task.reference.answer))
        for task_id, task in drawn.items()
        if task.reference.answer.kind in ("number", "time") and task.reference.answer.values
    )
    assert max(numbers.values()) <= 3, numbers.most_common(3)


def test_what_decides_a_task_can_only_be_known_by_looking(drawn):
    for task_id, task in drawn.items():
        ways = task.reference.evidence
        pieces = [piece for looks in ways for look in looks for piece in look]
        assert any(piece not in task.prompt and piece[-1].isdigit() for piece in pieces), task_id


def test_no_prompt_holds_its_answer(drawn):
    for task_id, task in drawn.items():
        for value in task.reference.answer.values:
            if len(value) >= 4:
                assert value.casefold() not in task.prompt.casefold(), task_id


def test_every_prompt_is_read_by_its_own_template_alone(drawn):
    templates = [
        (f"{catalogue.name}/{template.name}", template)
        for catalogue in CATALOGUES.values()
        for template in catalogue.templates
    ]
    for task_id, task in drawn.items():
        readers = [name for name, template in templates if template.read(task.prompt) is not None]
        assert [f"toolworld/{name}" for name in readers] == [task_id.rsplit("/", 1)[0]]


@pytest.mark.parametrize("catalogue", CATALOGUES.values(), ids=list(CATALOGUES))
def test_every_wording_of_a_template_names_the_same_particulars(catalogue):
    for template in catalogue.templates:
        gaps = {frozenset(template.read(wording) or ()) for wording in template.prompts}
        assert len(gaps) == 1
        assert len(template.prompts) >= 2


def test_a_family_is_in_one_split_and_two_domains_are_never_trained_on():
    splits = {
        split: ToolWorldEnv(split=split).tasks.families for split in ("train", "validation", "test")
    }
    names = [set(families) for families in splits.values()]
    assert sum(map(len, names)) == len(set.union(*names)) == len(ToolWorldEnv().tasks.families)
    assert all(names)
    trained = {name.split("/")[0] for name in splits["train"]}
    tested = {name.split("/")[0] for name in splits["test"]}
    assert tested - trained == {"clinic", "home"}


def test_a_task_depends_on_its_id_and_the_seed_alone(drawn):
    task_id = "toolworld/clinic/reschedule/3"
    for env in (ToolWorldEnv(tasks_per_family=4), ToolWorldEnv(split="validation")):
        again = env.tasks.draw(env.tasks.family("clinic/reschedule"), 3)
        assert again == drawn[task_id]
    other = ToolWorldEnv(task_seed=1)
    assert other.tasks.draw(other.tasks.family("clinic/reschedule"), 3) != drawn[task_id]


def test_tools_are_the_domains_own_and_distractors_in_an_order_of_the_tasks(drawn):
    own = {tool.name for tool in CATALOGUES["ledger"].domain.tools()}
    offered = [
        [tool.name for tool in task.tools]
        for task_id, task in drawn.items()
        if task_id.startswith("toolworld/ledger/")
    ]
    for names in offered:
        assert own <= set(names)
        assert len(set(names)) == len(names) == len(own) + 4
    assert len({tuple(names) for names in offered}) > 40
    bare = ToolWorldEnv(distractors=0).tasks
    tools = bare.draw(bare.family("ledger/top_merchant"), 0).tools
    assert {tool.name for tool in tools} == own


def test_changes_are_told_record_by_record_and_to_the_cent():
    before = {"a": {"k1": {"key": "k1", "x": 1.0}, "k2": {"key": "k2", "x": 2.0}}}
    after = {
        "a": {"k1": {"key": "k1", "x": 1.004}, "k9": {"key": "k9", "x": 3.0}},
        "b": {"m1": {"key": "m1"}},
    }
    assert changes(before, after) == {
        "a": {"created": [{"x": 3.0}], "deleted": ["k2"]},
        "b": {"created": [{}]},
    }
    assert changes(before, before) == {}
    moved = {"a": {**before["a"], "k1": {"key": "k1", "x": 1.01}}}
    assert changes(before, moved) == {"a": {"changed": {"k1": {"key": "k1", "x": 1.01}}}}


def test_two_new_records_are_told_apart_whatever_their_order():
    one, two = {"x": 1}, {"x": 2}
    first = {"a": {"n1": {"id": "n1", **one}, "n2": {"id": "n2", **two}}}
    second = {"a": {"n1": {"id": "n1", **two}, "n2": {"id": "n2", **one}}}
    assert changes({}, first) == changes({}, second)
    assert json.dumps(changes({}, first))
