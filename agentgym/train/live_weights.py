"""Make vLLM on a CPU sample with the weights the trainer has, and in the trainer's precision.

On its CPU platform vLLM packs every float32 linear layer for oneDNN when the model loads and drops
the parameter. Weights loaded later then fail to load or, worse, are taken without any effect: the
policy that samples is the one training started from. And TRL builds its colocated engine without a
dtype, so a float32 model is served in bfloat16 and sampler and trainer disagree from the start.

Neither matters on a GPU, and nothing here acts there.
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentgym.errors import TrainingError

DISABLE_VARIABLE = "AGENTGYM_NO_LIVE_WEIGHTS"
"""Set to 1 to leave vLLM as it is; the suite does, to see that the invariant then breaks."""


def register() -> None:
    """Keep the linear layers of vLLM's CPU platform on their live parameters.

    vLLM calls this in each of its processes (entry-point group `vllm.general_plugins`), before a
    model is loaded.

    Needed with vLLM 0.31 (`vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm`); it can
    go once `load_weights` after start-up repacks, which `tests/train/test_learning_loop.py` would
    show by passing with `AGENTGYM_NO_LIVE_WEIGHTS=1`.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or os.environ.get(DISABLE_VARIABLE) == "1":
        return
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False
    _compile_nothing_under_a_path_with_spaces()


def _compile_nothing_under_a_path_with_spaces() -> None:
    """Leave vLLM's few compiled functions (samplers) uncompiled where compiling them must fail.

    torch 2.13 hands g++ include folders without quoting them (`torch._inductor.cpp_builder`).
    """
    if not any(" " in path for path in (sys.prefix, sysconfig.get_path("include"))):
        return
    import torch._dynamo

    torch._dynamo.config.disable = True


def require_live_weights_on_cpu() -> None:
    """Raise a `TrainingError` if vLLM runs on a CPU without the plug-in."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm import _custom_ops

    if _custom_ops._supports_onednn:
        raise TrainingError(
            "vLLM did not load its plug-in `agentgym_live_weights`, and can not take new "
            f"weights on a CPU: unset {DISABLE_VARIABLE}, and unset VLLM_PLUGINS or name the "
            "plug-in in it"
        )


@contextmanager
def colocated_engine_for_cpu(*, max_context: int) -> Iterator[None]:
    """While a trainer is built, give TRL's colocated engine what a CPU needs.

    On a GPU all it does is to bound `max_num_seqs`, which TRL 1.16 sets to the rollouts of a step:
    vLLM refuses more than it has tokens in a batch (4096 there). What is over waits for its turn.

    - `dtype="float32"`: TRL 1.16 passes no dtype (`trl.generation.vllm_generation`); can go once it
      passes the model's.
    - `enforce_eager=True`: compiling costs minutes and gains nothing on small models.
    - `enable_chunked_prefill=False`: with vLLM 0.31 a request that has its own seed and whose
      prompt is prefilled in parts dies with "CPU Generator does not use offset"
      (`GPUModelRunner._bookkeeping_sync`); can go once that line asks for the generator's device.
      Whole prompts must then fit a batch, hence `max_num_batched_tokens`.
    - `block_size=32`: prefixes are cached in whole blocks, and the CPU's default of 128 tokens is
      longer than many a turn. 32 is the smallest that CPU attention takes.

    Args:
        max_context: Tokens of the longest prompt plus completion.
    """
    from trl.generation import vllm_generation
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    original = vllm_generation.LLM

    if on_cpu:
        _compile_nothing_under_a_path_with_spaces()

    def build(**kwargs: Any) -> Any:
        # vLLM 0.31: an engine that was dropped takes the process groups down when it is collected,
        # those of an engine made meanwhile included.
        gc.collect()
        if on_cpu:
            kwargs.update(
                dtype="float32",
                enforce_eager=True,
                enable_chunked_prefill=False,
                block_size=32,
                max_num_batched_tokens=max(kwargs.get("max_num_batched_tokens") or 0, max_context),
            )
        if kwargs.get("max_num_seqs") and kwargs.get("max_num_batched_tokens"):
            kwargs["max_num_seqs"] = min(kwargs["max_num_seqs"], kwargs["max_num_batched_tokens"])
        return original(**kwargs)

    vllm_generation.LLM = build
    try:
        yield
    finally:
        vllm_generation.LLM = original
