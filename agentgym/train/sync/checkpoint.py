"""Weights as safetensors in a folder that servers read: whole, or not there at all.

A server that reads a file while it is written loads garbage, or dies. So a version is written under
another name and takes its own by renaming the folder, which is atomic also on NFS. Large models go
out in several files with an index, because a shard is what is held in memory beside the model.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.errors import TrainingError

MARKER = "agentgym-weights.json"
"""Marks a folder as one of ours, so that nothing else is ever deleted."""
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9
"""Of one file, as transformers has it."""
_PARTIAL = ".partial"
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Written:
    """A version on disk."""

    folder: Path
    tensors: int
    bytes: int
    """Size of the tensors."""


def check_version(version: str) -> None:
    """Raise a `TrainingError` unless a version can be a folder's name."""
    if not _VERSION.fullmatch(version):
        raise TrainingError(
            f"a version is letters, digits, '.', '-' and '_', 100 at most, got {version!r}"
        )


def write_weights(
    shared: Path,
    version: str,
    tensors: Iterable[tuple[str, Any]],
    *,
    dtype: Any = None,
    shard_bytes: int = SHARD_BYTES,
) -> Written:
    """Write `shared/version/`, in one or more safetensors files.

    Args:
        shared: Folder of all versions.
        version: Name of this one; what is there under it is replaced.
        tensors: Names and tensors; each is copied before the next one is asked for.
        dtype: `torch.dtype` that floating-point tensors are written in; None keeps theirs.
        shard_bytes: Size of a file, unless one tensor alone is larger.

    Raises:
        TrainingError: If the folder can't be written, or there are no weights.
    """
    check_version(version)
    target = shared / version

    def fill(folder: Path) -> Written:
        shards = _Shards(folder, shard_bytes)
        for name, tensor in tensors:
            shards.add(name, _on_cpu(tensor, dtype))
        shards.finish()
        if not shards.file_of:
            raise TrainingError("there are no weights to sync: the model has no parameters")
        return Written(target, len(shards.file_of), shards.bytes)

    return _publish(target, fill)


def write_adapter(shared: Path, version: str, model: Any) -> Written:
    """Write `shared/version/` with the adapter of a `PeftModel`, as PEFT saves it.

    Raises:
        TrainingError: If the folder can't be written, or nothing of an adapter was saved.
    """
    check_version(version)
    target = shared / version

    def fill(folder: Path) -> Written:
        model.save_pretrained(str(folder), safe_serialization=True)
        files = list(folder.glob("adapter_model*.safetensors"))
        if not files or not (folder / "adapter_config.json").exists():
            raise TrainingError(
                "LoRA sync needs a PeftModel with one adapter named 'default'; "
                f"{type(model).__name__}.save_pretrained wrote none"
            )
        return Written(target, len(files), sum(file.stat().st_size for file in files))

    return _publish(target, fill)


def delete_versions(shared: Path, *, keep: Iterable[str] = ()) -> list[str]:
    """Delete what was written here, by this run or one that crashed, and nothing else.

    Args:
        shared: Folder of all versions.
        keep: Versions that stay.

    Returns:
        The names that were deleted.
    """
    kept = set(keep)
    deleted = []
    for folder in sorted(shared.iterdir()) if shared.is_dir() else ():
        if (folder / MARKER).is_file() and folder.name not in kept:
            shutil.rmtree(folder, ignore_errors=True)
            deleted.append(folder.name)
    return deleted


def check_writable(shared: Path) -> None:
    """Make the folder, and see that it can be written to.

    Raises:
        TrainingError: If not.
    """
    probe = shared / f".probe-{os.getpid()}"
    try:
        shared.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise TrainingError(
            f"the sync folder {shared} can't be written to ({error.strerror or error}); name one "
            "that this machine and the servers share"
        ) from error


class _Shards:
    """Gathers tensors into files of bounded size."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self.file_of: dict[str, str] = {}
        self.bytes = 0
        self._folder = folder
        self._limit = shard_bytes
        self._held: dict[str, Any] = {}
        self._held_bytes = 0
        self._files = 0

    def add(self, name: str, tensor: Any) -> None:
        if name in self.file_of or name in self._held:
            raise TrainingError(f"the model gave two tensors named {name!r}")
        size = tensor.numel() * tensor.element_size()
        if self._held and self._held_bytes + size > self._limit:
            self._write()
        self._held[name] = tensor
        self._held_bytes += size

    def finish(self) -> None:
        """Write what is held, and the index if there are several files."""
        if self._held:
            self._write()
        if self._files > 1:
            index = {"metadata": {"total_size": self.bytes}, "weight_map": self.file_of}
            (self._folder / INDEX).write_text(json.dumps(index), encoding="utf-8")

    def _write(self) -> None:
        from safetensors.torch import save_file

        self._files += 1
        file = f"model-{self._files:05d}.safetensors"
        save_file(self._held, str(self._folder / file), metadata={"format": "pt"})
        self.file_of.update(dict.fromkeys(self._held, file))
        self.bytes += self._held_bytes
        self._held, self._held_bytes = {}, 0


def _on_cpu(tensor: Any, dtype: Any) -> Any:
    """A copy that stays what it is when the trainer goes on: contiguous, in main memory."""
    import torch

    cast = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    found = tensor.detach().to("cpu", cast, copy=True)
    return (
        found if found.is_contiguous() else found.contiguous(memory_format=torch.contiguous_format)
    )


def _publish(target: Path, fill: Callable[[Path], Written]) -> Written:
    """Fill a folder beside the target, flush it, and give it the target's name."""
    from safetensors import SafetensorError

    partial = target.with_name(f"{target.name}-{os.getpid()}{_PARTIAL}")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / MARKER).touch()  # so that it is deleted if this process dies
        written = fill(partial)
        facts = {"version": target.name, "tensors": written.tensors, "bytes": written.bytes}
        (partial / MARKER).write_text(json.dumps(facts), encoding="utf-8")
        for path in (*partial.iterdir(), partial):
            _flush(path)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        _flush(target.parent)
    except (OSError, SafetensorError) as error:  # a full disk is either, by who notices
        shutil.rmtree(partial, ignore_errors=True)
        raise TrainingError(f"weights can't be written to {target}: {error}") from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return written


def _flush(path: Path) -> None:
    """Have a file or folder on the disk, where other machines can see it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
