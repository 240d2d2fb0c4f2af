"""The objective on TRL's own loss: gradients of a real trainer with and without masked rows.

The importance correction against the sampler is on, as in a run: `use_vllm` is set once the trainer
stands, because the episodes here were played already and no weights have to go anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from played import PlayedRollout, batch_of, played, played_trainer

from agentgym.trace import Trace
from agentgym.train.advantages import group_advantages
from agentgym.train.algorithms import PRESETS
from agentgym.train.episode_trainer import trainer_class

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("default"),  # TRL's and torch's own
]

LOSSES = ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo")
BY_ROWS = ("grpo", "sapo", "luspo", "dr_grpo")
"""Losses that divide by the rows of the batch; the others divide by its trained tokens."""
IDS = ((9, 3), (10, 11, 12, 3), (13, 3, 3), (20, 21, 22, 23, 24, 3))
MAX_LENGTH = 8


SAMPLER = -4.1
"""About what the tiny policy gives each of its 63 words, so that importance ratios are near 1."""


def episode(reward: float | None, *, kind: int = 0, **fields: Any) -> Trace:
    """An episode of 2, 4, 3 or 6 tokens."""
    ids = fields.pop("ids", IDS[kind])
    return played(reward, ids=ids, logprobs=[SAMPLER] * len(ids), **fields)


class Bench:
    """A trainer on the tiny policy, with all that differs between losses set from outside."""

    def __init__(self, folder: Path, algorithm: Any = None, **options: Any) -> None:
        self.rollout = PlayedRollout(**options)
        self.trainer = played_trainer(
            folder,
            self.rollout,
            rows=8,
            trainer_class=trainer_class(algorithm),
            beta=0.1,
            epsilon_high=0.28,
            vllm_importance_sampling_mode="token_truncate",
            max_completion_length=MAX_LENGTH,
            tasks=4,
        )
        self.trainer.use_vllm = True
        self.trainer._last_loaded_step = 0
        self.nudge(0)  # away from the reference model, so that there is a KL to pull

    def nudge(self, seed: int, sign: int = 1) -> None:
        """Change all weights a little; with the other sign, back again."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.trainer.model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(sign * 0.02 * noise)

    def batch(self, traces: Sequence[Trace], *, group: int = 4, **settings: Any) -> dict[str, Any]:
        for name, value in {"num_generations": group, **settings}.items():
            setattr(self.trainer, name, value)
        self.trainer._metrics["train"].clear()
        return batch_of(self.trainer, self.rollout, traces)

    def gradients(self, batch: dict[str, Any]) -> tuple[float, Any]:
        """Loss and gradients, shape `(parameters,)`."""
        import torch

        model = self.trainer.model
        model.zero_grad()
        value = self.trainer._compute_loss(model, batch)
        value.backward()
        return float(value), torch.cat([p.grad.flatten() for p in model.parameters()])

    def off_policy(self, batch: dict[str, Any]) -> tuple[float, Any]:
        """The same for weights that have moved since the batch was sampled."""
        self.nudge(1)
        try:
            return self.gradients(batch)
        finally:
            self.nudge(1, -1)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    return Bench(tmp_path_factory.mktemp("bench"))


SCORED = [episode(1.0, kind=0), episode(3.0, kind=1), episode(2.5, kind=2)]


def mixed(*, filling: int = 3) -> list[Trace]:
    """The three scored ones with a masked sibling, and a group with a single scored one."""
    masked = [episode(None, kind=filling)] * 4
    return [*SCORED, masked[0], episode(5.0, kind=filling), *masked[1:]]


def same(one: Any, other: Any) -> bool:
    """Whether gradients agree to float32's rounding."""
    return float((one - other).norm()) <= 1e-4 * float(other.norm())


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", LOSSES)
def test_masked_rows_change_no_gradient(bench: Bench, loss: str, beta: float) -> None:
    """Where a loss divides by the rows, each scored row keeps the weight 1/8 that it had."""
    settings = {"loss_type": loss, "beta": beta, "scale_rewards": "group"}
    _, found = bench.off_policy(bench.batch(mixed(), **settings))
    _, wanted = bench.off_policy(bench.batch(SCORED, group=3, **settings))
    share = 3 / 8 if loss in BY_ROWS else 1.0
    assert float(wanted.norm()) > 1e-3
    assert same(found, wanted * share)


