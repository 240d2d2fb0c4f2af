r"""Report on a training run, a rollout run or an evaluation as one HTML page with charts.

RUN is what `agentgym train --out` or `agentgym rollout --out` got, or the result file of `agentgym
eval run`. A run that is still going, or was killed, is shown as far as it went.

Of a training run the page shows: reward and each of its components with intervals, held-out
against training tasks, completion against correctness, turns, limits hit, episodes without a score
by who failed, groups without a signal against the prediction p^G + (1-p)^G, entropy, length,
importance ratios, age of the weights, where the time goes, tokens and dollars by role, and the
alarms with cause and first change. docs/reading_a_report.md says what to do about each.

The page is one file without scripts that asks nobody for anything. It needs matplotlib:
pip install "agentgym-envs[report]". --text needs nothing.

Examples:
  agentgym report runs/x                       writes runs/x/report.html
  agentgym report runs/x --html x.html --watch
  agentgym report runs/x --text
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("run_path", metavar="RUN", type=Path, help="folder of a run, result file")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="where to (default: report.html in the folder)"
    )
    parser.add_argument("--text", action="store_true", help="print the figures instead")
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        type=int,
        nargs="?",
        const=10,
        help="write the page anew every so many seconds (default: 10) until the run is over; the "
        "browser follows",
    )


def run(args: argparse.Namespace) -> int:
    """Write the page, or print the figures."""
    from agentgym.cli._report import ReportCommand

    return ReportCommand(args).run()
