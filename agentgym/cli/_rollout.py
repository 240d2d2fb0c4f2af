"""What `agentgym rollout` does: check everything, play what is missing, add up what is there."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agentgym
from agentgym.cli._canary import read_canary
from agentgym.cli._endpoints import RunEndpoints
from agentgym.cli._folder import RunFolder
from agentgym.cli._inputs import checked, fresh_folder, key_values
from agentgym.cli._interrupts import Interrupts
from agentgym.cli._limits import (
    larger_budget,
    read_enough,
    read_limits,
    read_retry,
    still_needed,
)
from agentgym.cli._play import Play
from agentgym.cli._watching import stuck_after_s
from agentgym.client import ModelClient, SamplingParams, public_url
from agentgym.core import AgentEnv
from agentgym.errors import AgentGymError, BudgetStop, ConfigError, RolloutStopped
from agentgym.redaction import Redactor
from agentgym.roles import Roles, public_kwargs
from agentgym.types import ToolSpec

if TYPE_CHECKING:
    from agentgym.rollout import BudgetStatus, Canary, EpisodeRequest


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
        self._folder = RunFolder(args.out or fresh_folder(args.env.rpartition(":")[2]))
        self._endpoints = RunEndpoints(args)
        self._check_combinations()
        self._sampling = checked(
            SamplingParams,
            temperature=args.temperature,
            top_p=args.top_p,
            max_tokens=args.max_tokens,
        )
        self._limits = read_limits(args, self._endpoints.concurrency())
        self._retry = read_retry(args)
        self._enough = read_enough(args)
        self._stuck_after_s = stuck_after_s(args)
        self._endpoints.use(self._limits)
        self._roles = Roles()
        self._given_kwargs: dict[str, Any] = {}
        self._canary: Canary | None = None
        self._done_before = 0
        """Episodes that need not be played, since a run before has them."""
        self._interrupts = Interrupts(args.on_interrupt)

    def run(self) -> int:
        """Check, play, report.

        Returns:
            0; 1 if nothing could be scored; 3 if the budget ended it; 130 after Ctrl-C, 143 after
            SIGTERM.
        """
        try:
            return self._run()
        finally:
            self._folder.release()

    def _run(self) -> int:
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
        missing = False
        if requests:
            missing = self._played(self._play(core, scripted, tools), requests)
        else:
            self._folder.forget_judged()  # a kill may have come between
        scored = self._report()
        return self._interrupts.exit_code if missing else int(scored == 0)

    def _play(
        self, env: AgentEnv, scripted: ModelClient | None, tools: tuple[ToolSpec, ...]
    ) -> Play:
        args = self._args
        return Play(
            env=args.env,
            env_kwargs=self._env_kwargs,
            roles=self._roles,
            scripted=scripted,
            policy_name=self._policy_name,
            tools=tools,
            sampling=self._sampling,
            limits=self._limits,
            retry=self._retry,
            enough=self._enough,
            canary=self._canary,
            keeps_unjudged=not env.scoring.inline,
            folder=self._folder,
            config_json=self._config_json(),
            secrets=self._secrets(),
            interrupts=self._interrupts,
            args=args,
        )

    def _played(self, play: Play, requests: list[EpisodeRequest]) -> bool:
        """Play; whether the user ended it before everything was played."""
        try:
            missing = play.run(requests)
        except KeyboardInterrupt:
            missing = True
        except BudgetStop as stop:
            done = stop.status.done + self._done_before
            before = self._done_before if self._args.resume else None
            status = stop.status.model_copy(update={"done": done, "before": before})
            self._report(stop=status)
            how = self._how_to_go_on(larger_budget(status))
            raise BudgetStop(f"{status}{how}", status) from stop
        except RolloutStopped as error:
            self._report_what_there_is()
            how = self._how_to_go_on("--retry-masked")
            text = Redactor(self._secrets()).from_text(str(error))
            raise RolloutStopped(f"{text}{how}") from error
        except BaseException:
            self._report_what_there_is()
            raise
        if missing:
            print(f"agentgym: interrupted{self._how_to_go_on()}", file=sys.stderr)
        return missing

    # --- checking -----------------------------------------------------------------------------

    def _check_combinations(self) -> None:
        args = self._args
        if args.samples < 1:
            raise ConfigError(f"--samples must be at least 1, got {args.samples}")
        if args.retry_masked and not args.resume:
            raise ConfigError("--retry-masked goes with --resume")
        if args.resume and args.out is None:
            raise ConfigError("--resume needs --out, the folder of the run to go on with")
        if args.record and Path(args.record).resolve() in self._folder.files:
            raise ConfigError(
                f"--record {args.record} is a file of the run itself; record to another one"
            )
        if args.service and args.backend == "ray":
            raise ConfigError(
                "give either --service or --backend ray; `agentgym serve --ray` is both"
            )
        if args.service or args.backend == "ray":
            self._check_elsewhere("--service" if args.service else "--backend ray")

    def _check_elsewhere(self, where: str) -> None:
        """Refuse what only episodes in this process can have."""
        args = self._args
        for flag in ("record", "replay", "canary"):
            if getattr(args, flag) is not None:
                raise ConfigError(
                    f"--{flag} is for episodes in this process; leave it or {where} out"
                )
        if args.policy:
            raise ConfigError(
                f"{where} needs a policy that answers over HTTP: --base-url and --model, or "
                "--roles, instead of --policy"
            )

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
        policy = {"policy": roles.policy, "replicas": roles.replicas}
        self._roles = hosted.used.model_copy(update=policy)
        if not (self._args.replay or self._args.service):  # a service has keys of its own
            self._roles.check_keys()
        if self._limits.budget is not None:
            filled = self._roles.filled()
            self._limits.budget.check_prices((*filled.values(), *self._roles.replicas))

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
        if not args.resume:
            self._folder.check_fresh()
        else:
            self._folder.check_same_run(json.loads(self._config_json()))
            self._folder.claim()
            if self._enough is not None:
                before = self._folder.before.values()
                self._enough = still_needed(self._enough, before, args.samples)
                if self._enough is None:
                    return []
        requests = plan_requests(
            tasks,
            samples=args.samples,
            seed=args.seed,
            done=self._folder.finished(retry_masked=args.retry_masked) if args.resume else (),
            whole_groups=env.scoring.judges_groups,
        )
        self._done_before = len(tasks) * args.samples - len(requests)
        return requests

    # --- what is kept of it -------------------------------------------------------------------

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
            "retry": self._retry and self._retry.model_dump(mode="json"),
            "enough": self._enough and self._enough.model_dump(mode="json"),
            "backend": args.backend,
            "service": public_url(args.service) if args.service else None,
            "record": args.record,
        }

    def _config_json(self) -> str:
        return Redactor(self._secrets())(json.dumps(self._config(), indent=2, ensure_ascii=False))

    def _secrets(self) -> list[str]:
        filled = self._roles.filled()
        if not filled:  # the import is slow
            return []
        from agentgym.clients.failures import secrets_of

        endpoints = (*filled.values(), *self._roles.replicas)
        return [secret for endpoint in endpoints for secret in secrets_of(endpoint)]

    def _how_to_go_on(self, *more: str) -> str:
        """The options that play the rest, if there is a run to go on with."""
        if not self._folder.config.exists():
            return ""
        return "; the same command plays the rest with " + " ".join(
            (f"--out {self._folder.path}", "--resume", *more)
        )

    def _report_what_there_is(self) -> None:
        """Write the figures of a run that broke off; what ended it matters more than they do."""
        with suppress(AgentGymError):
            self._report(quiet=True)

    def _report(self, *, quiet: bool = False, stop: BudgetStatus | None = None) -> int:
        """Write and print the figures of all traces there are; the number of scored ones."""
        summary = self._folder.report(quiet=quiet, stop=stop)
        if summary is None:
            return 0
        if not quiet:
            if self._canary is not None and self._canary.checks:
                print(f"canary: {self._canary.summary()}")
            print(f"\n{self._folder.traces}")
        return summary.n_scored
