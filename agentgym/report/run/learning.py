"""Whether the run learns: reward, its parts, held-out tasks, and what the groups offer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from agentgym.report.plots.chart import Chart, Point, Series
from agentgym.report.run.making import ChartMaker, single_points


def learning_charts(make: ChartMaker) -> Iterator[Chart]:
    """Reward and success."""
    yield from _held_out(make)
    reward = "reward/mean" if make.record.history.of("reward/mean") else "reward"
    yield from make.over_steps(
        "reward",
        "Reward",
        {"reward": reward},
        what="Mean reward of the scored episodes of each step; masked ones have no vote.",
        read="Flat from step 0: first the output format against the reward's parser. A fall after "
        "a rise: less off-policy, then a lower learning rate. Look at the parts below before "
        "believing a rise.",
    )
    yield from make.over_steps(
        "components",
        "Reward components",
        {name: f"components/{name}" for name in make.record.names("components/")},
        what="Mean of each named part of the verdict, over the scored episodes that have it, so a "
        "part that is only given for an answer says nothing of those without; unweighted, as the "
        "judge gave it.",
        read="A sum hides which part is learnt. A part that rises alone while the solved tasks "
        "don't is being gamed; one that never leaves 0 is not within this policy's reach.",
    )
    yield from make.over_steps(
        "gates",
        "Gates",
        {name: f"gates/{name}" for name in make.record.names("gates/")},
        what="Share of the scored episodes with that gate which it fails.",
        read="A gate that nearly all episodes fail leaves nothing to tell them apart: read three "
        "such traces, and say in the prompt what the gate asks for.",
        unit="share",
        hide_zero=True,
        levels=((make.record.thresholds.gate, "alarm gate:NAME"),),
    )
    yield from make.over_steps(
        "completion",
        "Completion and correctness",
        {
            "completed: an answer came": "completed",
            "correct: the task is solved": "correct",
            "correct among the completed": "correct_if_completed",
        },
        what="Shares of scored episodes. Two different facts: an episode may answer and be wrong.",
        read="Low completion, right when complete: more turns or tokens. High completion, seldom "
        "correct, paid all the same: redesign the reward.",
        unit="share",
        y_range=(0.0, 1.0),
    )


def _held_out(make: ChartMaker) -> Iterator[Chart]:
    """Training against what is not trained on, by success and by reward."""
    scores = make.record.history.evaluations
    if not scores:
        return
    training = make.series("training tasks", "correct", share=True)
    held_out = single_points(
        "held-out tasks",
        [
            (s.step, s.success, s.low, s.high, f"{s.n_episodes} episodes of {len(s.tasks)} tasks")
            for s in scores
        ],
    )
    episodes = sorted({score.n_episodes for score in scores})
    counted = " or ".join(str(count) for count in episodes[:3])
    yield Chart(
        key="held-out",
        title="Success: held-out against training tasks",
        about="Share of episodes whose task is solved (verdict.correct), never the reward. "
        f"Held-out tasks: {len(scores)} evaluations of {counted} scored episodes, the same tasks "
        "each time, with the 95 % interval clustered by task. "
        + (f"Training tasks: {make.about([training], share=True)}" if training else ""),
        series=tuple(each for each in (held_out, training) if each is not None),
        read="Both rise: it learns. Training rises alone: the tasks are memorised or the reward is "
        "gamed; read ten well-paid recent traces. Where bars overlap, two evaluations need not "
        "differ; `agentgym diagnose` compares them task by task, which sees more.",
        unit="share",
        y_range=(0.0, 1.0),
        marks=make.marks,
        x_range=make.x_range,
    )
    reward = make.series("training tasks", "reward/mean") or make.series("training tasks", "reward")
    points = [
        (s.step, s.reward, s.reward_low, s.reward_high, f"{s.n_episodes} episodes") for s in scores
    ]
    kept = sum(s.reward_low is not None for s in scores)
    interval = "with the 95 % interval clustered by task" if kept else "whose interval isn't kept"
    if 0 < kept < len(scores):
        interval += f" where it is kept ({kept} of {len(scores)})"
    yield Chart(
        key="held-out-reward",
        title="Reward: held-out against training tasks",
        about=f"Mean reward of the same evaluations, {interval}, beside that of the training "
        "episodes. " + (f"Training tasks: {make.about([reward])}" if reward else ""),
        series=tuple(
            each for each in (single_points("held-out tasks", points), reward) if each is not None
        ),
        read="Reward up and held-out success not: the reward pays for something else than solving.",
        marks=make.marks,
        x_range=make.x_range,
    )


def group_charts(make: ChartMaker) -> Iterator[Chart]:
    """How many groups carry a gradient, and how many should."""
    seen = make.series("seen", "groups_equal", share=True) or make.series(
        "seen (TRL, unscored groups included)", "frac_reward_zero_std", share=True
    )
    if seen is None:
        return
    expected = [
        make.series("predicted from the mean: p^G + (1-p)^G", "groups_equal_expected"),
        make.series("predicted task by task", "groups_equal_expected_by_task"),
    ]
    lines = [replace(each, points=_without_band(each.points)) for each in expected if each]
    yield Chart(
        key="groups",
        title="Groups without a signal",
        about="Share of groups whose rewards are all equal: they have no gradient. Beside it what "
        "the success rate p predicts for groups of G: p^G + (1-p)^G, so that 1 - p^G - (1-p)^G are "
        "informative; and the same with what is known of each task from its last visits, from the "
        f"second pass over the tasks on. {make.about([seen], share=True)}",
        series=(seen, *lines),
        read="As many as predicted: the tasks have the wrong difficulty for this policy. Many "
        "more: rollouts that are alike, or tasks that are always or never solved. Fewer: partial "
        "credit tells rollouts apart.",
        unit="share",
        y_range=(0.0, 1.0),
        levels=((make.record.thresholds.no_signal, "alarm no_signal"),),
        marks=make.marks,
        x_range=make.x_range,
    )
    yield from make.over_steps(
        "groups-why",
        "Equal groups, by what they are",
        {
            "all failed": "groups_all_failed",
            "all solved": "groups_all_solved",
            "all said the same, unsolved": "groups_identical",
        },
        what="Shares of groups with two or more scored episodes.",
        read="All failed: easier tasks, or a mix. All solved: harder ones. All the same: "
        "temperature 1.0, then a lower learning rate or a KL term.",
        unit="share",
        hide_zero=True,
    )


def _without_band(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """A prediction is no measurement: it has no interval."""
    return tuple(replace(point, low=None, high=None) for point in points)


def alarm_chart(make: ChartMaker) -> Iterator[Chart]:
    """When there was evidence for each alarm, and whether there still is."""
    alarms, record = make.record.alarms, make.record
    if not alarms:
        return
    first = record.history.steps[0].step
    series = []
    for row, (name, kept) in enumerate(
        (("over by now", False), ("still there at the last step", True))
    ):
        points = [
            Point(x=alarm.step, y=number, low=None, high=None, about=f"A{number} {alarm.name}")
            for number, alarm in enumerate(alarms, start=1)
            if (alarm.name in record.diagnosis.lasting) is kept
        ]
        if points:
            series.append((row, Series(name, tuple(points))))
    yield Chart(
        key="alarm-times",
        title="Alarms over the run",
        about="The step at which there was evidence enough for each alarm; what it is about began "
        f"earlier. {len(alarms)} alarm(s) over steps {first} to {record.steps}; alarms need "
        f"{record.thresholds.min_steps} steps at least.",
        series=tuple(each for _, each in series),
        read="Begin with the earliest: later ones often follow from it. Change one thing at a time "
        "and give it 25 to 50 steps.",
        y_ticks=tuple((float(n), f"A{n}") for n in range(1, len(alarms) + 1)),
        y_range=(len(alarms) + 0.5, 0.5),
        marks=make.marks,
        x_range=make.x_range,
    )
