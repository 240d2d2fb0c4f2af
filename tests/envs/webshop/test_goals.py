import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from agentgym.envs.webshop.files import read_folder
from agentgym.envs.webshop.goals import (
    SPLITS,
    build_goals,
    cumulative_weights,
    original_draw,
    split_of,
    split_range,
)
from agentgym.envs.webshop.products import build_catalogue
from agentgym.envs.webshop.shop import SplitDraw
from agentgym.errors import DataError


@pytest.mark.parametrize("kind", ["human", "synthetic"])
def test_goals_and_prices_are_the_originals(catalogue, load, kind):
    recorded = load(f"{kind}_goals.json.gz")
    table = build_goals(catalogue, kind=kind, data_seed=0)
    assert table.prices == recorded["product_prices"]
    assert len(table) == recorded["n_goals"]
    for goal, wanted in zip(table.goals, recorded["goals"], strict=True):
        found = goal.as_original(kind)
        assert found.pop("weight") == pytest.approx(wanted.pop("weight"), rel=1e-12)
        assert found == wanted


def test_nothing_global_is_touched_or_used(catalogue):
    random.seed(1)  # the point: the global generator has no say
    state = random.getstate()
    first = build_goals(catalogue, kind="synthetic", data_seed=5)
    assert random.getstate() == state
    random.random()
    assert build_goals(catalogue, kind="synthetic", data_seed=5).digest == first.digest
    assert build_goals(catalogue, kind="synthetic", data_seed=6).digest != first.digest


@pytest.mark.thorough
def test_goals_are_the_same_in_every_process(synth):
    program = (
        "import random, sys; from pathlib import Path; random.seed(int(sys.argv[2]));"
        "from agentgym.envs.webshop.shop import shared_world;"
        "world = shared_world(data=Path(sys.argv[1]), goals='human', data_seed=0);"
        "print(world.table.digest, world.shop.catalogue.digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, str(synth), seed],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("count", [1, 4, 5, 13, 64, 3000, 4999, 5000, 6910, 12087])
def test_splits_are_disjoint_and_cover_all_goals(count):
    ranges = [split_range(count, split) for split in SPLITS]
    assert sorted(number for numbers in ranges for number in numbers) == list(range(count))
    assert list(split_range(count, None)) == list(range(count))
    assert split_of(count, count - 1) == "train"


def test_large_data_is_split_as_the_original_does():
    assert split_range(12087, "test") == range(500)
    assert split_range(12087, "validation") == range(500, 1500)
    assert split_range(12087, "train") == range(1500, 12087)


def test_draw_is_proportional_to_weight():
    draw = SplitDraw(range(3), [1.0, 3.0, 4.0])
    counts = Counter(draw.at(share / 4000) for share in range(4000))
    assert counts == {0: 1000, 1: 2000, 2: 1000}


def test_original_draw_has_the_originals_fault():
    # Measured on the original with 4 equal weights: 0, 10122, 9865, 20013 of 40000.
    rng = random.Random(0)
    counts = Counter(original_draw([1.0, 2.0, 3.0, 4.0], rng) for _ in range(4000))
    assert counts[0] == 0
    assert [round(counts[n] / 1000) for n in (1, 2, 3)] == [1, 1, 2]


def test_limit_keeps_goals_of_the_full_table_without_repetition(catalogue):
    full = build_goals(catalogue, kind="human", data_seed=0)
    limited = build_goals(catalogue, kind="human", data_seed=0, limit=10)
    texts = [goal.instruction for goal in full.goals]
    assert len({goal.instruction for goal in limited.goals}) == 10
    assert all(goal.instruction in texts for goal in limited.goals)
    assert len(build_goals(catalogue, kind="human", data_seed=0, limit=1000)) == len(full)


def test_limit_of_all_but_one_goal_ends(catalogue):
    assert len(build_goals(catalogue, kind="human", data_seed=0, limit=63)) == 63


def test_weights_of_one_attribute_add_up_to_one(catalogue):
    table = build_goals(catalogue, kind="synthetic", data_seed=0)
    names = {name for goal in table.goals for name in goal.attributes}
    total = sum(goal.weight * len(goal.attributes) for goal in table.goals)
    assert total == pytest.approx(len(names))
    assert cumulative_weights(table.goals)[-1] == pytest.approx(sum(g.weight for g in table.goals))


def test_synthetic_goals_need_every_product_in_the_attributes_file(synth):
    raw = read_folder(synth)
    short = dict(list(raw.attributes.items())[1:])
    catalogue = build_catalogue(
        raw.__class__(raw.products, short, raw.human_instructions, raw.source)
    )
    with pytest.raises(DataError, match="not in the attributes file"):
        build_goals(catalogue, kind="synthetic", data_seed=0)


def test_data_without_goals_is_an_error(synth):
    raw = read_folder(synth)
    catalogue = build_catalogue(raw.__class__(raw.products, raw.attributes, {}, raw.source))
    with pytest.raises(DataError, match="has no human goal; try the other kind"):
        build_goals(catalogue, kind="human", data_seed=0)
