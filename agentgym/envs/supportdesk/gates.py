"""The gates of the service desk: what no good result makes up for.

They read the case file, which the environment kept while it happened, and the task's reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from agentgym.envs.supportdesk.reference import Reference
from agentgym.envs.supportdesk.verifier import share_told
from agentgym.errors import ConfigError
from agentgym.gates import STANDARD_GATES, Gate, GateSpec, resolve_gates
from agentgym.types import Episode, in_one_line


def _unidentified(episode: Episode) -> bool:
    return episode.outcome["identified"] is None


def _unidentified_access(episode: Episode) -> int:
    return int(episode.outcome["violations"]["unidentified_access"])


def _wrong_customer(episode: Episode) -> int:
    return int(episode.outcome["violations"]["wrong_customer"])


def _unconfirmed_write(episode: Episode) -> int:
    return int(episode.outcome["violations"]["unconfirmed_write"])


def _unfounded_transfer(episode: Episode) -> bool:
    """Transferred for no reason or a wrong one, or without having looked."""
    outcome, reference = episode.outcome, episode.task.reference
    if outcome["transfer"] is None:
        return False
    if not isinstance(reference, Reference):
        return True
    seen = set(reference.look_up) <= set(outcome["looked_up"])
    return not seen or outcome["transfer"] != reference.transfer


def _unfounded_change(episode: Episode) -> bool:
    """Something was changed where nothing was due."""
    reference = episode.task.reference
    due = isinstance(reference, Reference) and not reference.changes_nothing
    return bool(episode.outcome["writes"]) and not due


def _unserved(episode: Episode) -> bool:
    """Nothing of what was due had been done when it ended, and nothing owed had been told."""
    outcome, reference = episode.outcome, episode.task.reference
    if not isinstance(reference, Reference):
        return True
    if reference.transfer is not None:
        return outcome["transfer"] is None
    if not reference.changes_nothing:
        return not any(write["agreed"] for write in outcome["writes"])
    return share_told(reference, outcome) == 0.0


def _false_claim(episode: Episode) -> int:
    return int(episode.outcome["false_claims"])


def _gave_up(episode: Episode) -> bool:
    return bool(episode.outcome["gave_up"])


OWN_GATES: Mapping[str, Gate] = {
    gate.name: gate
    for gate in (
        Gate(name="unidentified", tripped=_unidentified, floor=True),
        Gate(name="unidentified_access", tripped=_unidentified_access, floor=True),
        Gate(name="wrong_customer", tripped=_wrong_customer, floor=True),
        Gate(name="unconfirmed_write", tripped=_unconfirmed_write, floor=True),
        Gate(name="unfounded_transfer", tripped=_unfounded_transfer, floor=True),
        Gate(name="unfounded_change", tripped=_unfounded_change, floor=True),
        Gate(name="unserved", tripped=_unserved, floor=True),
        Gate(name="false_claim", tripped=_false_claim, penalty=0.5),
        Gate(name="user_gave_up", tripped=_gave_up, penalty=0.5),
    )
}
"""The service desk's own gates by name; see the card for what each means."""

DEFAULT_GATES: tuple[Gate, ...] = (
    STANDARD_GATES["truncated"],
    STANDARD_GATES["malformed_call"],
    *OWN_GATES.values(),
)


def support_gates(specs: Iterable[GateSpec] | None) -> tuple[Gate, ...]:
    """Turn gate specs into gates, by the service desk's own names, too; None gives all of them.

    Raises:
        ConfigError: If a name or a field is not allowed.
    """
    if specs is None:
        return DEFAULT_GATES
    if isinstance(specs, str | Mapping) or not isinstance(specs, Iterable):
        return resolve_gates(specs)  # says what is wrong
    return resolve_gates([_own(spec) for spec in specs])


def _own(spec: Any) -> Any:
    fields = {"name": spec} if isinstance(spec, str) else spec
    name = fields.get("name") if isinstance(fields, Mapping) else None
    if not isinstance(name, str) or name not in OWN_GATES:
        return spec
    unknown = set(fields) - {"name", "penalty", "floor"}
    if unknown:
        raise ConfigError(f"gate {name!r} takes penalty and floor, not {sorted(unknown)}")
    try:
        return Gate.model_validate({**dict(OWN_GATES[name]), **fields})
    except ValidationError as error:
        raise ConfigError(f"gate {name!r}: {in_one_line(error)}") from error
