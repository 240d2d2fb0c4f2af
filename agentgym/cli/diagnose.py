r"""Say why a training run fails, or that nothing is wrong with it.

RUN is the folder of a training run, finished, stopped or still going: `agentgym train --out`. Its
metrics.jsonl is read, its evaluations, and traces where the metrics lack something. Nothing of the
training stack is needed, so a run can be read on any machine.

Every alarm names what is seen with the figures behind it, the likely cause, and the first thing to
change. Change one thing at a time, and give it 25 to 50 training steps. An alarm needs evidence: a
whole interval beyond its threshold, over at least 5 steps, so a short or noisy run raises none.

  turn_cap, token_limit, context_limit, unfinished
                          limits hit: turns at 10 %, tokens at 5 % of episodes
  no_signal, no_success, identical_rollouts
                          nothing to learn from in the groups
  gate:NAME, malformed, masked, untrainable_rows
                          episodes fail alike, can't be read, scored or trained on
  flat, plateau, collapse
                          the reward stands still or falls
  held_out_gap, reward_without_correctness
                          the reward rises, the tasks are not solved
  entropy_collapse, entropy_explosion, length_collapse, length_explosion
                          the output changes and the reward does not come along
  logprob_gap, importance_ratio, stale_weights, nonfinite_logprobs, no_gradient
                          sampler and trainer part, or nothing reaches the weights
  nonfinite_loss          a loss or gradient that is NaN or infinite; one step is enough

"not at the end" marks an alarm whose evidence is gone by the last step.

Examples:
  agentgym diagnose runs/x
  agentgym diagnose runs/x --strict          exit with 1 if there is an alarm, for scripts
  agentgym diagnose runs/x --json > x.json
  agentgym diagnose runs/x --set min_steps=3 --set turn_cap=0.2
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="folder of a training run")
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there is an alarm")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="another threshold than the run's own, such as window=20; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Diagnose; returns 1 for an alarm where asked to."""
    from agentgym.cli._diagnosis import diagnosis_text, thresholds_for
    from agentgym.train.monitors import diagnose

    found = diagnose(args.run_folder, thresholds=thresholds_for(args.run_folder, args.settings))
    print(found.model_dump_json(indent=2) if args.json else diagnosis_text(found))
    return 1 if args.strict and found.alarms else 0
