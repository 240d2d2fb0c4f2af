"""What is refused before a model is loaded, each in one line with the remedy."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import tiny_policy

from agentgym.errors import ConfigError, TrainingError
from agentgym.tokens.codec import ChatCodec
from agentgym.train.config_reading import read_config
from agentgym.train.objective import TRUNCATED
from agentgym.train.preflight import check_fit, floor_of, load_tokenizer, local_model, preflight

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def fit(**changes: Any) -> list[str]:
    config = read_config(
        {
            "env": tiny_policy.ENV_ID,
            "model": "m",
            "out": "o",
            "sampling.max_turn_tokens": 8,
            **changes,
        }
    )
    tokenizer = tiny_policy.make_tokenizer()
    return check_fit(config, env_kwargs=config.env_kwargs, tokenizer=tokenizer,
                     context=config.sampling.max_context or 64, template_kwargs=None)  # fmt: skip


def test_tasks_come_back_once_all_fits() -> None:
    assert fit() == [f"guess/{i}" for i in range(8)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sampling.max_context": 20},
            "opening has 17 tokens.*raise max_context .* lower max_turn_tokens",
        ),
        ({"env_kwargs": {"tasks": 0}}, "has no tasks to train on"),
    ],
)
def test_what_does_not_fit_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, TrainingError), match=message) as caught:
        fit(**changes)
    assert "\n" not in str(caught.value)


class CallsOnly(tiny_policy.GuessEnv):
    """Played with tool calls alone."""

    parse_text = tiny_policy.AgentEnv.parse_text


def test_template_without_tools_says_which_have_them_and_how_to_pass_one() -> None:
    env = CallsOnly()
    env.spec = gymnasium.spec(tiny_policy.ENV_ID)
    codec = ChatCodec(tiny_policy.make_tokenizer(), stop_ids=[3])
    with pytest.raises(TrainingError, match="Qwen 2.5 on.*tokenizer's chat_template") as caught:
        preflight(env, codec)
    assert "\n" not in str(caught.value)


def test_floor_is_the_lower_end_of_the_range_where_it_is_asked_for() -> None:
    env = gymnasium.make(tiny_policy.ENV_ID)
    assert floor_of(env, TRUNCATED) is None
    assert floor_of(env, {**TRUNCATED, "turns": "floor"}) == -1.0
    env.close()


def test_floor_without_a_range_is_refused_before_the_model_is_loaded() -> None:
    env = gymnasium.make("CartPole-v1")
    with pytest.raises(TrainingError, match=r"CartPole-v1 tells no reward range"):
        floor_of(env, {"turns": "floor"})
    env.close()


def test_model_is_a_folder_in_whatever_way_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert local_model("~/policy") == str(tmp_path / "policy")
    assert local_model("org/policy") == "org/policy"
    for nowhere in ("~/none", "./none", "/none"):
        with pytest.raises(ConfigError, match="no folder"):
            local_model(nowhere)


def test_model_without_a_config_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't load model .*config.json") as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.e2e
@pytest.mark.filterwarnings("default")  # TRL's and vLLM's own
def test_trainer_gets_context_and_folder_and_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dr_grpo` divides by the context; an adapter keeps the folder of its base."""
    from agentgym.train import grpo

    asked: dict[str, Any] = {}

    def refusing(**options: Any) -> None:
        asked.update(options)
        raise ValueError("not\n these")

    monkeypatch.setattr(grpo, "trainer_class", lambda algorithm: refusing)
    monkeypatch.chdir(tmp_path)
    tiny_policy.save_policy(tmp_path / "policy")
    config = read_config(
        {"env": tiny_policy.ENV_ID, "model": "policy", "out": "o", "sampling.max_turn_tokens": 8}
    )
    with pytest.raises(ConfigError, match="no trainer with these settings: not these"):
        grpo.make_trainer(config)
    assert asked["args"].max_completion_length == asked["args"].vllm_max_model_length == 512
    assert asked["model"] == str(tmp_path / "policy")
    note = "All reward functions returned None for the following kwargs"
    log = logging.getLogger("trl.trainer.grpo_trainer")
    for text, told in ((note, False), (f"[RANK 0] {note}", False), ("[RANK 0] else", True)):
        record = logging.LogRecord(log.name, logging.WARNING, __file__, 1, text, (), None)
        assert bool(log.filter(record)) is told
