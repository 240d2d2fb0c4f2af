"""What a turn costs the client, asked in token ids and asked in messages.

    python benchmarks/token_wire.py

The same conversations, side by side in one run: an opening of 2,000 tokens, then turns of 400
sampled tokens and 400 of a tool's result (facts of the reference run). The server is a process of
its own and answers at once. CPU is this process's, per turn, all in: rendering and tokenising,
request, HTTP, reply. `writes all` is the same client without what keeps the cost
flat over an episode: it writes every prompt anew and decodes the prompt that replies repeat.

Takes about a minute on two cores; needs the training extra for a tokenizer.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from aiohttp import web
from measuring import RESULTS, setting, table, write

from agentgym.client import Endpoint, SamplingParams, TokenPath
from agentgym.clients import ChatClient
from agentgym.clients.written import Written

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "r", "st", "lo")]
OPENING, SAMPLED, RESULT = 2000, 400, 400
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer(folder: Path) -> Any:
    """One token per word of the conversations."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def text_of(tokens: int, seed: int) -> str:
    """So many words."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(tokens))


def serve(ids: list[int], text: str, port: Any) -> None:
    """Answer every request with the same sampled tokens, on a free port."""
    names = [f"token_id:{token}" for token in ids]
    logprobs = [-0.123456789 - k / 1000 for k in range(len(ids))]
    top = [{name: logprob} for name, logprob in zip(names, logprobs, strict=True)]
    usage = {"prompt_tokens": 1, "completion_tokens": len(ids), "total_tokens": len(ids) + 1}
    said = {"role": "assistant", "content": text}
    chat = json.dumps({"choices": [{"message": said, "finish_reason": "stop"}], "usage": usage})
    choice = {
        "index": 0, "text": text, "finish_reason": "stop", "stop_reason": ids[-1],
        "token_ids": ids, "logprobs": {
            "text_offset": list(range(len(ids))), "token_logprobs": logprobs, "tokens": names,
            "top_logprobs": top,
        },
    }  # fmt: skip
    begin = json.dumps(choice, separators=(",", ":"))[:-1].encode() + b',"prompt_token_ids":'
    end = b'}],"usage":' + json.dumps(usage).encode() + b"}"

    async def completion(request: web.Request) -> web.Response:
        body = await request.read()
        at = body.index(b'"prompt":') + len(b'"prompt":')
        prompt = body[at : body.index(b"]", at) + 1]
        data = b'{"choices":[' + begin + prompt + end
        return web.Response(body=data, content_type="application/json")

    async def message(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=chat, content_type="application/json")

    async def run() -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/completions", completion)
        app.router.add_post("/v1/chat/completions", message)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.put(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


async def episodes(client: ChatClient, turns: int, count: int) -> float:
    """CPU milliseconds of this process per turn."""

    async def one(number: int) -> None:
        history: list[Any] = [{"role": "user", "content": openings[number + 1]}]
        for turn in range(turns):
            answer = await client.complete(history, (), SamplingParams(), session=str(number))
            result = {"role": "user", "content": results[(number + turn) % len(results)]}
            history += [answer.message, result]
        await client.release(str(number))

    openings = [text_of(OPENING, number) for number in range(-1, count)]
    results = [text_of(RESULT, -k) for k in range(8)]
    await one(-1)  # what is only done once
    gc.collect()
    begun = time.process_time()
    for number in range(0, count, 8):
        await asyncio.gather(*(one(n) for n in range(number, min(count, number + 8))))
    return (time.process_time() - begun) / (turns * count) * 1e3


def writing_all(client: ChatClient) -> ChatClient:
    """The same client without what it keeps of a session's JSON, decoding replies whole."""
    wire: Any = client._wire

    def written(session: str | None, ids: tuple[int, ...]) -> Written:
        return Written([json.dumps(list(ids), separators=(",", ":")).encode()])

    wire._written.of = written
    wire.trimmed = lambda data, question: data
    return client


async def measure(url: str, folder: Path, turns: int, count: int, rounds: int) -> dict[str, float]:
    """The best of some rounds, by way of asking: others compute on this machine, too."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        path = TokenPath(tokenizer=str(folder), max_context=10**9)
        asked = Endpoint(base_url=url, model="m", tokens=path)
        clients = {
            "messages": ChatClient(Endpoint(base_url=url, model="m")),
            "ids": ChatClient(asked),
            "ids, writes all": writing_all(ChatClient(asked)),
        }
        for name, client in clients.items():
            took = await episodes(client, turns, count)
            best[name] = min(took, best.get(name, took))
            await client.aclose()
    return best


def main() -> None:
    """Measure, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = make_tokenizer(Path(folder))
        text = text_of(SAMPLED - 1, 0)
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        context = multiprocessing.get_context("spawn")
        port = context.Queue()
        server = context.Process(target=serve, args=(ids, text, port), daemon=True)
        server.start()
        url = f"http://127.0.0.1:{port.get(timeout=60)}/v1"
        for turns, count in ((5, 48), (30, 8), (100, 2)):
            best = asyncio.run(measure(url, Path(folder), turns, count, args.rounds))
            rows.append({"turns": turns, "last_prompt_tokens": OPENING + (turns - 1) * 800, **best})
        server.terminate()
        server.join()
    names = ["messages", "ids", "ids, writes all"]
    lines = [
        [row["turns"], f"{row['last_prompt_tokens']:,}", *(f"{row[n]:.2f}" for n in names)]
        for row in rows
    ]
    head = ["turns", "tokens of the last prompt", *(f"{name}, ms of CPU a turn" for name in names)]
    text = f"# What asking in token ids costs\n\n{table(head, lines)}\n"
    facts: dict[str, Any] = {
        "sampled": SAMPLED,
        "result": RESULT,
        "opening": OPENING,
        "rounds": args.rounds,
    }
    facts["load_average"] = round(os.getloadavg()[0], 1)  # CPU time grows with company
    write(args.out, "token_wire", {"setting": setting(**facts), "rows": rows}, text)
    print(text)


if __name__ == "__main__":
    main()
