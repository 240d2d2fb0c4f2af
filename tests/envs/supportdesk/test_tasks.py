"""The task table: what there is, that it is consistent, and that it never changes by itself."""

import hashlib
import random
import subprocess
import sys
from collections import Counter

import pytest

from agentgym.envs.supportdesk.env import SupportDeskEnv
from agentgym.envs.supportdesk.reference import apply
from agentgym.envs.supportdesk.store import Store, changes
from agentgym.envs.supportdesk.tasks.table import (
    FAMILIES,
    TASKS_PER_FAMILY,
    TaskTable,
    shared_table,
)
from agentgym.errors import ConfigError, UnknownTaskError
from agentgym.simulators.user_script import read_script


@pytest.fixture(scope="module")
def table():
    return shared_table(0, TASKS_PER_FAMILY)


def test_there_are_hundreds_of_tasks_of_more_than_a_dozen_families(table):
    families = {task.metadata["family"] for task in table.tasks.values()}
    assert len(table.tasks) >= 200
    assert len(families) >= 12


def test_splits_hold_different_families_and_no_task_twice(table):
    by_family = {}
    for task in table.tasks.values():
        by_family.setdefault(task.metadata["family"], set()).add(task.split)
    assert all(len(splits) == 1 for splits in by_family.values())
    assert {next(iter(s)) for s in by_family.values()} == {"train", "validation", "test"}
    scenarios = [scenario.model_dump_json() for scenario in table.scenarios.values()]
    assert len(set(scenarios)) == len(scenarios)


def test_every_kind_of_task_is_in_every_split(table):
    kinds = Counter()
    for task in table.tasks.values():
        reference = task.reference
        refused = any(told.refusal for told in reference.told)
        kind = "write" if not reference.changes_nothing else "refuse" if refused else "transfer"
        kinds[task.split, kind] += 1
    assert all(kinds[split, kind] for split in FAMILIES for kind in ("write", "refuse", "transfer"))


def test_some_tasks_have_several_right_outcomes(table):
    assert sum(len(task.reference.outcomes) > 1 for task in table.tasks.values()) >= 3


@pytest.mark.thorough
def test_every_right_outcome_can_be_reached_and_changes_what_it_says(table):
    for task in table.tasks.values():
        for writes in task.reference.outcomes:
            store = Store(table.image)
            apply(store, writes)
            found = changes(table.rows, store.rows())
            store.close()
            assert bool(found) == bool(writes), task.task_id
            touched = {row[0] for both in found.values() for row in both["added"]}
            assert all(w.arguments["order_id"] in touched | _orders_of(found) for w in writes)


def _orders_of(found):
    items = found.get("order_items", {"added": []})["added"]
    ledger = found.get("ledger", {"added": []})["added"]
    return {row[1] for row in items} | {row[0] for row in ledger}


def test_scenarios_facts_are_the_databases(table):
    store = Store(table.image)
    for task_id, scenario in table.scenarios.items():
        reference = table.tasks[task_id].reference
        row = store.one("SELECT * FROM customers WHERE customer_id = ?", reference.customer_id)
        assert scenario.facts["email"] == row["email"]
        assert scenario.facts["name"] == f"{row['first_name']} {row['last_name']}"
        assert scenario.facts["zip"] == row["zip"]
        for order_id in reference.look_up:
            order = store.one("SELECT * FROM orders WHERE order_id = ?", order_id)
            others = task_id.startswith("supportdesk/others_order/")
            assert (order["customer_id"] == reference.customer_id) != others
    store.close()


def test_every_script_is_sound(table):
    for scenario in table.scenarios.values():
        assert read_script(scenario.script, scenario.facts).requests


def test_customers_can_be_told_apart_but_for_the_namesakes(table):
    people = Counter((row[1], row[2], row[7]) for row in table.rows["customers"])
    namesakes = [task for task in table.tasks if task.startswith("supportdesk/namesake/")]
    assert sum(count == 2 for count in people.values()) == len(namesakes)
    assert max(people.values()) == 2
    emails = [row[3] for row in table.rows["customers"]]
    assert len(set(emails)) == len(emails)


def test_ids_are_unique_over_all_tables(table):
    keys = ("customers", "payment_methods", "products", "variants", "orders", "order_items")
    ids = [row[0] for name in keys for row in table.rows[name]]
    assert len(set(ids)) == len(ids)


def test_products_have_stock_and_want_of_it(table):
    stock = {}
    for row in table.rows["variants"]:
        stock.setdefault(row[1], []).append(row[4])
    assert all(sum(s > 0 for s in each) >= 2 and 0 in each for each in stock.values())


def test_same_seed_same_table_and_another_seed_another():
    first, again, other = (TaskTable(seed, 2) for seed in (3, 3, 4))
    assert first.digest == again.digest
    assert first.image == again.image
    assert first.digest != other.digest


@pytest.mark.thorough
def test_table_is_the_same_in_a_process_with_other_hashes():  # case D03
    program = (
        "import random; random.seed(5)\n"
        "from agentgym.envs.supportdesk.tasks.table import TaskTable\n"
        "table = TaskTable(0, 2)\n"
        "import hashlib; print(table.digest, hashlib.sha256(table.image).hexdigest())"
    )
    env = {"PYTHONHASHSEED": "1", "PATH": ""}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env
    )
    table = TaskTable(0, 2)
    assert result.stdout.split() == [table.digest, hashlib.sha256(table.image).hexdigest()]


def test_making_a_table_leaves_the_global_generator_alone():
    state = random.getstate()
    TaskTable(9, 1)
    assert random.getstate() == state


def test_tasks_are_drawn_evenly(env):
    env.reset(seed=0)
    drawn = Counter(env.choose_task({}).metadata["family"] for _ in range(5000))
    assert len(drawn) == 25
    assert max(drawn.values()) < 1.4 * min(drawn.values())


def test_ids_can_be_enumerated_and_asked_for_by_split():  # case D07
    env = SupportDeskEnv(split="validation")
    ids = env.task_ids()
    assert len(set(ids)) == len(ids) == 6 * TASKS_PER_FAMILY
    assert {env.reset(options={"task_id": task_id})[1]["task_id"] for task_id in ids} == set(ids)
    with pytest.raises(UnknownTaskError, match="in split 'validation'"):
        env.reset(options={"task_id": "supportdesk/cancel/0"})
    with pytest.raises(UnknownTaskError, match="there are 'supportdesk/change_payment/0'"):
        env.reset(options={"task_id": 3})


@pytest.mark.parametrize(
    ("kwargs", "fault"),
    [
        ({"split": "dev"}, "split must be 'train'"),
        ({"data_seed": -1}, "data_seed"),
        ({"data_seed": True}, "data_seed"),
        ({"tasks_per_family": 0}, "tasks_per_family"),
        ({"prompt": 3}, "prompt"),
        ({"gates": ["no_such"]}, "no_such"),
        ({"gates": [{"name": "wrong_customer", "weight": 1}]}, "weight"),
        ({"simulator": 3}, "simulator"),
        ({"judge": 3}, "judge"),
        ({"simulator": {"base_url": "http://localhost:1"}}, "model"),
    ],
)
def test_wrong_parameters_are_refused_by_name(kwargs, fault):
    with pytest.raises(ConfigError, match=fault):
        SupportDeskEnv(**kwargs)


def test_every_order_was_promised_shipped_and_delivered_after_it_was_placed(table):
    for order_id, _, _, placed, promised, shipped, delivered, *_ in table.rows["orders"]:
        days = [placed, *(day for day in (shipped, delivered) if day)]
        assert days == sorted(days), order_id
        assert placed < promised, order_id