@pytest.mark.parametrize("loss", LOSSES)
def test_what_a_masked_row_says_does_not_matter(bench: Bench, loss: str) -> None:
    settings = {"loss_type": loss, "beta": 0.1, "scale_rewards": "batch"}
    _, one = bench.off_policy(bench.batch(mixed(filling=3), **settings))
    _, other = bench.off_policy(bench.batch(mixed(filling=0), **settings))
    assert same(one, other)


def test_reward_none_alone_would_leave_the_pull_of_the_reference_model(bench: Bench) -> None:
    """Why masks are zeroed as well; when this fails, TRL drops such rows itself."""
    settings = {"loss_type": "grpo", "beta": 0.1, "scale_rewards": "group"}
    batch = bench.batch(mixed(), **settings)
    _, found = bench.gradients(batch)
    batch["tool_mask"] = batch["completion_mask"].clone()
    _, pulled = bench.gradients(batch)
    assert not same(pulled, found)


@pytest.mark.parametrize("loss", LOSSES)
def test_batch_without_a_vote_has_a_finite_loss_and_no_gradient(bench: Bench, loss: str) -> None:
    nobody = [episode(None), episode(4.0), episode(None), episode(None)]
    batch = bench.batch(nobody * 2, loss_type=loss, beta=0.1, scale_rewards="group")
    value, gradient = bench.gradients(batch)
    assert value == 0.0
    assert not gradient.any()


def test_rewards_that_are_no_number_poison_nobody(bench: Bench) -> None:
    """F13: one NaN among 1, 0, 1, and a group of nothing but NaN."""
    broken = episode(0.0)
    nan = broken.verdict.model_construct(reward=math.nan, masked=False, components={}, gates={})
    broken = broken.model_copy(update={"verdict": nan})
    traces = [episode(1.0), broken, episode(0.0), episode(1.0), *[broken] * 4]
    batch = bench.batch(traces, loss_type="dapo", beta=0.1, scale_rewards="group")
    wanted = group_advantages(np.array([1.0, math.nan, 0.0, 1.0]))
    assert batch["advantages"].tolist() == pytest.approx([*wanted, 0, 0, 0, 0])
    value, gradient = bench.gradients(batch)
    assert math.isfinite(value)
    assert gradient.isfinite().all()
    logged = bench.trainer._metrics["train"]
    assert logged["agentgym/masked/nonfinite"] == [5 / 8]
    assert math.isfinite(logged["reward"][0])


def test_logprobs_that_are_no_number_mask_their_tokens_and_are_counted(bench: Bench) -> None:
    """G10: -0.1, null, -inf."""
    traces = [
        played(1.0, ids=(9, 10, 3), logprobs=(-4.0, math.nan, -math.inf)),
        *[episode(0.0)] * 3,
    ]
    batch = bench.batch(traces, loss_type="dapo", beta=0.1, scale_rewards="group")
    assert batch["tool_mask"][0].tolist() == [1, 0, 0]
    value, gradient = bench.gradients(batch)
    assert math.isfinite(value)
    assert gradient.isfinite().all()
    assert bench.trainer._metrics["train"]["agentgym/nonfinite_logprobs"] == [2.0]


# --- the algorithms -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def benches(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bench]:
    rloo = Bench(tmp_path_factory.mktemp("rloo"), "rloo")
    return {"grpo": bench, "dr_grpo": bench, "dapo": bench, "rloo": rloo}


def settings_of(algorithm: Any) -> dict[str, Any]:
    """What the algorithm's name sets on a trainer; the clipping doesn't matter at ratio 1."""
    names = {"importance_sampling_level": "token", **PRESETS[algorithm]}
    return {name: value for name, value in names.items() if not name.startswith("epsilon")}


def by_the_book(bench: Bench, algorithm: Any, traces: Sequence[Trace], rows: int) -> Any:
    """The gradient by the formulas of docs/objective.md, of groups of four."""
    import torch

    rewards = [math.nan if t.reward is None else t.reward for t in traces]
    groups = np.array(rewards).reshape(-1, 4)
    advantages = np.concatenate([group_advantages(g, algorithm=algorithm) for g in groups])
    lengths = [len(t.turns[0].completion_ids or ()) for t in traces]
    votes = [t.reward is not None for t in traces]
    tokens = sum(n for n, vote in zip(lengths, votes, strict=True) if vote)
    model = bench.trainer.model
    model.zero_grad()
    total = torch.zeros(())
    for trace, advantage, length in zip(traces, advantages, lengths, strict=True):
        turn = trace.turns[0]
        prompt, ids = list(turn.prompt_ids or ()), list(turn.completion_ids or ())
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        logps = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum()
        divisor = {
            "grpo": rows * length, "dapo": tokens, "dr_grpo": rows * MAX_LENGTH, "rloo": rows,
        }[algorithm]  # fmt: skip
        total = total - float(advantage) / divisor * logps
    total.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


