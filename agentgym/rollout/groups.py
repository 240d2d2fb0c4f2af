"""Rollouts of one task: which of them are judged together, and which need a replacement.

A judge that compares needs the whole group. Who is over first waits, but holds nothing meanwhile:
no slot, no environment, no admission, so its siblings can always begin. Whoever leaves without an
episode to judge is no longer waited for, nor are siblings that will never be requested. Whoever is
played again, or replaced because the group would be too small, keeps the place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import TypeAlias

from agentgym.judge import Scoring
from agentgym.rollout.judging import Judged
from agentgym.rollout.leash import begin_task
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.retry import Retries
from agentgym.rollout.whereabouts import Whereabouts
from agentgym.types import Episode

JudgeGroup: TypeAlias = Callable[
    [Sequence[Episode], Scoring, str, Sequence[Whereabouts]], Awaitable[list[Judged]]
]
"""Judges episodes together, under the group's name; masks what fails and raises nothing."""


@dataclass
class _Member:
    sample: int
    episode: Episode
    scoring: Scoring
    whereabouts: Whereabouts
    judged: asyncio.Future[Judged]
    context: Context


@dataclass
class _Group:
    name: str
    size: int | None
    next_sample: int
    """The number that a replacement gets."""
    entered: int = 0
    over: int = 0
    lost: int = 0
    """Places whose rollout failed for good and was not replaced."""
    replaced: int = 0
    members: list[_Member] = field(default_factory=list)


class Seat:
    """One episode's place in its group; given up exactly once, by `judged` or by `leave`."""

    def __init__(self, groups: Groups, group: _Group, key: str, sample: int) -> None:
        self._groups = groups
        self._group = group
        self._key = key
        self._sample = sample
        self._taken = True

    async def judged(self, episode: Episode, scoring: Scoring, whereabouts: Whereabouts) -> Judged:
        """Wait for the siblings, and for the judgement on all.

        Args:
            episode: What is judged.
            scoring: The env's.
            whereabouts: The episode's, kept current.
        """
        whereabouts.moves("eval", "siblings")
        future: asyncio.Future[Judged] = asyncio.get_running_loop().create_future()
        member = _Member(self._sample, episode, scoring, whereabouts, future, copy_context())
        self._group.members.append(member)
        self.leave()
        return await future

    def replacement(self, request: EpisodeRequest, retries: Retries) -> EpisodeRequest | None:
        """What is to be rolled out in this place, whose rollout has failed for good, if anything.

        The place is kept. Nothing is replaced in a group of which nobody knows yet how many
        rollouts it will have, nor where the siblings have been judged without it.

        Args:
            request: What failed.
            retries: Says whether the group needs it and the budget has it.
        """
        if not self._taken:
            return None
        group = self._group
        size = self._groups.size_of(group)
        counts = {"lost": group.lost, "replaced": group.replaced}
        name = request.name(request.seed or 0)
        if size is None or not retries.replaces(size=size, **counts, name=name):
            group.lost += 1
            return None
        group.replaced += 1
        self._sample = group.next_sample
        group.next_sample += 1
        return request.model_copy(update={"sample": self._sample})

    def leave(self) -> None:
        """Be waited for no longer; may be called again."""
        if self._taken:
            self._taken = False
            self._group.over += 1
            self._groups.check(self._key, self._group)


class Groups:
    """The groups of one batch.

    Args:
        tasks: Where judging runs, since any member may be cancelled.
        judge: Judges one group.
    """

    def __init__(self, tasks: asyncio.TaskGroup, judge: JudgeGroup) -> None:
        self._tasks = tasks
        self._judge = judge
        self._open: dict[str, _Group] = {}
        self._requests_over = False

    def enter(self, request: EpisodeRequest) -> Seat | None:
        """Take a place, before the episode begins; None if it belongs to no group."""
        if request.group is None:
            return None
        group = self._open.get(request.group)
        if group is None:
            name = f"{request.task_id or 'drawn'}@{request.seed}.group"
            # Siblings are numbered one after the other: whichever comes first, none is beyond.
            free = max(request.sample + (request.group_size or 0), request.free_sample or 0)
            group = self._open[request.group] = _Group(name, request.group_size, free)
        group.entered += 1
        group.next_sample = max(group.next_sample, request.sample + 1)
        return Seat(self, group, request.group, request.sample)

    def no_more(self) -> None:
        """No further episode will enter."""
        self._requests_over = True
        for key, group in list(self._open.items()):
            self.check(key, group)

    def size_of(self, group: _Group) -> int | None:
        """How many rollouts it has; None if that isn't known yet."""
        return group.entered if self._requests_over else group.size

    def check(self, key: str, group: _Group) -> None:
        """Judge a group if nobody else is to be waited for."""
        complete = group.size is not None and group.entered >= group.size
        if group.over < group.entered or not (complete or self._requests_over):
            return
        if self._open.get(key) is group:
            del self._open[key]
        if group.members:
            # On a member's account, whoever made the group complete.
            begin_task(self._tasks, self._settle(group), group.members[0].context)

    async def _settle(self, group: _Group) -> None:
        members = sorted(group.members, key=lambda member: member.sample)
        episodes = [member.episode for member in members]
        where = [member.whereabouts for member in members]
        judged = await self._judge(episodes, members[0].scoring, group.name, where)
        for member, outcome in zip(members, judged, strict=True):
            if not member.judged.done():
                member.judged.set_result(outcome)
