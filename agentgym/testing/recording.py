"""Playing episodes and writing down everything they returned, so that two can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gymnasium.utils.env_checker import data_equivalence

from agentgym.copies import copied
from agentgym.core import AgentEnv
from agentgym.sync import run_on_background_loop
from agentgym.testing.conversation import EnvCheckError
from agentgym.types import Action, Messages


class Transition(NamedTuple):
    """What a reset or a step returned, copied at that moment."""

    observation: Messages
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Recording(NamedTuple):
    """An episode: the actions and, one longer, what came back."""

    actions: tuple[Action, ...]
    transitions: tuple[Transition, ...]


def play(
    env: AgentEnv, *, seed: int | None, actions: Sequence[Action] | None, max_steps: int
) -> Recording:
    """Play one episode.

    Args:
        env: The environment.
        seed: Seed of the reset, and of the action sampler.
        actions: Actions to take; None samples them from the action space.
        max_steps: Most steps taken.
    """
    stepper = play_step_by_step(env, seed=seed, actions=actions, max_steps=max_steps)
    taken, transitions = [], []
    for action, transition in stepper:
        if action is not None:
            taken.append(action)
        transitions.append(transition)
    return Recording(tuple(taken), tuple(transitions))


def play_step_by_step(
    env: AgentEnv, *, seed: int | None, actions: Sequence[Action] | None, max_steps: int
) -> Iterator[tuple[Action | None, Transition]]:
    """Like `play`, but giving way after the reset and after every step."""
    observation, info = env.reset(seed=seed)
    if actions is None:
        env.action_space.seed(seed)
    yield None, Transition(*copied((observation, 0.0, False, False, info)))
    for index in range(max_steps if actions is None else len(actions)):
        action = env.action_space.sample() if actions is None else actions[index]
        before = copied(action)
        transition = Transition(*copied(env.step(action)))
        if action != before:
            raise EnvCheckError(
                f"step() changed the action it was given from {before!r:.300} to {action!r:.300}; "
                "copy it first"
            )
        yield action, transition
        if transition.terminated or transition.truncated:
            return


def play_async(env: AgentEnv, *, seed: int, actions: Sequence[Action]) -> Recording:
    """The same actions through `areset` and `astep`."""

    async def run() -> list[Transition]:
        observation, info = await env.areset(seed=seed)
        found = [Transition(*copied((observation, 0.0, False, False, info)))]
        for action in actions:
            found.append(Transition(*copied(await env.astep(action))))
            if found[-1].terminated or found[-1].truncated:
                break
        return found

    return Recording(tuple(actions), tuple(run_on_background_loop(run())))


def require_equal(first: Recording, second: Recording, *, what: str, remedy: str) -> None:
    """Raise if two recordings differ, naming the first difference.

    Raises:
        EnvCheckError: With the step, the field and both values.
    """
    for step, (one, other) in enumerate(zip(first.transitions, second.transitions, strict=False)):
        for name, left, right in zip(Transition._fields, one, other, strict=True):
            if not data_equivalence(left, right, exact=True):
                where = "reset" if step == 0 else f"step {step}"
                detail = _difference(left, right)
                raise EnvCheckError(f"{what}: {name} differs at {where}: {detail}; {remedy}")
    if len(first.transitions) != len(second.transitions):
        lengths = f"{len(first.transitions) - 1} and {len(second.transitions) - 1} steps"
        raise EnvCheckError(f"{what}: the episodes have {lengths}; {remedy}")


def _difference(left: Any, right: Any) -> str:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in left.keys() | right.keys():
            if not data_equivalence(left.get(key), right.get(key), exact=True):
                return f"[{key!r}] {left.get(key)!r:.200} against {right.get(key)!r:.200}"
    return f"{left!r:.200} against {right!r:.200}"
