"""Make the tiny policy: a new model, warm-started on scripted episodes of training tasks.

    python -m agentgym.train.tiny.build --out runs/tiny

Supervised learning on what the scripted shopper writes. In the first half of the run, predicting
the shop's pages counts too, less and less: pages repeat themselves, and learning to foresee that is
how the model learns to copy, which choosing a product id from a page takes. It halves the steps
needed. The shopper slips often and on purpose (see `shopper.py`), so the policy ends up knowing
what can be done, and doing the right thing less than half of the time.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from agentgym.train.tiny.demonstrations import Demonstration, Demonstrator, closed_vocabulary
from agentgym.train.tiny.model import new_model, save_policy
from agentgym.train.tiny.tokenizer import make_tokenizer

STEPS = 800
BATCH = 32
LEARNING_RATE = 3e-3
WARMUP_STEPS = 50
READING = 0.5
"""Share of the steps in which pages are learned too, with a weight falling from 1 to 0."""
REPORT_EVERY = 25


def build(
    folder: Path, *, steps: int = STEPS, batch: int = BATCH, seed: int = 0, quiet: bool = False
) -> None:
    """Make the policy and save it.

    Args:
        folder: Where to.
        steps: Optimiser steps.
        batch: Episodes per step.
        seed: Fixes weights, tasks and slips.
        quiet: Whether to keep quiet about how it goes.
    """
    started = time.monotonic()
    tokenizer = make_tokenizer(closed_vocabulary())
    model = new_model(tokenizer, seed=seed)
    demonstrator = Demonstrator(tokenizer, seed=seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.05
    )
    model.train()
    for step, episodes in enumerate(_batches(demonstrator, steps, batch, random.Random(seed))):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        loss, total = losses(model, episodes, reading=max(0.0, 1 - step / (READING * steps)))
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if not quiet and (step % REPORT_EVERY == 0 or step == steps - 1):
            seconds = time.monotonic() - started
            left_s = seconds / (step + 1) * (steps - step - 1)
            print(
                f"step {step + 1}/{steps}  loss {loss.item():.3f}  {seconds:.0f} s, "
                f"{left_s:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
    save_policy(model, tokenizer, folder)


def learning_rate(step: int, steps: int) -> float:
    """A short warm-up, then half a cosine down to a twentieth."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return LEARNING_RATE * warm * (0.525 + 0.475 * math.cos(math.pi * step / steps))


def losses(
    model: LlamaForCausalLM, episodes: list[Demonstration], *, reading: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross-entropy of the shopper's tokens, alone and with that of the pages added.

    Args:
        model: Vocabulary size ``V``.
        episodes: ``B`` of them, of different lengths up to ``T``.
        reading: Weight of the pages' tokens.

    Returns:
        Two scalars.
    """
    longest = max(len(episode.ids) for episode in episodes)
    ids = torch.zeros(len(episodes), longest, dtype=torch.long)  # (B, T), padded on the right
    written = torch.zeros(len(episodes), longest, dtype=torch.bool)  # (B, T)
    real = torch.zeros(len(episodes), longest, dtype=torch.bool)  # (B, T)
    for row, episode in enumerate(episodes):
        length = len(episode.ids)
        ids[row, :length] = torch.tensor(episode.ids)
        written[row, :length] = torch.tensor(episode.mask, dtype=torch.bool)
        real[row, :length] = True
    # Causal attention never looks right, so the padding needs no mask.
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]  # (B, T-1, H)

    def cross_entropy(wanted: torch.Tensor) -> torch.Tensor:
        logits = model.lm_head(hidden[wanted])  # (N, V)
        return torch.nn.functional.cross_entropy(logits, ids[:, 1:][wanted])

    imitation = cross_entropy(written[:, 1:])
    if not reading:
        return imitation, imitation
    return imitation, imitation + reading * cross_entropy((real & ~written)[:, 1:])


def _batches(
    demonstrator: Demonstrator, steps: int, batch: int, rng: random.Random
) -> Iterator[list[Demonstration]]:
    """Batches of episodes of similar length, so that little of a batch is padding."""
    pool: list[list[Demonstration]] = []
    for _ in range(steps):
        if not pool:
            drawn = [demonstrator.draw() for _ in range(8 * batch)]
            drawn.sort(key=lambda episode: len(episode.ids))
            pool = [drawn[i : i + batch] for i in range(0, len(drawn), batch)]
            rng.shuffle(pool)
        yield pool.pop()


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m agentgym.train.tiny.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for model and tokenizer")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"default {STEPS}")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"episodes a step; {BATCH}")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    args = parser.parse_args(argv)
    build(args.out, steps=args.steps, batch=args.batch, seed=args.seed, quiet=args.quiet)
    print(f"saved {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
