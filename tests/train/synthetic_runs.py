"""Runs as they would have been logged, without a model: healthy ones, and one per symptom.

A policy is a success rate per task; everything else follows from episodes drawn by it, which go
through `batch_metrics` as real ones do. TRL's own numbers are drawn beside them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from agentgym.trace import Trace
from agentgym.train.batch import PlayedBatch
from agentgym.train.metrics import batch_metrics
from agentgym.train.monitors.alarm import Alarm, AlarmBook
from agentgym.train.monitors.checks import look
from agentgym.train.monitors.history import OURS, RunHistory, Thresholds
from agentgym.train.monitors.scores import HeldOutScore
from agentgym.train.monitors.tasks import TaskHistory, outcomes_of
from agentgym.train.rows import TrainingRow
from agentgym.types import Turn, Usage, Verdict

Curve = Callable[[int], float]
"""A figure by training step."""


def flat(value: float) -> Curve:
    """The same at every step."""
    return lambda step: value


def ramp(start: float, end: float, steps: int, *, begin: int = 0) -> Curve:
    """From one value to another between two steps, level before and after."""
    return lambda step: start + (end - start) * min(max((step - begin) / steps, 0.0), 1.0)


@dataclass(frozen=True)
class Symptoms:
    """What a run is like; by default it is well."""

    skill: Curve = ramp(-0.8, 2.0, 100)  # noqa: RUF009  # a function
    """Mean logit of success."""
    difficulty: float = 1.2
    """Standard deviation of the tasks' logits."""
    malformed: Curve = ramp(0.3, 0.03, 30)  # noqa: RUF009
    cut_off: Curve = flat(0.01)  # noqa: RUF009
    capped: Curve = ramp(0.08, 0.02, 30)  # noqa: RUF009
    """Share of the unsolved that hit the turn cap without an answer."""
    context: Curve = flat(0.005)  # noqa: RUF009
    masked: Curve = flat(0.01)  # noqa: RUF009
    masked_by: str = "judge"
    identical: bool = False
    """Whether the rollouts of a group are all the same."""
    gate: Curve = flat(0.05)  # noqa: RUF009
    """Share of episodes that gate `polite` fails, at 0.2 each."""
    bonus: Curve = flat(0.0)  # noqa: RUF009
    """What every completed episode is paid beside, right or wrong."""
    ceiling: float = 1.0
    """What a solved episode earns."""
    entropy: Curve = ramp(1.0, 0.45, 60)  # noqa: RUF009
    tokens: Curve = ramp(60, 40, 60)  # noqa: RUF009
    gap: Curve = flat(0.004)  # noqa: RUF009
    ratio: Curve = flat(1.0)  # noqa: RUF009
    lag: Curve = flat(0.0)  # noqa: RUF009
    nonfinite: Curve = flat(0.0)  # noqa: RUF009
    grad_norm: Curve = flat(0.3)  # noqa: RUF009
    loss: Curve = flat(0.0)  # noqa: RUF009
    held_out: Curve | None = None
    """Success on held-out tasks; None follows the training tasks."""
    tasks: int = 400
    per_step: int = 16
    group_size: int = 8


