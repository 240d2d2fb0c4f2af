"""A plain TRL script, trained on an agentgym environment by one argument: `environment_factory`.

Everything else is TRL's own, its tool loop included. The model's chat template must take tools:
`python examples/trl_script.py MODEL`.
"""

import sys

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from agentgym.train import colocated_engine_for_cpu, environment_factory, task_rows

ENV = "agentgym/WebShop-v0"
ENV_KWARGS = {"split": "train", "difficulty": "tiny", "max_turns": 4}
CONTEXT = 2048


def main(model: str, *, steps: int = 2, out: str = "runs/trl_script") -> GRPOTrainer:
    on_cpu = not torch.cuda.is_available()
    args = GRPOConfig(
        output_dir=out,
        max_steps=steps,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=96,
        max_tool_calling_iterations=4,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=CONTEXT,
        use_cpu=on_cpu,
        bf16=not on_cpu,
        model_init_kwargs={"dtype": "float32"} if on_cpu else None,
        report_to="none",
        logging_steps=1,
    )
    dataset = Dataset.from_list(task_rows(ENV, **ENV_KWARGS))
    with colocated_engine_for_cpu(max_context=CONTEXT):  # does nothing on a GPU
        trainer = GRPOTrainer(
            model=model,
            args=args,
            train_dataset=dataset,
            environment_factory=environment_factory(ENV, dataset, **ENV_KWARGS),
        )
    trainer.train()
    return trainer


if __name__ == "__main__":
    main(sys.argv[1])
