"""What is given to a worker as one piece: an episode, or a group that is judged together.

A worker that is lost takes the piece with it, and the piece is played again elsewhere. So a group's
results are held back until all are there: a judge that compared some of the rollouts with siblings
that were lost has said nothing about the new ones.
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from agentgym.errors import AgentGymError
from agentgym.metering import sum_by_role
from agentgym.rollout.backend import Played
from agentgym.rollout.request import EpisodeRequest, fresh_seed
from agentgym.rollout.turns import Setting
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.trace import EarlierAttempt, Trace
from agentgym.types import Usage, Verdict

if TYPE_CHECKING:
    from agentgym.rollout.cluster_remote import RemoteWorker


class Member:
    """One episode, as the driver sees it.

    Args:
        request: Which episode. A seed is drawn here where it has none, so that a second attempt is
            at the same episode.
    """

    def __init__(self, request: EpisodeRequest) -> None:
        seed = fresh_seed() if request.seed is None else request.seed
        self.key = uuid.uuid4().hex
        """Of this attempt; what comes for an earlier one is no longer wanted."""
        self.request = request.model_copy(update={"seed": seed})
        self.whereabouts = Whereabouts(request.name(seed))
        self.played: asyncio.Future[Played] = asyncio.get_running_loop().create_future()
        self.arrived: Played | None = None
        """Its result, while the group's others are still out."""
        self.usage: dict[str, Usage] = {}
        """What this attempt had cost when the worker last said so."""
        self.lost: list[EarlierAttempt] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing more is expected of it."""
        return self.played.done() or self.arrived is not None

    @property
    def spent(self) -> dict[str, Usage]:
        """What it has cost so far, those attempts included that were lost."""
        if self.arrived is not None:
            return _cost_of(self.arrived)
        return sum_by_role(self.usage, *(attempt.usage for attempt in self.lost))

    def lose(self, cause: str) -> None:
        """Its worker is gone: note the attempt, and be ready for the next one."""
        cost = self.usage if self.arrived is None else _cost_of(self.arrived)
        self.lost.append(
            EarlierAttempt(
                failure_class="infra",
                failed_stage=self.whereabouts.stage,
                error=f"lost worker: {cause}",
                usage=cost,
                lost_worker=True,
            )
        )
        self.key, self.usage, self.arrived = uuid.uuid4().hex, {}, None
        self.whereabouts.moves("init", "slot")
        self.whereabouts.turn = 0
        self.whereabouts.attempt += 1

    def with_lost(self, trace: Trace) -> Trace:
        """The trace, with the attempts that were lost before it and what they cost."""
        if not self.lost:
            return trace
        usage = sum_by_role(trace.usage, *(attempt.usage for attempt in self.lost))
        return trace.model_copy(
            update={"earlier": (*self.lost, *trace.earlier), "usage": usage},
        )


class Parcel:
    """Episodes that go to one worker together.

    Args:
        is_group: Whether they are judged together; otherwise there is one.
    """

    def __init__(self, *, is_group: bool) -> None:
        self.is_group = is_group
        self.name = uuid.uuid4().hex
        self.members: list[Member] = []
        self.is_closed = not is_group
        """Whether no further member will come."""
        self.worker: RemoteWorker | None = None
        self.losses = 0
        """Workers that died with it and others in them."""
        self.losses_alone = 0
        """Workers that died with nothing else in them."""

    @property
    def is_over(self) -> bool:
        """Whether all results have been handed on."""
        return self.is_closed and all(member.played.done() for member in self.members)

    def take(self, member: Member, played: Played) -> None:
        """A member's result has come; hand it on, with the others of its group."""
        member.arrived = dataclasses.replace(played, trace=member.with_lost(played.trace))
        if played.fatal is not None or not self.is_group:
            self._hand_on(member)
        self.settle()

    def settle(self) -> None:
        """Hand on what is held back, if nobody else is waited for."""
        if self.is_closed and all(member.is_over for member in self.members):
            for member in self.members:
                self._hand_on(member)

    def _hand_on(self, member: Member) -> None:
        if not member.played.done() and member.arrived is not None:
            member.played.set_result(member.arrived)

    def fail(self, error: AgentGymError) -> None:
        """Nothing will come of it."""
        for member in self.members:
            if not member.played.done():
                member.played.set_exception(error)

    def convict(self, why: str, env_spec: str, setting: Setting) -> None:
        """It has killed every worker that it was given to: mask it.

        Args:
            why: What became of the last one.
            env_spec: For the traces.
            setting: The engine's, for the traces.
        """
        for member in self.members:
            if not member.is_over:
                self.take(member, Played(_masked(member, why, env_spec, setting)))

    def lose(self, cause: str) -> None:
        """Its worker is gone; all members that were not handed on start again."""
        self.worker = None
        self.name = uuid.uuid4().hex  # the worker that gets it next may have had it before
        for member in self.members:
            if not member.played.done():
                member.lose(cause)


def _cost_of(played: Played) -> dict[str, Usage]:
    """What a result that was held back had cost, those it replaced included."""
    return sum_by_role(*(trace.usage for trace in (*played.replaced, played.trace)))


def _masked(member: Member, why: str, env_spec: str, setting: Setting) -> Trace:
    request, stage = member.request, member.lost[-1].failed_stage
    error = (
        f"the process that played it died {len(member.lost)} times, the last ones with nothing "
        f"else in it: {why}"
    )
    return Trace(
        trace_id=member.key,
        env_spec=env_spec,
        task_id=request.task_id,
        seed=request.seed,
        group=request.group,
        sample=request.sample,
        policy=setting.policy,
        metadata=setting.metadata,
        truncated=True,
        truncation_reason="fault",
        verdict=Verdict(failure_class="env", masked=True, reward=None, reason=error),
        failure_class="env",
        failed_stage=stage,
        error=error,
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        usage={"policy": Usage(calls=0)},
    )
