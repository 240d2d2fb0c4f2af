from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from agentgym.client import SamplingParams
from agentgym.errors import TrainingError
from agentgym.trace import Trace
from agentgym.train.evaluation import Evaluation, evaluate
from agentgym.types import Verdict


def _trace(task: str, sample: int, reward: float | None) -> Trace:
    verdict = Verdict(
        reward=reward, masked=reward is None, correct=None if reward is None else reward == 1.0
    )
    return Trace(
        trace_id=f"{task}-{sample}", env_spec="{}", task_id=task, sample=sample, terminated=True,
        verdict=verdict, started_at="2026-01-01T00:00:00Z",
    )  # fmt: skip


def test_interval_is_clustered_by_task():
    # Two tasks, two episodes each, all alike within a task: mean 0.5. Deviations add up to +1 and
    # -1 in the tasks, so the variance is (1 + 1) · 2/(2-1) / 4² = 0.25 and the error 0.5.
    # Student's t for one degree of freedom is 12.706.
    traces = [_trace("a", 0, 1.0), _trace("a", 1, 1.0), _trace("b", 0, 0.0), _trace("b", 1, 0.0)]
    reward = Evaluation.of(traces).reward
    assert (reward.mean, reward.n, reward.n_clusters) == (0.5, 4, 2)
    assert math.isclose(reward.stderr, 0.5)
    assert math.isclose(reward.high, 0.5 + 12.7062 * 0.5, abs_tol=1e-4)


def test_success_has_wilsons_interval_of_the_effective_number_of_episodes():
    # As above; 0.5 · 0.5 / 0.5² = 1 effective episode, shrunk for the 2 tasks behind its standard
    # error by (t₃ / t₁)² = (3.18245 / 12.70620)² to n = 0.06273; Wilson gives, with z² = 3.8415,
    # 0.5 ± z·√(1/(4n) + z²/(4n²)) / (1 + z²/n) = 0.5 ± 0.49597.
    traces = [_trace("a", 0, 1.0), _trace("a", 1, 1.0), _trace("b", 0, 0.0), _trace("b", 1, 0.0)]
    success = Evaluation.of(traces).success
    assert math.isclose(success.low, 0.5 - 0.49597, abs_tol=1e-5)
    assert math.isclose(success.high, 0.5 + 0.49597, abs_tol=1e-5)


def test_no_success_at_all_still_leaves_doubt():
    # One effective episode per task: z² / (n + z²) with n = 2 is 0.6576.
    success = Evaluation.of([_trace("a", 0, 0.0), _trace("a", 1, 0.0), _trace("b", 0, 0.0)]).success
    assert success.mean == success.low == 0.0
    assert math.isclose(success.high, 0.65762, abs_tol=1e-4)


def test_masked_episodes_are_counted_and_left_out():
    evaluation = Evaluation.of([_trace("a", 0, 1.0), _trace("b", 0, 0.5), _trace("c", 0, None)])
    assert evaluation.reward.mean == 0.75
    assert evaluation.success.mean == 0.5
    assert evaluation.n_masked == 1


def test_no_interval_from_a_single_task():
    with pytest.raises(TrainingError, match="two tasks"):
        Evaluation.of([_trace("a", 0, 1.0), _trace("a", 1, 0.0), _trace("b", 0, None)])


def test_what_kept_episodes_from_being_scored_is_named():
    broken = _trace("a", 0, None).model_copy(update={"error": "Traceback …\nEndpointError: gone"})
    with pytest.raises(TrainingError, match="0 of 1 .* first failure: EndpointError: gone"):
        Evaluation.of([broken])


def test_evaluations_sample_as_the_training_rollouts_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Source:
        after_sync = stale = staticmethod(lambda *_: ())

        def engine(self, settings: Any, codec: Any) -> Any:
            asked.append(settings.sampling)
            return SimpleNamespace(run_blocking=list, close=lambda: None)

    trainer = SimpleNamespace(
        vllm_generation=SimpleNamespace(sync_weights=lambda: None, policy_source=Source()),
        state=SimpleNamespace(global_step=0),
        args=SimpleNamespace(chat_template_kwargs=None),
        model=SimpleNamespace(name_or_path="m"),
        processing_class=None, eos_token_ids=[0],
        temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1,
    )  # fmt: skip
    monkeypatch.setattr("agentgym.train.evaluation.ChatCodec", lambda *_, **__: None)
    evaluate(trainer, "agentgym/WebShop-v0", tasks=[], max_turn_tokens=9)
    (sampling,) = asked
    assert sampling == SamplingParams(
        temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1, max_tokens=9
    )
