"""What is known of one attempt at an episode, and the trace that comes of it.

It is filled while the episode goes on, so that whatever breaks leaves a trace with all that had
happened until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentgym.metering import Meter, sum_by_role
from agentgym.rollout.failure import Failure
from agentgym.rollout.request import EpisodeRequest
from agentgym.rollout.turns import Setting, TurnLoop
from agentgym.trace import EarlierAttempt, Stage, Trace
from agentgym.types import Episode, Usage, Verdict


@dataclass
class EpisodeRecord:
    """The facts of one attempt."""

    request: EpisodeRequest
    setting: Setting
    trace_id: str
    started_at: str
    task_id: str | None
    turns: TurnLoop
    earlier: tuple[EarlierAttempt, ...]
    """The attempts before this one."""
    facts: dict[str, Any]
    """More metadata for the trace."""
    split: str | None = None
    episode: Episode | None = None
    """The env's record; None until the turns are over, or if it left none."""
    stage_s: dict[str, float] = field(default_factory=dict)
    playing: Meter = field(default_factory=Meter)
    pays_for_earlier: bool = False
    """Whether what the earlier attempts cost is already in `playing`."""
    judging: Meter = field(default_factory=Meter)

    def take(self, trace: Trace, episode: Episode) -> None:
        """Go on from a trace without a verdict that was kept by an earlier run."""
        self.episode = episode
        self.earlier, self.pays_for_earlier = trace.earlier, True
        self.trace_id, self.started_at = trace.trace_id, trace.started_at
        self.task_id, self.split = trace.task_id, trace.split
        self.stage_s = dict(trace.stage_s)
        self.turns.tools = list(trace.tools)
        self.playing.by_role.update(trace.usage)

    def forget_conversation(self) -> None:
        """Leave out what the env told."""
        self.episode = None
        self.turns.history, self.turns.tools = [], []
        self.task_id, self.split = self.request.task_id, None

    def trace(
        self, verdict: Verdict, *, failure: Failure | None, stage: Stage, env_spec: str
    ) -> Trace:
        """The trace.

        Args:
            verdict: On the episode.
            failure: Why it is masked, if it broke.
            stage: Where it is.
            env_spec: The environment's.
        """
        error = str(failure) if failure else verdict.reason
        return Trace(
            trace_id=self.trace_id,
            env_spec=env_spec,
            task_id=self.task_id,
            split=self.split,
            seed=self.request.seed,
            group=self.request.group,
            sample=self.request.sample,
            policy=self.setting.policy,
            metadata=self._metadata(),
            tools=tuple(self.turns.tools),
            verdict=verdict,
            failure_class=verdict.failure_class if verdict.masked else None,
            failed_stage=stage if verdict.masked else None,
            error=error if verdict.masked else None,
            started_at=self.started_at,
            stage_s=dict(self.stage_s),
            usage=self._usage(),
            earlier=self.earlier,
            **self._conversation(failure),
        )

    def _metadata(self) -> dict[str, Any]:
        """Facts about the run, and the env's own about the task (data set name, size, hash)."""
        facts = {**self.setting.metadata, **self.facts}
        if self.setting.canary is not None and self.setting.canary.checks:
            facts["canary"] = self.setting.canary.facts()
        if self.episode is not None and self.episode.task.metadata:
            facts["task"] = self.episode.task.metadata
        return facts

    def own_usage(self) -> dict[str, Usage]:
        """What the model calls of this attempt cost, by role."""
        return sum_by_role(self.playing.by_role, self.judging.by_role)

    def _usage(self) -> dict[str, Usage]:
        """What every model call of the episode cost, by role, those of all attempts."""
        earlier = () if self.pays_for_earlier else self.earlier
        attempts = [attempt.usage for attempt in earlier]
        return sum_by_role({"policy": Usage(calls=0)}, *attempts, self.own_usage())

    def _conversation(self, failure: Failure | None) -> dict[str, Any]:
        """The part of the trace that the env recorded, or what is known without it."""
        episode = self.episode
        if episode is None:
            return {
                "messages": tuple(self.turns.history),
                "truncated": True,
                "truncation_reason": failure.cut if failure else "fault",
            }
        return {
            "messages": episode.messages,
            "turns": episode.turns,
            "terminated": episode.terminated,
            "truncated": episode.truncated,
            "termination_reason": episode.termination_reason,
            "truncation_reason": episode.truncation_reason,
            "answer": episode.answer,
            "outcome": episode.outcome,
        }
