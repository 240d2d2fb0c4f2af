"""EVAL: a verdict within its slot and deadline, or a masked one; and what it cost either way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.deadline import Deadline
from agentgym.judge import Scoring
from agentgym.metering import Meter, metered
from agentgym.naming import episode_named
from agentgym.rollout.failure import Failure, is_ours, last_line, text_of
from agentgym.rollout.stages import Stages
from agentgym.rollout.turns import Setting
from agentgym.types import Episode, Verdict


@dataclass(frozen=True)
class Judged:
    """What judging came to."""

    verdict: Verdict
    meter: Meter
    """What it cost this episode, and which endpoints refuse to go on."""
    seconds: float
    """How long a slot of EVAL was held."""


async def judge_together(
    stages: Stages,
    setting: Setting,
    episodes: Sequence[Episode],
    scoring: Scoring,
    name: str,
    *,
    alone: bool = False,
) -> list[Judged]:
    """EVAL: judge episodes in one slot and within one deadline.

    Args:
        stages: The engine's slots.
        setting: What the engine's episodes share.
        episodes: The rollouts of one task, or one episode.
        scoring: The env's.
        name: What to call the judgement in recordings.
        alone: Whether the one episode is judged by itself, whatever the judge could compare.

    Returns:
        One outcome per episode, in order. Whatever fails on the way masks, and never raises.
    """
    meter = Meter()
    limit_s = setting.limits.eval_timeout_s
    held_s: dict[str, float] = {}
    async with stages.eval.slot(held_s):
        try:
            with episode_named(name), metered(meter):
                async with Deadline(limit_s):
                    verdicts = (
                        [await scoring.verdict(episodes[0])]
                        if alone
                        else await scoring.verdicts(episodes)
                    )
        except TimeoutError:
            failure = Failure("judge", f"no verdict within {limit_s:g} s")
            verdicts = await _masked(failure, episodes, scoring, meter)
        except BaseException as error:  # a judge's bug is masked inside; this is what isn't
            if is_ours(error):
                raise
            failure = Failure("judge", last_line(text_of(error)))
            verdicts = await _masked(failure, episodes, scoring, meter)
    return [Judged(verdict, _own(verdict, meter), held_s["eval"]) for verdict in verdicts]


async def _masked(
    failure: Failure, episodes: Sequence[Episode], scoring: Scoring, meter: Meter
) -> list[Verdict]:
    """Verdicts on episodes whose judging broke off; the first one bears what it cost."""
    verdicts = [await scoring.verdict(failure.marks(episode)) for episode in episodes]
    verdicts[0] = verdicts[0].model_copy(update={"spent": dict(meter.by_role)})
    return verdicts


def _own(verdict: Verdict, whole: Meter) -> Meter:
    """One episode's part of what a judgement cost."""
    meter = Meter()
    meter.by_role.update(verdict.spent)
    meter.refused.update(whole.refused)
    return meter
