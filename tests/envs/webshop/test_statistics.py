import pytest

from agentgym.envs.webshop import stats


def test_statistics_of_the_recorded_goals(synth, nouns_file, load):
    found = stats(data=synth, goals="human", nouns=str(nouns_file))
    assert (found.n_products, found.splits[-1].n_goals) == (65, 64)
    assert [split.split for split in found.splits] == ["train", "validation", "test", None]
    assert [split.n_goals for split in found.splits] == [40, 12, 12, 64]
    recorded = load("human_goals.json.gz")["goals"]
    wanting = [bool(goal["goal_options"]) for goal in recorded]
    bounded = [goal["price_upper"] < 1000 for goal in recorded]
    for split, first, last in zip(found.splits, (24, 12, 0, 0), (64, 24, 12, 64), strict=True):
        assert split.option_rate == pytest.approx(sum(wanting[first:last]) / (last - first))
        assert split.price_rate == pytest.approx(sum(bounded[first:last]) / (last - first))


@pytest.mark.parametrize("goals", ["human", "synthetic"])
def test_every_embedded_goal_can_be_solved(goals):
    for difficulty in ("tiny", "easy", "standard", "hard"):
        found = stats(goals=goals, num_products=200, difficulty=difficulty)
        assert all(split.oracle_success == 1.0 for split in found.splits)


def test_empty_splits_are_left_out(synth):
    found = stats(data=synth, limit_goals=3)
    assert [split.split for split in found.splits] == ["train", None]
