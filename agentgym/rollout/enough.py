"""When a run has enough, and what becomes of the episodes that are not over by then.

A batch takes as long as its slowest episode. A trainer that needs 256 rollouts does better to ask
for 320 and go on with the first 256; a group whose rewards are all equal teaches it nothing.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agentgym.types import Record


class Enough(Record):
    """A run ends once either is reached."""

    episodes: int | None = Field(default=None, ge=1)
    """Scored episodes; rollouts of a group count once the whole group is over."""
    informative_groups: int | None = Field(default=None, ge=1)
    """Groups that are over and whose scored rollouts differ in reward."""
    unfinished: Literal["cancel", "carry"] = "cancel"
    """`cancel` stops the others, here and on the servers. `carry` lets them go on, and the engine's
    next run yields them as they finish; groups that have begun are carried whole."""

    @model_validator(mode="after")
    def _says_how_much(self) -> Enough:
        if self.episodes is None and self.informative_groups is None:
            raise ValueError("say how much is enough: episodes, informative_groups, or both")
        return self
