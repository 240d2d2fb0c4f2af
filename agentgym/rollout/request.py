"""What to roll out: one request per episode, and the seeds that follow from it."""

from __future__ import annotations

import hashlib
import secrets

from pydantic import Field, model_validator

from agentgym.types import Record

_SEED_BITS = 31  # what every server takes as a seed


class EpisodeRequest(Record):
    """One episode to play."""

    task_id: str | None = None
    """The task; None lets the env draw one by the seed."""
    seed: int | None = Field(default=None, ge=0)
    """Fixes the env's draws and, with `sample`, every sampling seed; None draws one."""
    group: str | None = None
    """Shared by the rollouts of one task that are compared with each other; they need its `task_id`
    or one `seed`."""
    group_size: int | None = Field(default=None, ge=1)
    """Rollouts of the group in this run. A judge that compares them starts when so many are over;
    None: when no further episode is requested."""
    sample: int = Field(default=0, ge=0)
    """Which rollout of the task this is; rollouts of one seed differ by it."""
    free_sample: int | None = Field(default=None, ge=0)
    """The first sample number of the task that nobody has had, for replacements of rollouts that
    fail; None: the one after those of the group."""

    @model_validator(mode="after")
    def _groups_share_a_task(self) -> EpisodeRequest:
        if self.group is not None and self.task_id is None and self.seed is None:
            raise ValueError(
                "the rollouts of a group play one task: give them its task_id, or one seed that "
                "draws it; otherwise each would draw its own"
            )
        return self

    def name(self, seed: int) -> str:
        """What the episode is called in recordings: the same whenever the same is asked for.

        Args:
            seed: The episode's, drawn where `seed` is None.
        """
        return f"{self.task_id or 'drawn'}@{seed}.{self.sample}"


def derived_seed(seed: int, *parts: int | str) -> int:
    """A seed that depends on all the parts, the same in every process.

    Returns:
        Between 0 and 2³¹ - 1.
    """
    text = ":".join(str(part) for part in (seed, *parts))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest) & ((1 << _SEED_BITS) - 1)


def fresh_seed() -> int:
    """A seed nobody used before; it goes into the trace, so the episode can be repeated."""
    return secrets.randbits(_SEED_BITS)
