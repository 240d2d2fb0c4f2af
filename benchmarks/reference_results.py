r"""Reference results: what the scripted policies and a small model score, on the held-out split.

    python benchmarks/reference_results.py                       # scripted policies, all tasks
    vllm serve $(python scripts/make_smollm2.py) --served-model-name smollm2 --max-model-len 8192 \
        --enable-auto-tool-choice --tool-call-parser hermes --no-enable-chunked-prefill &
    python benchmarks/reference_results.py --smollm2 http://localhost:8000/v1    # and the model
    python benchmarks/reference_results.py --page                # only write the page anew

Played by `agentgym.evaluate`, as `agentgym eval run` plays it. The result files, without traces,
are kept in `benchmarks/results/reference/`, and `docs/reference_results.md` is made of them and of
nothing else. The small model (SmolLM2-135M-Instruct, untrained on any of this) plays fewer tasks,
side by side with the scripted policies on the same ones, with so few tokens per episode that two
busy CPU cores can do it. The page says how many of its episodes that cut.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agentgym.client import SamplingParams
from agentgym.evaluate.columns import ColumnSpec, model_column, scripted_column
from agentgym.evaluate.figure_records import EvaluationFigures
from agentgym.evaluate.figures import figures_of
from agentgym.evaluate.harness import RESULT, Evaluation, evaluate
from agentgym.evaluate.result import read_result
from agentgym.evaluate.setting import EvaluationSetting
from agentgym.evaluate.tables import tables_of, warnings_of
from agentgym.rollout import Limits

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "reference"
PAGE = ROOT / "docs" / "reference_results.md"
TURN_TOKENS, EPISODE_TOKENS = 32, 128


@dataclass(frozen=True)
class Entry:
    """One environment on the page."""

    name: str
    env_id: str
    policies: tuple[str, ...]
    tasks: int | None
    """Tasks that the scripted policies play; None is the whole split."""
    model_tasks: int
    """Tasks that the small model plays."""
    native_tools: bool
    """Whether it is given a tool list; else it writes the env's text actions."""


ENTRIES = (
    Entry("webshop", "agentgym/WebShop-v0", ("random", "rule", "oracle"), 150, 20, False),
    Entry("supportdesk", "agentgym/SupportDesk-v0", ("random", "refuse", "expert"), None, 6, True),
    Entry("toolworld", "agentgym/ToolWorld-v0", ("random", "none", "expert"), None, 7, True),
)

_HEAD = """\
# Reference results

What to compare with: scripted policies that need no model, and SmolLM2-135M-Instruct, a model that
was trained on none of this. All on the `validation` split, scored by each environment's external
score ([evaluation.md](evaluation.md)), which is not the training reward.

This page is written by `python benchmarks/reference_results.py --page` from the result files in
`benchmarks/results/reference/`; a test holds the two together. `agentgym eval show FILE` has more
figures of each, `agentgym eval compare` sets your own result beside them.
"""


def play(entry: Entry, url: str | None, work: Path) -> None:
    """Play one environment and keep the result file."""
    columns = [scripted_column(name) for name in entry.policies]
    limits, n, suffix = Limits(concurrency=16), entry.tasks, ""
    if url is not None:
        columns.append(_model(entry, url))
        limits = Limits(concurrency=16, max_episode_tokens=EPISODE_TOKENS, max_failure_rate=1.0)
        n, suffix = entry.model_tasks, "-smollm2"
    out = work / f"{entry.name}{suffix}"
    setting = EvaluationSetting(entry.env_id, n=n)
    result = evaluate(Evaluation(setting, columns, out=out, limits=limits, progress=True))
    for column in result.columns:
        solved = sum(attempt.correct is True for attempt in column.attempts)
        print(f"{entry.name}{suffix} {column.name}: {solved} of {len(column.attempts)} solved")
    RESULTS.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(out / RESULT, RESULTS / f"{entry.name}{suffix}.json")


def _model(entry: Entry, url: str) -> ColumnSpec:
    """The small model as a column."""
    return model_column(
        f"SmolLM2-135M=smollm2@{url}",
        sampling=SamplingParams(temperature=0.7, max_tokens=TURN_TOKENS),
        dialect={"tools": entry.native_tools},
    )


def page() -> str:
    """The page's text, from the result files."""
    parts = [_HEAD]
    for entry in ENTRIES:
        parts.append(f"## {entry.env_id}\n")
        parts += _section(RESULTS / f"{entry.name}.json", "Scripted policies")
        with_model = RESULTS / f"{entry.name}-smollm2.json"
        if with_model.exists():
            parts += _section(with_model, "With a small model, fewer tasks")
    return "\n".join(parts)


def _section(path: Path, title: str) -> list[str]:
    result = read_result(path)
    figures = figures_of(result)
    codes = sorted({column.code_version for column in result.columns})
    models = [column for column in result.columns if column.model is not None]
    facts = f"{len(result.tasks)} tasks, seed {result.seed}, code {', '.join(codes)}."
    if models:
        sampling = models[0].sampling
        cut = sum(attempt.truncation_reason == "tokens" for attempt in models[0].attempts)
        facts += (
            f" {models[0].name}: temperature {sampling['temperature']:g}, at most "
            f"{sampling['max_tokens']} tokens a turn and {EPISODE_TOKENS} an episode, which cut "
            f"{cut} of its {len(models[0].attempts)} episodes: a floor, not what it could do."
        )
    warnings = [f"**{warning}**" for warning in warnings_of(figures)]
    return [
        f"### {title}\n",
        f"`{path.relative_to(ROOT)}`: {facts}\n",
        *(f"{text}\n" for text in (*warnings, *_tables(figures, by_family=not models))),
    ]


def _tables(figures: EvaluationFigures, *, by_family: bool) -> list[str]:
    """What depends on the policies and not on the machine: success, and where by family."""
    main, *others = tables_of(figures)
    families = [table for table in others if by_family and "family" in table.title]
    return [table.to_markdown() for table in (main, *families)]


def main() -> int:
    """Play and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smollm2", metavar="URL", help="play with SmolLM2 behind this server")
    parser.add_argument("--env", action="append", choices=[entry.name for entry in ENTRIES])
    parser.add_argument("--work", type=Path, help="folder for traces; a later run goes on there")
    parser.add_argument("--page", action="store_true", help="play nothing, write the page")
    options = parser.parse_args()
    if not options.page:
        work = options.work or Path(tempfile.mkdtemp(prefix="reference-"))
        for entry in ENTRIES:
            if options.env is None or entry.name in options.env:
                play(entry, options.smollm2, work)
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
