"""What a run is paid from: its share of the ledger's work, and what the budget did to its episodes.

A run has at most one ledger. Each episode begins with a slip of it, and gives that back at its end;
one of which a request could no longer be paid is cut off, and with it the run ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agentgym.errors import BudgetStop
from agentgym.metering import metered, paid_from
from agentgym.rollout.admission import Slip
from agentgym.rollout.backend import Playing
from agentgym.rollout.failure import last_line
from agentgym.rollout.ledger import Ledger
from agentgym.rollout.request import EpisodeRequest
from agentgym.trace import CUT_BY_BUDGET, Trace


class RunPayer:
    """Pays for a run.

    Args:
        ledger: What the episodes are paid from; None where nobody minds, and nothing is kept.
        is_here: Whether they are played in this process, so that their bills come as they arise.
    """

    def __init__(self, ledger: Ledger | None, *, is_here: bool) -> None:
        self._ledger = ledger
        self._is_here = is_here
        self._slips: dict[Playing, Slip] = {}
        self._done = 0
        self._cut: list[str] = []
        """Names of the episodes that the budget has cut off."""
        self._not_run: list[str] | None = None
        """Names of those that it kept from beginning; None as long as it has stopped nothing."""
        self._knows_all = True

    @property
    def is_limited(self) -> bool:
        """Whether there is a ledger."""
        return self._ledger is not None

    @contextmanager
    def paying(self) -> Iterator[None]:
        """Pay for all calls inside, also those of tasks that begin in it."""
        if self._ledger is None:
            yield
            return
        with metered(self._ledger.meter), paid_from(self._ledger):
            yield

    async def admit(self) -> Slip | None:
        """Leave for one more episode, as soon as it is clear; with a ledger None is a refusal."""
        return None if self._ledger is None else await self._ledger.admit()

    def begin(self, playing: Playing, slip: Slip) -> None:
        """An episode has begun."""
        slip.follow(lambda: playing.spent, charged_here=self._is_here)
        self._slips[playing] = slip

    def finish(self, playing: Playing, *, is_cut: bool) -> None:
        """An episode was played to its end, or to where the budget cut it off."""
        if (slip := self._slips.get(playing)) is not None:
            slip.close(teaches=not is_cut)
        self._done += not is_cut

    def forget(self, playing: Playing) -> None:
        """An episode is gone, however it ended."""
        if (slip := self._slips.pop(playing, None)) is not None:
            slip.close()

    def keep(self) -> None:
        """Write down what is spent."""
        if self._ledger is not None:
            self._ledger.keep()

    def cut_off(self, trace: Trace, request: EpisodeRequest) -> Trace:
        """An episode of which a request could no longer be paid, as such; nothing else begins."""
        assert self._ledger is not None
        self._ledger.strike()
        self._cut.append(request.name(trace.seed or 0))
        why = last_line(trace.error or trace.verdict.reason or "")
        amounts = [cap.model_dump() for cap in self._ledger.caps()]
        return trace.model_copy(
            update={
                "error": f"{CUT_BY_BUDGET}{why}",
                "metadata": {**trace.metadata, "budget": amounts},
            }
        )

    def stopped_before(self, requests: Sequence[EpisodeRequest], *, knows_all: bool) -> None:
        """No further episode can be paid for.

        Args:
            requests: Those that will not be played, as far as they are known.
            knows_all: Whether these are all.
        """
        self._knows_all = knows_all
        self._not_run = [request.name(request.seed or 0) for request in requests]

    def tell_if_it_stopped_the_run(self) -> None:
        """The end of a run that the budget ended, or would have, had all prices been known.

        Raises:
            BudgetStop: If it did.
            ConfigError: If a role was billed that has no price, and so may have overrun it.
        """
        if self._ledger is None:
            return
        self._ledger.check_priced()
        if self._not_run is None and not self._cut:
            return
        status = self._ledger.status(
            done=self._done,
            cut=self._cut,
            not_run=self._not_run or (),
            not_run_unknown=not self._knows_all,
        )
        raise BudgetStop(str(status), status)
