"""What must fit together, and is looked at before a model is loaded.

An environment with its tasks, the tokenizer's chat template, the context, and what is to become of
truncated episodes. Each fault is one line that says what to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError, TrainingError
from agentgym.rollout.source import EnvSource
from agentgym.tokens.codec import ChatCodec
from agentgym.train.config import TrainConfig
from agentgym.train.grpo_args import DEFAULT_CONTEXT
from agentgym.train.objective import TruncatedAs
from agentgym.types import Message, ToolSpec


def preflight(env: Any, codec: ChatCodec, *, dataset: Any = None) -> list[int]:
    """Check that env, dataset and chat template fit together.

    Returns:
        The ids of the first task's opening.

    Raises:
        TrainingError: If they don't, with the remedy.
    """
    known = list(env.unwrapped.task_ids())
    if not known:
        raise TrainingError(f"{env.unwrapped.spec.id} has no tasks to train on")
    if dataset is not None:
        unknown = set(dataset["prompt"]).difference(known)
        if unknown:
            raise TrainingError(
                f"the dataset names {len(unknown)} unknown tasks, such as {min(unknown)!r}; "
                f"{env.unwrapped.spec.id} has {known[0]!r} to {known[-1]!r}"
            )
    opening: Sequence[Message]
    opening, info = env.reset(seed=0, options={"task_id": known[0]})
    tools: Sequence[ToolSpec] = info["tools"]
    codec.check(opening, tools)
    if tools and not codec.native_tools and not _reads_text(env.unwrapped):
        raise TrainingError(
            f"{env.unwrapped.spec.id} is played with tool calls, and the chat template of "
            f"{codec.tokenizer.name_or_path!r} offers none that can be read; use a model that "
            "writes calls in one of the formats of docs/tool_calls.md (Qwen 2.5 on, Llama 3.x, "
            "GLM 4, GPT-OSS, Gemma 4, DeepSeek, Nemotron 3, …), or save the template of one of "
            "them (TRL has them in trl/chat_templates) as the tokenizer's chat_template"
        )
    return codec.prompt_ids(opening, tools)


def _reads_text(env: Any) -> bool:
    from agentgym.core import AgentEnv

    return type(env).parse_text is not AgentEnv.parse_text


def floor_of(env: Any, truncated: Mapping[Any, TruncatedAs]) -> float | None:
    """What truncated episodes get where they are worth the floor; None where none is.

    Args:
        env: The environment.
        truncated: What an episode is to the optimiser, by the limit that cut it.

    Raises:
        TrainingError: If the environment tells no reward range.
    """
    if "floor" not in truncated.values():
        return None
    scoring = getattr(env.unwrapped, "scoring", None)
    if scoring is None:
        raise TrainingError(
            f"{env.unwrapped.spec.id} tells no reward range of which truncated episodes could get "
            'the lower end; choose truncated="train" or "mask"'
        )
    low: float = scoring.reward_range[0]
    return low


def check_fit(
    config: TrainConfig,
    *,
    env_kwargs: Mapping[str, Any],
    tokenizer: Any,
    context: int,
    template_kwargs: Mapping[str, Any] | None,
) -> list[str]:
    """The environment's tasks, once it is known that they can be trained on with this model.

    Args:
        config: The run.
        env_kwargs: The environment's parameters, its models included.
        tokenizer: Of the policy.
        context: Tokens of a whole episode.
        template_kwargs: For the chat template.

    Raises:
        ConfigError: If a task's opening leaves no room for a turn.
        TrainingError: If environment and chat template don't fit together.
    """
    env = EnvSource(config.env, env_kwargs).make()
    try:
        codec = ChatCodec(
            tokenizer,
            stop_ids=_stop_ids(config.model, tokenizer),
            template_kwargs=template_kwargs,
        )
        opening = preflight(env, codec)
        floor_of(env, config.objective.truncated_as)
        tasks: list[str] = list(env.unwrapped.task_ids())  # type: ignore[attr-defined]
    finally:
        env.close()
    per_turn = config.sampling.max_turn_tokens
    if len(opening) + per_turn > context:
        raise ConfigError(
            f"a task's opening has {len(opening)} tokens; with max_turn_tokens="
            f"{per_turn} not even one turn fits max_context={context}: raise "
            "max_context (at most what the model takes), or lower max_turn_tokens"
        )
    return tasks


def local_model(model: str) -> str:
    """A model's folder as libraries can open it; a hub id as it is.

    Raises:
        ConfigError: If it can only be a folder, and there is none.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return str(folder)
    if model.startswith(("/", "./", "../", "~")) or model.count("/") > 1:  # ids have one at most
        raise ConfigError(f"no folder {model!r} with a model in it")
    return model


def load_tokenizer(model: str) -> tuple[Any, int]:
    """The model's tokenizer and the longest context it takes.

    Raises:
        ConfigError: If there is no such model, or its tokenizer has no end of a turn.
    """
    from transformers import AutoConfig, AutoTokenizer

    where = local_model(model)
    try:
        model_config = AutoConfig.from_pretrained(where).get_text_config()
        tokenizer = AutoTokenizer.from_pretrained(where, padding_side="left")
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"can't load model {model!r}: {reason} (a folder with config.json and tokenizer, or a "
            "hub id)"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer of {model!r} has no eos_token; nothing would end a turn")
    return tokenizer, int(getattr(model_config, "max_position_embeddings", 0) or DEFAULT_CONTEXT)


def _stop_ids(model: str, tokenizer: Any) -> list[int]:
    """The tokenizer's and the model's own, as TRL collects them."""
    from transformers import GenerationConfig

    try:
        declared = GenerationConfig.from_pretrained(local_model(model)).eos_token_id
    except OSError:  # no generation_config.json
        declared = None
    ids = [declared] if isinstance(declared, int) else list(declared or ())
    return ids if tokenizer.eos_token_id in ids else [tokenizer.eos_token_id, *ids]
