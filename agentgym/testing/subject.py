"""What the checks are run on: a way to make instances, and how long to play each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from agentgym.core import AgentEnv
from agentgym.testing.recording import Recording, play
from agentgym.types import Task


class Subject(NamedTuple):
    """The environment under check."""

    make: Callable[[], AgentEnv]
    """Makes a fresh instance."""
    episodes: int
    """Random episodes per check."""
    seed: int
    """Seed of the first of them."""
    max_steps: int
    """Most steps of one."""
    hidden: Callable[[Task], Iterable[str]] | None
    """Texts that must not show, by task."""

    @property
    def seeds(self) -> range:
        """One seed per episode."""
        return range(self.seed, self.seed + self.episodes)

    @contextmanager
    def fresh(self) -> Iterator[AgentEnv]:
        """A fresh instance, closed afterwards."""
        env = self.make()
        try:
            yield env
        finally:
            env.close()

    def sampled_episode(self, seed: int) -> Recording:
        """A random episode in an instance of its own."""
        with self.fresh() as env:
            return play(env, seed=seed, actions=None, max_steps=self.max_steps)
