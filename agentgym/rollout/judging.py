"""EVAL: a verdict within its slot and deadline, or a masked one; and what it cost either way.

A judgement that failed may be made again, without rolling out again: not if an endpoint gave no
answer after all its client's attempts, which would be asked twice over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentgym.deadline import Deadline
from agentgym.judge import Scoring
from agentgym.metering import Meter, metered
from agentgym.naming import episode_named
from agentgym.rollout.failure import Failure, is_ours, last_line, text_of
from agentgym.rollout.leash import LeftBehind, on_leash
from agentgym.rollout.retry import pause_before
from agentgym.rollout.stages import Stages
from agentgym.rollout.turns import Setting
from agentgym.rollout.whereabouts import Waiting, Whereabouts
from agentgym.types import Episode, Verdict

logger = logging.getLogger(__name__)


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
    whereabouts: Sequence[Whereabouts] = (),
    alone: bool = False,
) -> list[Judged]:
    """EVAL: judge episodes in one slot and within one deadline, again where that is configured.

    Args:
        stages: The engine's slots.
        setting: What the engine's episodes share.
        episodes: The rollouts of one task, or one episode.
        scoring: The env's.
        name: What to call the judgement in recordings.
        whereabouts: The episodes', kept current.
        alone: Whether the one episode is judged by itself, whatever the judge could compare.

    Returns:
        One outcome per episode, in order. Whatever fails on the way masks, and never raises.
    """
    judgement = _Judgement(
        stages, setting, episodes, scoring, name, whereabouts=whereabouts, alone=alone
    )
    judged = await judgement.make()
    retry = setting.retry
    again = 0
    while retry is not None and again < retry.judge and judgement.may_be_made_again(judged):
        again += 1
        pause_s = pause_before(retry, again, name)
        logger.warning(
            "judging %s failed (%s); judging it again in %.1f s (%d of %d)",
            *(name, judged[0].verdict.reason, pause_s, again, retry.judge),
        )
        judgement.waits_for("retry")
        await asyncio.sleep(pause_s)
        judged = [_after(*pair) for pair in zip(judged, await judgement.make(), strict=True)]
    return judged


class _Judgement:
    """One judgement, which can be made several times."""

    def __init__(
        self,
        stages: Stages,
        setting: Setting,
        episodes: Sequence[Episode],
        scoring: Scoring,
        name: str,
        *,
        whereabouts: Sequence[Whereabouts],
        alone: bool,
    ) -> None:
        self._stages = stages
        self._setting = setting
        self._episodes = episodes
        self._scoring = scoring
        self._name = name
        self._whereabouts = whereabouts
        self._alone = alone
        self._meter = Meter()
        self._deadline: Deadline | None = None

    def waits_for(self, what: Waiting) -> None:
        """Say what the episodes wait for now."""
        for each in self._whereabouts:
            each.moves("eval", what)

    async def make(self) -> list[Judged]:
        """Judge; whatever fails masks."""
        meter = self._meter = Meter()
        limits = self._setting.limits
        held_s: dict[str, float] = {}
        self.waits_for("slot")
        async with self._stages.eval.slot(held_s, episodes=len(self._episodes)):
            self.waits_for("judge")
            try:
                if self._scoring.inline:
                    verdicts = await self._verdicts()
                else:
                    verdicts = await on_leash(
                        self._verdicts(),
                        name=f"the judge of {self._name}",
                        grace_s=limits.cleanup_timeout_s,
                        deadline=lambda: self._deadline,
                    )
            except LeftBehind as error:
                text = f"no verdict within {limits.eval_timeout_s:g} s, and {error}"
                verdicts = await self._masked(Failure("judge", text))
            except Failure as failure:
                verdicts = await self._masked(failure)
        return [Judged(verdict, _own(verdict, meter), held_s["eval"]) for verdict in verdicts]

    async def _verdicts(self) -> list[Verdict]:
        limit_s = self._setting.limits.eval_timeout_s
        deadline = self._deadline = Deadline(limit_s)
        try:
            with episode_named(self._name), metered(self._meter):
                async with deadline:
                    if self._alone:
                        return [await self._scoring.verdict(self._episodes[0])]
                    return await self._scoring.verdicts(self._episodes)
        except BaseException as error:  # a judge's bug is masked inside; this is what isn't
            if is_ours(error):
                raise
            text = last_line(text_of(error))
            if deadline.is_over:
                text = f"no verdict within {limit_s:g} s"
            raise Failure("judge", text) from error

    async def _masked(self, failure: Failure) -> list[Verdict]:
        """Verdicts on episodes whose judging broke off; the first one bears what it cost."""
        marked = [failure.marks(episode) for episode in self._episodes]
        verdicts = [await self._scoring.verdict(episode) for episode in marked]
        verdicts[0] = verdicts[0].model_copy(update={"spent": dict(self._meter.by_role)})
        return verdicts

    def may_be_made_again(self, judged: Sequence[Judged]) -> bool:
        """Whether nobody was scored, for a reason that may be gone by the next time."""
        if self._meter.refused or any(u.failed_calls for u in self._meter.by_role.values()):
            return False
        return all(each.verdict.judge_failed for each in judged)


def _after(first: Judged, second: Judged) -> Judged:
    """A judgement that was made again, with what the failed one had cost."""
    meter = Meter()
    for judged in (first, second):
        for role, usage in judged.meter.by_role.items():
            meter.add(role, usage)
    meter.refused.update(second.meter.refused)
    verdict = second.verdict.model_copy(update={"spent": dict(meter.by_role)})
    return replace(second, verdict=verdict, meter=meter, seconds=first.seconds + second.seconds)


def _own(verdict: Verdict, whole: Meter) -> Meter:
    """One episode's part of what a judgement cost."""
    meter = Meter()
    meter.by_role.update(verdict.spent)
    meter.refused.update(whole.refused)
    return meter
