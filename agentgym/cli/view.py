r"""Look at traces in a browser: a list to filter, sort and search, episodes, two side by side.

PATH is a trace file, or a folder whose *.jsonl files are looked through, such as the folder of a
rollout, an evaluation or a training run. Without --html, a server on this machine shows them, reads
conversations when they are opened, and takes up episodes that are appended meanwhile. With --html,
one file is written that has all in itself: it works from disk and offline, and asks for nothing.

Examples:
  agentgym view runs/x
  agentgym view runs/x --html x.html             one file to keep or to send
  agentgym view runs/a/traces.jsonl runs/b/traces.jsonl --port 8765 --no-browser

The page docs/viewing.md explains filters, keys and links.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", type=Path, help="a trace file, or a folder with some"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write one self-contained page instead of serving"
    )
    parser.add_argument("--title", help="what the page is called (default: the paths)")
    parser.add_argument(
        "--port", type=int, default=0, help="port to serve at (default: a free one)"
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="only print the address; open no browser"
    )


def run(args: argparse.Namespace) -> int:
    """Write the page, or serve until Ctrl-C."""
    from agentgym.cli._viewing import export, serve

    title = args.title or ", ".join(str(path) for path in args.paths)
    if args.html is not None:
        return export(args.paths, args.html, title=title)
    return serve(args.paths, title=title, port=args.port, browser=not args.no_browser)
