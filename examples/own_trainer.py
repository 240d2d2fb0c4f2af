"""Train on an agentgym environment with a GRPOTrainer of your own.

    python examples/own_trainer.py MODEL

The rollouts, the token masks and the reward are agentgym's; everything else is plain TRL.
"""

from __future__ import annotations

import sys

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from agentgym.train import colocated_engine_for_cpu, episode_reward, rollout_func, task_prompts

ENV = "agentgym/WebShop-v0"
ENV_KWARGS = {"split": "train", "difficulty": "tiny", "max_turns": 4}
CONTEXT = 1024


def main(model: str, *, steps: int = 2, out: str = "runs/own_trainer") -> GRPOTrainer:
    on_cpu = not torch.cuda.is_available()
    args = GRPOConfig(
        output_dir=out,
        max_steps=steps,
        per_device_train_batch_size=8,
        num_generations=4,
        shuffle_dataset=False,  # task_prompts has an order of its own
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=CONTEXT,
        use_cpu=on_cpu,
        bf16=not on_cpu,
        model_init_kwargs={"dtype": "float32"} if on_cpu else None,
        report_to="none",
        logging_steps=1,
    )
    prompts = task_prompts(ENV, count=steps * 2, **ENV_KWARGS)
    with colocated_engine_for_cpu(max_context=CONTEXT):  # does nothing on a GPU
        trainer = GRPOTrainer(
            model=model,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            reward_funcs=episode_reward,
            rollout_func=rollout_func(ENV, env_kwargs=ENV_KWARGS, max_turn_tokens=16),
        )
    trainer.train()
    return trainer


if __name__ == "__main__":
    main(sys.argv[1])
