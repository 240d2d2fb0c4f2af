"""How far off the client's estimates of prompts are, so that a budget sets aside enough.

An estimate counts bytes. A server adds what its template says before anybody does, and counts some
languages in more tokens than others; so what earlier prompts turned out to be is learned from. It
is learned by size: a template of hundreds of tokens makes the greeting ten times as long and a long
conversation hardly longer, and with one ratio for both a budget would hold ten times too much for
every request and stop far too early.
"""

from __future__ import annotations

import math

_MEMORY = 1000
"""Requests after which most of an outlier is forgotten: each takes such a part of the excess."""

_TEXT = 4.0
"""No text has more tokens per estimated one: a byte a token. Thai or Chinese take one and a half
with a small vocabulary for English, hexadecimal digits two."""


class PromptScale:
    """The worst ratio of tokens to estimate lately, for each power of two of the estimate.

    Any thread may use it; an update that is lost is made up for by the next prompt.
    """

    def __init__(self) -> None:
        self._worst: dict[int, float] = {}

    def learn(self, estimated: int, tokens: int) -> None:
        """A prompt was estimated at so much and had so many tokens."""
        size, ratio = estimated.bit_length(), tokens / estimated
        worst = self._worst.get(size, ratio)
        self._worst[size] = max(ratio, worst - (worst - ratio) / _MEMORY)

    def at_most(self, estimated: int) -> int:
        """The most that a prompt may have, as far as one knows; never less than its estimate."""
        size = estimated.bit_length()
        if (known := self._worst.get(size)) is None:
            return max(estimated, math.ceil(self._by_others(estimated, size)))
        return math.ceil(estimated * max(1.0, known))

    def _by_others(self, estimated: int, size: int) -> float:
        """By the next smaller prompts that were seen; or, if there are none, by the next larger."""
        seen = list(self._worst)
        smaller = [each for each in seen if each < size]
        nearest = max(smaller) if smaller else min(seen, default=size)
        ratio = self._worst.get(nearest, 1.0)
        # What goes beyond any text is a template, and that doesn't grow.
        return min(estimated * ratio, estimated * _TEXT + ratio * 2.0**nearest)
