"""Playing a run that has been checked: clients, engine, files, and the user's patience."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.cli._endpoints import endpoints_table, preflight
from agentgym.cli._folder import RunFolder
from agentgym.cli._interrupts import Interrupts
from agentgym.cli._limits import stages_line
from agentgym.cli._watching import Watching, stuck_after_s
from agentgym.client import ModelClient, Role, SamplingParams, public_url
from agentgym.roles import Roles
from agentgym.rollout.continued import RecordedSink, known_calls
from agentgym.types import ToolSpec

if TYPE_CHECKING:
    from agentgym.clients.record import Recording
    from agentgym.remote.engine import RemoteEngine
    from agentgym.rollout import Canary, Engine, Enough, EpisodeRequest, Limits, Retry
    from agentgym.rollout.journal import Journal
    from agentgym.rollout.status import EngineStatus


@dataclass(frozen=True, kw_only=True)
class Play:
    """Everything a run is played with."""

    env: str
    env_kwargs: Mapping[str, Any]
    roles: Roles
    scripted: ModelClient | None
    """The policy, where it is no model."""
    policy_name: str
    tools: tuple[ToolSpec, ...]
    """What the policy will be offered."""
    sampling: SamplingParams
    limits: Limits
    retry: Retry | None
    enough: Enough | None
    canary: Canary | None
    keeps_unjudged: bool
    """Whether episodes wait for a verdict that costs something."""
    folder: RunFolder
    config_json: str
    secrets: list[str]
    interrupts: Interrupts
    args: argparse.Namespace

    def run(self, requests: list[EpisodeRequest]) -> bool:
        """Play.

        Returns:
            Whether the user ended it before everything was played.
        """
        from agentgym.rollout import collecting_seldom

        with (
            collecting_seldom(),
            self._models(requests) as recording,
            Watching(self.args, self.secrets) as watching,
        ):
            return asyncio.run(self._play(requests, recording, watching))

    @contextmanager
    def _models(self, requests: list[EpisodeRequest]) -> Iterator[Recording | None]:
        """Where models answer from, and where to that is recorded."""
        from agentgym.clients import recording, replaying

        if self.args.replay:
            with replaying(self.args.replay):
                yield None
        elif self.args.record:
            path = Path(self.args.record)
            resumed = self.args.resume
            known = known_calls(path, self.folder.traces, requests) if resumed else None
            with recording(path, known=known) as file:
                yield file
        else:
            yield None

    async def _play(
        self, requests: list[EpisodeRequest], recording: Recording | None, watching: Watching
    ) -> bool:
        # A service has clients of its own.
        clients = {} if self.args.service else self._clients(recording)
        if self.args.service:
            await _greet(self.args.service)
        elif not self.args.replay:
            self._count_spent(clients)
            await preflight(clients, self.tools)
        # First, so that whatever a kill leaves behind can be gone on with.
        self.folder.begin(self.config_json, resumed=self.args.resume)
        left = {(request.task_id, request.sample) for request in requests}
        with self._journal() as journal, self._sink(recording) as sink:
            engine = self._engine(clients, watching.behind(sink), journal)
            self._count_spent_of_the_run(engine)
            watching.sees(engine)
            self._say_what_runs(watching.metrics_url)
            try:
                async with engine:
                    await self._play_all(engine, requests, left)
            finally:
                self.folder.dropped(engine.status().dropped_usage)
                if (ledger := getattr(engine, "ledger", None)) is not None:
                    ledger.keep()
            _say_what_was_dropped(engine.status())
            if journal is not None:
                self.folder.forget_judged()
        return self.interrupts.signal is not None and bool(left)

    def _count_spent(self, clients: Mapping[Role, Any]) -> None:
        """A budget is for the run, however often it is gone on with."""
        filled = self.roles.filled()
        limited = [role for role, endpoint in filled.items() if endpoint.budget_usd is not None]
        spent = self.folder.spent_usd() if limited else {}
        for role in limited:
            clients[role].spent_before(spent.get(role, 0.0))

    def _count_spent_of_the_run(self, engine: Engine | RemoteEngine) -> None:
        """The run's own budget is for the run, too."""
        from agentgym.rollout.spending import Spending, read_spending

        ledger = getattr(engine, "ledger", None)
        if ledger is None:
            return
        if self.args.resume:
            # What was paid for and has no trace is charged again as it comes out of a recording.
            known = Spending() if self.args.record else read_spending(self.folder.spent_file)
            spent = known.at_least(self.folder.spent())
            ledger.spent_before(spent.billed, unbilled=spent.unbilled)
        ledger.keep_in(self.folder.spent_file)

    async def _play_all(
        self,
        engine: Engine | RemoteEngine,
        requests: list[EpisodeRequest],
        left: set[tuple[str | None, int]],
    ) -> None:
        """Play, and take what is over out of `left`; the user may end it."""
        with self.interrupts.watching(engine.drain, lambda: engine.status().in_flight):
            try:
                async for trace in engine.run(requests, enough=self.enough):
                    left.discard((trace.task_id, trace.sample))
            except asyncio.CancelledError:
                if self.interrupts.signal is None:
                    raise

    def _clients(self, recording: Recording | None) -> dict[Role, ModelClient]:
        """The clients by role; several servers of the policy are behind one."""
        from agentgym.clients import BalancedClient, RecordingClient, connect

        clients = {role: connect(endpoint) for role, endpoint in self.roles.filled().items()}
        if self.roles.replicas and not self.args.replay:
            balanced = BalancedClient(self.roles.policy_servers)
            recorded = recording and RecordingClient(balanced, recording, role="policy")
            clients["policy"] = recorded or balanced
        return clients

    def _engine(
        self, clients: Mapping[Role, ModelClient], sink: Any, journal: Journal | None
    ) -> Engine | RemoteEngine:
        common: dict[str, Any] = {
            "sampling": self.sampling,
            "env_kwargs": self.env_kwargs,
            "limits": self.limits,
            "writer": sink,
            "progress": not self.args.quiet,
            "policy_name": self.policy_name,
            "retry": self.retry,
        }
        if self.args.service:
            from agentgym.remote.engine import RemoteEngine

            servers = self.roles.policy_servers
            return RemoteEngine(self.args.service, self.env, client=servers, **common)
        from agentgym.rollout import Engine

        policy: Any = self.scripted or clients["policy"]
        if self.args.backend == "ray":  # whose nodes make clients of their own
            policy = self.roles.policy_servers
        return Engine(
            self.env,
            client=policy,
            canary=self.canary,
            backend=self.args.backend,
            journal=journal,
            stuck_after_s=stuck_after_s(self.args),
            **common,
        )

    @contextmanager
    def _sink(self, recording: Recording | None) -> Iterator[Any]:
        """What each finished trace goes through."""
        from agentgym.traces import TraceWriter

        with TraceWriter(self.folder.traces, secrets=self.secrets) as writer:
            yield writer if recording is None else RecordedSink(writer, recording)

    def _journal(self) -> AbstractContextManager[Journal | None]:
        """Keeps what waits for a verdict; no use where that is free, or far away."""
        from agentgym.rollout.journal import Journal

        if not self.keeps_unjudged or self.args.service or self.args.backend != "local":
            return nullcontext()
        return Journal(self.folder.unjudged, secrets=self.secrets)

    def _say_what_runs(self, metrics_url: str | None) -> None:
        if self.args.quiet:
            return
        lines = [endpoints_table(self.roles), stages_line(self.limits)]
        lines += [f"budget     {self.limits.budget}"] if self.limits.budget is not None else []
        lines += [f"service    {public_url(self.args.service)}"] if self.args.service else []
        lines += [f"metrics    {metrics_url}"] if metrics_url else []
        print("\n".join(line for line in lines if line), file=sys.stderr)


def _say_what_was_dropped(status: EngineStatus) -> None:
    """What was spent on episodes that were cancelled, since no trace tells."""
    from agentgym.rollout.status import usage_text

    if spent := usage_text(status.dropped_usage):
        count = status.episodes.dropped
        print(f"cancelled  {count} episodes, which no trace counts: {spent}", file=sys.stderr)


async def _greet(url: str) -> None:
    """See that a service is there and takes the token, before anything is written.

    In the middle of a run its silence is waited out for minutes; at the beginning it is a slip.

    Raises:
        AgentGymError: If it isn't or doesn't; one line.
    """
    from agentgym.remote.http import ServiceClient

    service = ServiceClient(url, reconnect_s=0.0)
    try:
        await service.ask("GET", "/status")
    finally:
        await service.aclose()
