"""What `agentgym rollout` does: check everything, play what is missing, add up what is there."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agentgym
from agentgym.cli._canary import read_canary
from agentgym.cli._endpoints import RunEndpoints, endpoints_table, preflight
from agentgym.cli._inputs import checked, fresh_folder, key_values, write_json
from agentgym.cli._table import summary_table
from agentgym.client import ModelClient, SamplingParams, public_url
from agentgym.core import AgentEnv
from agentgym.errors import ConfigError, RolloutStopped
from agentgym.redaction import Redactor
from agentgym.roles import Roles, public_kwargs
from agentgym.types import ToolSpec

if TYPE_CHECKING:
    from agentgym.rollout import Canary, EpisodeRequest, Limits

_SAME_ON_RESUME = (
    *("env", "env_kwargs", "policy", "samples", "seed", "sampling"),
    *("tool_calls", "extra_body", "simulator", "judge"),
)
_SAME_LIMITS = ("max_turns", "max_episode_tokens")


class RolloutCommand:
    """One invocation.

    Args:
        args: The command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._env_kwargs = key_values(args.env_kwargs)
        if args.split is not None:
            if self._env_kwargs.get("split", args.split) != args.split:
                raise ConfigError("split is given twice: by --split and by --env-kwargs")
            self._env_kwargs["split"] = args.split
        self._endpoints = RunEndpoints(args)
        if args.samples < 1:
            raise ConfigError(f"--samples must be at least 1, got {args.samples}")
        if args.retry_masked and not args.resume:
            raise ConfigError("--retry-masked goes with --resume")
        if args.resume and args.out is None:
            raise ConfigError("--resume needs --out, the folder of the run to go on with")
        self._sampling = checked(
            SamplingParams,
            temperature=args.temperature,
            top_p=args.top_p,
            max_tokens=args.max_tokens,
        )
        self._limits = self._read_limits()
        self._endpoints.use(self._limits)
        self._roles = Roles()
        self._given_kwargs: dict[str, Any] = {}
        self._canary: Canary | None = None
        self._out: Path = args.out or fresh_folder(args.env.rpartition(":")[2])

    def run(self) -> int:
        """Check, play, report.

        Returns:
            0; 1 if nothing could be scored; 130 after Ctrl-C.
        """
        from agentgym.rollout.source import EnvSource

        self._add_models()
        env = EnvSource(self._args.env, self._env_kwargs).make()
        try:
            core = env.unwrapped
            if not isinstance(core, AgentEnv):
                raise ConfigError(
                    f"{self._args.env} is no agentgym environment; `agentgym envs` lists them"
                )
            scripted = self._scripted(core)
            self._canary = read_canary(self._args, core.scoring.judge)
            requests = self._requests(core)
            tools = core.toolbox.specs
        finally:
            env.close()
        interrupted = False
        if requests:
            try:
                with self._models():
                    asyncio.run(self._play(scripted, requests, tools))
            except KeyboardInterrupt:
                interrupted = True
                print(f"agentgym: interrupted{self._how_to_go_on()}", file=sys.stderr)
            except RolloutStopped as error:
                self._report(quiet=True)
                how = self._how_to_go_on("--retry-masked")
                text = Redactor(self._secrets()).from_text(str(error))
                raise RolloutStopped(f"{text}{how}") from error
            except BaseException:
                self._report(quiet=True)
                raise
        scored = self._report()
        return 130 if interrupted else int(scored == 0)

    # --- checking -----------------------------------------------------------------------------

    def _add_models(self) -> None:
        """Give the env its models, and see that every key is there."""
        from agentgym.rollout.hosted import hosted_kwargs

        for role in self._endpoints.by_flag:
            if role in self._env_kwargs:
                raise ConfigError(f"the {role} is given twice: by --{role}-… and by --env-kwargs")
        roles = self._endpoints.roles
        self._given_kwargs = dict(self._env_kwargs)
        hosted = hosted_kwargs(self._args.env, self._env_kwargs, roles)
        self._endpoints.check_taken(self._args.env, hosted.unused)
        self._env_kwargs = hosted.env_kwargs
        self._roles = hosted.used.model_copy(update={"policy": roles.policy})
        if not self._args.replay:
            self._roles.check_keys()

    def _read_limits(self) -> Limits:
        from agentgym.rollout import Limits

        args = self._args
        return checked(
            Limits,
            concurrency=self._endpoints.concurrency(),
            max_turns=args.max_turns,
            max_episode_tokens=args.max_episode_tokens,
            episode_timeout_s=args.episode_timeout,
        )

    def _scripted(self, env: AgentEnv) -> ModelClient | None:
        """The env's own policy, if one was asked for."""
        if not self._args.policy:
            return None
        from agentgym.clients import ScriptedClient
        from agentgym.rollout.policies import named_policy

        return ScriptedClient(named_policy(env, self._args.policy, seed=self._args.seed))

    def _requests(self, env: AgentEnv) -> list[EpisodeRequest]:
        """The episodes to play, and the folder checked."""
        from agentgym.rollout.plan import first_tasks, named_tasks, plan_requests

        args = self._args
        known = env.task_ids()
        if args.task and args.n is not None:
            raise ConfigError("give either -n or --task")
        tasks = named_tasks(known, args.task) if args.task else first_tasks(known, args.n)
        return plan_requests(
            tasks,
            samples=args.samples,
            seed=args.seed,
            done=self._done(),
            whole_groups=env.scoring.judges_groups,
        )

    def _done(self) -> set[tuple[str, int]]:
        from agentgym.traces import TraceFile

        if not self._args.resume:
            self._check_fresh()
            return set()
        if not self._config_file.exists():
            raise ConfigError(
                f"{self._config_file} does not exist: there is no run to go on with; "
                "start one with another --out, without --resume"
            )
        self._check_same_run()
        if not self._traces.exists():  # stopped before its first episode
            return set()
        return TraceFile(self._traces).finished(retry_masked=self._args.retry_masked)

    def _check_fresh(self) -> None:
        try:
            in_use = any(self._out.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(
                f"can't use {self._out} as a folder: {error.strerror}; take another --out"
            ) from error
        if in_use:
            raise ConfigError(
                f"{self._out} is not empty; take another --out, or --resume to go on with it"
            )

    def _check_same_run(self) -> None:
        path = self._config_file
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"can't read {path}: {error}; take another --out") from error
        if not isinstance(before, dict) or not isinstance(before.get("limits", {}), dict):
            raise ConfigError(f"{path} is no run's config; take another --out")
        now = json.loads(self._config_json())
        pairs = [(key, before.get(key), now[key]) for key in _SAME_ON_RESUME]
        limits = before.get("limits", {})
        pairs += [(key, limits.get(key), now["limits"][key]) for key in _SAME_LIMITS]
        for key, then, this in pairs:
            if then != this:
                raise ConfigError(
                    f"{self._out} was run with {key}={then!r}, this is {this!r}; take another --out"
                )

    # --- playing ------------------------------------------------------------------------------

    @property
    def _traces(self) -> Path:
        return self._out / "traces.jsonl"

    @property
    def _config_file(self) -> Path:
        return self._out / "config.json"

    @property
    def _policy_name(self) -> str:
        policy = self._endpoints.policy
        return policy.model if policy is not None else str(self._args.policy)

    def _config(self) -> dict[str, Any]:
        """The run's parameters, without credentials."""
        args = self._args
        policy = self._roles.policy
        return {
            "agentgym": agentgym.__version__,
            "env": args.env,
            "env_kwargs": public_kwargs(self._given_kwargs),
            "policy": self._policy_name,
            "base_url": public_url(policy.base_url) if policy else None,
            "tool_calls": "native" if policy is None or policy.dialect.tools else "text",
            "request_seed": policy is None or policy.dialect.seed,
            "extra_body": policy.public().get("extra_body", {}) if policy else {},
            "simulator": self._roles.simulator.model if self._roles.simulator else None,
            "judge": self._roles.judge.model if self._roles.judge else None,
            "roles": self._roles.public(),
            "n": args.n,
            "tasks": args.task,
            "samples": args.samples,
            "seed": args.seed,
            "sampling": self._sampling.model_dump(mode="json"),
            "limits": self._limits.model_dump(mode="json"),
        }

    def _models(self) -> AbstractContextManager[Any]:
        """Where models answer from, and where to that is recorded."""
        from agentgym.clients import recording, replaying

        if self._args.replay:
            return replaying(self._args.replay)
        return recording(self._args.record) if self._args.record else nullcontext()

    async def _play(
        self,
        scripted: ModelClient | None,
        requests: list[EpisodeRequest],
        tools: tuple[ToolSpec, ...],
    ) -> None:
        from agentgym.clients import connect
        from agentgym.rollout import Engine
        from agentgym.traces import TraceWriter

        clients = {role: connect(endpoint) for role, endpoint in self._roles.filled().items()}
        if not self._args.replay:
            await preflight(clients, tools)
        if clients and not self._args.quiet:
            print(endpoints_table(self._roles), file=sys.stderr)
        # First, so that whatever a kill leaves behind can be gone on with.
        write_json(self._config_file, self._config_json())
        with TraceWriter(self._traces, secrets=self._secrets()) as writer:
            engine = Engine(
                self._args.env,
                client=scripted or clients["policy"],
                sampling=self._sampling,
                env_kwargs=self._env_kwargs,
                limits=self._limits,
                writer=writer,
                progress=not self._args.quiet,
                policy_name=self._policy_name,
                canary=self._canary,
            )
            async with engine:
                async for _ in engine.run(requests):
                    pass

    def _config_json(self) -> str:
        return Redactor(self._secrets())(json.dumps(self._config(), indent=2, ensure_ascii=False))

    def _secrets(self) -> list[str]:
        filled = self._roles.filled()
        if not filled:  # the import is slow
            return []
        from agentgym.clients.failures import secrets_of

        return [secret for endpoint in filled.values() for secret in secrets_of(endpoint)]

    def _how_to_go_on(self, *more: str) -> str:
        """The options that play the rest, if there is a run to go on with."""
        if not self._config_file.exists():
            return ""
        return "; the same command plays the rest with " + " ".join(
            (f"--out {self._out}", "--resume", *more)
        )

    # --- reporting ----------------------------------------------------------------------------

    def _report(self, *, quiet: bool = False) -> int:
        """Write and print the figures of all traces there are; the number of scored ones."""
        from agentgym.rollout.summary import summarize
        from agentgym.traces import TraceFile

        if not self._traces.exists():
            return 0
        summary = summarize(TraceFile(self._traces).latest().values())
        if not summary.n_total:
            return 0
        write_json(self._out / "summary.json", summary.model_dump_json(indent=2))
        if not quiet:
            print(summary_table(summary))
            if summary.failures:
                print(self._why_masked())
            if self._canary is not None and self._canary.checks:
                print(f"canary: {self._canary.summary()}")
            print(f"\n{self._traces}")
        return summary.n_scored

    def _why_masked(self) -> str:
        """The commonest reason why an episode has no score."""
        from agentgym.rollout.failure import last_line
        from agentgym.traces import TraceFile

        masked = (t for t in TraceFile(self._traces).latest().values() if not t.scored)
        reasons = Counter(
            last_line(t.error or t.verdict.reason or "no reason given") for t in masked
        )
        ((reason, count),) = reasons.most_common(1)
        return f"masked: {count} × {reason[:400]}"
