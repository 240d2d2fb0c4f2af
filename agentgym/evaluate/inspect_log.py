"""An evaluation as a log of Inspect, so that its viewer and its readers open ours.

One column is one log: in Inspect a log is one task played by one model. Samples are our episodes
(`epoch` is the sample number, from 1), `messages` the whole conversation, and the scores are the
external score and, beside it, the training reward. An episode without a score has an error and no
score, which Inspect leaves out of its means as we do.

Written in the format of Inspect's logs of version 2, as JSON or as an `.eval` archive, by hand:
`inspect_ai` and this package want different versions of the same dependencies, so neither can be
asked to install the other. A JSON schema made by `inspect_ai` holds the tests to it.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym.durable import write_whole
from agentgym.errors import DataError
from agentgym.evaluate.inspect_messages import from_openai, opening_of
from agentgym.evaluate.result import Attempt, Column, EvaluationResult, content_hash
from agentgym.metering import sum_by_role
from agentgym.statistics import mean_estimate
from agentgym.trace import Trace
from agentgym.traces import TraceFile
from agentgym.types import Usage, clean_json, clean_text

LOG_VERSION = 2
SCORE, REWARD = "external", "training_reward"
_SUMMARY_CHARS = 1024
_LIMITS = {"turns": "turn", "tokens": "token", "context": "context", "time": "time"}
_SAMPLING = ("temperature", "top_p", "max_tokens", "frequency_penalty", "presence_penalty")


def export_inspect(
    result: EvaluationResult, column: Column, path: Path, *, folder: Path | None = None
) -> int:
    """Write one column as a log.

    Args:
        result: The evaluation.
        column: One of its columns.
        path: `….json` or `….eval`; replaced as a whole.
        folder: Where the column's trace file lies, the result file's; None leaves conversations
            out.

    Returns:
        How many of the samples have their conversation; those of lost trace files have none.

    Raises:
        DataError: If the suffix is another, there is no attempt, or it can't be written.
        TraceError: If the trace file can't be read.
    """
    if path.suffix not in (".json", ".eval"):
        raise DataError(f"{path}: Inspect's logs are .json or .eval files; name one of the two")
    if not column.attempts:
        raise DataError(f"column {column.name!r} has no episode to export")
    traces = _traces(column, folder)
    by_epoch = sorted(column.attempts, key=lambda attempt: attempt.sample)  # as Inspect orders
    samples = [_sample(result, column, a, traces.get(a.trace_id or "")) for a in by_epoch]
    header = _header(result, column, traces.values())
    data = (
        _archive(header, samples)
        if path.suffix == ".eval"
        else _text(header | {"samples": samples})
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        raise DataError(f"can't write {path}: {error.strerror or error}") from error
    return sum(attempt.trace_id in traces for attempt in column.attempts)


def _traces(column: Column, folder: Path | None) -> dict[str, Trace]:
    """The column's traces by id, as far as they are there."""
    if folder is None or column.trace_file is None:
        return {}
    path = folder / column.trace_file
    wanted = {attempt.trace_id for attempt in column.attempts}
    named = Path(column.trace_file)
    if (
        named.is_absolute() or ".." in named.parts or not path.is_file()
    ):  # by whoever wrote the file
        return {}
    return {trace.trace_id: trace for trace in TraceFile(path) if trace.trace_id in wanted}


# --- the log --------------------------------------------------------------------------------------


