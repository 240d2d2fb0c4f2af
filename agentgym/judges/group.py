"""Judging the rollouts of one task against each other.

GRPO compares the members of a group with nothing but each other, and a model says more reliably
which of two attempts is better than how good one is. The price is bookkeeping: scores come back in
a list, and a score that slips by one place is worse than none. So attempts go by random-looking ids
in shuffled order, and the ids that come back must be exactly those that were sent.

Source: relative judging after RULER (OpenPipe ART); the count check after its issue 825.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentgym.client import ModelClient, SamplingParams
from agentgym.errors import JudgeError
from agentgym.judge import Score
from agentgym.judges.asking import DEFAULT_SAMPLING, Asker, digest_of, episode_digest
from agentgym.judges.parsing import Reading, Unreadable, find_object, read_values
from agentgym.judges.prompt import group_messages, group_schema, shown
from agentgym.judges.rubric import RELATIVE_RUBRIC, Rubric
from agentgym.judges.transcript import TranscriptLimits, quotable_text
from agentgym.types import Episode

TOKENS_PER_GRADE = 20
"""Room in the reply for each attempt's id and for each of its grades, beside the reason."""


class GroupRubricJudge:
    """Scores the episodes of a group together, by asking a model to compare them.

    Args:
        client: The judge's model.
        rubric: What to score, for each.
        transcript: How long each transcript may get; all of them go into one prompt.
        sampling: How to sample; its `max_tokens` is for the reason, the entries come on top.
        seed: Of ids, order, sampling seeds and marker ids.
    """

    inline = False

    def __init__(
        self,
        client: ModelClient,
        rubric: Rubric = RELATIVE_RUBRIC,
        *,
        transcript: TranscriptLimits | None = None,
        sampling: SamplingParams = DEFAULT_SAMPLING,
        seed: int = 0,
    ) -> None:
        self.client = client
        self.rubric = rubric
        self.transcript = transcript or TranscriptLimits(max_tokens=6_000, max_result_chars=1_000)
        self.seed = seed
        self._reason_tokens = sampling.max_tokens
        self._asker = Asker(client, sampling, seed)

    def __repr__(self) -> str:
        return f"GroupRubricJudge({self.client!r}, rubric={self.rubric.name!r})"

    @property
    def highest(self) -> float:
        """The best total; see `Scoring.reward_range`."""
        return self.rubric.highest

    async def score_group(self, episodes: Sequence[Episode]) -> Sequence[Score | JudgeError]:
        """Score the rollouts of one task together; see `GroupJudge`.

        Raises:
            JudgeError: If there are fewer than 2, a call failed, or no complete verdict came.
        """
        if len(episodes) < 2:
            raise JudgeError(f"a relative judge compares 2 or more episodes, got {len(episodes)}")
        digests = [episode_digest(episode) for episode in episodes]
        digest = digest_of(*digests)
        names = self._names(digests)
        shown = random.Random(f"{self.seed} {digest}").sample(names, len(names))
        by_name = dict(zip(names, episodes, strict=True))
        entries = TOKENS_PER_GRADE * len(names) * (1 + len(self.rubric.criteria))
        messages = group_messages(
            self.rubric,
            {name: by_name[name] for name in shown},
            limits=self.transcript,
            seed=self.seed,
        )
        async with self._asker.session(digest) as session:
            readings = await self._asker.ask(
                messages,
                lambda text: self._read(text, by_name),
                schema=group_schema(self.rubric.criteria, shown),
                session=session,
                digest=digest,
                max_tokens=self._reason_tokens + entries,
            )
        return [self._score(readings[name]) for name in names]

    def _names(self, digests: Sequence[str]) -> list[str]:
        """Ids that say nothing of the order, and differ where episodes don't."""
        return [digest_of(self.seed, n, digest)[:8] for n, digest in enumerate(digests)]

    def _read(self, text: str, by_name: Mapping[str, Episode]) -> dict[str, Reading]:
        def is_verdict(found: Mapping[str, Any]) -> bool:
            return "scores" in found

        found = find_object(
            text,
            is_verdict,
            keys=["scores"],
            quotable=lambda: self._quotable(by_name.values()),
        )
        entries = found["scores"]
        if not isinstance(entries, list) or not all(isinstance(e, Mapping) for e in entries):
            raise Unreadable('"scores" must be a list of objects, one for each attempt')
        given = [str(entry.get("id")) for entry in entries]
        if sorted(given) != sorted(by_name):
            raise Unreadable(*_mismatch(given, list(by_name)))
        reason = found.get("reason")
        reason = reason if isinstance(reason, str) else ""
        readings = {}
        for name, entry in zip(given, entries, strict=True):
            fields = {key: value for key, value in entry.items() if key != "id"}
            try:
                reading = read_values(fields, self.rubric.criteria)
            except Unreadable as error:
                raise Unreadable(f"attempt {name}: {error.fault}", error.said) from error
            readings[name] = reading._replace(reason=reading.reason or reason)
        return readings

    def _quotable(self, episodes: Iterable[Episode]) -> str:
        show = shown(self.rubric)
        return "\n".join(quotable_text(e, self.transcript, show=show) for e in episodes)

    def _score(self, reading: Reading) -> Score:
        correct = self.rubric.correct
        return Score(
            total=self.rubric.total(reading.values),
            components=reading.values,
            correct=None if correct is None else reading.values[correct] == 1.0,
            reason=reading.reason or None,
        )


def _mismatch(given: Sequence[str], wanted: Sequence[str]) -> tuple[str, str]:
    """What is wrong with the ids that came back, and which ones came that nobody sent."""
    missing = [name for name in wanted if name not in given]
    strange = [name for name in given if name not in wanted]
    twice = [name for name in wanted if given.count(name) > 1]
    faults = [f"{len(given)} scores for {len(wanted)} attempts"]
    faults += [f"without {', '.join(missing)}"] if missing else []
    faults += [f"with {', '.join(twice)} more than once"] if twice else []
    return ", ".join(faults), f", with unknown {', '.join(strange)[:100]}" if strange else ""
