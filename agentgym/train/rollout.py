"""TRL's `rollout_func` over the rollout engine.

TRL hands over a batch of prompts, one per row, and takes back one row each. A prompt here is a task
id: the environment makes the opening messages, the engine plays the episodes side by side with the
trainer's policy, and each trace becomes one row (`reward`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium

from agentgym.errors import TrainingError
from agentgym.rollout import EpisodeRequest, Ledger, Limits, Progress
from agentgym.tokens.codec import ChatCodec
from agentgym.trace import Trace
from agentgym.train.advantages import informative
from agentgym.train.batch import BatchListener, PlayedBatch
from agentgym.train.gathering import gather_of
from agentgym.train.invariant import require_live_weights
from agentgym.train.metrics import batch_metrics
from agentgym.train.objective import (
    TRUNCATED,
    CutBy,
    Objective,
    Settled,
    TruncatedAs,
    masked_shares,
    rewards_by_group,
    without_lone,
)
from agentgym.train.policy_source import (
    EngineSettings,
    PolicySource,
    RolloutEngine,
    played_by,
    policy_source_of,
    sampling_of,
)
from agentgym.train.preflight import floor_of, preflight
from agentgym.train.refill import further_tasks, refill
from agentgym.train.reward import columns_of, episode_reward
from agentgym.train.row_requests import row_requests
from agentgym.train.spending import require_paid
from agentgym.train.step_traces import StepTraces
from agentgym.train.versions import require_training_stack
from agentgym.train.whole_batch import whole_batch


def rollout_func(
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    max_turn_tokens: int = 256,
    max_episode_tokens: int | None = None,
    seed: int = 0,
    traces: Path | None = None,
    check_every: int = 10,
    limits: Limits | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    seeded_sampling: bool = True,
    truncated: Mapping[CutBy, TruncatedAs] = TRUNCATED,
    refill_rounds: int = 0,
    refill_tasks: Sequence[str] = (),
) -> Rollout:
    """A rollout function for a `GRPOTrainer` of your own.

    The trainer's dataset has a column `prompt` with task ids (`task_prompts` makes one), its only
    reward function is `episode_reward`, and it uses colocated vLLM.

    Args:
        env_id: Environment id.
        env_kwargs: Its parameters.
        max_turn_tokens: Tokens the policy may sample per turn.
        max_episode_tokens: And per episode, where `limits` doesn't say; None is no limit.
        seed: Fixes every task seed and sampling seed, together with the training step.
        traces: Folder for the traces, one file per training step; None keeps none.
        check_every: Steps between checks that the sampler has the trainer's weights.
        limits: Concurrency, deadlines and budgets of the engine; by default all episodes run at
            once.
        template_kwargs: For the chat template.
        seeded_sampling: Whether each request gets a seed of its own; see `ColocatedClient`.
        truncated: What an episode is to the optimiser, by the limit that cut it; see `TrainConfig`.
        refill_rounds: Rounds in which groups without signal give their place to further tasks.
        refill_tasks: Where those are drawn from; the dataset's own, if empty.

    Raises:
        MissingExtraError: If TRL is missing or of a version this is not written for.
    """
    require_training_stack()
    return Rollout(
        env_id,
        env_kwargs=dict(env_kwargs or {}),
        max_turn_tokens=max_turn_tokens,
        max_episode_tokens=max_episode_tokens,
        seed=seed,
        traces=traces,
        check_every=check_every,
        limits=limits,
        template_kwargs=dict(template_kwargs or {}),
        seeded_sampling=seeded_sampling,
        truncated=truncated,
        refill_rounds=refill_rounds,
        refill_tasks=refill_tasks,
    )


class Rollout:
    """Plays the episodes of a batch; see `rollout_func` for the parameters."""

    def __init__(
        self,
        env_id: str,
        *,
        env_kwargs: dict[str, Any],
        max_turn_tokens: int,
        seed: int,
        traces: Path | None,
        check_every: int,
        limits: Limits | None,
        template_kwargs: dict[str, Any],
        seeded_sampling: bool,
        truncated: Mapping[CutBy, TruncatedAs] = TRUNCATED,
        refill_rounds: int = 0,
        refill_tasks: Sequence[str] = (),
        max_episode_tokens: int | None = None,
    ) -> None:
        self.env_id = env_id
        self.env_kwargs = env_kwargs
        self.calls = 0
        """Batches played so far."""
        self.while_playing: Callable[[], AbstractContextManager[Any]] = nullcontext
        """Entered while episodes run; `train` lets Ctrl-C through there."""
        self.progress: Progress | None = None
        """Told how a rollout goes."""
        self.ledger: Ledger | None = None
        """What episodes are paid from; no batch begins that it would not pay for."""
        self.listeners: list[BatchListener] = []
        """Told of each batch."""
        self.keep_traces_every = 1
        """Traces are kept of every so many steps; of the others none."""
        self._max_turn_tokens = max_turn_tokens
        self._max_episode_tokens = max_episode_tokens
        self._seed = seed
        self._traces = StepTraces(traces)
        self._check_every = check_every
        self._limits = limits
        self._template_kwargs = template_kwargs
        self._seeded = seeded_sampling
        self._objective = Objective(truncated)
        self._refill_rounds = refill_rounds
        self._tasks = list(refill_tasks)
        self._codec: ChatCodec | None = None
        self._source: PolicySource | None = None
        self._engine: RolloutEngine | None = None
        self._probe: list[int] = []
        self._next_check = 0
        self._step = -1
        self._call_in_step = 0

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """Play one episode per prompt; called by TRL after it has synced the weights.

        Returns:
            `prompt_ids`, `completion_ids`, `logprobs` and `env_mask`, a list per row each, and what
            the reward function and the log want to know.

        Raises:
            TrainingError: If the trainer or its dataset doesn't fit, or the sampler's weights are
                not the trainer's.
        """
        if self._codec is None:
            self._codec = self._prepare(trainer)
        self._after_sync(trainer)
        self.calls += 1
        training = trainer.model.training
        started = time.perf_counter()
        kept = self._settled(dict(enumerate(prompts)), len(prompts), trainer)
        left_out: list[Settled] = []
        facts: dict[str, float] = {}
        if training and self._refill_rounds:
            kept, left_out, facts = self._refilled(kept, prompts, trainer)
        seconds = time.perf_counter() - started
        kept = self._without_stale(kept)
        played = [*kept, *left_out]
        gather = gather_of(trainer.accelerator)
        if training:
            groups = rewards_by_group(((s.trace.group, s.reward) for s in played), gather)
            played = without_lone(played, groups)
            silent = sum(not informative(rewards) for rewards in groups.values())
            facts["groups_without_signal"] = silent / len(groups)
            facts |= masked_shares(gather([s.masked_by for s in played]))
        batch = PlayedBatch(
            step=self._step,
            training=training,
            traces=[s.trace for s in played],
            rows=[s.row for s in played],
            rewards=[s.reward for s in played],
            seconds=seconds,
        )
        for listener in self.listeners:
            listener(batch)
        counted = batch_metrics(whole_batch(batch, gather))
        del played[len(kept) :]
        if len(played) != len(prompts):
            raise TrainingError(f"{len(prompts)} prompts came in, {len(played)} rows go out")
        return {**columns_of(played), "batch_metrics": {**counted, **facts}}

    def _prepare(self, trainer: Any) -> ChatCodec:
        """Everything that can be known to be wrong before the first episode is played."""
        source = policy_source_of(trainer)
        names = getattr(trainer, "reward_func_names", [])
        if names != [episode_reward.__name__]:
            raise TrainingError(
                "the only reward function must be agentgym.train.episode_reward, got "
                f"{', '.join(names)}: a masked episode is left out only if no function scores it"
            )
        codec = ChatCodec(
            trainer.processing_class,
            stop_ids=trainer.eos_token_ids,
            template_kwargs=self._template_kwargs,
        )
        env = gymnasium.make(self.env_id, **self.env_kwargs)
        try:
            self._probe = preflight(env, codec, dataset=trainer.train_dataset)
            floor = floor_of(env, self._objective.truncated)
        finally:
            env.close()
        codec.adopt()
        source.check(codec, self._probe)
        self._source = source
        self._objective = replace(self._objective, floor=floor)
        self._tasks = self._tasks or list(dict.fromkeys(trainer.train_dataset["prompt"]))
        return codec

    def _after_sync(self, trainer: Any) -> None:
        """See that the sampler forgot the old weights and has the new ones."""
        step = trainer.state.global_step
        if step == self._step:
            self._call_in_step += 1
            return
        self._step, self._call_in_step = step, 0
        assert self._source is not None
        self._source.after_sync(str(step))
        if self.calls == 0 or step >= self._next_check:
            require_live_weights(trainer, self._probe)
            self._next_check = (step // self._check_every + 1) * self._check_every

    def _without_stale(self, settled: Sequence[Settled]) -> list[Settled]:
        """Take the vote of episodes that a server played with weights nobody knows."""
        assert self._source is not None
        stale = self._source.stale()
        return [
            s.without_vote("stale") if s.masked_by is None and played_by(s.trace, stale) else s
            for s in settled
        ]

    def _settled(
        self, tasks: Mapping[int, str], rows_here: int, trainer: Any, *, round_: int = 0
    ) -> list[Settled]:
        """Play an episode for each row asked for, and settle what the optimiser gets of it."""
        training = trainer.model.training
        first_row = trainer.accelerator.process_index * rows_here
        requests = list(
            row_requests(
                {first_row + row: task for row, task in tasks.items()},
                batch=f"{self._step}.{self._call_in_step}" + ("" if training else ".eval"),
                seed=self._seed,
                group_size=trainer.num_generations if training else trainer.num_generations_eval,
                round_=round_,
            )
        )
        traces = self._play(requests, trainer, more=round_ > 0)
        filler = trainer.eos_token_ids[0]
        return [self._objective.settle(trace, filler_id=filler) for trace in traces]

    def _refilled(
        self, played: Sequence[Settled], prompts: Sequence[str], trainer: Any
    ) -> tuple[list[Settled], list[Settled], dict[str, float]]:
        """Further tasks in the place of groups without signal; see `agentgym.train.refill`."""
        gather = gather_of(trainer.accelerator)
        first_row = trainer.accelerator.process_index * len(prompts)
        rows = range(first_row, first_row + len(prompts))
        done = refill(
            played,
            [row // trainer.num_generations for row in rows],
            rounds=self._refill_rounds,
            tasks=further_tasks(
                self._tasks,
                besides=set(gather(list(prompts))),
                seed=self._seed,
                step=f"{self._step}.{self._call_in_step}",
            ),
            play=lambda asked, round_: self._settled(
                dict(asked), len(prompts), trainer, round_=round_
            ),
            gather=gather,
        )
        return done.kept, done.left_out, done.metrics()

    def _play(
        self, requests: Sequence[EpisodeRequest], trainer: Any, *, more: bool = False
    ) -> list[Trace]:
        """The traces of the requests, in their order.

        Args:
            requests: The episodes.
            trainer: Whose policy plays.
            more: Whether they belong to a batch of which some were played already.

        Raises:
            BudgetStop: If the run's budget leaves nothing for them.
            TrainingError: If something else came back than was asked for.
        """
        if self.ledger is not None:
            require_paid(self.ledger, len(requests))
        if self._engine is None:
            self._engine = self._new_engine(len(requests), trainer)
        self._open_traces(trainer, more=more)
        try:
            with self.while_playing():
                played = self._engine.run_blocking(requests)
        finally:
            self._traces.close()
        by_request = {(trace.group, trace.sample): trace for trace in played}
        missing = [r for r in requests if (r.group, r.sample) not in by_request]
        if missing or len(played) != len(requests):
            raise TrainingError(f"{len(requests)} episodes were asked for, {len(played)} came back")
        # A batch of which some were played goes on with those.
        if not more and all(trace.failure_class == "infra" for trace in played):
            (first, *_) = [trace.error or "no error is told" for trace in played]
            raise TrainingError(
                f"none of the {len(played)} episodes after step {self._step} could be played: "
                f"{first.strip().splitlines()[-1]}"
            )
        return [by_request[request.group, request.sample] for request in requests]

    def _new_engine(self, episodes: int, trainer: Any) -> RolloutEngine:
        """The engine of the run; kept, because it keeps environments for reuse."""
        assert self._codec is not None
        assert self._source is not None
        settings = EngineSettings(
            self.env_id,
            env_kwargs=self.env_kwargs,
            sampling=sampling_of(trainer, self._max_turn_tokens),
            limits=self._limits
            or Limits(
                concurrency=episodes,
                init_concurrency=episodes,
                eval_concurrency=episodes,
                max_episode_tokens=self._max_episode_tokens,
            ),
            writer=self._traces,
            progress=self.progress,
            policy_name=trainer.model.name_or_path,
            template_kwargs=self._template_kwargs,
            seeded=self._seeded,
            ledger=self.ledger,
        )
        return self._source.engine(settings, self._codec)

    def _open_traces(self, trainer: Any, *, more: bool = False) -> None:
        """Keep the traces of what is played next, if the step's are kept."""
        if self._step % self.keep_traces_every == 0:
            self._traces.open(
                self._step,
                training=trainer.model.training,
                rank=trainer.accelerator.process_index,
                anew=self._call_in_step == 0 and not more,
            )

    def close(self) -> None:
        """Close the environments, and what the policy keeps for its rollouts."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._source is not None:
            self._source.close()
