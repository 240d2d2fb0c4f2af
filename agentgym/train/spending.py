"""A training run within its budget: the run ends before a step that it would not pay for.

An optimiser step needs all of its episodes, so what an engine does for single episodes is done here
for the batch: before the first one begins, the whole batch must be expected to fit. Where that
turns out wrong, the rest of the batch is given up; either way the checkpoint is that of the last
whole step, and a larger budget goes on from there. What was spent is kept in the run's folder.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.errors import BudgetStop, ConfigError
from agentgym.rollout import Ledger
from agentgym.rollout.hosted import endpoints_in
from agentgym.train.config import TrainConfig
from agentgym.types import Usage

if TYPE_CHECKING:
    from agentgym.train.rollout import Rollout

SPENT_FILE = "spent.json"
"""Tokens and dollars by role, of all parts of the run so far."""


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
    ledger.spent_before(_read(file))
    rollout.ledger = ledger
    rollout.listeners.append(lambda _: _write(file, ledger))
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
        _write(file, ledger)


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


def _read(file: Path) -> dict[str, Usage]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return {role: Usage.model_validate(used) for role, used in values.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"can't read {file}, which says what the run has spent: {type(error).__name__}"
        ) from error


def _write(file: Path, ledger: Ledger) -> None:
    values = {role: used.model_dump(mode="json") for role, used in ledger.spent_by_role.items()}
    beside = file.with_name(file.name + ".new")
    beside.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    beside.replace(file)