def steps_of(
    symptoms: Symptoms, *, steps: int, seed: int = 0
) -> Iterator[tuple[int, dict[str, float], list[Trace]]]:
    """The logged metrics of each step, and its traces."""
    draw = random.Random(seed)
    hard = {f"t{i}": draw.gauss(0, symptoms.difficulty) for i in range(symptoms.tasks)}
    tasks = TaskHistory()
    order = list(hard)
    draw.shuffle(order)
    for step in range(steps):
        traces: list[Trace] = []
        for group in range(symptoms.per_step):
            task = order[(step * symptoms.per_step + group) % len(order)]
            chance = _sigmoid(symptoms.skill(step) - hard[task])
            first: Trace | None = None
            for sample in range(symptoms.group_size):
                trace = _episode(symptoms, step, chance, draw)
                if symptoms.identical and first is not None and first.scored:
                    trace = first
                first = first or trace
                names = {"task_id": task, "group": f"{step}.{group}", "sample": sample}
                traces.append(trace.model_copy(update=names))
        rewards = [trace.reward for trace in traces]
        rows = [TrainingRow([1], [2], [1], [-1.0])] * len(traces)
        metrics = batch_metrics(PlayedBatch(step, True, traces, rows, rewards, seconds=10.0))
        expected = tasks.expect(outcomes_of(traces))
        if expected is not None:
            metrics["groups_equal_expected_by_task"] = expected
        metrics["nonfinite_logprobs"] = symptoms.nonfinite(step)
        scored = [reward for reward in rewards if reward is not None]
        near = draw.gauss(1, 0.05)
        clipped = sum(trace.turns[-1].cut_off for trace in traces) / len(traces)
        theirs = {
            "frac_reward_zero_std": metrics["groups_without_signal"],
            "completions/clipped_ratio": clipped,
            "entropy": symptoms.entropy(step) * near,
            "sampling/sampling_logp_difference/mean": symptoms.gap(step) * near,
            "sampling/importance_sampling_ratio/mean": symptoms.ratio(step) + draw.gauss(0, 0.005),
            "grad_norm": symptoms.grad_norm(step) * near,
            "loss": symptoms.loss(step) + draw.gauss(0, 0.01),
            **({"reward": sum(scored) / len(scored)} if scored else {}),
        }
        yield step + 1, {**{OURS + k: v for k, v in metrics.items()}, **theirs}, traces


def _episode(symptoms: Symptoms, step: int, chance: float, draw: random.Random) -> Trace:
    def happens(share: Curve) -> bool:
        return draw.random() < share(step)

    cut, malformed = happens(symptoms.cut_off), happens(symptoms.malformed)
    full = happens(symptoms.context)
    right = draw.random() < chance and not cut and not full
    capped = not right and not full and happens(symptoms.capped)
    gates = {"truncated": capped or full, "malformed_call": malformed,
             "polite": happens(symptoms.gate)}  # fmt: skip
    completed = right or not (capped or full or cut)
    reward = symptoms.ceiling * right + symptoms.bonus(step) * completed
    reward -= 0.5 * gates["truncated"] + 0.3 * malformed + 0.2 * gates["polite"]
    components = {"solved": float(right)}
    if symptoms.bonus(step):
        components["manners"] = symptoms.bonus(step) * completed
    verdict = Verdict(
        reward=reward, components=components, gates=gates, completed=completed, correct=right
    )
    if happens(symptoms.masked):
        verdict = Verdict(reward=None, masked=True, failure_class=symptoms.masked_by)
    sampled = max(1, round(symptoms.tokens(step) * draw.gauss(1, 0.2)))
    turn = Turn(
        index=0,
        message={"role": "assistant", "content": f"{draw.getrandbits(32)}"},
        malformed_text=malformed,
        cut_off=cut,
        usage=Usage(prompt_tokens=200, completion_tokens=sampled),
        weight_version=str(step - round(symptoms.lag(step))),
    )
    return Trace(
        trace_id="t", env_spec="{}", started_at="now", turns=(turn,), verdict=verdict,
        terminated=not (capped or full), truncated=capped or full,
        truncation_reason="turns" if capped else "context" if full else None,
    )  # fmt: skip


def score_of(symptoms: Symptoms, step: int, *, tasks: int = 64, samples: int = 2) -> HeldOutScore:
    """A held-out evaluation after so many steps."""
    draw = random.Random(step + 1)
    hard = random.Random(0)
    counts = {}
    for task in range(tasks):
        own = hard.gauss(0, symptoms.difficulty)
        skill = symptoms.skill(step) if symptoms.held_out is None else symptoms.held_out(step)
        chance = _sigmoid(skill - own)
        counts[f"h{task}"] = (sum(draw.random() < chance for _ in range(samples)), samples)
    share = sum(c for c, _ in counts.values()) / (tasks * samples)
    return HeldOutScore(
        step=step, success=share, low=max(0.0, share - 0.1), high=min(1.0, share + 0.1),
        n_episodes=tasks * samples, reward=share, turns=3.0, truncated=0.0, malformed=0.0,
        seconds=5.0, tasks=counts,
    )  # fmt: skip


