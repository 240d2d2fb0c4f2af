"""Weights on disk: what a server reads is the model, all of it, or nothing."""

from __future__ import annotations

import json
import os
import resource
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentgym.errors import TrainingError
from agentgym.train.sync.checkpoint import (
    INDEX,
    MARKER,
    check_writable,
    delete_versions,
    write_weights,
)


def read(folder: Path) -> dict[str, torch.Tensor]:
    """Everything in a folder's files, as vLLM's loader reads them: those that the index lists."""
    files = sorted(folder.glob("*.safetensors"))
    if (folder / INDEX).exists():
        listed = json.loads((folder / INDEX).read_text())["weight_map"]
        assert {file.name for file in files} == set(listed.values())
    found: dict[str, torch.Tensor] = {}
    for file in files:
        tensors = load_file(file)
        assert not found.keys() & tensors.keys()
        found |= tensors
    return found


def test_what_is_read_is_what_the_model_has(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Embedding(5, 4))
    written = write_weights(tmp_path, "7", model.named_parameters())
    found = read(tmp_path / "7")
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.data, rtol=0, atol=0)
    assert written.tensors == 3
    assert written.bytes == 4 * (3 * 4 + 4 + 5 * 4)
    assert not (tmp_path / "7" / INDEX).exists()


def test_a_large_model_goes_into_several_files_with_an_index(tmp_path):
    tensors = {f"layer.{i}": torch.full((10,), float(i)) for i in range(5)} | {
        "large": torch.ones(40)  # a file of its own, above the limit
    }
    write_weights(tmp_path, "7", tensors.items(), shard_bytes=80)
    files = sorted(path.name for path in (tmp_path / "7").glob("*.safetensors"))
    assert files == [f"model-0000{n}.safetensors" for n in range(1, 5)]
    found = read(tmp_path / "7")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    index = json.loads((tmp_path / "7" / INDEX).read_text())
    assert index["metadata"]["total_size"] == 4 * 90
    assert index["weight_map"].keys() == tensors.keys()


def test_floats_are_cast_and_nothing_else_is(tmp_path):
    tensors = [("w", torch.tensor([1.0, 1.001])), ("ids", torch.tensor([300]))]
    write_weights(tmp_path, "7", tensors, dtype=torch.bfloat16)
    found = read(tmp_path / "7")
    assert found["w"].dtype == torch.bfloat16
    assert torch.equal(found["w"], torch.tensor([1.0, 1.001]).to(torch.bfloat16))
    assert found["ids"].dtype == torch.int64


def test_tied_and_strided_tensors_are_written_whole(tmp_path):
    shared = torch.arange(12.0).reshape(3, 4)
    tensors = [("tied.a", shared), ("tied.b", shared), ("turned", shared.T), ("part", shared[:, 1])]
    write_weights(tmp_path, "7", tensors)
    found = read(tmp_path / "7")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors)


def test_a_tensor_may_change_once_the_next_is_asked_for(tmp_path):
    # Adapters are merged into the weights while these are read, and taken out again at the end.
    weight = torch.zeros(3)

    def merged():
        weight.add_(1)
        yield "w", weight
        weight.sub_(1)

    write_weights(tmp_path, "7", merged())
    assert torch.equal(read(tmp_path / "7")["w"], torch.ones(3))
    assert torch.equal(weight, torch.zeros(3))


def test_a_model_that_breaks_midway_leaves_nothing_and_the_old_version_alone(tmp_path):
    write_weights(tmp_path, "7", [("w", torch.ones(3))])

    def broken():
        yield "w", torch.zeros(3)
        raise RuntimeError("gathered no more")

    for version in ("7", "8"):
        with pytest.raises(RuntimeError, match="gathered no more"):
            write_weights(tmp_path, version, broken(), shard_bytes=1)
    assert [path.name for path in tmp_path.iterdir()] == ["7"]
    assert torch.equal(read(tmp_path / "7")["w"], torch.ones(3))


def test_a_version_appears_only_when_it_is_whole(tmp_path):
    seen: list[bool] = []

    def watched():
        for name in "abc":
            seen.append((tmp_path / "7").exists())
            yield name, torch.ones(3)

    write_weights(tmp_path, "7", watched(), shard_bytes=1)
    seen.append((tmp_path / "7").exists())
    assert seen == [False, False, False, True]


def test_a_version_of_that_name_is_replaced(tmp_path):
    write_weights(tmp_path, "7", [("a", torch.ones(3))])
    write_weights(tmp_path, "7", [("b", torch.ones(3))])
    assert read(tmp_path / "7").keys() == {"b"}


@pytest.mark.parametrize(
    "version", ["", ".", "..", "../x", "a/b", "/x", "a b", "x\n", "ü", "x" * 101]
)
def test_a_version_that_is_no_folder_name_is_refused(tmp_path, version):
    with pytest.raises(TrainingError, match="a version is"):
        write_weights(tmp_path / "shared", version, [("w", torch.ones(3))])
    assert not list(tmp_path.iterdir())


def test_two_tensors_of_one_name_and_none_at_all_are_refused(tmp_path):
    with pytest.raises(TrainingError, match="two tensors named 'w'"):
        write_weights(tmp_path, "7", [("w", torch.ones(3)), ("w", torch.ones(3))])
    with pytest.raises(TrainingError, match="no weights"):
        write_weights(tmp_path, "7", [])
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_is_told_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="can't be written to .*file"):
        write_weights(tmp_path / "file", "7", [("w", torch.ones(3))])
    with pytest.raises(TrainingError, match="name one that this machine and the servers share"):
        check_writable(tmp_path / "file")


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(TrainingError, match="weights can't be written to .*7: "):
            write_weights(tmp_path, "7", [("w", torch.ones(3000))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_only_what_was_written_here_is_deleted(tmp_path):
    for version in ("7", "8"):
        write_weights(tmp_path, version, [("w", torch.ones(3))])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model-00001.safetensors").touch()
    (tmp_path / MARKER).touch()
    assert delete_versions(tmp_path, keep=["8"]) == ["7"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["8", MARKER, "model"]
    assert delete_versions(tmp_path / "nothing") == []


def test_what_a_killed_writer_left_is_deleted(tmp_path):
    pid = os.fork()
    if pid == 0:

        def killed():
            yield "w", torch.ones(3)
            yield "x", torch.ones(3)
            os._exit(9)

        write_weights(tmp_path, "7", killed(), shard_bytes=1)
    os.waitpid(pid, 0)
    (left,) = tmp_path.iterdir()
    assert (left / "model-00001.safetensors").exists()
    delete_versions(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_reader_never_sees_half_a_version(tmp_path):
    write_weights(tmp_path, "v", [(str(i), torch.full((100,), 0.0)) for i in range(20)])
    stop = threading.Event()
    wrong: list[object] = []

    def reader() -> None:
        while not stop.is_set():
            try:
                files = sorted((tmp_path / "v").glob("*.safetensors"))
                found = [load_file(file) for file in files]
            except FileNotFoundError:  # between the old one and the new one
                continue
            values = {float(t[0]) for tensors in found for t in tensors.values()}
            if len(values) > 1:
                wrong.append(values)

    thread = threading.Thread(target=reader)
    thread.start()
    for value in range(1, 10):
        write_weights(tmp_path, "v", [(str(i), torch.full((100,), value)) for i in range(20)])
    stop.set()
    thread.join()
    assert not wrong
