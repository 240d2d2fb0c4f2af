"""LoRA and QLoRA through peft: small matrices beside frozen weights.

A rollout samples with the merged weights: TRL adds the adapter to the base weights while it hands
them to vLLM, and takes it off again. So nothing about rollouts knows of adapters, and they are all
that is trained and saved.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from agentgym.errors import ConfigError, unknown_name
from agentgym.types import Finite, Record

ADAPTER_CONFIG = "adapter_config.json"
"""The file that makes a folder an adapter's."""
MERGED_FOLDER = "merged"
"""Where a run leaves base model and adapter in one."""


class LoraSettings(Record):
    """An adapter, whose weights are the only ones trained.

    They take a learning rate some 10 times that of full fine-tuning.
    """

    rank: int = Field(default=32, ge=1)
    """Rank of the added matrices; a run that stalls with healthy knobs wants 64 or 128."""
    alpha: Finite = Field(default=64.0, gt=0)
    """The adapter is scaled by `alpha / rank`."""
    dropout: Finite = Field(default=0.0, ge=0, lt=1)
    """On the adapter's input. The sampler has none: above 0, importance ratios scatter around 1."""
    targets: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the layers that get one, such as `["q_proj", "v_proj"]`."""
    quantize: Literal["4bit"] | None = None
    """`"4bit"` keeps the base weights in NF4 (QLoRA); CUDA and bitsandbytes only."""


def check_lora(model: str, lora: LoraSettings | None) -> None:
    """See that an adapter can be trained on a model here, before anything is loaded.

    Args:
        model: Folder or hub id of the policy.
        lora: None for full fine-tuning.

    Raises:
        ConfigError: With the remedy.
    """
    adapter = Path(model).expanduser() / ADAPTER_CONFIG
    if adapter.is_file():
        base = json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path")
        raise ConfigError(
            f"{model} is an adapter of {base!r}, and vLLM starts from whole models; merge it first "
            "(agentgym.train.lora.merge_adapter, or `agentgym train --merge` when it is trained)"
        )
    if lora is None:
        return
    if find_spec("peft") is None:
        raise ConfigError('lora needs peft: pip install "agentgym-envs[train]"')
    if lora.quantize is not None:
        _check_quantization()
    if lora.targets != "all-linear":
        _check_targets(model, lora.targets)


def _check_targets(model: str, targets: Sequence[str]) -> None:
    """See that each name is a layer's; peft is content if one of them is, once all is loaded."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(model).expanduser()
    try:
        config = AutoConfig.from_pretrained(str(folder) if folder.is_dir() else model)
        with torch.device("meta"):  # names and shapes, no weights
            built = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError):  # of a kind that only TRL can build, or none at all
        return
    output = built.get_output_embeddings()
    linear = [
        name
        for name, layer in built.named_modules()
        if isinstance(layer, torch.nn.Linear) and layer is not output
    ]
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            known = sorted({name.rpartition(".")[2] for name in linear})
            raise ConfigError(f"lora.targets: {unknown_name('layer', target, known)}")


def _check_quantization() -> None:
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("lora.quantize='4bit' needs a CUDA device; leave it out on a CPU")
    if find_spec("bitsandbytes") is None:
        raise ConfigError("lora.quantize='4bit' needs bitsandbytes: pip install bitsandbytes")


def trainer_options(lora: LoraSettings | None) -> dict[str, Any]:
    """What `GRPOTrainer` takes for it: `peft_config`, and `quantization_config` for QLoRA."""
    if lora is None:
        return {}
    from peft import LoraConfig

    options: dict[str, Any] = {
        "peft_config": LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=lora.targets,
            task_type="CAUSAL_LM",
        )
    }
    if lora.quantize is not None:
        import torch
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    return options


def merge_adapter(adapter: Path, out: Path) -> Path:
    """Write the model that an adapter makes of its base, for vLLM and everything else.

    Args:
        adapter: Folder with `adapter_config.json`, such as `OUT/model` of a run with `lora`.
        out: Folder of the merged model and its tokenizer; made if missing.

    Returns:
        `out`.

    Raises:
        ConfigError: If the folder holds no adapter.
    """
    if not (adapter / ADAPTER_CONFIG).is_file():
        raise ConfigError(f"{adapter} has no {ADAPTER_CONFIG}; only a run with lora leaves one")
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    model = AutoPeftModelForCausalLM.from_pretrained(str(adapter), dtype="auto")
    model.merge_and_unload().save_pretrained(str(out))
    AutoTokenizer.from_pretrained(str(adapter)).save_pretrained(str(out))
    return out