def alarms_of(
    symptoms: Symptoms,
    *,
    steps: int = 60,
    seed: int = 0,
    eval_every: int = 20,
    thresholds: Thresholds | None = None,
    until: str | None = None,
) -> list[Alarm]:
    """The alarms of a run, each at the step at which it is raised, up to the one named."""
    history, book = RunHistory(thresholds), AlarmBook()
    history.add_evaluation(score_of(symptoms, 0))
    for step, values, _ in steps_of(symptoms, steps=steps, seed=seed):
        history.add(step, values)
        if step % eval_every == 0:
            history.add_evaluation(score_of(symptoms, step))
        if any(alarm.name == until for alarm in book.add(look(history))):
            break
    return book.alarms


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


HEALTHY = Symptoms()

SICK: dict[str, Symptoms] = {
    "no_signal": replace(HEALTHY, skill=flat(-6.0), malformed=flat(0.0), gate=flat(0.0),
                         capped=flat(0.0), context=flat(0.0)),
    "no_success": replace(HEALTHY, skill=flat(-9.0)),
    "token_limit": replace(HEALTHY, cut_off=flat(0.2)),
    "turn_cap": replace(HEALTHY, skill=flat(-0.5), capped=flat(0.5)),
    "context_limit": replace(HEALTHY, context=flat(0.2)),
    "malformed": replace(HEALTHY, malformed=flat(0.6)),
    "gate:polite": replace(HEALTHY, gate=flat(1.0)),
    "masked": replace(HEALTHY, masked=flat(0.2)),
    "identical_rollouts": replace(HEALTHY, identical=True),
    "no_gradient": replace(HEALTHY, grad_norm=flat(0.0)),
    "nonfinite_loss": replace(HEALTHY, loss=lambda s: math.nan if s == 20 else 0.0),
    "nonfinite_logprobs": replace(HEALTHY, nonfinite=flat(3.0)),
    "logprob_gap": replace(HEALTHY, gap=ramp(0.004, 0.3, 20)),
    "importance_ratio": replace(HEALTHY, ratio=ramp(1.0, 1.5, 20)),
    "stale_weights": replace(HEALTHY, lag=flat(8)),
    "flat": replace(HEALTHY, skill=flat(0.0), malformed=flat(0.02), capped=flat(0.02)),
    "plateau": replace(
        HEALTHY, skill=ramp(-1.5, 0.4, 15), malformed=flat(0.02), capped=flat(0.02)
    ),
    "collapse": replace(
        HEALTHY, skill=lambda s: ramp(-0.8, 1, 30)(s) - ramp(0, 4, 10, begin=40)(s)
    ),
    "entropy_collapse": replace(HEALTHY, skill=flat(-0.5), entropy=ramp(1.0, 0.05, 30)),
    "entropy_explosion": replace(HEALTHY, skill=flat(-0.5), entropy=ramp(1.0, 4.0, 30)),
    "length_collapse": replace(HEALTHY, skill=flat(-0.5), tokens=ramp(60, 8, 30)),
    "length_explosion": replace(HEALTHY, skill=flat(-0.5), tokens=ramp(60, 400, 30)),
    "reward_without_correctness": replace(HEALTHY, skill=flat(-3.0), bonus=ramp(0.3, 1.2, 30)),
    "unfinished": replace(HEALTHY, skill=flat(-0.9), difficulty=0.2, capped=flat(0.9)),
    "held_out_gap": replace(
        HEALTHY, skill=flat(-0.8), bonus=ramp(0.0, 0.6, 50), held_out=flat(-0.8)
    ),
}  # fmt: skip
"""One run per symptom."""
