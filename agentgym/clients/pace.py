"""How much work a request is and how long it takes, learnt from the answers."""

from __future__ import annotations

import math

_RECENT = 64
"""Answers over which the averages forget."""
_FIRST_OUTPUT_TOKENS = 256.0
_SLOWEST_PREFILL = 2000.0
"""Prompt tokens per second that a server reads at the least; taken until the answers tell."""


class Pace:
    """Averages over a policy's recent answers.

    Seconds per prompt token and per output token are told apart by least squares over both: the
    first turns of episodes read much, the later ones, whose prefix is cached, hardly anything.
    """

    def __init__(self) -> None:
        self._output = _FIRST_OUTPUT_TOKENS
        self._work = _FIRST_OUTPUT_TOKENS
        self._per_estimate = 1.0
        self._turn_s = 0.0
        self._answers = 0
        self._ff = self._fc = self._cc = self._fs = self._cs = 0.0

    @property
    def turn_tokens(self) -> float:
        """What a turn is to a server that has its prefix cached."""
        return self._work

    @property
    def turn_s(self) -> float:
        """What a turn takes, seconds."""
        return self._turn_s

    def output_tokens(self, most: float) -> int:
        """Output expected of a request.

        Args:
            most: Tokens allowed; may be infinite.
        """
        return math.ceil(min(most, self._output))

    def prompt_tokens(self, estimated: int) -> int:
        """Tokens of a prompt, from an estimate by its length."""
        return math.ceil(estimated * self._per_estimate)

    def prefill_s(self, tokens: int) -> float:
        """Seconds to read so many tokens that no cache holds."""
        return tokens * self._s_per_fresh_token()

    def answer_s(self, *, fresh: int, completion: int) -> float:
        """Seconds that an answer takes on the average server; 0 before anything is known.

        Args:
            fresh: Tokens of the prompt that no cache holds.
            completion: Tokens of the answer.
        """
        if not self._cc:
            return 0.0
        per_fresh_s = self._s_per_fresh_token()
        per_token_s = max(0.0, self._cs - per_fresh_s * self._fc) / self._cc
        return fresh * per_fresh_s + completion * per_token_s

    def learn(
        self, *, estimated: int, prompt: int, fresh: int, completion: int, seconds: float
    ) -> None:
        """Take in an answer.

        Args:
            estimated: The prompt's tokens, by its length.
            prompt: The prompt's tokens, as counted.
            fresh: Those of them that no cache held.
            completion: Tokens of the answer.
            seconds: From request to answer.
        """
        self._answers += 1
        share = 1 / min(_RECENT, self._answers)
        self._output += (completion - self._output) * share
        self._turn_s += (seconds - self._turn_s) * share
        self._work += (fresh + completion - self._work) * share
        if estimated:
            self._per_estimate += (prompt / estimated - self._per_estimate) * share
        self._ff += (fresh * fresh - self._ff) * share
        self._fc += (fresh * completion - self._fc) * share
        self._cc += (completion * completion - self._cc) * share
        self._fs += (fresh * seconds - self._fs) * share
        self._cs += (completion * seconds - self._cs) * share

    def _s_per_fresh_token(self) -> float:
        slowest = 1 / _SLOWEST_PREFILL
        determinant = self._ff * self._cc - self._fc**2
        # Nearly proportional all the time: nothing tells the two apart.
        if determinant <= 1e-3 * self._ff * self._cc:
            return slowest
        found = (self._fs * self._cc - self._cs * self._fc) / determinant
        return min(slowest, max(0.0, found))
