"""A reward function that scores nothing and gives environments the policy's last words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agentgym.train.trl_environment import TrlEnvironment
from agentgym.types import Message, Verdict


async def final_messages(
    completions: Sequence[Sequence[Message]],
    environments: Sequence[Any] = (),
    log_metric: Any = None,
    **_: Any,
) -> list[None]:
    """A reward function that scores nothing: it gives the environments the policy's last words.

    TRL's environments never see a message without tool calls, which in many tasks is the answer.
    Pass it as `reward_funcs=final_messages`, beside `environment_factory`. It logs the verdicts,
    too (`agentgym/correct`, `agentgym/components/…`).

    Args:
        completions: The messages of each episode.
        environments: The environment of each; none in TRL's asynchronous worker, which settles
            every episode by itself.
        log_metric: TRL's.

    Returns:
        None for every episode: the reward is `get_reward`'s.
    """
    ours = [
        (environment, completion)
        for environment, completion in zip(environments, completions, strict=bool(environments))
        if isinstance(environment, TrlEnvironment)
    ]
    for environment, completion in ours:
        last = completion[-1] if completion else {}
        if last.get("role") == "assistant" and not last.get("tool_calls"):
            environment._text = str(last.get("content") or "")
    # TRL asks the environments one after the other; this has them finish side by side before.
    verdicts = await asyncio.gather(*(environment._settled() for environment, _ in ours))
    if log_metric is not None and verdicts:
        for name, value in _means(verdicts).items():
            log_metric(f"agentgym/{name}", value)
    return [None] * len(completions)


def _means(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Means over the scored episodes, and the share of masked ones."""
    scored = [verdict for verdict in verdicts if not verdict.masked]
    means = {"masked": 1 - len(scored) / len(verdicts)}
    columns: dict[str, list[float]] = {}
    for verdict in scored:
        columns.setdefault("completed", []).append(verdict.completed)
        if verdict.correct is not None:
            columns.setdefault("correct", []).append(verdict.correct)
        for name, value in verdict.components.items():
            columns.setdefault(f"components/{name}", []).append(value)
        for name, tripped in verdict.gates.items():
            columns.setdefault(f"gates/{name}", []).append(tripped)
    return means | {name: sum(values) / len(values) for name, values in columns.items()}
