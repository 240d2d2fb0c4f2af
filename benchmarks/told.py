"""What the optimiser is told when judgements fail: a run's own advantages, recounted.

Every group of a run whose judge didn't fail is taken again, with failures drawn at random: once
left out, once scored 0. The advantages that come out are compared with those of the true rewards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
import numpy.typing as npt

from agentgym.traces import read_traces
from agentgym.train.advantages import group_advantages
from agentgym.types import Finite, Record

DRAWS = 20
"""How often the failures of a run are drawn."""
Failed = Literal["masked", "zero"]
Groups = npt.NDArray[np.float64]


class Told(Record):
    """What became of the advantages."""

    failing: Finite
    """Share of judgements that failed."""
    failed: Failed
    """What became of those."""
    reward: Finite
    """Mean reward of the scored episodes, as a log would show it."""
    true_reward: Finite
    """The same without failures."""
    cosine: Finite
    """Between all advantages of a step and the true ones, mean over the steps; 1 is the same
    direction."""
    wrong_sign: Finite
    """Share of the episodes pushed the wrong way, of those whose true advantage isn't 0."""
    false_groups: Finite
    """Share of the groups that get a signal, of those that have none."""


def steps_of(run: Path) -> list[Groups]:
    """Rewards of every training step's groups, shape `(tasks_per_step, group_size)` each."""
    steps = []
    for path in sorted(run.glob("traces-step*.jsonl")):
        groups: dict[str | None, list[float]] = defaultdict(list)
        for trace in read_traces(path):
            if trace.reward is None:
                raise ValueError(
                    f"{path}: {trace.trace_id} has no reward; take a run whose judge never failed"
                )
            groups[trace.group].append(trace.reward)
        steps.append(np.array(list(groups.values())))
    return steps


def advantages(groups: Groups) -> Groups:
    """GRPO's, group by group; shape as given."""
    return np.stack([group_advantages(group) for group in groups])


def told(steps: Sequence[Groups], *, failing: float, failed: Failed, seed: int = 0) -> Told:
    """Draw failures and compare.

    Args:
        steps: Rewards, per step of shape `(groups, G)`.
        failing: Chance of a judgement to fail.
        failed: What becomes of those.
        seed: Fixes the draws.
    """
    rng = np.random.default_rng(seed)
    cosines, rewards, wrong, directed, false, silent = [], [], 0, 0, 0, 0
    for groups in steps:
        true = advantages(groups)
        for _ in range(DRAWS):
            fails = rng.random(groups.shape) < failing
            seen = np.where(fails, np.nan if failed == "masked" else 0.0, groups)
            given = advantages(seen)
            rewards.extend(seen[np.isfinite(seen)].tolist())
            cosines.append(_cosine(given, true))
            wrong += int((given * true < 0).sum())
            directed += int((true != 0).sum())
            quiet = (true == 0).all(axis=1)
            false += int((given[quiet] != 0).any(axis=1).sum())
            silent += int(quiet.sum())
    return Told(
        failing=failing,
        failed=failed,
        reward=fmean(rewards),
        true_reward=fmean(float(groups.mean()) for groups in steps),
        cosine=fmean(cosines),
        wrong_sign=wrong / max(directed, 1),
        false_groups=false / max(silent, 1),
    )


def _cosine(a: Groups, b: Groups) -> float:
    return float((a * b).sum() / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))


def table(rows: Iterable[Told]) -> str:
    """As a Markdown table."""
    head = (
        "| judgements that fail | become | mean reward shown | true | cosine to the true advantages"
    )
    lines = [f"{head} | pushed the wrong way | groups with a false signal |", "|---" * 7 + "|"]
    lines += [
        f"| {t.failing:.0%} | {'masked' if t.failed == 'masked' else 'reward 0'} | {t.reward:.3f} "
        f"| {t.true_reward:.3f} | {t.cosine:.3f} | {t.wrong_sign:.1%} | {t.false_groups:.1%} |"
        for t in rows
    ]
    return "\n".join(lines)
