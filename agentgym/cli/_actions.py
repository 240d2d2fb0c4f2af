"""Commands of several actions: one module per action, found by its name."""

from __future__ import annotations

import argparse
import importlib
import pkgutil

import agentgym.cli


def add_actions(parser: argparse.ArgumentParser, command: str) -> None:
    """Add every action of a command: `_eval_show.py` is `agentgym eval show`.

    An action is written like a command (see `agentgym.cli`): docstring, `add_arguments`, `run`.
    What was chosen is `args.run_action`.
    """
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, title="what to do"
    )
    prefix = f"_{command}_"
    found = pkgutil.iter_modules(agentgym.cli.__path__)
    for name in sorted(module.name for module in found if module.name.startswith(prefix)):
        module = importlib.import_module(f"agentgym.cli.{name}")
        first, _, rest = (module.__doc__ or "").strip().partition("\n")
        action = actions.add_parser(
            name.removeprefix(prefix).replace("_", "-"),
            help=first.rstrip("."),
            description=f"{first}\n{rest}".rstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(action)
        action.set_defaults(run_action=module.run)