def _header(result: EvaluationResult, column: Column, traces: Iterable[Trace]) -> dict[str, Any]:
    """Everything but the samples."""
    started = [trace.started_at for trace in traces]
    usage = _usage_by_role(attempt.usage for attempt in column.attempts)
    complete = len(column.attempts) == result.n_planned
    name = content_hash([result.env_id, result.tasks_hash, result.created_at, column.name])
    return {
        "version": LOG_VERSION,
        "status": "success" if complete else "cancelled",
        "eval": {
            "eval_id": name,
            "run_id": name,
            "task_id": name,
            "created": result.created_at,
            "task": result.env_id,
            "task_version": result.env_id.rpartition("-v")[2],
            "dataset": {
                "name": result.split or "all",
                "samples": len(result.tasks),
                "sample_ids": list(result.tasks),
                "shuffled": False,
            },
            "model": _model(column),
            "model_base_url": column.endpoint,
            "model_generate_config": {
                k: column.sampling[k] for k in _SAMPLING if k in column.sampling
            },
            "config": {"epochs": result.samples},
            "packages": {"agentgym": column.code_version},
            "metadata": {
                "column": column.name,
                "kind": column.kind,
                "env_spec": result.env_spec,
                "tasks_hash": result.tasks_hash,
                "hashes": column.hashes,
                "seed": result.seed,
                "weight_version": column.weight_version,
            },
            "scorers": [{"name": SCORE, "options": {}, "metadata": {"of": result.external_score}}],
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": _results(result, column),
        "stats": {
            "started_at": min(started, default=result.created_at),
            "completed_at": result.created_at,
            "model_usage": {_model(column): usage["policy"]} if "policy" in usage else {},
            "role_usage": usage,
        },
    }


def _model(column: Column) -> str:
    return column.model or f"scripted/{column.name}"


def _results(result: EvaluationResult, column: Column) -> dict[str, Any]:
    scored = [attempt for attempt in column.attempts if attempt.scored]
    scores = [_metrics(SCORE, column, {a.trace_id: a.external for a in scored}, scored)]
    rewarded = [attempt for attempt in column.attempts if attempt.reward is not None]
    scores.append(_metrics(REWARD, column, {a.trace_id: a.reward for a in rewarded}, rewarded))
    return {
        "total_samples": result.n_planned,
        "completed_samples": len(scored),
        "scores": scores,
        "metadata": {"no_score": len(column.attempts) - len(scored), "of": result.external_score},
    }


def _metrics(
    name: str,
    column: Column,
    values: Mapping[str | None, float | None],
    attempts: Sequence[Attempt],
) -> dict[str, Any]:
    """Mean and its standard error, clustered by task, over the episodes that have the value."""
    known = [value for a in attempts if (value := values[a.trace_id]) is not None]
    metrics: dict[str, Any] = {}
    if known:
        estimate = mean_estimate(known, [attempt.task_id for attempt in attempts])
        metrics["mean"] = {"name": "mean", "value": estimate.mean}
        if estimate.stderr < float("inf"):
            metrics["stderr"] = {"name": "stderr", "value": estimate.stderr}
    return {
        "name": name,
        "scorer": name,
        "scored_samples": len(known),
        "unscored_samples": len(column.attempts) - len(known),
        "metrics": metrics,
    }


# --- a sample -------------------------------------------------------------------------------------


def _sample(
    result: EvaluationResult, column: Column, attempt: Attempt, trace: Trace | None
) -> dict[str, Any]:
    usage = _usage_by_role([attempt.usage])
    messages = from_openai(trace.messages) if trace is not None else []
    opening = opening_of(messages)
    sample: dict[str, Any] = {
        "id": attempt.task_id,
        "epoch": attempt.sample + 1,
        "uuid": attempt.trace_id,
        "input": opening or attempt.task_id,
        "target": "",
        "messages": messages,
        "output": _output(column, messages, usage.get("policy")),
        "scores": _scores(attempt, trace),
        "metadata": {
            "family": result.tasks[attempt.task_id].family,
            "completed": attempt.completed,
            "gates": attempt.gates,
            "failure_class": attempt.failure_class,
            "truncation_reason": attempt.truncation_reason,
            "malformed_calls": attempt.malformed,
        },
        "model_usage": {_model(column): usage["policy"]} if "policy" in usage else {},
        "role_usage": usage,
        "working_time": attempt.seconds,
        "turn_count": attempt.turns,
    }
    if trace is not None:
        sample["started_at"] = trace.started_at
    limit = _LIMITS.get(attempt.truncation_reason or "")
    if limit is not None:
        reached = attempt.turns if limit == "turn" else 0
        sample["limit"] = {"type": limit, "limit": reached, "reason": attempt.truncation_reason}
    if not attempt.scored:
        text = attempt.error or "no score"
        sample["error"] = {"message": text, "traceback": text, "traceback_ansi": text}
    return sample


def _scores(attempt: Attempt, trace: Trace | None) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    if attempt.external is not None:
        scores[SCORE] = {
            "value": attempt.external,
            "answer": trace.answer if trace is not None else None,
            "metadata": {"correct": attempt.correct},
        }
    if attempt.reward is not None:
        verdict = trace.verdict if trace is not None else None
        scores[REWARD] = {
            "value": attempt.reward,
            "explanation": verdict.reason if verdict is not None else None,
            "metadata": {"components": verdict.components} if verdict is not None else {},
        }
    return scores


def _output(column: Column, messages: Sequence[Any], usage: Any) -> dict[str, Any]:
    """The last assistant message, as what the model gave."""
    last = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
    if last is None:
        return {"model": _model(column), "choices": []}
    reason = "tool_calls" if last.get("tool_calls") else "stop"
    return {
        "model": _model(column),
        "choices": [{"message": last, "stop_reason": reason}],
        "completion": last["content"],
        "usage": usage,
    }


def _usage_by_role(usages: Iterable[Mapping[str, Usage]]) -> dict[str, Any]:
    """Tokens by role. Inspect counts cached input apart from the other input; we count it in."""
    return {
        role: {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "input_tokens_cache_read": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "total_cost": usage.cost_usd,
        }
        for role, usage in sum_by_role(*usages).items()
        if not usage.is_nothing
    }


# --- files ----------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    return json.dumps(clean_json(value), ensure_ascii=False, allow_nan=False) + "\n"


def _archive(header: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> bytes:
    """Inspect's `.eval`: a zip archive with the header, a file per sample, and their summaries."""
    start = {"version": LOG_VERSION, "eval": header["eval"], "plan": header["plan"]}
    summaries = [_summary(sample) for sample in samples]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_journal/start.json", _text(start))
        for sample in samples:
            name = f"samples/{sample['id']}_epoch_{sample['epoch']}.json"
            archive.writestr(clean_text(name), _text(sample))
        archive.writestr("_journal/summaries/1.json", _text(summaries))
        archive.writestr("summaries.json", _text(summaries))
        archive.writestr("header.json", _text(header))
    return data.getvalue()


def _summary(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample for Inspect's list, which is read without the sample itself."""
    kept = ("id", "epoch", "uuid", "target", "metadata", "model_usage", "role_usage")
    summary = {key: sample[key] for key in (*kept, "working_time", "turn_count")}
    given = sample["input"]
    texts = [given] if isinstance(given, str) else [str(m["content"]) for m in given]
    summary["input"] = texts[-1][:_SUMMARY_CHARS]
    summary["scores"] = {
        name: {"value": score["value"]} for name, score in sample["scores"].items()
    }
    summary["message_count"] = len(sample["messages"])
    summary["completed"] = True
    if "error" in sample:
        summary["error"] = sample["error"]["message"]
    if "limit" in sample:
        summary["limit"] = sample["limit"]["type"]
    return summary
