"""Full-text search over a catalogue: BM25 exactly as Lucene scores it.

Rankings decide what an agent sees, so they follow Lucene to the last tie: document lengths are
rounded as Lucene's one-byte norms are, arithmetic is float32, and ties have a fixed order.
The score of every (term, product) pair is worked out once and kept in flat arrays, so a query is a
handful of array additions and needs no Java.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from agentgym.envs.webshop.analyzer import analyze

K1 = 0.9
"""BM25 term-frequency saturation (Anserini's default)."""
B = 0.4
"""BM25 length normalisation (Anserini's default)."""
MAX_HITS = 50
"""Hits returned for one query, at most."""
LONGEST_REMEMBERED = 1000
"""Characters of a query whose answer is kept; floods of text would fill the memory."""


def quantized_length(length: int) -> int:
    """Return ``length`` as it survives Lucene's one-byte norm.

    Lengths up to 40 are exact; above, 24 plus the four significant bits of the rest.

    Source: Lucene 8, ``SmallFloat.intToByte4``.
    """
    if length <= 40:
        return length
    rest = length - 24
    shift = max(rest.bit_length() - 4, 0)
    return 24 + (rest >> shift << shift)


class SearchIndex:
    """A read-only index over documents; safe to share between threads.

    Args:
        texts: The documents; the earlier one comes first where scores are equal.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._terms: dict[str, int] = {}
        self._build(texts)
        self._search = lru_cache(maxsize=256)(self._rank)

    def _build(self, texts: Iterable[str]) -> None:
        """Fill the postings: flat arrays of document numbers and scores, sliced by term."""
        terms = self._terms
        term_ids, frequencies = array("i"), array("i")
        lengths, widths = array("q"), array("q")
        for text in texts:
            analyzed = analyze(text)
            counts = Counter(analyzed)
            lengths.append(len(analyzed))
            widths.append(len(counts))
            term_ids.extend([terms.setdefault(term, len(terms)) for term in counts])
            frequencies.extend(counts.values())
        self._total = len(lengths)
        term_of = np.array(term_ids, dtype=np.int32)
        document_of = np.repeat(np.arange(self._total, dtype=np.int32), np.array(widths, np.int64))
        by_term = np.argsort(term_of, kind="stable")
        document_frequency = np.bincount(term_of, minlength=len(terms))
        self._starts = np.concatenate(([0], np.cumsum(document_frequency))).tolist()
        self._documents = document_of[by_term]
        self._impacts = self._impact(
            np.array(frequencies, dtype=np.int32)[by_term],
            np.array(lengths, dtype=np.int64),
            np.repeat(document_frequency, document_frequency),
        )

    def _impact(
        self,
        frequency: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int64],
        document_frequency: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.float32]:
        """Score of each posting, shape ``(postings,)``: idf · tf / (tf + norm).

        Source: Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009, in Lucene 8's
        form without the constant factor k1 + 1.
        """
        total = len(lengths)
        with_terms = int(np.count_nonzero(lengths))
        average = np.float32(lengths.sum() / max(with_terms, 1))
        rounded = np.array([quantized_length(int(n)) for n in lengths], dtype=np.float32)
        k1, b, one = np.float32(K1), np.float32(B), np.float32(1)
        norm = k1 * ((one - b) + b * rounded / max(average, one))
        odds = (total - document_frequency + 0.5) / (document_frequency + 0.5)
        idf = np.log(1 + odds).astype(np.float32)
        tf = frequency.astype(np.float32)
        impact: npt.NDArray[np.float32] = idf * (tf / (tf + norm[self._documents]))
        return impact

    def __getstate__(self) -> dict[str, object]:
        """All but the remembered searches, which can't be pickled."""
        return {key: value for key, value in self.__dict__.items() if key != "_search"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._search = lru_cache(maxsize=256)(self._rank)

    def __len__(self) -> int:
        return self._total

    @property
    def has_terms(self) -> bool:
        """Whether any document holds a word."""
        return bool(self._terms)

    def search(self, query: str) -> tuple[tuple[int, float], ...]:
        """Return the best documents for ``query``.

        Returns:
            At most 50 ``(document number, score)`` pairs, best first; documents are numbered from
            0 in the order in which the constructor got them.
        """
        return self._search(query) if len(query) <= LONGEST_REMEMBERED else self._rank(query)

    def _rank(self, query: str) -> tuple[tuple[int, float], ...]:
        slices = []
        for term, count in Counter(analyze(query)).items():
            term_id = self._terms.get(term)
            if term_id is not None:
                slices.append((slice(self._starts[term_id], self._starts[term_id + 1]), count))
        if not slices:
            return ()
        documents = np.concatenate([self._documents[span] for span, _ in slices])
        impacts = np.concatenate(
            [self._impacts[span] * np.float32(count) for span, count in slices]
        )
        found, index = np.unique(documents, return_inverse=True)
        scores = np.bincount(index, weights=impacts).astype(np.float32)
        if len(found) > MAX_HITS:
            threshold = np.partition(scores, len(scores) - MAX_HITS)[len(scores) - MAX_HITS]
            keep = scores >= threshold
            found, scores = found[keep], scores[keep]
        best = np.argsort(-scores, kind="stable")[:MAX_HITS]
        return tuple(zip(found[best].tolist(), scores[best].tolist(), strict=True))
