"""What a server says about itself, and what of it a training run can't live with.

Most of these faults show only as a policy that doesn't learn: log-probabilities taken before the
temperature, weights in another precision at one replica, adapters that are cut to a smaller rank.
They are all in vLLM's own dump of its configuration, so they are read there before training starts.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

SyncKind: TypeAlias = Literal["folder", "lora", "nccl"]


@dataclass(frozen=True)
class ServerInfo:
    """The part of vLLM's configuration that matters to training."""

    root: str
    """Of the server."""
    served: tuple[str, ...]
    """Names it answers to, adapters included."""
    dtype: str
    """Such as `bfloat16`."""
    device: str
    """`cuda`, `cpu`, …"""
    logprobs_mode: str
    max_model_len: int
    quantization: str | None
    chunked_prefill: bool
    max_lora_rank: int | None
    """None: it takes no adapters."""
    transfer_backend: str | None
    """Of its weight-transfer engine; None: it has none."""
    model: str | None = None
    """What it was started with, a folder or hub id."""

    @classmethod
    def of(cls, root: str, served: Sequence[str], config: Mapping[str, Any]) -> ServerInfo:
        """Read vLLM's dump (`/server_info?config_format=json`, its `vllm_config`)."""
        model = _part(config, "model_config")
        lora = config.get("lora_config")
        transfer = config.get("weight_transfer_config")
        return cls(
            root=root,
            served=tuple(served),
            dtype=str(model.get("dtype")).removeprefix("torch."),
            device=str(_part(config, "device_config").get("device")),
            logprobs_mode=str(model.get("logprobs_mode")),
            max_model_len=int(model.get("max_model_len") or 0),
            quantization=model.get("quantization"),
            chunked_prefill=bool(_part(config, "scheduler_config").get("enable_chunked_prefill")),
            max_lora_rank=int(lora["max_lora_rank"]) if isinstance(lora, Mapping) else None,
            transfer_backend=str(transfer["backend"]) if isinstance(transfer, Mapping) else None,
            model=name if isinstance(name := model.get("model"), str) else None,
        )

    def faults(self, kind: SyncKind, *, model: str, rank: int | None = None) -> list[str]:
        """What makes it unfit, one line each with the remedy.

        Args:
            kind: How weights come.
            model: The name that requests will ask for.
            rank: Of the adapters, with `kind="lora"`.
        """
        found = []
        if model not in self.served:
            names = ", ".join(self.served) or "nothing"
            found.append(
                f"it serves {names}, not {model!r}: name that model, or start the server with "
                f"--served-model-name {model}"
            )
        if self.logprobs_mode != "processed_logprobs":
            found.append(
                f"its log-probabilities are {self.logprobs_mode}, which ignore the temperature: "
                "start it with --logprobs-mode processed_logprobs"
            )
        if self.device == "cpu" and self.chunked_prefill:
            found.append(
                "vLLM 0.31 on a CPU dies of a seeded request whose prompt is prefilled in parts: "
                "start it with --no-enable-chunked-prefill"
            )
        if kind != "lora" and self.quantization is not None:
            found.append(
                f"it quantizes its weights ({self.quantization}), which the trainer does not: "
                "start it without --quantization, or train LoRA adapters"
            )
        found += self.faults_of_rank(rank) if kind == "lora" else []
        if kind == "nccl" and self.transfer_backend != "nccl":
            found.append(
                "it has no NCCL weight transfer: start it with --weight-transfer-config "
                """'{"backend": "nccl"}'"""
            )
        return found

    def faults_of_rank(self, rank: int | None) -> list[str]:
        """Why it can't serve adapters of a rank, one line each; None: of any."""
        if self.max_lora_rank is None:
            flags = f"--enable-lora --max-lora-rank {_served_rank(rank or 16)}"
            return [f"it takes no adapters: start it with {flags}"]
        if rank is not None and rank > self.max_lora_rank:
            remedy = f"start it with --max-lora-rank {_served_rank(rank)}, or train a lower rank"
            return [f"rank {rank} is above its --max-lora-rank {self.max_lora_rank}: {remedy}"]
        return []


def differences(infos: Sequence[ServerInfo]) -> list[str]:
    """In what replicas of one policy differ and must not, one line each."""
    found = []
    for field, flag in (("dtype", "--dtype"), ("max_model_len", "--max-model-len")):
        values = {info.root: getattr(info, field) for info in infos}
        if len(set(values.values())) > 1:
            told = ", ".join(f"{root} has {value}" for root, value in values.items())
            found.append(f"replicas of one policy differ in {flag}: {told}")
    return found


def server_command(
    model: str,
    *,
    kind: SyncKind = "folder",
    served_name: str | None = None,
    dtype: str = "bfloat16",
    max_context: int | None = None,
    rank: int = 16,
    cpu: bool = False,
    port: int = 8000,
) -> str:
    """The command that starts a server whose weights can be synced.

    Args:
        model: Folder or hub id of the weights that training starts from.
        kind: How weights will come.
        served_name: What requests call it; default: `model`.
        dtype: Best the trainer's own precision.
        max_context: Tokens of prompt and answer; None: all that the model takes.
        rank: Of the adapters, with `kind="lora"`.
        cpu: Whether it runs on a CPU.
        port: Where it listens.
    """
    environment = ["VLLM_SERVER_DEV_MODE=1"]
    flags = [f"--dtype {dtype}", "--logprobs-mode processed_logprobs", "--generation-config vllm"]
    flags.append("--enable-prompt-tokens-details")  # or traces don't know what was cached
    if served_name is not None:
        flags.append(f"--served-model-name {shlex.quote(served_name)}")
    if max_context is not None:
        flags.append(f"--max-model-len {max_context}")
    if kind == "lora":
        environment.append("VLLM_ALLOW_RUNTIME_LORA_UPDATING=True")
        flags.append(f"--enable-lora --max-lora-rank {_served_rank(rank)} --max-loras 2")
    if kind == "nccl":
        flags.append("""--weight-transfer-config '{"backend": "nccl"}'""")
    if cpu:
        environment.append("VLLM_CPU_KVCACHE_SPACE=4")  # GiB; vLLM 0.31 wants 92 % of the memory
        flags.append("--no-enable-chunked-prefill --enforce-eager --block-size 32")
    return " ".join([*environment, "vllm serve", shlex.quote(model), *flags, f"--port {port}"])


def _served_rank(rank: int) -> int:
    """The smallest `--max-lora-rank` that takes adapters of a rank (vLLM 0.31 has these)."""
    return next((most for most in (1, 8, 16, 32, 64, 128, 256, 320, 512) if most >= rank), rank)


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}
