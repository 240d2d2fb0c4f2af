"""`check_agent_env`: does an environment keep the promises that trainers and evaluations rely on?

Gymnasium's `check_env` knows nothing of conversations, verdicts or tools, and looks at a single
step. The faults that cost a training run are others: state shared by two instances, a global
random generator, an id that no tool message answers, a reference in the observation. Each has a
check here, in words that say what to mend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium

from agentgym.core import AgentEnv
from agentgym.errors import ConfigError
from agentgym.testing import checks_of_episodes, checks_of_policies
from agentgym.testing.conversation import EnvCheckError
from agentgym.testing.subject import Subject
from agentgym.types import Task

CHECKS: dict[str, Callable[[Subject], None]] = {
    "gymnasium": checks_of_episodes.gymnasium_check,
    "bounds": checks_of_episodes.episodes_end,
    "determinism": checks_of_episodes.same_seed_same_episode,
    "seed_sequence": checks_of_episodes.unseeded_resets_follow_the_seed,
    "tasks": checks_of_episodes.tasks_can_be_named,
    "global_random": checks_of_episodes.global_generators_untouched,
    "isolation": checks_of_episodes.instances_share_nothing,
    "reset": checks_of_episodes.reset_clears_everything,
    "async_face": checks_of_episodes.both_faces_agree,
    "snapshot": checks_of_episodes.snapshots_restore,
    "close": checks_of_episodes.close_frees,
    "order": checks_of_episodes.steps_need_a_reset,
    "options": checks_of_episodes.unknown_options_are_refused,
    "sampled_actions": checks_of_policies.sampled_actions_are_legal,
    "observations": checks_of_policies.observations_are_in_the_space,
    "conversation": checks_of_policies.conversation_stays_valid,
    "hostile_actions": checks_of_policies.hostile_actions_are_answered,
    "returned_data": checks_of_policies.returned_messages_are_the_callers,
    "verdict": checks_of_policies.verdict_and_reward_agree,
    "hidden": checks_of_policies.nothing_hidden_shows,
}
"""The checks by name, in the order in which they run."""


def check_agent_env(
    env_or_id: str | gymnasium.Env[Any, Any] | Callable[[], gymnasium.Env[Any, Any]],
    *,
    episodes: int = 5,
    seed: int = 0,
    max_steps: int = 50,
    skip: Iterable[str] = (),
    hidden: Callable[[Task], Iterable[str]] | None = None,
) -> None:
    """Check an agent environment; passes silently or raises at the first fault.

    The agent environment itself is checked, beneath whatever wraps it.

    Args:
        env_or_id: A registered id, an environment that `gymnasium.make` made (so that others like
            it can be made), or a function that makes one.
        episodes: Random episodes per check.
        seed: Of the first episode; the others follow it.
        max_steps: Steps after which an env without a cap of its own is left alone.
        skip: Names of checks to leave out; `CHECKS` lists them.
        hidden: Gives, for a task, the texts that must never show before the end. By default that is
            the task's reference itself.

    Raises:
        EnvCheckError: Naming the check, what happened and what to do.
        ConfigError: If a name in `skip` is unknown, or no further instance can be made.
    """
    left_out = frozenset(skip)
    if unknown := left_out - CHECKS.keys():
        raise ConfigError(f"no check {sorted(unknown)}; there are {', '.join(CHECKS)}")
    make = _factory(env_or_id)
    make().close()
    subject = Subject(make=make, episodes=episodes, seed=seed, max_steps=max_steps, hidden=hidden)
    for name, check in CHECKS.items():
        if name in left_out:
            continue
        try:
            check(subject)
        except EnvCheckError as error:
            raise EnvCheckError(f"check {name!r} failed: {error}") from error
        except Exception as error:
            raise EnvCheckError(
                f"check {name!r} failed: {type(error).__name__}: {error}; the environment raised "
                "where it must not"
            ) from error


def _factory(
    env_or_id: str | gymnasium.Env[Any, Any] | Callable[[], gymnasium.Env[Any, Any]],
) -> Callable[[], AgentEnv]:
    make: Callable[[], gymnasium.Env[Any, Any]]
    if isinstance(env_or_id, str):
        env_id = env_or_id
        make = lambda: gymnasium.make(env_id, disable_env_checker=True)  # noqa: E731
    elif isinstance(env_or_id, gymnasium.Env):
        spec = env_or_id.unwrapped.spec
        if spec is None:
            raise ConfigError(
                "check_agent_env needs more instances like this one, and it has no spec; pass a "
                "function that makes it, such as its class"
            )
        make = lambda: gymnasium.make(spec, disable_env_checker=True)  # noqa: E731
    else:
        make = env_or_id

    def agent_env() -> AgentEnv:
        env = make().unwrapped
        if not isinstance(env, AgentEnv):
            raise ConfigError(f"check_agent_env checks AgentEnvs, got {type(env).__name__}")
        return env

    return agent_env
