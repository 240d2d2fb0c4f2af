"""Checks of what passes between environment and policy: actions, observations, reward, secrets."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentgym.copies import copied
from agentgym.core import AgentEnv
from agentgym.testing.conversation import EnvCheckError, check_conversation
from agentgym.testing.recording import Transition, play_step_by_step
from agentgym.testing.subject import Subject
from agentgym.types import Action, Message, Task, Verdict

SHORTEST_SECRET = 4
"""Characters below which a text is too common to be looked for."""


def sampled_actions_are_legal(subject: Subject) -> None:
    """What the action space samples is in it and isn't malformed."""
    for seed in subject.seeds:
        with subject.fresh() as env:
            steps = play_step_by_step(env, seed=seed, actions=None, max_steps=subject.max_steps)
            for action, _ in steps:
                if action is None:
                    continue
                if action not in env.action_space:
                    raise EnvCheckError(f"action_space doesn't contain its own sample {action!r}")
                running = env.running
                if running is not None and running.records[-1].turn(0).malformed:
                    raise EnvCheckError(
                        f"action_space sampled a malformed call, {action!r:.300}, answered by "
                        f"{running.records[-1].replies!r:.300}; give the parameter a type whose "
                        "schema says what is legal, or keep action_space.choices up to date"
                    )


def observations_are_in_the_space(subject: Subject) -> None:
    """Every observation is in the space and can be sent to a server."""
    for seed in subject.seeds:
        with subject.fresh() as env:
            steps = play_step_by_step(env, seed=seed, actions=None, max_steps=subject.max_steps)
            for _, transition in steps:
                _require_observation(env, transition)


