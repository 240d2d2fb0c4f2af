"""A training run within its budget: the run ends before a step that it would not pay for.

An optimiser step needs all of its episodes, so what an engine does for single episodes is done here
for the batch: before the first one begins, the whole batch must be expected to fit. Where that
turns out wrong, the rest of the batch is given up; either way the checkpoint is that of the last
whole step, and a larger budget goes on from there. What was spent is kept in the run's folder,
after each episode.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentgym.errors import BudgetStop, ConfigError
from agentgym.rollout import Ledger
from agentgym.rollout.hosted import endpoints_in
from agentgym.rollout.spending import SPENT_FILE, read_spending
from agentgym.train.config import TrainConfig

if TYPE_CHECKING:
    from agentgym.train.rollout import Rollout


@contextmanager
def within_budget(rollout: Rollout, config: TrainConfig, *, processes: int) -> Iterator[None]:
    """Keep a run within the budget of its config, if it has one.

    Args:
        rollout: Plays the run's episodes.
        config: The run.
        processes: Of the trainer.

    Raises:
        ConfigError: If a price isn't known, or nobody here can see what is spent.
        BudgetStop: At the end of what can be paid for, with how to go on.
    """
    if config.budget is None:
        yield
        return
    if processes > 1 or config.policy.service is not None:
        where = "several processes" if processes > 1 else "a rollout service"
        raise ConfigError(
            f"budget: what {where} spend isn't seen in one place; leave it out, and give the "
            "endpoints in roles a budget_usd each"
        )
    ledger = Ledger(config.budget, free_roles=("policy",))
    ledger.check_prices(endpoints_in(rollout.env_kwargs).values())
    file = config.out / SPENT_FILE
    before = read_spending(file)
    ledger.spent_before(before.billed, unbilled=before.unbilled)
    ledger.keep_in(file)
    rollout.ledger = ledger
    try:
        yield
    except BudgetStop as stop:
        out = shlex.quote(str(config.out))
        cap = stop.status.struck
        larger = f"budget.{f'roles.{cap.role}.' if cap.role else ''}{cap.unit}=…"
        raise BudgetStop(
            f"{stop}; `agentgym train --out {out} --resume --set {larger}` with a larger one goes "
            "on from the last checkpoint",
            stop.status,
        ) from stop
    finally:
        ledger.keep()


def require_paid(ledger: Ledger, episodes: int) -> None:
    """See that a whole batch can be paid for, as far as one knows.

    Raises:
        BudgetStop: If not; none of it has begun then.
    """
    if ledger.affords(episodes):
        return
    names = [f"episode {n + 1} of the batch" for n in range(episodes)]
    status = ledger.status(done=ledger.over, not_run=names)
    raise BudgetStop(str(status), status)
