"""Environments for TRL's own tool loops: a class whose methods are the tools.

For those who keep TRL's loop (`GRPOTrainer(environment_factory=…)`, also its asynchronous trainer)
rather than `rollout_func`. One argument is enough; what that loop can't do is told here, before
anything is generated: a judge that compares, a tool that differs from task to task, a task that
there isn't. Where text means something to the environment, talking is one more tool, because TRL
ends an episode at the first message without a call.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from agentgym.core import AgentEnv
from agentgym.errors import ConfigError
from agentgym.rollout.pool import EnvHandle
from agentgym.rollout.request import derived_seed
from agentgym.rollout.source import EnvLike, EnvSource
from agentgym.train.tool_methods import tool_method
from agentgym.train.trl_environment import MadeClass, TrlEnvironment
from agentgym.types import Message, ToolSpec

_FEW = 64
"""Tasks whose tools are looked at before it is taken for granted that all have the same."""


def environment_factory(
    env_id: EnvLike, dataset: Any = None, /, **env_kwargs: Any
) -> type[TrlEnvironment]:
    """A class for TRL's `environment_factory` argument, for any environment with tools.

    The dataset has a column `task_id` and, as TRL demands, a conversational `prompt`, which may be
    empty: the environment gives the opening. `task_rows` makes such rows.

    Args:
        env_id: Environment id; `module:id` for one that a module registers, also in a process of
            the trainer's own.
        dataset: The dataset to be trained on (all splits of it, or a list of rows), if it is to be
            checked now and not row by row, or if its tasks have different tools.
        **env_kwargs: The environment's parameters.

    Raises:
        ConfigError: If there is no such environment, it can't be played in TRL's loop, or the
            dataset names tasks that there aren't.
    """
    source = EnvSource(env_id, env_kwargs)
    env = source.make()
    try:
        core: Any = env.unwrapped
        handle = EnvHandle(env)  # says so if it isn't one of ours
        if core.scoring.judges_groups:
            raise ConfigError(
                f"{handle.env_id}: its judge compares the rollouts of a group, and TRL's loop has "
                "each scored alone; use agentgym.train.rollout_func"
            )
        tasks = _checked_tasks(core, dataset)
        specs = _tools_of(env, tasks, given=dataset is not None)
        talking = _talking(core)
        if not specs and talking is None:
            raise ConfigError(
                f"{handle.env_id} has no tools, and TRL's loop plays with nothing else; use "
                "agentgym.train.rollout_func, which reads its text actions"
            )
    finally:
        env.close()
    return _made_class(env_id, dict(env_kwargs), specs, talking)


def _made_class(
    env_id: EnvLike,
    env_kwargs: dict[str, Any],
    specs: Sequence[ToolSpec],
    talking: tuple[str, str] | None,
) -> type[TrlEnvironment]:
    """The class; called again with the same arguments where it is unpickled."""
    reserved = ("reset", "get_reward")
    methods = [tool_method(spec, TrlEnvironment._call, reserved=reserved) for spec in specs]
    if talking is not None and talking[0] in {method.name for method in methods}:
        talking = None  # the environment has such a tool
    if talking is not None:
        methods.append(tool_method(_talking_spec(*talking), _talk))
    name = env_id if isinstance(env_id, str) else getattr(env_id, "id", None) or "environment"
    body = {method.name: method.function for method in methods}
    if len(body) != len(methods):
        twice = sorted({m.name for m in methods if [n.name for n in methods].count(m.name) > 1})
        raise ConfigError(f"two tools would be the method {twice[0]!r}; rename one of them")
    own = frozenset(str(spec["function"]["name"]) for spec in specs)
    facts: dict[str, Any] = {
        "__doc__": f"{name} for TRL's tool loop.",
        "__module__": __name__,
        "_source": EnvSource(env_id, env_kwargs),
        "_tools": own,
        "_talking": None if talking is None else talking[0],
    }
    short = name.rpartition("/")[2].rpartition("-v")[0] or name
    made = MadeClass(short, (TrlEnvironment,), {**body, **facts})
    made._made_from = (env_id, env_kwargs, specs, talking)
    return cast("type[TrlEnvironment]", made)


def _reduced(made: MadeClass) -> Any:
    if made is TrlEnvironment:
        return "TrlEnvironment"
    return _made_class, made._made_from


copyreg.pickle(MadeClass, _reduced)


def task_rows(
    env_id: EnvLike, tasks: Iterable[str] | None = None, /, **env_kwargs: Any
) -> list[dict[str, Any]]:
    """Rows of a dataset for `environment_factory`, with the environment's own system message.

    Args:
        env_id: Environment id.
        tasks: Task ids, in the order wanted; None is every task once.
        **env_kwargs: The environment's parameters.

    Returns:
        Per task `task_id` and `prompt`: the system message, if the environment has one, and an
        empty user message, which its opening then fills. Where a reset asks a model (a hosted user
        simulator) there is no system message here; the opening brings it.
    """
    env: Any = EnvSource(env_id, env_kwargs).make()
    user: Message = {"role": "user", "content": ""}
    rows = []
    try:
        for task_id in env.unwrapped.task_ids() if tasks is None else tasks:
            system: list[Message] = []
            if not env.unwrapped.awaits:
                options = {"task_id": task_id}
                opening, _ = env.reset(seed=derived_seed(0, task_id), options=options)
                system = [message for message in opening if message["role"] == "system"]
            rows.append({"task_id": task_id, "prompt": [*system, user]})
    finally:
        env.close()
    return rows


def _checked_tasks(core: Any, dataset: Any) -> Sequence[str]:
    """The tasks to be played, once it is known that there are such."""
    known = list(core.task_ids())
    env_id = core.spec.id if core.spec else type(core).__name__
    if not known:
        raise ConfigError(f"{env_id} has no tasks to train on")
    if dataset is None:
        return known
    wanted = list(dict.fromkeys(_task_column(dataset, known, env_id)))
    unknown = sorted(map(str, set(wanted).difference(known)))
    if unknown:
        raise ConfigError(
            f"the dataset names {len(unknown)} unknown tasks, such as {unknown[0]!r}; "
            f"{env_id} has {known[0]!r} to {known[-1]!r}"
        )
    return wanted


def _task_column(dataset: Any, known: Sequence[str], env_id: str) -> list[Any]:
    """The task of each row, over all splits if there are several."""
    if isinstance(dataset, Mapping):
        return [each for part in dataset.values() for each in _task_column(part, known, env_id)]
    if isinstance(dataset, Sequence):
        columns = list(dataset[0]) if dataset else []
    else:
        columns = list(dataset.column_names or next(iter(dataset), ()))
    if not columns:
        raise ConfigError(f"the dataset has no rows; task_rows({env_id!r}) makes some")
    if "task_id" not in columns:
        raise ConfigError(
            f"the dataset has no column task_id, only {', '.join(columns)}; "
            f"{env_id} has the tasks {known[0]!r} to {known[-1]!r}"
        )
    if isinstance(dataset, Sequence):
        return [row.get("task_id") for row in dataset]
    return list(dataset["task_id"])


def _tools_of(env: Any, tasks: Sequence[str], *, given: bool) -> list[ToolSpec]:
    """The tools of the tasks, each once, in the order in which they are met.

    Where the environment has tools before it has a task they are taken to be all tasks'; looking
    costs a reset each, and with a hosted simulator a call of its model.

    Raises:
        ConfigError: If a tool means different things in different tasks.
    """
    core = env.unwrapped
    if core.toolbox.specs and (core.awaits or not given):
        return list(core.toolbox.specs)
    few = tasks if given else tasks[:: max(1, len(tasks) // _FEW)]
    found: dict[str, ToolSpec] = {}
    differ = _collect(env, few, found)
    if differ and not given:
        _collect(env, tasks, found)
    return list(found.values())


def _collect(env: Any, tasks: Sequence[str], found: dict[str, ToolSpec]) -> bool:
    """Add the tools of some tasks; returns whether not all tasks have the same ones."""
    names: set[tuple[str, ...]] = set()
    for task_id in tasks:
        _, info = env.reset(seed=derived_seed(0, task_id), options={"task_id": task_id})
        specs: Sequence[ToolSpec] = info["tools"]
        names.add(tuple(sorted(str(spec["function"]["name"]) for spec in specs)))
        for spec in specs:
            name = str(spec["function"]["name"])
            if found.setdefault(name, spec) != spec:
                raise ConfigError(
                    f"the tool {name!r} has not the same parameters in all tasks, and TRL's loop "
                    "has one description for all of them; use agentgym.train.rollout_func"
                )
    return len(names) > 1


def _talking(core: Any) -> tuple[str, str] | None:
    """Name and description of the tool that says something, where text means something."""
    if type(core).parse_text is not AgentEnv.parse_text:
        return None  # text is a way to call the tools
    if type(core).reply is AgentEnv.reply:
        return "final_answer", "Give your final answer. Call this instead of writing it as text."
    return "say", "Say something to the user, and get their reply. Text alone ends the talk."


def _talking_spec(name: str, description: str) -> ToolSpec:
    message = {"type": "string", "description": "What to say."}
    parameters = {"type": "object", "properties": {"message": message}, "required": ["message"]}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


async def _talk(environment: TrlEnvironment, _: str, arguments: dict[str, Any]) -> str:
    message = arguments.get("message")
    if not isinstance(message, str) or len(arguments) != 1:
        return 'Error: call it with {"message": "…"}.'
    return await environment._say(message)
