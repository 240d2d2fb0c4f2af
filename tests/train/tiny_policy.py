"""A real policy small enough to train in seconds, and an environment it can learn.

The tokenizer is a word list with ChatML control tokens; words are separated by single spaces, and a
space is not a token, so decoding is exact for what the environment reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from agentgym.core import AgentEnv, TextCall
from agentgym.errors import JudgeError
from agentgym.judge import Score
from agentgym.tools import Tool
from agentgym.types import Episode, Message, Task

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ("<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>")
WORDS = ("\n", "system", "user", "assistant", "tool", "say", "again", "yes", "no", "more", "stop")
FILLER = tuple(f"w{i}" for i in range(48))
ENV_ID = "agentgym-tests/Guess-v0"


def make_tokenizer(template: str = CHATML, words: Sequence[str] = (*WORDS, *FILLER)) -> Any:
    """A word-level tokenizer with a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate((*CONTROL, *words))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|[^\s]+"), "removed", invert=True)
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|pad|>",
        unk_token="<|unk|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = template
    return tokenizer


def save_policy(folder: Path, *, seed: int = 0, tied: bool = False) -> Path:
    """A tiny random Llama with its tokenizer: 2 layers, hidden 128, 4 heads of 32.

    Args:
        folder: Where to.
        seed: Of the weights.
        tied: Whether its embeddings are its output layer.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class _YesJudge:
    inline = True

    def __init__(self, unscored: Sequence[str]) -> None:
        self.unscored = unscored

    async def score(self, episode: Episode) -> Score:
        if episode.task.task_id in self.unscored:
            raise JudgeError("no verdict")
        said = "".join(str(turn.message.get("content")) for turn in episode.turns)
        return Score(total=min(said.count("yes") / 4, 1.0), components={"yes": said.count("yes")},
                     completed=episode.terminated, correct=said.count("yes") > 3)  # fmt: skip


class GuessEnv(AgentEnv):
    """Say "yes" often; saying "stop" ends it."""

    option_keys = AgentEnv.option_keys

    def __init__(
        self,
        *,
        tasks: int = 8,
        max_turns: int | None = 3,
        unscored: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(
            tools=[Tool(self.say, inline=True)],
            judge=_YesJudge(unscored),
            max_turns=max_turns,
            gates=(),
            **kwargs,
        )
        self._tasks = tuple(f"guess/{i}" for i in range(tasks))

    def task_ids(self) -> Sequence[str]:
        return self._tasks

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        return Task(task_id=options.get("task_id") or self._tasks[0])

    async def start(self, task: Task) -> Sequence[Message]:
        number = int(task.task_id.rpartition("/")[2])
        return (
            {"role": "system", "content": "say yes"},
            {"role": "user", "content": f"w{number} w{number + 1}"},
        )

    def parse_text(self, text: str) -> Sequence[TextCall]:
        return [TextCall("say", {"text": text})]

    def say(self, text: str) -> str:
        """Say something.

        Args:
            text: What to say.
        """
        if "stop" in text:
            self.finish()
        return "say again\nmore"


if ENV_ID not in gymnasium.registry:
    gymnasium.register(ENV_ID, entry_point=GuessEnv)
