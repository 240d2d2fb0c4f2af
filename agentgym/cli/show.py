"""Print one episode of a trace file readably in the terminal.

Long texts are folded; --full shows them whole. What is not printable is shown as its escape, so
nothing that a model or a tool wrote reaches the terminal as a command. Without a terminal the
output is plain text.

Examples:
  agentgym show runs/x/traces.jsonl
  agentgym show runs/x/traces.jsonl --episode 12       the 12th; -1 is the last
  agentgym show runs/x --episode 0501749d              by the beginning of its trace id
  agentgym show runs/x --episode webshop/human/0 --full | less
  agentgym show runs/eval --external disagreed         where the reward's verdict says otherwise

Of an evaluation's folder, the external score of the attempt (what the evaluation counts) stands
above the verdict of the reward.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("path", metavar="TRACE", type=Path, help="a trace file, or a folder")
    parser.add_argument(
        "--episode",
        metavar="ID|N",
        help="which: its number from 1, -1 for the last, its trace id or the beginning of it, or "
        "its task (default: the first)",
    )
    parser.add_argument(
        "--external",
        choices=("solved", "unsolved", "unscored", "disagreed"),
        help="only episodes of an evaluation of which its external score says this; disagreed: "
        "the reward's verdict says otherwise",
    )
    parser.add_argument("--width", type=int, help="columns (default: the terminal's, or 100)")
    parser.add_argument("--full", action="store_true", help="fold nothing")


def run(args: argparse.Namespace) -> int:
    """Print the episode."""
    from agentgym.cli._showing import show

    return show(args.path, args.episode, external=args.external, width=args.width, full=args.full)
