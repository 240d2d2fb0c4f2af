"""The policy on vLLM servers: the trainer's weights go there, and episodes ask them in token ids.

TRL's own server mode wants NCCL the moment a trainer is built, and one server. Here the trainer
keeps `use_vllm=True, vllm_mode="server"`, and with it the importance-sampling correction, while a
`WeightSync` brings the weights to any number of servers and the rollout engine balances episodes
among them. The engine may also be a service's, which then asks the servers itself.

Of several processes each plays its own rows; the first one alone brings weights.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agentgym.client import Endpoint, SamplingParams, TokenPath
from agentgym.clients.replicas import name_of
from agentgym.errors import EndpointError, TrainingError
from agentgym.rollout import Limits
from agentgym.rollout.blocking import run_to_completion
from agentgym.tokens.codec import ChatCodec
from agentgym.train.gathering import on_first
from agentgym.train.policy_endpoints import (
    IN_FLIGHT,
    check_same_tokenizer,
    policy_endpoint,
    without_unset_key,
)
from agentgym.train.policy_source import EngineSettings, ProbeAnswer, RolloutEngine
from agentgym.train.served_client import ServedClient, ServiceRollouts, greet
from agentgym.train.served_generation import served_generation
from agentgym.train.server_probe import continued, described, find_service, paused_ones
from agentgym.train.sync import SyncReport, Weights, WeightSync
from agentgym.train.sync.admin import ServerFault, root_of
from agentgym.train.sync.info import ServerInfo
from agentgym.train.sync.same_model import other_shapes

logger = logging.getLogger(__name__)


class ServedPolicy:
    """A `PolicySource` over vLLM servers, with the way in which they get weights.

    Args:
        servers: Their base URLs, with or without `/v1`; or endpoints, which say more.
        sync: Brings the weights.
        model: What the servers call the model; None asks them.
        max_context: Tokens of prompt plus completion that fit; None is what the servers take.
        service: URL of a rollout service that plays the episodes; None plays them here.

    Raises:
        ConfigError: If a URL is none.

    Examples:
        >>> policy = ServedPolicy(["http://gpu1:8000"], sync=FolderSync(Path("/shared/weights")))
        >>> with policy.building_trainer():
        ...     trainer = GRPOTrainer(..., rollout_func=rollout_func("agentgym/WebShop-v0"))
    """

    def __init__(
        self,
        servers: Iterable[str | Endpoint],
        *,
        sync: WeightSync,
        model: str | None = None,
        max_context: int | None = None,
        service: str | None = None,
    ) -> None:
        self.sync = sync
        sync.listeners.append(self)
        self.service = service
        self.model = model
        """What the servers call the weights they were started with."""
        self.endpoints = [policy_endpoint(server, model) for server in servers]
        if not self.endpoints:
            raise TrainingError("a served policy needs the URL of at least one server, got none")
        self.infos: list[ServerInfo] = []
        """What the servers say of themselves, once a trainer is built."""
        self.reports: list[SyncReport] = []
        """What the syncs did, in order; the first process's."""
        self.step: Callable[[], int] | None = None
        """Training steps done, for the names of the weights; None counts the syncs."""
        self._max_context = max_context
        self._accelerator: Any = None
        self._run = uuid.uuid4().hex[:8]
        self._pushes = 0
        self._version = ""
        self._asked_as: str | None = None  # the adapter of the last sync, with LoRA
        self._lost: dict[str, str] = {}
        self._by_path: dict[tuple[str, bool], ServedClient] = {}

    # --- for the trainer ----------------------------------------------------------------------

    @contextmanager
    def building_trainer(self) -> Iterator[None]:
        """While it is entered, trainers that are built have this policy."""
        from trl.trainer import grpo_trainer

        original = grpo_trainer.VLLMGeneration
        grpo_trainer.VLLMGeneration = served_generation(self)
        try:
            yield
        finally:
            grpo_trainer.VLLMGeneration = original

    def check_servers(
        self,
        *,
        first: bool = True,
        tokenizer: Any = None,
        env_id: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Get to know the servers, and see that they can be trained with.

        Args:
            first: Whether this is the first process, the one that brings weights.
            tokenizer: The trainer's; None: it is looked at before the first episode.
            env_id: What will be played, for the service; None: it sees at the first rollout.
            env_kwargs: The environment's parameters.

        Raises:
            TrainingError: With the server, what is wrong, and how to start it instead.
            AgentGymError: If the service doesn't play that, or not with these servers.
        """
        if self.service is not None:
            run_to_completion(find_service(self.service))
        self.infos = run_to_completion(described(self.endpoints))
        if nothing := [info.root for info in self.infos if not info.served]:
            raise TrainingError(f"{', '.join(nothing)} serves no model")
        self.model = self.model or self.infos[0].served[0]
        self.endpoints = [e.model_copy(update={"model": self.model}) for e in self.endpoints]
        if first:
            self.sync.check(self.endpoints)
        served = min(info.max_model_len for info in self.infos)
        if self._max_context is not None and self._max_context > served:
            raise TrainingError(
                f"max_context={self._max_context} is more than the servers take: start them with "
                f"--max-model-len {self._max_context}, or lower it to {served}"
            )
        if tokenizer is not None:
            if unlike := other_shapes(tokenizer.name_or_path, self.infos):
                raise TrainingError("; ".join(unlike))
            self._greet(tokenizer)
        if self.service is not None and first and env_id is not None and tokenizer is not None:
            what = EngineSettings(env_id, env_kwargs or {}, SamplingParams(), Limits())
            path = TokenPath(tokenizer=tokenizer.name_or_path, max_context=self.max_context)
            ServiceRollouts(self.service, self, what, path).check()

    def connect(self, accelerator: Any) -> None:
        """A trainer is being built; called by TRL's vLLM backend.

        Raises:
            TrainingError: As by `check_servers`.
        """
        self._accelerator = accelerator
        if not self.infos:
            self.check_servers(first=accelerator.is_main_process)

    def push(self, weights: Weights) -> None:
        """Bring the trainer's weights to the servers; all processes call together.

        Raises:
            TrainingError: If no server took them.
        """
        step = self._pushes if self.step is None else self.step()
        name = f"{self._run}-{self._pushes}-step{step}"
        self._pushes += 1
        self._version = str(step)
        if not self._accelerator.is_main_process:
            self.sync.take_part(weights)
        report = on_first(self._accelerator, lambda: self.sync.push(weights, version=name))
        self.reports.append(report)
        if not self._accelerator.is_main_process:  # the first one's was told meanwhile
            for endpoint in self.endpoints:
                why = report.lost.get(root_of(endpoint))
                if why is None:
                    self.synced(endpoint, version=name, model=report.model)
                else:
                    self.lost(endpoint, why)

    def holding(self, server: Endpoint) -> None:
        """A server is about to answer nobody; told by the sync, as are the next two."""
        for client in self._clients:
            client.holding(server.base_url)

    def synced(self, server: Endpoint, *, version: str, model: str | None) -> None:
        """A server has new weights, and may be asked again."""
        self._lost.pop(server.base_url, None)
        self._asked_as = model or self._asked_as
        for client in self._clients:
            client.synced(server.base_url, version=self._version, model=model)

    def lost(self, server: Endpoint, why: str) -> None:
        """A server has other weights, and must not be asked."""
        self._lost[server.base_url] = why
        for client in self._clients:
            client.lost(server.base_url, why)

    # --- for rollouts -------------------------------------------------------------------------

    @property
    def max_context(self) -> int:
        """Tokens of prompt plus completion that fit."""
        served = min(info.max_model_len for info in self.infos)
        return min(served, self._max_context or served)

    def check(self, codec: ChatCodec, opening: Sequence[int]) -> None:
        """See that a task fits, and that every server reads ids as the trainer does."""
        if len(opening) >= self.max_context:
            raise TrainingError(
                f"a task's opening has {len(opening)} tokens and the context is "
                f"{self.max_context}: start the servers with a larger --max-model-len"
            )
        self._greet(codec.tokenizer)

    def engine(self, settings: EngineSettings, codec: ChatCodec) -> RolloutEngine:
        """An engine over the servers: here, or on the service."""
        path = TokenPath(
            tokenizer=codec.tokenizer.name_or_path,
            template_kwargs=dict(settings.template_kwargs),
            stop_ids=codec.stop_ids,
            max_context=self.max_context,
        )
        if self.service is not None:
            return ServiceRollouts(self.service, self, settings, path)
        return settings.engine(self._client(path, seeded=settings.seeded))

    def asked_in_ids(self, path: TokenPath, *, seeded: bool) -> list[Endpoint]:
        """The servers that have the last weights, as endpoints for a service."""
        endpoints = self._in_ids(self._there(), path, seeded=seeded)
        return [without_unset_key(endpoint) for endpoint in endpoints]

    @property
    def logprobs_modes(self) -> Sequence[str]:
        """How the servers take log-probabilities."""
        return [info.logprobs_mode for info in self.infos]

    @property
    def weight_version(self) -> str:
        """The weights that the servers have, as the traces name them."""
        return self._version

    def after_sync(self, version: str) -> None:
        """Name the weights; the sync itself has seen that the prefix caches were reset."""
        self._version = version
        for client in self._clients:
            client.named(version)

    def probe(
        self, prompt_ids: Sequence[int], *, tokens: int, temperature: float
    ) -> list[ProbeAnswer]:
        """Continue a prompt from a fixed seed on every server that has the last weights.

        One that doesn't answer is left out from now on, as long as there are others.
        """
        there = self._there()
        if not there:
            raise TrainingError(
                f"no policy server has the trainer's weights: {'; '.join(self._lost.values())}"
            )
        found = run_to_completion(
            continued(there, prompt_ids, tokens=tokens, temperature=temperature)
        )
        answers = []
        for endpoint, answer in zip(there, found, strict=True):
            if isinstance(answer, ServerFault):
                if len(self._lost) == len(self.endpoints) - 1:
                    raise answer  # nobody is left
                logger.warning("training goes on without a policy server: %s", answer)
                self.lost(endpoint, str(answer))
                continue
            info = next(info for info in self.infos if info.root == root_of(endpoint))
            ids, logprobs = answer
            name = name_of(endpoint.base_url)
            answers.append(ProbeAnswer(name, ids, logprobs, info.dtype == "float32"))
        return answers

    def stale(self) -> Mapping[str, str]:
        """Servers that came back with other weights since the last sync."""
        found = on_first(self._accelerator, self.sync.stale)
        stale = {}
        for endpoint in self.endpoints:
            why = found.get(root_of(endpoint))
            if why is None:
                continue
            stale[name_of(endpoint.base_url)] = why
            if endpoint.base_url not in self._lost:
                logger.warning("training goes on without a policy server: %s", why)
                self.lost(endpoint, why)
        return stale

    def close(self) -> None:
        """Close connections, and delete what was written for the servers, which go on running."""
        try:
            for client in self._clients:
                run_to_completion(client.aclose())
            self._by_path.clear()
        finally:
            if self._accelerator is None or self._accelerator.is_main_process:
                self.sync.close()

    # --- inside -------------------------------------------------------------------------------

    def _greet(self, tokenizer: Any) -> None:
        """See that every server has the model of a tokenizer, and answers in its ids.

        One that is paused would not answer: a run that was killed left it in the middle of a sync.
        The first sync brings it back, and then it is greeted.
        """
        check_same_tokenizer(tokenizer)
        path = TokenPath(tokenizer=tokenizer.name_or_path)
        there = self._there()
        for endpoint in run_to_completion(paused_ones(there)):
            logger.warning("%s is paused, and goes on with the first sync", root_of(endpoint))
            there.remove(endpoint)
        try:
            run_to_completion(greet(self._in_ids(there, path, seeded=True)))
        except EndpointError as error:
            raise TrainingError(str(error)) from error

    def _client(self, path: TokenPath, *, seeded: bool) -> ServedClient:
        """The client that asks in a certain way; one for all engines, training and evaluation."""
        key = (path.model_dump_json(), seeded)
        if key not in self._by_path:
            everywhere = self._in_ids(self.endpoints, path, seeded=seeded)
            self._by_path[key] = ServedClient(everywhere, lost=self._lost)
            self._by_path[key].named(self._version)
        return self._by_path[key]

    @property
    def _clients(self) -> list[ServedClient]:
        return list(self._by_path.values())

    def _there(self) -> list[Endpoint]:
        """The servers that have the last weights, by the name those have."""
        asked = {"model": self._asked_as or self.model}
        there = [e for e in self.endpoints if e.base_url not in self._lost]
        return [endpoint.model_copy(update=asked) for endpoint in there]

    def _in_ids(
        self, endpoints: Sequence[Endpoint], path: TokenPath, *, seeded: bool
    ) -> list[Endpoint]:
        """Endpoints as one process of the run asks them."""
        processes = 1 if self._accelerator is None else self._accelerator.num_processes
        share = max(16, IN_FLIGHT // processes)
        return [
            endpoint.model_copy(
                update={
                    "model": self._asked_as or self.model,
                    "tokens": path,
                    "dialect": endpoint.dialect.model_copy(update={"seed": seeded}),
                    "max_concurrency": min(endpoint.max_concurrency, share),
                }
            )
            for endpoint in endpoints
        ]
