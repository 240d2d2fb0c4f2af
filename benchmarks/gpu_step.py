"""A training step with a model of 0.5 to 1 B's shape on one GPU: where the time goes.

Random weights in bf16, the episodes of `benchmarks/trl_loop.py` (1 to 12 turns, log-normal tool
latencies), whole GRPO steps with the optimiser, first with `rollout_func`, then with TRL's
`environment_factory` loop. Each runs in a process of its own, since one GPU holds one trainer. Per
step: seconds in rollout, weight sync, log-probabilities and update, tokens sampled a second, and
how busy the GPU was, as NVML has it.

    python benchmarks/gpu_step.py                         # 0.5B, about 4 minutes
    python benchmarks/gpu_step.py --shape 1B --steps 6
    python benchmarks/gpu_step.py --shape tiny --steps 2 --episodes 8   # a CPU does, too

Memory: TRL's colocated vLLM takes `--vllm-share` of the GPU and the trainer the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from measuring import RESULTS, setting, table, write
from trl_loop import LATENCY_S, WORDS, prepare

LOOPS = ("rollout_func", "environment_factory")
CONTEXT = 8192
MAX_TURN_TOKENS = 128
GROUP = 8
LIMIT_S = 480
"""For both loops together."""


class Busy:
    """How busy the GPU is, looked at four times a second; nothing without one."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Busy:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def mean(self) -> float | None:
        """Mean share since the last time this was asked, from 0 to 1."""
        shares, self.shares = self.shares, []
        return round(statistics.mean(shares) / 100, 3) if shares else None

    def _look(self) -> None:
        import torch

        if not torch.cuda.is_available():
            return
        while not self._over.wait(0.25):
            self.shares.append(float(torch.cuda.utilization()))


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train with one of the loops, in this process, and return the figures of each step."""
    import gymnasium
    import torch
    from chat_model import SHAPES, save_model, texts_of
    from datasets import Dataset
    from shop_walk import ENV_ID, ScriptedPolicy, ShopWalkEnv
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation import vllm_generation

    from agentgym.train import (
        colocated_engine_for_cpu,
        environment_factory,
        episode_reward,
        rollout_func,
        task_rows,
    )

    on_cpu = not torch.cuda.is_available()
    dtype = "float32" if on_cpu else "bfloat16"
    gymnasium.register(ENV_ID, entry_point=ShopWalkEnv)
    env_kwargs: dict[str, Any] = {"split": "train", "latency_s": args.latency_s}
    groups = args.episodes // GROUP
    with gymnasium.make(ENV_ID, **env_kwargs) as env:
        tasks = list(env.unwrapped.task_ids()[: (args.steps + 1) * groups])
    with gymnasium.make("agentgym/WebShop-v0", split="train") as env:
        texts = [*texts_of(env, tasks=200)]
        texts += [env.step(f"search[{word}]")[0][0]["content"] for word in WORDS]
    folder = Path(tempfile.mkdtemp())
    model = save_model(folder / "model", texts, shape=args.shape, context=CONTEXT, dtype=dtype)
    if args.loop == LOOPS[0]:
        dataset = Dataset.from_dict({"prompt": tasks})
        arguments: dict[str, Any] = {
            "reward_funcs": episode_reward,
            "rollout_func": rollout_func(
                ENV_ID,
                env_kwargs=env_kwargs,
                max_turn_tokens=MAX_TURN_TOKENS,
                check_every=10**9,
                seeded_sampling=False,  # as TRL's loop
            ),
        }
    else:
        dataset = Dataset.from_list(task_rows(ENV_ID, tasks, **env_kwargs))
        made = environment_factory(ENV_ID, dataset, **env_kwargs)
        arguments = {"environment_factory": made}
    sampled = requests = 0
    parts: dict[str, float] = {}
    steps: list[dict[str, Any]] = []

    class Timed(GRPOTrainer):
        def _generate(self, prompts: list[Any]) -> Any:
            with _timing(parts, "rollout"):
                return super()._generate(prompts)

        def _calculate_rewards(self, *a: Any, **k: Any) -> Any:
            with _timing(parts, "rewards"):
                return super()._calculate_rewards(*a, **k)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            with _timing(parts, "generate_and_score"):
                return super()._generate_and_score_completions(inputs)

    class Note(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            nonlocal sampled, requests
            sampled = requests = 0
            parts.clear()
            ShopWalkEnv.visits.clear()
            busy.mean()
            self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if not on_cpu:
                torch.cuda.synchronize()
            whole = time.perf_counter() - self.started
            rollout = parts["rollout"] - parts.get("sync", 0.0) + parts["rewards"]
            logprobs = parts["generate_and_score"] - parts["rollout"] - parts["rewards"]
            steps.append(
                {
                    "step_s": round(whole, 3),
                    "rollout_s": round(rollout, 3),
                    "sync_s": round(parts.get("sync", 0.0), 3),
                    "logprobs_s": round(logprobs, 3),
                    "update_s": round(whole - parts["generate_and_score"], 3),
                    "sampled": sampled,
                    "turns": requests,
                    "tokens_per_s": round(sampled / rollout, 1),
                    "gpu_busy": busy.mean(),
                }
            )
            print(json.dumps(steps[-1]), file=sys.stderr, flush=True)

    def build(**kwargs: Any) -> Any:
        nonlocal sampled, requests
        llm = original(**kwargs, logits_processors=[ScriptedPolicy])
        engine_step = llm.llm_engine.step

        def counted() -> Any:
            nonlocal sampled, requests
            outputs = engine_step()
            for output in outputs:
                if output.finished:
                    requests += 1
                    sampled += len(output.outputs[0].token_ids)
            return outputs

        llm.llm_engine.step = counted
        return llm

    config = GRPOConfig(
        output_dir=str(folder / "out"),
        max_steps=args.steps + 1,  # the first one pays for what is made once
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=max(1, args.episodes // args.micro_batch),
        num_generations=GROUP,
        max_completion_length=CONTEXT,
        shuffle_dataset=False,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=CONTEXT,
        vllm_gpu_memory_utilization=args.vllm_share,
        vllm_importance_sampling_correction=False,  # what is sampled is scripted
        use_cpu=on_cpu,
        bf16=not on_cpu,
        model_init_kwargs={"dtype": dtype},
        gradient_checkpointing=not on_cpu,
        learning_rate=1e-6,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    with colocated_engine_for_cpu(max_context=CONTEXT):
        original = vllm_generation.LLM
        vllm_generation.LLM = build
        try:
            trainer = Timed(model=str(model), args=config, train_dataset=dataset, **arguments)
        finally:
            vllm_generation.LLM = original
    sync = trainer.vllm_generation.sync_weights

    def timed_sync() -> None:
        with _timing(parts, "sync"):
            sync()

    trainer.vllm_generation.sync_weights = timed_sync
    ScriptedPolicy.use(trainer.processing_class, "walk")
    busy = Busy()
    trainer.add_callback(Note())
    with busy:
        trainer.train()
    device = "cpu" if on_cpu else torch.cuda.get_device_name()
    shape = {name: size for name, size in SHAPES[args.shape].items() if name != "head_dim"}
    return {"device": device, "dtype": dtype, "shape": shape, "steps": steps[1:]}


class _timing:  # noqa: N801  # reads like a function
    """Adds the seconds of a block to a part."""

    def __init__(self, parts: dict[str, float], name: str) -> None:
        self._parts, self._name = parts, name

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        spent = time.perf_counter() - self._started
        self._parts[self._name] = self._parts.get(self._name, 0.0) + spent


def play(args: argparse.Namespace, loop: str, limit_s: float) -> dict[str, Any]:
    """One of the loops in a process of its own: its figures, or why there are none."""
    command = [sys.executable, __file__, "--loop", loop, "--shape", args.shape]
    for name in ("steps", "episodes", "micro_batch", "vllm_share", "latency_s"):
        command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done within {limit_s:.0f} s"}
    if done.returncode:
        return {"error": f"exit status {done.returncode}; its error is above"}
    return dict(json.loads(done.stdout.strip().rpartition("\n")[2]))


def main() -> None:
    """Train with both loops and write the figures."""
    parser = argparse.ArgumentParser(description="A training step on a GPU, part by part.")
    parser.add_argument("--shape", default="0.5B", help="tiny, 0.5B or 1B (default: 0.5B)")
    parser.add_argument("--steps", type=int, default=4, help="of each loop (default: 4)")
    parser.add_argument("--episodes", type=int, default=64, help="per step (default: 64)")
    parser.add_argument("--micro-batch", type=int, default=4, help="episodes per backward pass")
    parser.add_argument("--vllm-share", type=float, default=0.4, help="of the GPU's memory")
    parser.add_argument("--latency-s", type=float, default=LATENCY_S, help="median of a tool's")
    parser.add_argument("--loop", choices=LOOPS, help="only this one; figures to stdout")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the figures")
    args = parser.parse_args()
    prepare()
    if args.loop:
        keep = os.dup(1)  # vLLM prints where it likes
        os.dup2(2, 1)
        found = train(args)
        os.write(keep, (json.dumps(found) + "\n").encode())
        return
    started = time.monotonic()
    results = {loop: play(args, loop, LIMIT_S - (time.monotonic() - started)) for loop in LOOPS}
    lines = []
    for loop, found in results.items():
        if "error" in found:
            lines.append([loop, found["error"], *[""] * 7])
            continue
        parts = ("step_s", "rollout_s", "sync_s", "logprobs_s", "update_s", "tokens_per_s")
        medians = (statistics.median(step[part] for step in found["steps"]) for part in parts)
        row = [loop, *(f"{median:.2f}" for median in medians)]
        busy = [step["gpu_busy"] for step in found["steps"] if step["gpu_busy"] is not None]
        row.append(f"{statistics.mean(busy):.0%}" if busy else "–")
        row.append(str(sum(step["turns"] for step in found["steps"]) // args.steps))
        lines.append(row)
    devices = {found["device"] for found in results.values() if "device" in found}
    facts = setting(
        shape=args.shape,
        steps=args.steps,
        episodes=args.episodes,
        group=GROUP,
        latency_median_s=args.latency_s,
        device=sorted(devices),
    )
    columns = (
        "", "step, s", "rollout, s", "sync, s", "log-probabilities, s", "update, s",
        "tokens/s in the rollout", "GPU busy", "turns a step",
    )  # fmt: skip
    text = (
        f"# A training step, part by part ({args.shape}, {', '.join(sorted(devices)) or 'failed'})"
        f"\n\n{args.episodes} episodes a step in groups of {GROUP}, 1 to 12 turns, log-normal tool "
        f"latencies of {args.latency_s * 1e3:g} ms in the median; medians over {args.steps} steps. "
        "Written by `python benchmarks/gpu_step.py`.\n\n" + table(columns, lines)
    )
    write(args.out, "gpu_step", {"setting": facts, "loops": results}, text)
    print(text)
    if any("error" in found for found in results.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
