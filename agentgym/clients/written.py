"""JSON that needs no writing any more."""

from __future__ import annotations

from collections.abc import Sequence


class Written:
    """A value that is JSON already, in pieces: thousands of calls that wait share them.

    Args:
        pieces: What makes the JSON, in order.
    """

    __slots__ = ("pieces",)

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
