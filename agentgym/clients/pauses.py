"""Whether a call that failed is worth another attempt, and after how long."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable

from agentgym.client import Endpoint
from agentgym.clients.call import Call
from agentgym.clients.failures import is_overflow, scrubbed
from agentgym.clients.reply import BadReply

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_WARN_EVERY_S = 30.0
_BUSY = (429, 500, 502, 503, 504)
_CUT_AGAIN = 3
_SILENT_AGAIN = 1
_NOT_FINITE_AGAIN = 1


class Pauses:
    """The pauses between the attempts of a client's calls.

    Args:
        client: Whose, as the log names it.
        endpoint: What its calls are asked of.
        rng: Jitter.
        clock: Seconds, rising.
    """

    def __init__(
        self, client: str, endpoint: Endpoint, *, rng: random.Random, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._rng = rng
        self._clock = clock
        self._warned_at = -math.inf

    def before_next(self, call: Call, failure: BadReply) -> float | None:
        """Seconds to wait before a call's next attempt; None if there is no use in one.

        Args:
            call: Which; its last attempt is among its failures.
            failure: That attempt's.
        """
        pause_s = self._pause_s(failure, call.failures)
        too_late = self._clock() + pause_s >= call.deadline
        hopeless = not failure.retryable or is_overflow(failure)
        hopeless = hopeless or (call.question.is_hello and not _passes(failure, call.failures))
        hopeless = hopeless or (failure.not_finite and call.failures > _NOT_FINITE_AGAIN)
        return None if hopeless or too_late else pause_s

    def _pause_s(self, failure: BadReply, failures: int) -> float:
        """Exponential with jitter, at least what the server asks for."""
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (failures - 1))
        return max(self._rng.uniform(longest / 2, longest), failure.retry_after_s or 0.0)

    def warn(self, failure: BadReply, pause_s: float) -> None:
        """Say that requests keep failing; once in a while, since thousands may wait at once."""
        if self._clock() - self._warned_at < _WARN_EVERY_S:
            return
        self._warned_at = self._clock()
        text = " ".join(scrubbed(str(failure), self._endpoint).split())[:200]
        logger.warning("%s: %s; trying again in %.0f s", self._client, text, pause_s)


def _passes(failure: BadReply, failures: int) -> bool:
    """Whether what a hello met is worth another one.

    Args:
        failure: A connection that was there and broke isn't a wrong address; one that was never
            there may be.
        failures: So far. A silent server costs a whole time-out each time.
    """
    if failure.unknown_bill:
        return failures <= (_SILENT_AGAIN if failure.status == 408 else _CUT_AGAIN)
    return failure.status in _BUSY
