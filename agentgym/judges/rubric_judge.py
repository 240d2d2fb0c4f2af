"""A model as judge, by a rubric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, get_args

from agentgym.client import ModelClient, SamplingParams
from agentgym.errors import ConfigError, JudgeError
from agentgym.judge import Score
from agentgym.judges.asking import DEFAULT_SAMPLING, Asker, episode_digest, in_order
from agentgym.judges.parsing import Reading, read_verdict
from agentgym.judges.prompt import answer_schema, judge_messages, shown
from agentgym.judges.rubric import DEFAULT_RUBRIC, Criterion, Rubric
from agentgym.judges.transcript import TranscriptLimits, quotable_text
from agentgym.types import Episode

Calls: TypeAlias = Literal["one", "per_criterion"]

Consistency: TypeAlias = Callable[[Mapping[str, float], str], str | None]
"""Given the grades and the reason, says what in them contradicts each other; None if nothing."""


class RubricJudge:
    """Scores episodes by asking a model, criterion by criterion or all at once.

    The model sees the rubric and the episode's transcript as data, gives its reason before its
    grades, and is asked once more if its reply is no verdict. The total is the rubric's weighted
    sum; each grade is a component of the verdict under its criterion's name.

    Args:
        client: The judge's model; it has its own limits, time-outs and prices.
        rubric: What to score.
        calls: `one` asks for all criteria together. `per_criterion` asks for each by itself, which
            costs more and keeps one from colouring the others; the first call goes alone, so that
            the others find the transcript in the server's prefix cache.
        transcript: How long a transcript may get.
        sampling: How to sample; by default greedy, with room for a reason.
        seed: Of the sampling seeds and the transcripts' marker ids.
        consistent: Says whether grades and reason contradict each other; if so the judge is asked
            once more, and then the judgement has failed.

    Raises:
        ConfigError: If a parameter is not allowed.
    """

    inline = False

    def __init__(
        self,
        client: ModelClient,
        rubric: Rubric = DEFAULT_RUBRIC,
        *,
        calls: Calls = "one",
        transcript: TranscriptLimits | None = None,
        sampling: SamplingParams = DEFAULT_SAMPLING,
        seed: int = 0,
        consistent: Consistency | None = None,
    ) -> None:
        if calls not in get_args(Calls):
            raise ConfigError(f"calls must be 'one' or 'per_criterion', got {calls!r}")
        self.client = client
        self.rubric = rubric
        self.calls = calls
        self.transcript = transcript or TranscriptLimits()
        self.seed = seed
        self._consistent = consistent
        self._asker = Asker(client, sampling, seed)

    def __repr__(self) -> str:
        return f"RubricJudge({self.client!r}, rubric={self.rubric.name!r}, calls={self.calls!r})"

    @property
    def highest(self) -> float:
        """The best total; see `Scoring.reward_range`."""
        return self.rubric.highest

    async def score(self, episode: Episode) -> Score:
        """Score one episode; see `Judge.score`.

        Raises:
            JudgeError: If a call failed or no verdict came; the reply is in the text.
        """
        digest = episode_digest(episode)
        async with self._asker.session(digest) as session:
            if self.calls == "one":
                reading = await self._ask(episode, None, session, digest)
            else:
                reading = await self._ask_for_each(episode, session, digest)
        correct = self.rubric.correct
        return Score(
            total=self.rubric.total(reading.values),
            components=reading.values,
            correct=None if correct is None else reading.values[correct] == 1.0,
            reason="\n".join(filter(None, [reading.reason, *reading.notes])) or None,
        )

    async def _ask(
        self, episode: Episode, only: Criterion | None, session: str, digest: str
    ) -> Reading:
        criteria = self.rubric.criteria if only is None else (only,)

        def quotable() -> str:
            return quotable_text(episode, self.transcript, show=shown(self.rubric))

        def read(text: str) -> Reading:
            reading = read_verdict(text, criteria, quotable=quotable)
            clash = self._consistent and self._consistent(reading.values, reading.reason)
            if clash:
                raise JudgeError(f"the grades contradict the reason: {clash}")
            return reading

        messages = judge_messages(
            self.rubric,
            episode,
            limits=self.transcript,
            seed=self.seed,
            only=None if only is None else only.name,
        )
        return await self._asker.ask(
            messages, read, schema=answer_schema(criteria), session=session, digest=digest
        )

    async def _ask_for_each(self, episode: Episode, session: str, digest: str) -> Reading:
        first, *others = self.rubric.criteria
        readings = [await self._ask(episode, first, session, digest)]
        work = [self._ask(episode, criterion, session, digest) for criterion in others]
        for found in await in_order(work, inline=False):
            if isinstance(found, JudgeError):
                raise found
            readings.append(found)
        named = zip(self.rubric.criteria, readings, strict=True)
        return Reading(
            values={name: grade for r in readings for name, grade in r.values.items()},
            reason="\n".join(f"{c.name}: {r.reason}" for c, r in named if r.reason),
            notes=tuple(note for r in readings for note in r.notes),
        )
