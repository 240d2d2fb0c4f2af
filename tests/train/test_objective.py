"""What the optimiser gets of an episode: by hand, without a trainer."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from played import played

from agentgym.errors import ConfigError, TrainingError
from agentgym.gates import Gate
from agentgym.judge import Score, Scoring
from agentgym.judges.episodes import episode_from_messages
from agentgym.train.advantages import group_advantages, informative
from agentgym.train.algorithms import PRESETS, preset, refill_rounds
from agentgym.train.config_reading import read_config
from agentgym.train.episode_trainer import leave_one_out_factors
from agentgym.train.objective import (
    TRUNCATED,
    Objective,
    Settled,
    masked_shares,
    rewards_by_group,
    without_lone,
)
from agentgym.train.refill import further_tasks, refill
from agentgym.types import Episode, Task, Verdict

NAN = math.nan


def settle(trace: Any, **rules: Any) -> Settled:
    return Objective(**rules).settle(trace, filler_id=3)


# --- one episode --------------------------------------------------------------------------------


def test_scored_episode_keeps_its_reward_and_its_mask() -> None:
    settled = settle(played(0.25))
    assert (settled.reward, settled.masked_by) == (0.25, None)
    assert settled.row.env_mask == [1, 1]


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e39, 3e38, -1e19])
def test_reward_that_float32_cannot_compare_takes_the_vote_and_is_counted(reward: float) -> None:
    """A verdict refuses such numbers; what came past it (`model_construct`) stops here."""
    broken = Verdict.model_construct(reward=reward, masked=False, components={}, gates={})
    trace = played(1.0).model_copy(update={"verdict": broken})
    settled = settle(trace)
    assert (settled.reward, settled.masked_by) == (None, "nonfinite")
    assert not any(settled.row.env_mask)
    assert masked_shares([settled.masked_by, None])["masked/nonfinite"] == 0.5


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_verdict_and_score_refuse_a_reward_that_is_not_finite(reward: float) -> None:
    for make in (lambda: Verdict(reward=reward), lambda: Score(total=reward)):
        with pytest.raises(ValueError, match="finite"):
            make()


def test_row_that_cannot_be_trusted_has_no_vote_although_it_was_judged() -> None:
    trace = played(1.0)
    turn = trace.turns[0].model_copy(update={"logprobs": None})
    settled = settle(trace.model_copy(update={"turns": (turn,)}))
    assert (settled.reward, settled.masked_by) == (None, "row")


@pytest.mark.parametrize(
    ("cut", "choice", "reward", "rule"),
    [
        ("turns", {}, 0.5, None),
        ("tokens", {}, 0.5, None),
        ("context", {}, 0.5, None),
        ("time", {}, None, "truncated"),
        ("turns", {"turns": "mask"}, None, "truncated"),
        ("tokens", {"turns": "mask"}, 0.5, None),
        ("context", {"context": "floor"}, -1.0, None),
        (None, {"turns": "mask", "context": "floor"}, 0.5, None),
    ],
)
def test_truncated_episode_counts_as_chosen_for_its_limit(
    cut: Any, choice: Any, reward: float | None, rule: str | None
) -> None:
    settled = settle(played(0.5, cut=cut), truncated={**TRUNCATED, **choice}, floor=-1.0)
    assert (settled.reward, settled.masked_by) == (reward, rule)
    assert any(settled.row.env_mask) == (reward is not None)


@pytest.mark.parametrize("choice", ["train", "mask", "floor"])
def test_truncation_choice_never_gives_an_unscored_episode_a_reward(choice: Any) -> None:
    rules = dict.fromkeys(TRUNCATED, choice)
    settled = settle(played(None, cut="turns"), truncated=rules, floor=-1.0)
    assert (settled.reward, settled.masked_by) == (None, "unscored")


class _Sure:
    inline = True

    async def score(self, episode: Episode) -> Score:
        return Score(total=1.0)


@pytest.mark.parametrize(("tripped", "reward"), [(True, -1.0), (False, 1.0)])
def test_floor_gate_pins_to_the_bottom_of_the_range_the_truncation_floor_uses(
    tripped: bool, reward: float
) -> None:
    gate = Gate(name="cheated", tripped=lambda episode: tripped, floor=True)
    scoring = Scoring(judge=_Sure(), gates=(gate,))
    episode = episode_from_messages(
        [{"role": "user", "content": "say"}, {"role": "assistant", "content": "yes"}],
        task=Task(task_id="t"),
    )
    verdict = asyncio.run(scoring.verdict(episode))
    assert settle(played(0.0, verdict=verdict)).reward == reward
    assert scoring.reward_range[0] == -1.0


# --- a group ------------------------------------------------------------------------------------


def grouped(rewards: Sequence[float | None], group: str) -> list[Settled]:
    return [settle(played(reward, group=group)) for reward in rewards]


def lone(settled: list[Settled]) -> list[Settled]:
    return without_lone(settled, rewards_by_group((s.trace.group, s.reward) for s in settled))


def test_only_scored_rollout_of_a_group_loses_its_vote() -> None:
    rows = [*grouped([1.0, None, 0.0], "a"), *grouped([None, 5.0, None], "b")]
    found = lone(rows)
    assert [s.reward for s in found] == [1.0, None, 0.0, None, None, None]
    assert [s.masked_by for s in found] == [None, "unscored", None, "unscored", "alone", "unscored"]
    assert not any(found[4].row.env_mask)
    assert masked_shares([s.masked_by for s in found])["masked/alone"] == pytest.approx(1 / 6)


def test_group_that_is_spread_over_processes_is_counted_whole() -> None:
    """The other half of group a, which another process holds, has a scored rollout too."""
    here = grouped([1.0, None], "a")
    elsewhere = [("a", 0.0), ("a", None)]
    groups = rewards_by_group(
        ((s.trace.group, s.reward) for s in here), lambda pairs: [*pairs, *elsewhere]
    )
    assert [s.reward for s in without_lone(here, groups)] == [1.0, None]
    assert [s.reward for s in lone(here)] == [None, None]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0.0, 1.0], True),
        ([0.0, 0.0, None], False),
        ([1.0, None, None], False),
        ([None, None], False),
        ([0.3, 0.1 + 0.2], False),  # equal but for rounding
        ([None, 0.5, 0.25], True),
    ],
)
def test_informative_means_two_scored_that_differ(rewards: Any, expected: bool) -> None:
    assert informative(rewards) is expected


@pytest.mark.parametrize(
    ("algorithm", "rewards", "expected"),
    [
        # mean 2, deviation 1
        ("grpo", [1, 3, 2, NAN], [-1 / 1.0001, 1 / 1.0001, 0, 0]),
        ("dapo", [1, 3, 2, NAN], [-1 / 1.0001, 1 / 1.0001, 0, 0]),
        ("dr_grpo", [1, 3, 2, NAN], [-1, 1, 0, 0]),
        # against the mean of the others: 2.5, 1.5, 2
        ("rloo", [1, 3, 2, NAN], [-1.5, 1.5, 0, 0]),
        # a real zero votes: mean 1.5, the others' means 5/3, 1, 4/3, 2
        ("dr_grpo", [1, 3, 2, 0], [-0.5, 1.5, 0.5, -1.5]),
        ("rloo", [1, 3, 2, 0], [-2 / 3, 2, 2 / 3, -2]),
        ("grpo", [1, NAN, 0, 1], [1 / 3 / (3**-0.5 + 1e-4), 0, -2 / 3 / (3**-0.5 + 1e-4),
                                  1 / 3 / (3**-0.5 + 1e-4)]),
        ("grpo", [2, 2, 2, 2], [0, 0, 0, 0]),
        ("rloo", [5, NAN, NAN, NAN], [0, 0, 0, 0]),
        ("grpo", [NAN, NAN, NAN, NAN], [0, 0, 0, 0]),
    ],
)  # fmt: skip
def test_advantages_by_hand(algorithm: Any, rewards: list[float], expected: list[float]) -> None:
    found = group_advantages(np.array(rewards, dtype=float), algorithm=algorithm)
    assert found == pytest.approx(expected)


@given(
    st.lists(st.one_of(st.none(), st.floats(-1, 1)), min_size=2, max_size=9),
    st.sampled_from(sorted(PRESETS)),
)
def test_advantages_sum_to_zero_and_masked_rows_change_nothing(
    rewards: list[float | None], algorithm: Any
) -> None:
    values = np.array([NAN if r is None else r for r in rewards])
    found = group_advantages(values, algorithm=algorithm)
    assert abs(found.sum()) < 1e-6
    scored = values[np.isfinite(values)]
    if len(scored) > 1:
        alone = group_advantages(scored, algorithm=algorithm)
        assert found[np.isfinite(values)] == pytest.approx(alone)
    assert not found[~np.isfinite(values)].any()


def test_leave_one_out_factor_counts_the_scored_of_each_group() -> None:
    rewards = [1.0, 3.0, 2.0, None, 5.0, None, None, None, 1.0, 0.0, 0.0, 0.0]
    assert leave_one_out_factors(rewards, 4) == [1.5] * 4 + [1.0] * 4 + [4 / 3] * 4


# --- refilling ----------------------------------------------------------------------------------


class Player:
    """Plays the tasks whose rewards are written down."""

    def __init__(self, rewards: dict[str, list[float | None]], size: int, first_row: int) -> None:
        self.rewards, self.size, self.first_row = rewards, size, first_row
        self.rounds: list[tuple[int, list[str]]] = []

    def __call__(self, asked: Sequence[tuple[int, str]], round_: int) -> list[Settled]:
        self.rounds.append((round_, [task for _, task in asked]))
        return [
            settle(played(self.rewards[task][(self.first_row + row) % self.size], group=task))
            for row, task in asked
        ]


def test_groups_without_signal_give_their_place_to_further_tasks() -> None:
    rewards = {
        "a": [0.0, 0.0], "b": [1.0, 0.0], "c": [None, 1.0],
        "d": [1.0, 1.0], "e": [0.5, 0.0], "f": [0.0, 0.0], "g": [0.0, 1.0],
    }  # fmt: skip
    first = [*grouped(rewards["a"], "a"), *grouped(rewards["b"], "b"), *grouped(rewards["c"], "c")]
    player = Player(rewards, 2, 0)
    done = refill(first, [0, 0, 1, 1, 2, 2], rounds=2, tasks=iter("defg"), play=player)
    assert player.rounds == [(1, ["d", "d", "e", "e"]), (2, ["f", "f"])]
    assert [s.trace.group for s in done.kept] == ["a", "a", "b", "b", "e", "e"]
    assert sorted(str(s.trace.group) for s in done.left_out) == list("ccddff")
    assert (done.rounds, done.groups_played, done.groups_kept) == (2, 6, 2)
    assert done.metrics()["refill/groups_kept"] == 2.0


def test_batch_with_signal_everywhere_plays_nothing_more() -> None:
    player = Player({}, 2, 0)
    first = grouped([0.0, 1.0], "a")
    done = refill(first, [0, 0], rounds=3, tasks=iter(()), play=player)
    assert (done.kept, done.left_out, player.rounds) == (first, [], [])


def test_processes_agree_on_what_to_play_anew() -> None:
    """Group 1 has a row in each process: neither sees by itself that it has signal."""
    rewards: dict[str, list[float | None]] = {
        "a": [0.0, 0.0, 0.0], "b": [0.0, 0.0, 1.0], "c": [1.0, 1.0, 1.0],
        "d": [0.0, 1.0, 0.0], "e": [0.0, 0.0, 0.0],
    }  # fmt: skip
    rows = [settle(played(r, group=g)) for g in "abc" for r in rewards[g]]
    places = [row // 3 for row in range(9)]
    whole = refill(rows, places, rounds=1, tasks=iter("de"), play=Player(rewards, 3, 0))
    halves = [(0, rows[:5], places[:5]), (5, rows[5:], places[5:])]
    barrier, shelf = threading.Barrier(2, timeout=30), {}
    found: dict[int, Any] = {}

    def process(rank: int) -> None:
        def gather(items: list[Any]) -> list[Any]:
            shelf[rank] = items
            barrier.wait()
            joined = shelf[0] + shelf[1]
            barrier.wait()
            return joined

        first_row, mine, groups = halves[rank]
        found[rank] = refill(
            mine, groups, rounds=1, tasks=iter("de"), gather=gather,
            play=Player(rewards, 3, first_row),
        )  # fmt: skip

    threads = [threading.Thread(target=process, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = [*found[0].kept, *found[1].kept]
    assert [s.trace.group for s in kept] == [s.trace.group for s in whole.kept] == list("dddbbbccc")
    assert [s.reward for s in kept] == [s.reward for s in whole.kept]
    assert found[0].metrics() == found[1].metrics() == whole.metrics()


@given(st.integers(0, 2**31 - 1), st.integers(1, 6), st.data())
def test_further_tasks_are_new_first_and_the_same_after_a_resume(
    seed: int, count: int, data: Any
) -> None:
    tasks = [f"t{n}" for n in range(count)]
    besides = data.draw(st.sets(st.sampled_from(tasks)))

    def draw(step: str) -> list[str]:
        source = further_tasks(tasks, besides=besides, seed=seed, step=step)
        return [next(source) for _ in range(3 * count)]

    found = draw("3.0")
    assert found == draw("3.0")
    fresh = count - len(besides)
    assert set(found[:fresh]) == set(tasks) - besides
    assert set(found[fresh : fresh + count]) == set(tasks)


def test_refilling_without_tasks_is_refused_rather_than_endless() -> None:
    with pytest.raises(TrainingError, match="refill_tasks"):
        next(further_tasks([], besides=(), seed=0, step=0))


# --- settings -----------------------------------------------------------------------------------


def config(**changes: Any) -> Any:
    return read_config({"env": "e", "model": "m", "out": "o", **changes})


def test_truncated_for_all_limits_or_by_limit() -> None:
    assert config().objective.truncated_as == TRUNCATED
    assert set(config(**{"objective.truncated": "floor"}).objective.truncated_as.values()) == {
        "floor"
    }
    mixed = config(**{"objective.truncated.turns": "floor"}).objective.truncated_as
    assert mixed == {**TRUNCATED, "turns": "floor"}


def test_own_setting_wins_over_the_algorithm_and_is_told(caplog: Any) -> None:
    assert preset("dapo", {"epsilon_high": 0.3, "beta": 0.1}) == {
        "loss_type": "dapo", "scale_rewards": "group", "epsilon": 0.2,
    }  # fmt: skip
    assert "epsilon_high=0.3 takes the place of 0.28" in caplog.text
    caplog.clear()
    preset("dapo", {"loss_type": "dapo"})
    assert caplog.text == ""
    assert preset(None, {"beta": 0.1}) == {}


def test_only_dapo_refills_unless_told() -> None:
    assert [refill_rounds(name, None) for name in (None, "grpo", "rloo")] == [0, 0, 0]
    assert (refill_rounds("dapo", None), refill_rounds("dapo", 0), refill_rounds(None, 2)) == (
        4, 0, 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 1}, "group_size: one episode alone.*at least 2 per task"),
        ({"objective.algorithm": "ppo"}, "algorithm.*'rloo', got 'ppo'"),
        ({"objective.refill": -1}, "refill"),
        ({"objective.truncated": "drop"}, "unknown choice .*mask, floor"),
        ({"objective.truncated": {"fault": "train"}}, "unknown limit 'fault'.*context, time"),
        ({"grpo": {"num_generations": 4}}, "group_size"),
        ({"grpo": {"generation_kwargs": {"top_k": 20}}}, "know only the temperature"),
    ],
)
def test_setting_that_cannot_be_is_one_line(changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        config(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("micro_batch", "processes"), [(5, 1), (8, 3), (16, 2)])
def test_batch_that_is_not_divisible_says_how_to_divide_it(
    micro_batch: int, processes: int
) -> None:
    with pytest.raises(ValueError, match="choose a micro_batch that divides them"):
        config(tasks_per_step=2, group_size=8, micro_batch=micro_batch).accumulation_steps(
            processes
        )
