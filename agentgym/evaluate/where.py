"""Where an evaluation's episodes are played, and where its models answer from.

By default both are here: this process plays, and asks servers. Calls may be recorded, or answered
from such a recording; or a rollout service plays.

Recordings know a call by its episode and role, and all columns play the same episodes. So each
column has a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agentgym.clients import RecordingClient, ReplayClient, recording, replaying
from agentgym.errors import ConfigError
from agentgym.evaluate.columns import ColumnSpec, file_stems
from agentgym.rollout.continued import RecordedSink, known_calls

if TYPE_CHECKING:
    from agentgym.client import ModelClient
    from agentgym.clients.record import Recording
    from agentgym.clients.replay import Replay
    from agentgym.rollout import EpisodeRequest
    from agentgym.rollout.limits import Limits
    from agentgym.traces import TraceSink


class Calls(NamedTuple):
    """What becomes of one column's model calls."""

    recording: Recording | None = None
    replay: Replay | None = None

    def policy(self, client: ModelClient, spec: ColumnSpec) -> ModelClient:
        """The column's policy, recorded or replayed where it is a model."""
        if self.recording is not None and spec.servers:
            return RecordingClient(client, self.recording, role="policy")
        if self.replay is not None and spec.servers:
            return ReplayClient(self.replay, role="policy", model=spec.model)
        return client

    def sink(self, sink: TraceSink) -> TraceSink:
        """Where finished traces go; they note how far the recording has got."""
        return sink if self.recording is None else RecordedSink(sink, self.recording)


@dataclass(frozen=True)
class Where:
    """One of the ways, or none of them: this process plays and asks servers.

    Raises:
        ConfigError: If several are named.
    """

    record: Path | None = None
    """Folder to keep every model call in, a file per column."""
    replay: Path | None = None
    """Folder of such files to answer from; no server is asked."""
    service: str | None = None
    """URL of the rollout service that plays."""

    def __post_init__(self) -> None:
        named = [name for name in ("record", "replay", "service") if getattr(self, name)]
        if len(named) > 1:
            raise ConfigError(f"give one of --{' and --'.join(named)}; a service records nothing")

    @property
    def asks_models(self) -> bool:
        """Whether this process asks servers for answers."""
        return self.replay is None and self.service is None

    def check(
        self, missing: Mapping[str, int], specs: Sequence[ColumnSpec], limits: Limits
    ) -> None:
        """See that what is missing can be played so, before anything is.

        Args:
            missing: Episodes to play, by column.
            specs: The columns.
            limits: Of the evaluation.

        Raises:
            ConfigError: If it can't.
        """
        if self.replay is not None:
            files = self.files(spec.name for spec in specs)
            lacking = [name for name, n in missing.items() if n and not files[name].exists()]
            if lacking:
                raise ConfigError(
                    f"--replay {self.replay}: there is no {files[lacking[0]].name}, the recording "
                    f"of column {lacking[0]}"
                )
        if self.service is None:
            return
        for spec in specs:
            if spec.policy is not None and missing[spec.name]:
                raise ConfigError(
                    f"column {spec.name} is a policy of the env's own, which a service doesn't "
                    "play; run the same command with the same --out and without --service first, "
                    "for that column alone: its episodes are kept"
                )
        if limits.budget is not None:
            raise ConfigError(
                "a budget is for all columns together, and a service keeps one for each job only; "
                "leave it out, and give the columns' endpoints a budget_usd each"
            )

    def files(self, names: Iterable[str]) -> dict[str, Path]:
        """The recording of each column."""
        folder, known = self.record or self.replay or Path(), list(names)
        stems = file_stems(known)
        return {n: folder / f"{s}.jsonl" for n, s in zip(known, stems, strict=True)}

    @contextmanager
    def calls(
        self, file: Path, traces: Path, requests: Sequence[EpisodeRequest]
    ) -> Iterator[Calls]:
        """Record or replay every endpoint that is connected to inside the block, as wished.

        Args:
            file: The column's recording.
            traces: The column's traces; what is in both is neither asked nor told again.
            requests: The episodes to play.

        Raises:
            DataError: If the file is no recording.
            TraceError: If it can't be written.
        """
        if self.record is not None:
            self.record.mkdir(parents=True, exist_ok=True)
            with recording(file, known=known_calls(file, traces, requests)) as written:
                yield Calls(recording=written)
        elif self.replay is not None:
            with replaying(file) as replay:
                yield Calls(replay=replay)
        else:
            yield Calls()

    async def greet(self) -> None:
        """See that the service is there and takes the token, before anything is written.

        Raises:
            AgentGymError: If it isn't or doesn't; one line.
        """
        if self.service is None:
            return
        from agentgym.remote.http import ServiceClient

        client = ServiceClient(self.service, reconnect_s=0.0)
        try:
            await client.ask("GET", "/status")
        finally:
            await client.aclose()


def engine_at(where: Where, env: str, policy: ModelClient, spec: ColumnSpec, **options: Any) -> Any:
    """The engine that plays a column.

    Args:
        where: Here, or by a service.
        env: The env's id.
        policy: Who plays, here.
        spec: The column; a service asks its servers itself.
        **options: As `Engine` takes them; of `stages`, `journal` and `ledger` a service has its own
            or none.
    """
    if where.service is None:
        from agentgym.rollout import Engine

        return Engine(env, client=policy, **options)
    from agentgym.remote.engine import RemoteEngine

    for name in ("stages", "journal", "ledger"):
        options.pop(name)
    return RemoteEngine(where.service, env, client=list(spec.servers), **options)
