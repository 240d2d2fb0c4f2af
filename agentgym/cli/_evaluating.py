"""What `agentgym eval run` does: check everything, play what is missing, score what is there."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.cli._folder import RunFolder
from agentgym.cli._inputs import checked, fresh_folder, key_values, make_folder
from agentgym.cli._interrupts import Interrupts
from agentgym.cli._limits import larger_budget, read_limits, read_retry
from agentgym.client import SamplingParams
from agentgym.errors import BudgetStop, ConfigError
from agentgym.roles import Roles

if TYPE_CHECKING:
    from agentgym.evaluate.columns import ColumnSpec
    from agentgym.evaluate.harness import Evaluation
    from agentgym.evaluate.result import EvaluationResult


class EvaluationCommand:
    """One invocation.

    Args:
        args: The command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._check_combinations()
        self._env_kwargs = key_values(args.env_kwargs)
        if args.split is not None:
            if self._env_kwargs.get("split", args.split) != args.split:
                raise ConfigError("split is given twice: by --split and by --env-kwargs")
            self._env_kwargs["split"] = args.split
        self._sampling = checked(
            SamplingParams,
            temperature=args.temperature,
            top_p=args.top_p,
            max_tokens=args.max_tokens,
        )
        self._limits = read_limits(args, args.concurrency)
        self._retry = read_retry(args)
        name = args.env.rpartition(":")[2].rpartition("/")[2]
        self._out: Path = args.out or fresh_folder(f"eval-{name}")
        self._interrupts = Interrupts(args.on_interrupt)

    def run(self) -> int:
        """Check, play, score, show.

        Returns:
            0; 1 if a column broke off or nothing could be scored; 3 if the budget ended it; 130
            after Ctrl-C, 143 after SIGTERM.
        """
        is_new = not self._out.exists()
        make_folder(self._out)
        folder = RunFolder(self._out)
        try:
            folder.claim()  # before it is looked at: another process may be playing the rest
            return self._played(self._evaluation())
        finally:
            if is_new and not any(self._out.iterdir()):
                self._out.rmdir()  # nothing was played
            folder.release()

    def _played(self, evaluation: Evaluation) -> int:
        self._say_what_is_missing(evaluation)
        try:
            self._play(evaluation)
        except BudgetStop as stop:
            self._finish(evaluation)
            how = f"the same command plays the rest with --out {self._out}"
            raise BudgetStop(f"{stop}; {how} {larger_budget(stop.status)}", stop.status) from stop
        return self._finish(evaluation)

    def _play(self, evaluation: Evaluation) -> None:
        from agentgym.rollout import collecting_seldom

        async def watched() -> None:
            with self._interrupts.watching(evaluation.drain, evaluation.in_flight):
                try:
                    await evaluation.play()
                except asyncio.CancelledError:
                    if self._interrupts.signal is None:
                        raise

        with collecting_seldom():
            asyncio.run(watched())

    def _finish(self, evaluation: Evaluation) -> int:
        """Score what there is, write and show it."""
        result = evaluation.write()
        n_played = sum(len(column.attempts) for column in result.columns)
        if n_played and not self._args.quiet:
            _show(result)
        for name, reason in evaluation.stopped.items():
            print(f"agentgym: column {name} broke off: {reason}", file=sys.stderr)
        lacking = len(result.columns) * result.n_planned - n_played
        if lacking:
            what = f"{lacking} of {len(result.columns) * result.n_planned} episodes are missing"
            print(
                f"agentgym: {what}; the same command plays them with --out {self._out}",
                file=sys.stderr,
            )
        if evaluation.kept is not None:
            print(
                f"agentgym: the result that was there has columns, tasks or samples which this one "
                f"lacks; it is kept as {evaluation.kept}",
                file=sys.stderr,
            )
        if n_played:
            print(f"\n{evaluation.result_file}")
        if self._interrupts.signal is not None and lacking:
            return self._interrupts.exit_code
        scored = any(attempt.scored for c in result.columns for attempt in c.attempts)
        return int(bool(evaluation.stopped) or not scored)

    # --- checking -----------------------------------------------------------------------------

    def _check_combinations(self) -> None:
        args = self._args
        if args.enough is not None or args.enough_groups is not None:
            raise ConfigError(
                "--enough leaves out the slowest episodes, which would bias an evaluation; "
                "play fewer tasks with -n"
            )
        traces = args.out and (args.out / "traces").resolve()
        if args.record and args.record.resolve() == traces:
            raise ConfigError(
                f"--record {args.record} is where the traces go; record to another folder"
            )
        if args.samples < 1:
            raise ConfigError(f"--samples must be at least 1, got {args.samples}")
        if not (args.policy or args.model or args.columns):
            raise ConfigError(
                "say who plays: --policy (such as random), --model MODEL@URL, or --columns FILE"
            )

    def _evaluation(self) -> Evaluation:
        from agentgym.evaluate.external import named_score
        from agentgym.evaluate.harness import Evaluation
        from agentgym.evaluate.setting import EvaluationSetting
        from agentgym.evaluate.where import Where

        args = self._args
        columns, roles = self._columns()
        self._add_models(roles)
        setting = EvaluationSetting(
            args.env,
            env_kwargs=self._env_kwargs,
            tasks=args.task,
            n=args.n,
            score=named_score(args.score) if args.score else None,
            seed=args.seed,
        )
        return Evaluation(
            setting,
            columns,
            out=self._out,
            samples=args.samples,
            limits=self._limits,
            retry=self._retry,
            retry_masked=args.retry_masked,
            at_once=args.at_once,
            progress=not args.quiet,
            where=Where(record=args.record, replay=args.replay, service=args.service),
        )

    def _columns(self) -> tuple[list[ColumnSpec], Roles]:
        """Who plays, and the env's own models."""
        from agentgym.evaluate.columns import model_column, read_columns, scripted_column

        args = self._args
        columns = [scripted_column(name) for name in args.policy]
        fields: dict[str, Any] = {}
        if args.api_key_env is not None:
            fields["api_key_env"] = args.api_key_env
        if args.tool_calls is not None:
            fields["dialect"] = {"tools": args.tool_calls == "native"}
        columns += [model_column(one, sampling=self._sampling, **fields) for one in args.model]
        roles = Roles.from_toml(args.roles) if args.roles else Roles()
        if args.columns:
            more, tables = read_columns(args.columns, sampling=self._sampling)
            columns += more
            own = Roles.from_tables(tables, where=str(args.columns))
            roles = Roles(
                simulator=own.simulator or roles.simulator, judge=own.judge or roles.judge
            )
        return columns, roles

    def _add_models(self, roles: Roles) -> None:
        """Give the env its simulator and judge, where it takes them."""
        from agentgym.rollout.hosted import hosted_kwargs

        own = Roles(simulator=roles.simulator, judge=roles.judge)
        hosted = hosted_kwargs(self._args.env, self._env_kwargs, own)
        for role in hosted.unused:
            print(f"agentgym: {self._args.env} takes no {role}; it is not used", file=sys.stderr)
        self._env_kwargs = hosted.env_kwargs

    def _say_what_is_missing(self, evaluation: Evaluation) -> None:
        if self._args.quiet:
            return
        missing = evaluation.missing()
        total = sum(missing.values())
        planned = len(missing) * evaluation.samples * len(evaluation.setting.tasks)
        if total < planned:
            print(
                f"agentgym: {planned - total} episodes are there, {total} to play", file=sys.stderr
            )
        for path in evaluation.other_traces():
            print(f"agentgym: {path} is of another configuration and not used", file=sys.stderr)


def _show(result: EvaluationResult) -> None:
    """The result's tables, as `agentgym eval show` has them."""
    from agentgym.cli._result_tables import print_tables
    from agentgym.evaluate.figures import figures_of
    from agentgym.evaluate.tables import tables_of, warnings_of

    figures = figures_of(result)
    warnings = [f"! {warning}" for warning in warnings_of(figures)]
    print_tables(tables_of(figures), warnings, markdown=False)