GROUPS = [
    *(episode(r, kind=k) for r, k in ((0.0, 0), (0.0, 1), (3.0, 2), (None, 3))),
    *(episode(r, kind=k) for r, k in ((1.0, 3), (0.0, 0), (0.0, 1), (0.5, 2))),
]
"""Masked siblings in one group and none in the other, so that no constant makes RLOO of GRPO."""


@pytest.mark.parametrize("algorithm", sorted(PRESETS))
def test_algorithm_is_the_gradient_of_its_formula(
    benches: dict[str, Bench], algorithm: Any
) -> None:
    """On the policy's own samples; the importance correction is left out here."""
    bench = benches[algorithm]
    bench.trainer.use_vllm = False
    try:
        batch = bench.batch(GROUPS, beta=0.0, **settings_of(algorithm))
        _, found = bench.gradients(batch)
    finally:
        bench.trainer.use_vllm = True
    assert same(found, by_the_book(bench, algorithm, GROUPS, rows=8))


@pytest.mark.parametrize(
    ("algorithm", "loss"),
    [
        # 2, 3 and 4 tokens; rewards 0, 0, 3: mean 1, deviation sqrt(3), others' means 1.5, 1.5, 0
        ("grpo", 0.0),  # each row counts once, and advantages sum to 0
        ("dapo", -(-1 * 2 - 1 * 3 + 2 * 4) / 9 / (math.sqrt(3) + 1e-4)),
        ("dr_grpo", -(-1 * 2 - 1 * 3 + 2 * 4) / (4 * MAX_LENGTH)),
        ("rloo", -(-1.5 * 2 - 1.5 * 3 + 3 * 4) / 4),
    ],
)
def test_loss_by_hand(benches: dict[str, Bench], algorithm: Any, loss: float) -> None:
    """With every ratio 1 a token's loss is minus its advantage; the fourth row is masked."""
    traces = [episode(0.0, kind=0), episode(0.0, kind=2), episode(3.0, kind=1), episode(None)]
    bench = benches[algorithm]
    bench.trainer.use_vllm = False
    try:
        batch = bench.batch(traces, beta=0.0, **settings_of(algorithm))
        found, _ = bench.gradients(batch)
    finally:
        bench.trainer.use_vllm = True
    assert found == pytest.approx(loss, rel=1e-5, abs=1e-7)


# --- refilling, and the importance correction ---------------------------------------------------


def test_refilled_groups_are_what_trl_trains_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, refill_rounds=2)
    silent, telling = [episode(0.0)] * 4, [episode(r) for r in (1.0, 0.0, 0.0, None)]
    found = batch_of(bench.trainer, bench.rollout, [*silent, *telling, *silent, *telling], rows=8)
    assert bench.rollout.output["reward"] == [1.0, 0.0, 0.0, None] * 2
    wanted = group_advantages(np.array([1.0, 0.0, 0.0, math.nan]))
    assert found["advantages"].tolist() == pytest.approx([*wanted] * 2)
    asked = bench.rollout.asked
    assert [r.task_id for r in asked[:8]] == ["guess/0"] * 4 + ["guess/1"] * 4
    further = [{r.task_id for r in asked[n : n + 4]} for n in (8, 12)]
    assert set.union(*further) == {"guess/2", "guess/3"}
    assert len({r.seed for r in asked}) == len({r.group for r in asked}) == 4
    logged = bench.trainer._metrics["train"]
    assert logged["agentgym/refill/groups_played"] == [4.0]
    assert logged["agentgym/refill/groups_kept"] == [2.0]
    assert logged["agentgym/groups_without_signal"] == [0.5]  # of all that were played


def test_rows_that_the_importance_correction_drops_are_counted(bench: Bench) -> None:
    off = played(1.0, ids=IDS[1], logprobs=[-9.0] * 4)  # far likelier now than when sampled
    traces = [off, *[episode(0.0)] * 2, episode(None)]
    trainer = bench.trainer
    trainer.vllm_importance_sampling_mode = "sequence_mask"
    try:
        batch = bench.batch(traces, loss_type="dapo", beta=0.0, scale_rewards="group")
    finally:
        trainer.vllm_importance_sampling_mode = "token_truncate"
    assert batch["importance_sampling_ratio"][0] == 0
    name = "sampling/importance_sampling_ratio/dropped"
    assert trainer._metrics["train"][name] == [pytest.approx(1 / 3)]
