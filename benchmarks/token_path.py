"""Are the trained tokens the sampled ones, over a whole learning run?

    python benchmarks/token_path.py --out benchmarks/results

The tiny policy learns as in `benchmarks/learning.py`. Beside it stand two observers that know
nothing of each other: one at the vLLM engine, which notes each request's prompt, what was sampled
behind it and how much of the prompt was cached; one at the trainer, which notes the batch as the
loss gets it. For each training step:

    match         sampled tokens that the loss trains on, behind the very prompt they were sampled
                  from, of all sampled ones; and trained tokens that nobody sampled
    cached        share of the prompt tokens that vLLM took from its prefix cache, and the share
                  that an unlimited cache could have given, in blocks as large as vLLM's
    gap           |log p of the trainer - log p of the sampler| per trained token, mean and largest,
                  as TRL logs it

About two minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from learning import QUIET
from measuring import RESULTS, setting, table, write

Turn = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids of a prompt, and those sampled behind it."""


@dataclass
class Step:
    """What was seen of one training step."""

    sampled: Counter[Turn] = field(default_factory=Counter)
    trained: Counter[Turn] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    possible_tokens: int = 0


class BlockCache:
    """A prefix cache that forgets nothing: how much of a prompt could have been there already.

    Args:
        block: Tokens per block; only whole ones are kept, as in vLLM.
    """

    def __init__(self, block: int) -> None:
        self._block = block
        self._known: set[int] = set()

    def hit(self, prompt: tuple[int, ...]) -> int:
        """Tokens of the prompt that are known; never all, since something has to be computed."""
        hit = 0
        for key in self._keys(prompt[:-1]):
            if key not in self._known:
                break
            hit += self._block
        return hit

    def add(self, ids: tuple[int, ...]) -> None:
        """Keep the whole blocks of what was computed."""
        self._known.update(self._keys(ids))

    def clear(self) -> None:
        """The weights are new."""
        self._known.clear()

    def _keys(self, ids: tuple[int, ...]) -> list[int]:
        keys, key = [], 0
        for start in range(0, len(ids) - self._block + 1, self._block):
            key = hash((key, ids[start : start + self._block]))
            keys.append(key)
        return keys


class AtTheEngine:
    """Notes what vLLM is asked and answers.

    Args:
        engine: vLLM's `LLMEngine`.
        steps: Takes the notes, by training step.
        now: The training step that is being played; None outside of training.
    """

    def __init__(self, engine: Any, steps: list[Step]) -> None:
        self._steps = steps
        self.cache = BlockCache(engine.vllm_config.cache_config.block_size)
        self.watching = False
        add, step = engine.add_request, engine.step

        def adding(request_id: str, prompt: Any, *args: Any, **kwargs: Any) -> Any:
            if self.watching:
                ids = tuple(prompt["prompt_token_ids"])
                self._steps[-1].possible_tokens += self.cache.hit(ids)
                self.cache.add(ids)
            return add(request_id, prompt, *args, **kwargs)

        def stepping() -> Any:
            outputs = step()
            for output in outputs if self.watching else ():
                self._note(output)
            return outputs

        engine.add_request, engine.step = adding, stepping

    def _note(self, output: Any) -> None:
        prompt, sampled = tuple(output.prompt_token_ids), tuple(output.outputs[0].token_ids)
        seen = self._steps[-1]
        seen.sampled[prompt, sampled] += 1
        seen.prompt_tokens += len(prompt)
        seen.cached_tokens += output.num_cached_tokens or 0
        self.cache.add(prompt + sampled[:-1])  # the last one was never an input


def trained_turns(batch: dict[str, Any]) -> Counter[Turn]:
    """The stretches of a batch that the loss trains on, each behind all that stands before it."""
    turns: Counter[Turn] = Counter()
    columns = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask")
    for row in zip(*(batch[name].tolist() for name in columns), strict=True):
        prompt_ids, prompt_mask, completion_ids, completion_mask, tool_mask = row
        before = [i for i, there in zip(prompt_ids, prompt_mask, strict=True) if there]
        there = list(zip(completion_ids, completion_mask, tool_mask, strict=True))
        ids = [(i, bool(tool)) for i, mask, tool in there if mask]
        for trained, stretch in groupby(ids, key=lambda pair: pair[1]):
            found = [i for i, _ in stretch]
            if trained:
                turns[tuple(before), tuple(found)] += 1
            before += found
    return turns


