from __future__ import annotations

from agentgym.train.tiny.learning import STEPS, WARM_START, ShuffledRewards, learning_config


def test_shuffled_rewards_keep_all_values_and_touch_nothing_else():
    rewards = [float(i) for i in range(64)]

    def rollout(prompts, trainer):
        return {"reward": list(rewards), "prompt_ids": [[i] for i in range(64)]}

    shuffled = ShuffledRewards(rollout, seed=0)
    first, second = shuffled([], None), shuffled([], None)
    assert sorted(first["reward"]) == rewards
    assert first["reward"] != rewards
    assert second["reward"] != first["reward"]
    assert first["prompt_ids"] == [[i] for i in range(64)]
    assert ShuffledRewards(rollout, seed=0)([], None)["reward"] == first["reward"]


def test_training_and_evaluation_use_different_splits(tmp_path):
    config = learning_config(tmp_path)
    assert config.env_kwargs["split"] == "train"
    assert config.steps == STEPS
    assert config.sampling.temperature == 1.0


def test_the_warm_start_comes_with_the_package_and_is_small():
    files = [path for path in WARM_START.iterdir() if path.is_file()]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {f.name for f in files}
    assert sum(f.stat().st_size for f in files) < 1_100_000
