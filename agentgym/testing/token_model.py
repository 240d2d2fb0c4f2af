"""A language model for tests: a distribution over ids that the last few ids decide.

It is no network and knows no language, but what a sampler does with it is real: temperature, top-k,
top-p and min-p change its distribution, a seed repeats its draws, and the log-probability of every
id is known exactly. So a test can say which ids and log-probabilities a client must come back with,
and other weights are another `seed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

LogprobsMode = Literal["processed_logprobs", "raw_logprobs", "raw_logits"]
"""As vLLM's `--logprobs-mode`: of the distribution that is sampled from, of the one before
temperature and cut-offs, or no probabilities at all."""

_SEEN = 4
"""Ids at the end of the context that decide what follows."""
_NOTHING = -np.inf


@dataclass(frozen=True, slots=True)
class Sampled:
    """One completion."""

    ids: tuple[int, ...]
    """Shape `(C,)`, the stop token included."""
    logprobs: tuple[float, ...]
    """Shape `(C,)`."""
    finish_reason: Literal["stop", "length"]


class TokenModel:
    """Next-id distributions, the same for the same last ids.

    Args:
        vocabulary: Number of ids.
        seed: Stands for the weights.
        favoured: Ids that are likelier than the others, by what is added to their logits; a stop
            token, say.
        mode: What log-probabilities are given out.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        seed: int = 0,
        favoured: Mapping[int, float] | None = None,
        mode: LogprobsMode = "processed_logprobs",
    ) -> None:
        self.vocabulary = vocabulary
        self.seed = seed
        self.favoured = dict(favoured or {})
        self.mode: LogprobsMode = mode
        self._rng = np.random.default_rng(seed)

    def logits(self, context: Sequence[int]) -> NDArray[np.float64]:
        """Of the id after a context; shape `(V,)`."""
        rng = np.random.default_rng([self.seed, *context[-_SEEN:]])
        logits = 2.0 * rng.standard_normal(self.vocabulary)
        for token, more in self.favoured.items():
            logits[token] += more
        return logits

    def logprobs(
        self, context: Sequence[int], params: Mapping[str, Any] | None = None
    ) -> NDArray[np.float64]:
        """As they are given out for a request's parameters; shape `(V,)`, -inf for no chance."""
        logits = self.logits(context)
        if self.mode == "raw_logits":
            return logits
        return _log_softmax(logits if self.mode == "raw_logprobs" else _processed(logits, params))

    def sample(
        self,
        prompt: Sequence[int],
        params: Mapping[str, Any],
        *,
        said: Sequence[int] | None = None,
    ) -> Sampled:
        """Complete a prompt.

        Args:
            prompt: Shape `(P,)`.
            params: A request's `max_tokens`, `temperature`, `top_k`, `top_p`, `min_p`, `seed` and
                `stop_token_ids`.
            said: Ids to say instead of drawing any, with the log-probabilities they have; cut where
                the request's limit or a stop token ends them.
        """
        seed = params.get("seed")
        rng = self._rng if seed is None else np.random.default_rng(abs(int(seed)))
        stops = set(params.get("stop_token_ids") or ())
        context, ids, logprobs = list(prompt), [], []
        most = int(params.get("max_tokens") or 16)
        for place in range(most if said is None else min(most, len(said))):
            given_out = self.logprobs(context, params)
            if said is not None:
                token = int(said[place])
            else:
                token = self._drawn(self.logits(context), params, rng)
            ids.append(token)
            logprobs.append(float(given_out[token]))
            context.append(token)
            if token in stops:
                return Sampled(tuple(ids), tuple(logprobs), "stop")
        cut = said is None or len(said) > most
        return Sampled(tuple(ids), tuple(logprobs), "length" if cut else "stop")

    def _drawn(
        self, logits: NDArray[np.float64], params: Mapping[str, Any], rng: np.random.Generator
    ) -> int:
        if not params.get("temperature", 1.0):
            return int(logits.argmax())
        chances = np.exp(_log_softmax(_processed(logits, params)))
        return int(rng.choice(self.vocabulary, p=chances / chances.sum()))


def _processed(
    logits: NDArray[np.float64], params: Mapping[str, Any] | None
) -> NDArray[np.float64]:
    """Logits of the distribution that is sampled from; greedy requests keep theirs."""
    params = params or {}
    temperature = float(params.get("temperature", 1.0))
    if not temperature:
        return logits
    logits = logits / temperature
    order = np.argsort(-logits)
    chances = np.exp(_log_softmax(logits))
    kept = np.ones(len(logits), dtype=bool)
    top_k, top_p = int(params.get("top_k", -1)), float(params.get("top_p", 1.0))
    if top_k > 0:
        kept[order[top_k:]] = False
    if top_p < 1:
        before = np.cumsum(chances[order]) - chances[order]
        kept[order[before >= top_p]] = False
    kept &= chances >= float(params.get("min_p", 0.0)) * chances.max()
    processed: NDArray[np.float64] = np.where(kept, logits, _NOTHING)
    return processed


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max()
    logprobs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return logprobs
