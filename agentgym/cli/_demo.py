"""What `agentgym demo` does and shows."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from agentgym.cli._inputs import fresh_folder
from agentgym.errors import ConfigError

if TYPE_CHECKING:
    from agentgym.statistics import Estimate
    from agentgym.trace import Trace
    from agentgym.train.evaluation import Evaluation
    from agentgym.train.tiny.learning import LearningResult

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",  # the libraries' bars for loading and saving; ours are not tqdm
}
"""Set before the training stack is imported, unless the user has set them."""
QUICK_STEPS, QUICK_TASKS = 2, 16
HEARTBEAT_S = 5.0


class Demo:
    """One demo; see `agentgym demo --help`.

    Raises:
        ConfigError: If an option is out of range, or there is no policy to start from.
    """

    def __init__(
        self,
        *,
        steps: int | None = None,
        seed: int = 0,
        quick: bool = False,
        out: Path | None = None,
        model: Path | None = None,
    ) -> None:
        if steps is not None and steps < 1:
            raise ConfigError(f"--steps must be at least 1, got {steps}")
        if seed < 0:
            raise ConfigError(f"--seed must be 0 or more, got {seed}")
        if model is not None and not (model / "config.json").is_file():
            raise ConfigError(
                f"{model} has no policy (no config.json); make one with "
                f"`python -m agentgym.train.tiny.build --out {model}`"
            )
        self._steps, self._seed, self._quick = steps, seed, quick
        self._out, self._model = out, model
        self._before: dict[tuple[str | None, int], Trace] = {}

    def run(self) -> int:
        """Evaluate, train, evaluate; returns the exit code."""
        from agentgym.train.versions import require_training_stack

        require_training_stack()
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        folder = self._folder = _new_folder(self._out)
        # The libraries write to the terminal from every layer while they load, so that is sent to
        # a file; the console keeps a way of its own to the terminal.
        terminal = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
        self._console = Console(file=terminal, highlight=False)
        say = self._say
        say(f"Everything this run makes goes to {folder}\n")
        try:
            result = self._learn(folder)
        except KeyboardInterrupt:
            say(f"\nStopped. What was finished is in {folder}: traces, metrics, checkpoints.")
            raise
        (folder / "result.json").write_text(result.model_dump_json(indent=2) + "\n", "utf-8")
        self._conclude(result, folder)
        return 0

    def _learn(self, folder: Path) -> LearningResult:
        with self._stage("import"):
            # A few hundred megabytes of torch, transformers, TRL and vLLM.
            from agentgym.train.tiny import learning

        steps = self._steps or (QUICK_STEPS if self._quick else learning.STEPS)
        return learning.learn(
            folder,
            model=self._model or learning.WARM_START,
            steps=steps,
            seed=self._seed,
            samples=1 if self._quick else learning.SAMPLES,
            tasks=QUICK_TASKS if self._quick else None,
            stage=self._stage,
            on_evaluation=self._evaluated,
        )

    def _say(self, text: str) -> None:
        """A line as it is: brackets are actions, not markup, and paths stay whole."""
        self._console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        titles = {
            "import": "Loading torch, TRL and vLLM",
            "start": "Starting vLLM and the trainer",
            "before": "1/3 Evaluating the policy on held-out tasks, at temperature 1",
            "train": "2/3 Training it on other tasks: GRPO, 16 tasks × 8 episodes a step",
            "after": "3/3 Evaluating the trained policy on the same held-out tasks",
        }
        if name not in ("import", "start"):
            self._say(f"\n{titles[name]}")
            yield
            return
        started = time.monotonic()
        with self._waiting(titles[name]), _quiet(self._folder / "start.log"):
            yield
        self._say(f"{titles[name]}: {time.monotonic() - started:.0f} s")

    @contextmanager
    def _waiting(self, title: str) -> Iterator[None]:
        """Show that something goes on although nothing is said."""
        if self._console.is_terminal:
            with self._console.status(title):
                yield
            return
        started, over = time.monotonic(), threading.Event()

        def beat() -> None:
            while not over.wait(HEARTBEAT_S):
                self._say(f"{title} … {time.monotonic() - started:.0f} s")

        thread = threading.Thread(target=beat, name="agentgym-demo-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _evaluated(self, name: str, evaluation: Evaluation, traces: Sequence[Trace]) -> None:
        success = evaluation.success
        self._say(
            f"solved {_percent(success)} of {success.n} episodes "
            f"({success.n_clusters} held-out tasks); mean reward {_number(evaluation.reward)}"
        )
        by_episode = {(trace.task_id, trace.sample): trace for trace in traces}
        if name == "before":
            self._before = by_episode
            return
        for key, after in by_episode.items():
            before = self._before.get(key)
            if before and before.verdict.correct is False and after.verdict.correct:
                self._show_pair(before, after)
                return

    def _show_pair(self, before: Trace, after: Trace) -> None:
        """One held-out task, failed before and solved after."""
        page = str(after.messages[0]["content"])
        self._say(f'\nFor example, "{_instruction(page)}":')
        for name, trace in (("before", before), ("after", after)):
            actions = " → ".join(str(turn.message.get("content")) for turn in trace.turns)
            self._say(f"  {name:<6}  {actions}   reward {trace.reward:.2f}")

    def _conclude(self, result: LearningResult, folder: Path) -> None:
        before, after = result.before, result.after
        table = Table("", "before", "after", title="Held-out tasks, with 95 % intervals")
        table.add_row("solved", _percent(before.success), _percent(after.success))
        table.add_row("mean reward", _number(before.reward), _number(after.reward))
        table.add_row("turns", f"{before.turns:.2f}", f"{after.turns:.2f}")
        table.add_row("out of turns", f"{before.truncated:.1%}", f"{after.truncated:.1%}")
        table.add_row("malformed", f"{before.malformed:.1%}", f"{after.malformed:.1%}")
        say = self._say
        say("")
        self._console.print(table)
        if after.success.above(before.success):
            say("The intervals don't overlap: it learned, and for tasks it was not trained on.")
        elif self._quick:
            say("A quick run is too short to show learning; leave out --quick for that.")
        else:
            say("The intervals overlap: this run does not show that it learned.")
        minutes = sum(result.seconds.values()) / 60
        say(f"{result.steps} training steps, {minutes:.1f} minutes in all.\n")
        say(f"Traces, one JSON line per episode:  {folder}/before.jsonl, {folder}/after.jsonl,")
        say(f"                                    {folder}/train/traces-step*.jsonl")
        say(f"Metrics of every step:              {folder}/train/metrics.jsonl")
        say(f"The trained model:                  {folder}/train/model")


def _percent(estimate: Estimate) -> str:
    return f"{estimate.mean:.1%} ({estimate.low:.1%} to {estimate.high:.1%})"


def _number(estimate: Estimate) -> str:
    return f"{estimate.mean:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def _instruction(page: str) -> str:
    parts = page.split(" [SEP] ")
    return parts[parts.index("Instruction:") + 1]


def _new_folder(wanted: Path | None) -> Path:
    """Make the run's folder: a new one, or the one asked for if nothing is in it."""
    folder = fresh_folder("demo") if wanted is None else wanted
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"can't write to {folder}: {error.strerror or error}") from error
    return folder


@contextmanager
def _quiet(log: Path) -> Iterator[None]:
    """Send all that is written to stdout and stderr, from C too, to a file; show it on failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    failed: BaseException | None = None
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        except BaseException as error:
            failed = error
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, original in zip((1, 2), saved, strict=True):
                os.dup2(original, number)
                os.close(original)
            if failed is not None and not isinstance(failed, KeyboardInterrupt):
                print(f"(what the libraries wrote meanwhile: {log})", file=sys.stderr)
