"""What the processes of a training run tell each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from agentgym.errors import TrainingError

T = TypeVar("T")

Gather: TypeAlias = Callable[[list[Any]], list[Any]]
"""The lists of all processes, joined in the order of their ranks; the same on each."""


def here_only(items: list[Any]) -> list[Any]:
    """The `Gather` of a run of one process."""
    return items


def gather_of(accelerator: Any) -> Gather:
    """How the processes of an accelerator learn each other's lists."""
    if accelerator.num_processes == 1:
        return here_only
    from accelerate.utils import gather_object

    gather: Gather = gather_object
    return gather


def on_first(accelerator: Any, do: Callable[[], T]) -> T:
    """What comes of something that only the first process does; its errors are everybody's.

    Any error, or the others would wait for an answer that never comes.

    Args:
        accelerator: The trainer's; all its processes must call.
        do: Called in the first process.
    """
    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = do()
        except Exception as error:
            outcome[1] = error
    if accelerator.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        told = [outcome[0], outcome[1] and (str(outcome[1]) or type(outcome[1]).__name__)]
        broadcast_object_list(told, from_process=0)
        if not accelerator.is_main_process:
            outcome = [told[0], told[1] and TrainingError(told[1])]
    if outcome[1] is not None:
        raise outcome[1]
    done: T = outcome[0]
    return done
