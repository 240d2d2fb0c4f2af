"""The `agentgym` command: one file per subcommand, found by its name.

A command is a module of this package whose name has no leading underscore: `webshop_stats.py` is
`agentgym webshop-stats`. It has a docstring (the description, shown as written), a line in
`_overview.py`, `add_arguments(parser)` and `run(args) -> int`, the exit code.
Imports that cost time belong inside `run`, so that `--help` is instant and a missing extra only
concerns the command that needs it.

What a user can mend is one line on stderr and exit code 1; a run that its budget has ended is 3,
and the line says what is spent and what was not played; Ctrl-C is 130; a traceback is a bug.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn

import agentgym
from agentgym.errors import AgentGymError, BudgetStop

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_BUDGET = 3
EXIT_INTERRUPTED = 128 + signal.SIGINT

_EXAMPLES = """\
Examples:
  agentgym envs
  agentgym rollout --env agentgym/WebShop-v0 --policy rule -n 100
  agentgym rollout --env agentgym/WebShop-v0 --split validation \\
      --base-url http://localhost:8000/v1 --model NAME -n 200 --out runs/x

`agentgym COMMAND --help` explains a command and gives examples, and
`agentgym COMMAND ACTION --help` an action of eval, judge, simulator or cost.
"""


class _Parser(argparse.ArgumentParser):
    """Errors in one line that says where help is, instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def command_names() -> list[str]:
    """The subcommands there are, sorted."""
    modules = pkgutil.iter_modules(__path__)
    return sorted(m.name.replace("_", "-") for m in modules if not m.name.startswith("_"))


def _command(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command, subcommands included."""
    from agentgym.cli._overview import overview

    parser = _Parser(
        prog="agentgym",
        description="LLM-agent tasks as Gymnasium environments, asynchronous rollouts, training.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"agentgym {agentgym.__version__}")
    commands = parser.add_subparsers(
        metavar="COMMAND",
        required=True,
        title="commands, by what one wants to do",
        description=overview(command_names()),
    )
    for name in command_names():
        module = _command(name)
        first, _, rest = (module.__doc__ or "").strip().partition("\n")
        added = commands.add_parser(  # without `help`: the overview has it
            name,
            description=f"{first}\n{rest}".rstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(added)
        added.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name; default: those of the process.

    Returns:
        The exit code.
    """
    try:
        args = build_parser().parse_args(argv)
        run: Callable[[Any], int] = args.run
        return run(args)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    except BudgetStop as stop:
        print(f"agentgym: {_one_line(stop)}", file=sys.stderr)
        return EXIT_BUDGET
    except AgentGymError as error:
        print(f"agentgym: error: {_one_line(error)}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("agentgym: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has gone; nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except OSError as error:  # a path that can't be read or written, a full disk
        where = f"{error.filename}: " if error.filename else ""
        print(f"agentgym: error: {_one_line(f'{where}{error.strerror or error}')}", file=sys.stderr)
        return EXIT_ERROR


def _one_line(message: object) -> str:
    """A message for the terminal, which obeys none of what a file's name or a model's text has."""
    from agentgym.types import printable

    return printable(" ".join(str(message).split()))
