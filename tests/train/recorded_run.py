"""A training run that writes down what TRL made of each row; `test_processes.py` starts it.

Alone with `python recorded_run.py CONFIG`, or as several processes with `torchrun`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tiny_policy  # noqa: F401  (registers the environment)

from agentgym.train.config import TrainConfig
from agentgym.train.grpo import fit, make_trainer
from agentgym.train.run_folder import claim


def main(config: TrainConfig) -> None:
    claim(config)
    trainer = make_trainer(config)
    rank = trainer.accelerator.process_index
    make = trainer._generate_and_score_completions
    file = Path(f"{config.out}-rows-{rank}.jsonl")

    def recording(inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = make(inputs)
        masks = (batch["completion_mask"] * batch["tool_mask"]).bool()
        with file.open("a") as stream:
            for example, ids, mask, advantage in zip(
                inputs, batch["completion_ids"], masks, batch["advantages"], strict=True
            ):
                row = {
                    "task": example["task_id"],
                    "reward": example["reward"],
                    "trained": ids[mask].tolist(),
                    "advantage": float(advantage),
                }
                stream.write(json.dumps(row) + "\n")
        return batch

    trainer._generate_and_score_completions = recording
    fit(trainer, config, progress=False)


if __name__ == "__main__":
    main(TrainConfig.model_validate_json(Path(sys.argv[1]).read_text()))
