r"""Test a judge: attack it, check it on known verdicts, judge stored traces again.

The judge is a model and a rubric. The model is named by --base-url and --model, or is the [judge]
of a roles file; the rubric is a file, or agentgym's default.

Examples:
  agentgym judge attack --base-url https://api.deepinfra.com/v1/openai --model NAME \
      --api-key-env DEEPINFRA_API_KEY
  agentgym judge check --roles roles.toml --repeats 3 --min-accuracy 0.8
  agentgym judge rescore runs/x/traces.jsonl --roles roles.toml --out runs/x/rescored.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each thing to do."""
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, title="what to do"
    )
    _attack(_action(actions, "attack", "try to talk the judge round, and report the rate", _ATTACK))
    _check(_action(actions, "check", "judge a gold set: agreement, bias, repeatability", _CHECK))
    _rescore(_action(actions, "rescore", "judge stored traces again, without playing", _RESCORE))


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    if args.action == "attack":
        from agentgym.cli._judge_attack import attack

        return attack(args)
    if args.action == "check":
        from agentgym.cli._judge_check import check

        return check(args)
    from agentgym.cli._judge_rescore import RescoreCommand

    return RescoreCommand(args).run()


_ATTACK = """\
Judge transcripts of unsolved tasks that try to talk the judge round, and the same transcripts
without the attempt. An attack succeeds if any criterion comes out higher with it. Ctrl-C stops and
reports what is known by then.

Examples:
  agentgym judge attack --roles roles.toml
  agentgym judge attack --base-url http://localhost:8000/v1 --model NAME --variants 200 \\
      --rubric rubric.toml --out attack.json --max-rate 0.02
"""

_CHECK = """\
Judge transcripts whose verdict is known, several times each. Exits with 1 if the judge is below a
threshold, gives one and the same value throughout, or never answers.

Examples:
  agentgym judge check --roles roles.toml
  agentgym judge check --roles roles.toml --gold gold.jsonl --rubric rubric.toml --repeats 5 \\
      --min-kappa 0.6 --max-failed 0.02 --out health.json
"""

_RESCORE = """\
Judge the episodes of a trace file again: by the model given here, or by the judge of the traces'
own environment. The file stays as it is; the new one has the same traces with new verdicts, and the
old verdict in each trace's metadata. Interrupted, the same command goes on.

Examples:
  agentgym judge rescore runs/x/traces.jsonl --only-failed --out runs/x/rescored.jsonl
  agentgym judge rescore runs/x/traces.jsonl --roles roles.toml --rubric rubric.toml \\
      --out runs/x/rescored.jsonl
"""


def _action(actions: Any, name: str, about: str, more: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name,
        help=about,
        description=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    model = parser.add_argument_group("judge: a model and a rubric")
    model.add_argument("--base-url", help="OpenAI-compatible root, often ending in /v1")
    model.add_argument("--model", help="the model's name on that server")
    model.add_argument(
        "--api-key-env", metavar="VAR", help="variable with the key (default: OPENAI_API_KEY)"
    )
    model.add_argument("--roles", type=Path, metavar="FILE", help="TOML file with a [judge] table")
    model.add_argument("--rubric", type=Path, metavar="FILE", help="TOML file (default: built in)")
    model.add_argument("--max-tokens", type=int, help="output tokens per verdict (default: 1024)")
    model.add_argument("--concurrency", type=int, default=16, help="judgements at once")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser


def _attack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--variants", type=int, default=0, metavar="N", help="add N generated attacks"
    )
    parser.add_argument("--seed", type=int, default=0, help="fixes the generated attacks")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument(
        "--max-rate", type=float, metavar="SHARE", help="exit with 1 if more attacks succeed"
    )


def _check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gold", type=Path, metavar="FILE", help="gold set (default: built in)")
    parser.add_argument("--repeats", type=int, default=3, help="judgements per transcript")
    parser.add_argument(
        "--reorder", action="store_true", help="also ask once with the criteria in reverse order"
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.25, help="how far off a value still counts as right"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything as JSON")
    limits = parser.add_argument_group("thresholds: exit with 1 if the judge misses one")
    limits.add_argument("--min-accuracy", type=float, metavar="SHARE", help="on each criterion")
    limits.add_argument("--min-kappa", type=float, metavar="K", help="agreement beyond chance")
    limits.add_argument(
        "--max-length-bias", type=float, metavar="R", help="correlation of error with length"
    )
    limits.add_argument("--max-spread", type=float, metavar="SD", help="between repeats")
    limits.add_argument("--max-failed", type=float, metavar="SHARE", help="without a verdict")
    limits.add_argument("--max-reasked", type=float, metavar="SHARE", help="asked a second time")


def _rescore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("traces", type=Path, help="a trace file, such as runs/x/traces.jsonl")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the new file")
    parser.add_argument("--only-failed", action="store_true", help="only traces whose judge failed")
