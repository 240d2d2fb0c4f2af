"""Checks of the episode as a whole: determinism, isolation, reset, snapshots, close."""

from __future__ import annotations

import gc
import random
import warnings
import weakref
from collections.abc import Iterator
from itertools import zip_longest

import numpy as np
from gymnasium.utils.env_checker import check_env

from agentgym.core import AgentEnv
from agentgym.errors import ConfigError, ResetNeeded, UnknownTaskError
from agentgym.testing.conversation import EnvCheckError
from agentgym.testing.recording import (
    Recording,
    Transition,
    play,
    play_async,
    play_step_by_step,
    require_equal,
)
from agentgym.testing.subject import Subject
from agentgym.types import Action


def gymnasium_check(subject: Subject) -> None:
    """Gymnasium's own checker, with its warnings as errors."""
    with subject.fresh() as env, warnings.catch_warnings():
        warnings.simplefilter("error")
        env.action_space.seed(subject.seed)
        try:
            check_env(env, skip_render_check=env.spec is None)
        except (Exception, Warning) as error:
            raise EnvCheckError(f"gymnasium's check_env: {error}") from error


def episodes_end(subject: Subject) -> None:
    """A cap holds, and the end says why it came."""
    for seed in subject.seeds:
        with subject.fresh() as env:
            episode = play(env, seed=seed, actions=None, max_steps=subject.max_steps)
            cap = env.max_turns
        last = episode.transitions[-1]
        if cap is not None and len(episode.actions) > cap:
            raise EnvCheckError(f"the episode took {len(episode.actions)} turns; the cap is {cap}")
        if last.terminated and last.truncated:
            raise EnvCheckError("terminated and truncated are both true; an end is one of the two")
        if last.terminated != (last.info.get("termination_reason") is not None):
            raise EnvCheckError("info['termination_reason'] goes with terminated, and only with it")
        if last.truncated != (last.info.get("truncation_reason") is not None):
            raise EnvCheckError("info['truncation_reason'] goes with truncated, and only with it")


def same_seed_same_episode(subject: Subject) -> None:
    """The same seed and actions give the same episode, in another instance too."""
    for seed in subject.seeds:
        first = subject.sampled_episode(seed)
        with subject.fresh() as env:
            again = play(env, seed=seed, actions=first.actions, max_steps=subject.max_steps)
        require_equal(
            first,
            again,
            what=f"seed {seed} and the same actions gave another episode",
            remedy="draw only from self.np_random, and keep clocks and ids out of what is returned",
        )


def unseeded_resets_follow_the_seed(subject: Subject) -> None:
    """After a seeded reset, further resets choose the same tasks each time."""
    with subject.fresh() as one, subject.fresh() as other:
        sequences = [_opening_sequence(env, subject.seed) for env in (one, other, one)]
    if any(sequence != sequences[0] for sequence in sequences):
        raise EnvCheckError(
            "reset(seed=s) followed by reset() chose other tasks the second time; draw the task "
            "from self.np_random, which a reset without a seed continues"
        )


def _opening_sequence(env: AgentEnv, seed: int) -> list[tuple[object, object]]:
    opened = [env.reset(seed=seed), *(env.reset() for _ in range(4))]
    return [(observation, info["task_id"]) for observation, info in opened]