def run(folder: Path, *, seed: int, steps: int) -> tuple[list[Step], list[dict[str, Any]], int]:
    """Train; what was seen, what was logged, and the tokens per block of the prefix cache."""
    from agentgym.train.grpo import fit, make_trainer
    from agentgym.train.run_folder import claim
    from agentgym.train.tiny.learning import learning_config

    config = learning_config(folder / "train", steps=steps, seed=seed)
    claim(config)
    trainer = make_trainer(config)
    seen: list[Step] = []
    llm = trainer.vllm_generation.llm
    at_engine = AtTheEngine(llm.llm_engine, seen)
    play, generate = trainer.rollout_func, trainer._generate_and_score_completions

    class Playing:
        """The rollout function, watched while it plays episodes and not while it probes weights."""

        def __getattr__(self, name: str) -> Any:
            return getattr(play, name)

        def __call__(self, prompts: Any, of: Any) -> Any:
            seen.append(Step())
            at_engine.cache.clear()
            entered = play.while_playing

            def watched() -> Any:
                at_engine.watching = True
                return entered()

            play.while_playing = watched
            try:
                return play(prompts, of)
            finally:
                at_engine.watching = False
                play.while_playing = entered

    def generating(inputs: Any) -> Any:
        batch = generate(inputs)
        seen[-1].trained = trained_turns(batch)
        return batch

    trainer.rollout_func = Playing()
    trainer._generate_and_score_completions = generating
    history = fit(trainer, config, progress=True).history
    logged = [entry for entry in history if "reward" in entry]
    return seen, logged, llm.llm_engine.vllm_config.cache_config.block_size


def tokens(turns: Counter[Turn]) -> int:
    """Sampled tokens of turns."""
    return sum(len(sampled) * count for (_, sampled), count in turns.items())


GAP = "sampling/sampling_logp_difference"


def figures(step: Step, logged: dict[str, Any]) -> dict[str, Any]:
    """One training step in numbers."""
    return {
        "sampled_tokens": tokens(step.sampled),
        "matched_tokens": tokens(step.sampled & step.trained),
        "trained_tokens": tokens(step.trained),
        "trained_unsampled_tokens": tokens(step.trained - step.sampled),
        "prompt_tokens": step.prompt_tokens,
        "cached_share": round(step.cached_tokens / step.prompt_tokens, 4),
        "possible_share": round(step.possible_tokens / step.prompt_tokens, 4),
        "gap_mean": float(logged[f"{GAP}/mean"]),
        "gap_max": float(logged[f"{GAP}/max"]),
        "reward": float(logged["reward"]),
        "masked": float(logged["agentgym/masked"]),
    }


def page(rows: list[dict[str, Any]], *, block: int) -> str:
    """The figures to read."""
    sampled = sum(row["sampled_tokens"] for row in rows)
    matched = sum(row["matched_tokens"] for row in rows)
    foreign = sum(row["trained_unsampled_tokens"] for row in rows)
    prompt = sum(row["prompt_tokens"] for row in rows)
    cached, possible = (
        sum(row[name] * row["prompt_tokens"] for row in rows) / prompt
        for name in ("cached_share", "possible_share")
    )
    columns = ("step", "reward", "sampled", "trained", "match", "cached", "possible")
    lines = [
        [
            str(number),
            f"{row['reward']:.3f}",
            str(row["sampled_tokens"]),
            str(row["trained_tokens"]),
            f"{row['matched_tokens'] / row['sampled_tokens']:.2%}",
            f"{row['cached_share']:.1%}",
            f"{row['possible_share']:.1%}",
            f"{row['gap_mean']:.1e}",
            f"{row['gap_max']:.1e}",
        ]
        for number, row in enumerate(rows, 1)
    ]
    return (
        "# The token path over a learning run\n\n"
        f"{len(rows)} GRPO steps of the tiny policy on WebShop, 128 episodes each, on vLLM's CPU "
        "build in float32. What each column is stands in `benchmarks/token_path.py`, which made "
        "this.\n\n"
        f"- Token match: {matched / sampled:.2%} ({matched:,} of {sampled:,} sampled tokens are "
        f"trained on behind the prompt they were sampled from); {foreign:,} trained tokens that "
        "were not sampled.\n"
        f"- Prefix cache: {cached:.1%} of the prompt tokens came from it, {possible:.1%} could "
        f"have (blocks of {block} tokens).\n"
        f"- Log-probabilities, trainer against sampler: {max(r['gap_mean'] for r in rows):.1e} at "
        f"most in the mean of a step, {max(r['gap_max'] for r in rows):.1e} at most for a token.\n"
        "\n" + table((*columns, "gap, mean", "gap, largest"), lines)
    )


def main() -> int:
    """Run and write."""
    from agentgym.train.tiny.learning import STEPS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the figures")
    args = parser.parse_args()
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    with tempfile.TemporaryDirectory() as folder:
        seen, logged, block = run(Path(folder), seed=args.seed, steps=args.steps)
    rows = [figures(step, entry) for step, entry in zip(seen, logged, strict=True)]
    facts = setting(steps=args.steps, seed=args.seed, block_tokens=block)
    write(args.out, "token_path", {"setting": facts, "steps": rows}, page(rows, block=block))
    exact = all(
        row["matched_tokens"] == row["sampled_tokens"] and not row["trained_unsampled_tokens"]
        for row in rows
    )
    print("every sampled token is trained on" if exact else "sampled and trained tokens differ")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
