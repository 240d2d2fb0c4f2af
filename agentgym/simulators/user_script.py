"""What a scripted user wants and how they react: the format of `Scenario.script`.

A script is data, so that a scenario stays a plain record that can be stored, compared and sent to a
process of its own. It is checked when it is first played; a wrong field is named.

Example:
    >>> UserScript.model_validate({
    ...     "requests": [{
    ...         "ask": ["Please cancel order W1000001."],
    ...         "wants": [["W1000001"], ["cancel"]],
    ...         "change": {"ask": ["Actually, keep it, but ship it to my new address."]},
    ...     }],
    ... }).requests[0].wants
    (('W1000001',), ('cancel',))
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, ValidationError, field_validator

from agentgym.errors import SimulatorError
from agentgym.types import Record, in_one_line

DEFAULT_CUES: dict[str, tuple[str, ...]] = {
    "email": ("email address", "e-mail address", "email", "e-mail"),
    "name": ("full name", "first and last name", "last name", "first name", "your name"),
    "zip": ("zip code", "zip", "postal code", "postcode"),
    "order_id": (
        *("order number", "order id", "order #", "order no", "order reference", "which order"),
        *("what order", "number of order", "number of the order", "number of your order"),
        *("which of your orders", "which purchase"),
    ),
    "reason": ("reason", "why", "how come", "made you", "cause"),
}
"""Words that ask for a fact, by its name; a script adds to them."""

Words = tuple[str, ...]


class Request(Record):
    """One thing the user wants.

    Words are looked for in what the agent says, upper and lower case being the same.
    """

    ask: Words = Field(min_length=1)
    """Ways to put it; one is said."""
    wants: tuple[Words, ...] = ()
    """A proposal is agreed to if it names one word of every group."""
    rejects: Words = ()
    """Words that make any proposal a wrong one."""
    correction: Words = ()
    """Ways to say what is wrong with a proposal; without any, the request is put again."""
    answer: str | None = None
    """For a question: the regular expression of an answer (its form; the user can't know it)."""
    objections: Words = ()
    """What the user says to a refusal, one after the other, before giving in."""
    refusable: Words = ()
    """Reasons the user gives in to; a refusal that names none isn't accepted."""
    fallback: Request | None = None
    """What the user wants once they have given in; also agreed to when it is offered."""
    change: Request | None = None
    """What the user says instead of the first yes, and wants from then on."""

    @field_validator("answer")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"is no regular expression: {error}") from error
        return pattern


class UserScript(Record):
    """The whole script."""

    requests: tuple[Request, ...] = Field(min_length=1)
    """Told one at a time: the next when the one before is settled."""
    cues: dict[str, Words] = Field(default_factory=dict)
    """Fact name to words that ask for it, beside `DEFAULT_CUES`."""
    reluctant: dict[str, str] = Field(default_factory=dict)
    """Fact name to what the user says the first time they are asked for it."""
    patience: int = Field(default=4, ge=1)
    """Unhelpful messages in a row after which the user leaves."""

    def cues_of(self, fact: str) -> Words:
        """Words that ask for a fact."""
        own = (*self.cues.get(fact, ()), *DEFAULT_CUES.get(fact, ()))
        return own or (fact.replace("_", " "),)

    def at(self, path: list[Any]) -> Request:
        """The request at a position: its index, then `fallback` or `change` any number of times."""
        request: Request = self.requests[path[0]]
        for step in path[1:]:
            inner = request.fallback if step == "fallback" else request.change
            if inner is None:
                raise SimulatorError(f"the dialogue is at {path}, which the script doesn't have")
            request = inner
        return request


def read_script(script: dict[str, Any], facts: dict[str, str]) -> UserScript:
    """Check a script.

    Raises:
        SimulatorError: If a field is wrong, or a fact is named that the scenario doesn't have.
    """
    try:
        read = UserScript.model_validate(script)
    except ValidationError as error:
        raise SimulatorError(f"the scenario's script is wrong: {in_one_line(error)}") from error
    for name in (*read.cues, *read.reluctant):
        if name not in facts:
            known = ", ".join(facts) or "none"
            raise SimulatorError(
                f"the scenario's script names the fact {name!r}; its facts are {known}"
            )
    return read