def tasks_can_be_named(subject: Subject) -> None:
    """Every listed task can be asked for, and an unknown one can't."""
    with subject.fresh() as env:
        try:
            known = env.task_ids()
        except ConfigError:
            return  # this env's tasks can't be listed
        if len(set(known)) != len(known) or list(env.task_ids()) != list(known):
            raise EnvCheckError(
                "task_ids() repeats a task, or lists them in another order next time"
            )
        for task_id in known[:: max(1, len(known) // subject.episodes)]:
            _, info = env.reset(options={"task_id": task_id})
            if info["task_id"] != task_id:
                raise EnvCheckError(
                    f"reset(options={{'task_id': {task_id!r}}}) gave task {info['task_id']!r}; "
                    "choose_task() has to look at options['task_id']"
                )
        try:
            env.reset(options={"task_id": "no/such/task"})
        except UnknownTaskError:
            return
    raise EnvCheckError("an unknown task_id didn't raise UnknownTaskError")


def global_generators_untouched(subject: Subject) -> None:
    """Neither `random` nor NumPy's global generator is drawn from or seeded."""
    before = _global_generators()
    for seed in subject.seeds:
        subject.sampled_episode(seed)
    if _global_generators() != before:
        raise EnvCheckError(
            "the global state of random or numpy.random changed; use self.np_random, so that "
            "instances and the program around them don't disturb each other"
        )


def _global_generators() -> tuple[object, str]:
    return random.getstate(), repr(np.random.get_state(legacy=False))


def instances_share_nothing(subject: Subject) -> None:
    """Stepping two instances in turn gives what stepping each by itself gives."""
    for seeds in zip(subject.seeds, [seed + 1 for seed in subject.seeds], strict=True):
        apart = [subject.sampled_episode(seed) for seed in seeds]
        with subject.fresh() as one, subject.fresh() as other:
            runs = [
                play_step_by_step(env, seed=seed, actions=alone.actions, max_steps=0)
                for env, seed, alone in zip((one, other), seeds, apart, strict=True)
            ]
            together = _in_turn(*runs)
        for alone, mixed in zip(apart, together, strict=True):
            require_equal(
                alone,
                mixed,
                what="two instances stepped in turn gave other episodes than each by itself",
                remedy="keep state on the instance, not on the class, module or a cached object",
            )


def _in_turn(*runs: Iterator[tuple[Action | None, Transition]]) -> list[Recording]:
    found: list[list[Transition]] = [[] for _ in runs]
    for row in zip_longest(*runs):
        for transitions, entry in zip(found, row, strict=True):
            if entry is not None:
                transitions.append(entry[1])
    return [Recording((), tuple(transitions)) for transitions in found]


def reset_clears_everything(subject: Subject) -> None:
    """A used instance plays the same episode as a fresh one, also after an unfinished one."""
    for seed in subject.seeds:
        first = subject.sampled_episode(seed)
        with subject.fresh() as env:
            for before in (None, first.actions[:1], ()):
                play(env, seed=seed + 1, actions=before, max_steps=subject.max_steps)
                again = play(env, seed=seed, actions=first.actions, max_steps=0)
                require_equal(
                    first,
                    again,
                    what="a used instance played another episode than a fresh one",
                    remedy="set every per-episode attribute in start()",
                )


def both_faces_agree(subject: Subject) -> None:
    """`astep` gives what `step` gives."""
    for seed in subject.seeds:
        plain = subject.sampled_episode(seed)
        with subject.fresh() as env:
            through_async = play_async(env, seed=seed, actions=plain.actions)
        require_equal(
            plain,
            through_async,
            what="astep() gave another episode than step()",
            remedy="override the hooks of AgentEnv rather than step() or astep()",
        )


def snapshots_restore(subject: Subject) -> None:
    """Where snapshots are offered, an episode goes on from one as it did, and more than once."""
    with subject.fresh() as env:
        if not env.supports_snapshot:
            return
    for seed in subject.seeds:
        whole = subject.sampled_episode(seed)
        for position in sorted({0, len(whole.actions) // 2, len(whole.actions) - 1}):
            _require_restorable(subject, seed, whole, position)


def _require_restorable(subject: Subject, seed: int, whole: Recording, position: int) -> None:
    before, after = whole.actions[:position], whole.actions[position:]
    rest = Recording(after, whole.transitions[position + 1 :])
    with subject.fresh() as env, subject.fresh() as other:
        play(env, seed=seed, actions=before, max_steps=0)
        state = env.get_state()
        for target in (env, env, other):
            target.set_state(state)
            found = [Transition(*target.step(action)) for action in after]
            require_equal(
                rest,
                Recording(after, tuple(found)),
                what=f"an episode went on differently after set_state() at step {position}",
                remedy="put all episode state into snapshot() and take it back in restore()",
            )


def close_frees(subject: Subject) -> None:
    """`close` can be called twice, ends the episode, and leaves nothing that holds the env."""
    env = subject.make()
    play(env, seed=subject.seed, actions=None, max_steps=2)
    env.close()
    env.close()
    _require_reset_needed(env, "after close()")
    kept = weakref.ref(env)
    del env
    gc.collect()
    if kept() is not None:
        holders = sorted({type(holder).__name__ for holder in gc.get_referrers(kept())})
        raise EnvCheckError(
            f"the closed env is still held, by {', '.join(holders)}; caches and registries must "
            "not keep instances, nor functions that close over one"
        )


def steps_need_a_reset(subject: Subject) -> None:
    """A step before the first reset, or after the end, raises `ResetNeeded`."""
    with subject.fresh() as env:
        _require_reset_needed(env, "before reset()")
        episode = play(env, seed=subject.seed, actions=None, max_steps=subject.max_steps)
        if episode.transitions[-1].terminated or episode.transitions[-1].truncated:
            _require_reset_needed(env, "after the end of the episode")


def _require_reset_needed(env: AgentEnv, when: str) -> None:
    try:
        env.step("hello")
    except ResetNeeded:
        return
    except Exception as error:
        raise EnvCheckError(
            f"step() {when} raised {type(error).__name__} instead of ResetNeeded"
        ) from error
    raise EnvCheckError(f"step() {when} didn't raise ResetNeeded")


def unknown_options_are_refused(subject: Subject) -> None:
    """An option that doesn't exist is an error rather than ignored."""
    with subject.fresh() as env:
        try:
            env.reset(seed=subject.seed, options={"no_such_option": 1})
        except ConfigError:
            return
    raise EnvCheckError(
        "reset(options={'no_such_option': 1}) didn't raise ConfigError; a typing error in an "
        "option would go unnoticed. Declare the options in option_keys and let AgentEnv check them"
    )