def _require_observation(env: AgentEnv, transition: Transition) -> None:
    observation = transition.observation
    if observation not in env.observation_space:
        raise EnvCheckError(
            f"observation_space doesn't contain {observation!r:.300}; an observation is a tuple of "
            "message dicts with text that can be encoded"
        )
    try:
        json.dumps(observation, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise EnvCheckError(f"the observation can't be encoded as JSON: {error}") from error
    if any(message.get("role") == "assistant" for message in observation):
        raise EnvCheckError("an observation repeats the assistant's own message; leave it out")


def conversation_stays_valid(subject: Subject) -> None:
    """After every step the messages are a valid conversation that extends the one before."""
    for seed in subject.seeds:
        with subject.fresh() as env:
            _play_and_check_conversation(env, seed, None, subject.max_steps)


def _play_and_check_conversation(
    env: AgentEnv, seed: int, actions: Sequence[Action] | None, max_steps: int
) -> None:
    before: list[Message] = []
    steps = play_step_by_step(env, seed=seed, actions=actions, max_steps=max_steps)
    for action, transition in steps:
        running = env.running
        if running is None:
            raise EnvCheckError("the env forgot its episode during a step")
        now = copied(running.messages)
        check_conversation(now)
        added = now[len(before) :]
        if now[: len(before)] != before:
            raise EnvCheckError(
                "a step changed earlier messages; each prompt must extend the one before, or "
                "cached prefixes and kept token ids no longer fit"
            )
        if tuple(added[action is not None :]) != transition.observation:
            raise EnvCheckError(
                f"the observation {transition.observation!r:.300} is not what the step added to "
                f"the conversation, {added!r:.300}"
            )
        before = now


def hostile_actions_are_answered(subject: Subject) -> None:
    """Malformed calls never raise, never break the conversation, and are each answered once."""
    for position, action in enumerate(_hostile_actions(subject)):
        with subject.fresh() as env:
            try:
                _play_and_check_conversation(env, subject.seed, [action, action], 2)
            except EnvCheckError as error:
                raise EnvCheckError(f"after the action {action!r:.300}: {error}") from error
            except Exception as error:
                raise EnvCheckError(
                    f"hostile action {position}, {action!r:.300}, raised {type(error).__name__}: "
                    f"{error}; a policy's fault must be answered, not raised"
                ) from error


def _hostile_actions(subject: Subject) -> list[Action]:
    with subject.fresh() as env:
        names = [tool.name for tool in env.toolbox]
    actions: list[Action] = ["", " ", "\ud83d", "search[", "<tool_call>", "\x00", "\n" * 50]
    actions.append({"role": "assistant", "content": None})
    actions.append(_calls({"id": "a", "function": {"name": "no_such_tool", "arguments": "{}"}}))
    actions.append(_calls({"id": 7, "function": {"name": "not a name!", "arguments": "{}"}}))
    actions.append(_calls({"function": None}))
    actions.append(_calls({}))
    for name in names:
        for arguments in (
            '{"a": ',
            "[1]",
            "null",
            "",
            None,
            3,
            {"x\ud83d": float("nan")},
            '{"a": NaN}',
        ):
            same = {"id": "same", "function": {"name": name, "arguments": arguments}}
            actions.append(_calls(same, dict(same)))
        surplus = {"name": name, "arguments": '{"no_such_parameter": 1}'}
        actions.append(_calls({"id": None, "function": surplus}))
        actions.append({**_calls({"function": surplus}), "finish_reason": "length"})
    return actions


def _calls(*calls: dict[str, Any]) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def returned_messages_are_the_callers(subject: Subject) -> None:
    """What a caller does to a returned message doesn't reach into the episode."""
    with subject.fresh() as env:
        observation, _ = env.reset(seed=subject.seed)
        env.action_space.seed(subject.seed)
        for _ in range(2):
            running = env.running
            before = copied(running.messages) if running else []
            for message in observation:
                message["content"] = "changed by the caller"
            if running is not None and running.messages != before:
                raise EnvCheckError(
                    "changing a returned message changed the env's own record; return copies"
                )
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                return


def verdict_and_reward_agree(subject: Subject) -> None:
    """Rewards are finite floats, and the last one is the verdict's."""
    for seed in subject.seeds:
        for transition in subject.sampled_episode(seed).transitions[1:]:
            reward: object = transition.reward
            if not isinstance(reward, float) or not math.isfinite(reward):
                raise EnvCheckError(f"the reward is {reward!r}; it must be a finite float")
            if transition.terminated or transition.truncated:
                _require_verdict(transition)
            elif "verdict" in transition.info:
                raise EnvCheckError("info has a verdict before the end; a policy could steer by it")


def _require_verdict(transition: Transition) -> None:
    verdict = transition.info.get("verdict")
    if not isinstance(verdict, Verdict):
        raise EnvCheckError(f"info['verdict'] is {verdict!r} at the end; it must be a Verdict")
    expected = 0.0 if verdict.reward is None else verdict.reward
    if transition.reward != expected:
        raise EnvCheckError(f"step returned {transition.reward}, the verdict says {expected}")


def nothing_hidden_shows(subject: Subject) -> None:
    """Before the end, neither observations nor info hold the task's reference."""
    for seed in subject.seeds:
        with subject.fresh() as env:
            steps = play_step_by_step(env, seed=seed, actions=None, max_steps=subject.max_steps)
            for _, transition in steps:
                if transition.terminated or transition.truncated or env.running is None:
                    continue
                _require_hidden(subject, env.running.task, transition)


def _require_hidden(subject: Subject, task: Task, transition: Transition) -> None:
    shown = (transition.observation, transition.info)
    compound = isinstance(task.reference, str | Mapping | list | tuple) and task.reference
    if compound and _holds(shown, task.reference):
        raise EnvCheckError(f"task {task.task_id}: info or observation holds the reference")
    secrets: Iterable[str]
    if subject.hidden is not None:
        secrets = subject.hidden(task)
    else:
        secrets = [task.reference] if isinstance(task.reference, str) else []
    text = repr(shown).casefold()
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET and repr(secret)[1:-1].casefold() in text:
            raise EnvCheckError(
                f"task {task.task_id}: the hidden text {secret!r:.100} shows before the end, in an "
                "observation or in info; keep it in task.reference"
            )


def _holds(value: Any, secret: Any) -> bool:
    """Whether a nested value contains the secret as an element, by identity or equality."""
    if value is secret or (type(value) is type(secret) and value == secret):
        return True
    if isinstance(value, Mapping):
        return any(_holds(item, secret) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds(item, secret) for item in value)
    return False
