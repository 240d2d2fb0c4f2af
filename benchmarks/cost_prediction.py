"""Is a bill predicted from a handful of episodes within 20 % of what the run then costs?

    python benchmarks/cost_prediction.py --out benchmarks/results/cost_prediction.json

A pilot of 15 episodes is calibrated and predicts a run on other tasks, which is then played and
added up; and each 15 of the run's own episodes predict its others, to see how much of that is luck.
Twice over real HTTP: WebShop with the tiny policy on a real vLLM server (its CPU build),
in token ids and with its prefix cache; and SupportDesk with three paid roles, where the customer
and the judge are servers that answer by a script with lengths that differ from call to call. With
`--training DIR`, the episodes of that training run's first step predict its whole bill, which is
another question: the policy changes meanwhile.

Dollars are tokens at the price book's prices; what is tested are the tokens, the calls and the fit.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from agentgym.client import Completion, Endpoint, Prices, SamplingParams, TokenPath
from agentgym.clients.scripted import ScriptedClient
from agentgym.cost.actual import Pricing, add_up
from agentgym.cost.against import against
from agentgym.cost.bills import EpisodeBill, bills_of
from agentgym.cost.calibrate import calibrate
from agentgym.cost.plan import plan_priced
from agentgym.cost.predict import predict
from agentgym.cost.sample import sample_of
from agentgym.price_book import PriceBook
from agentgym.rollout import Engine, Limits
from agentgym.rollout.plan import plan_requests
from agentgym.rollout.policies import named_policy
from agentgym.rollout.source import EnvSource
from agentgym.testing.quirky import QuirkyServer, answer
from agentgym.traces import TraceWriter
from agentgym.types import Usage

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

WEIGHTS = Path(__file__).parents[1] / "agentgym" / "train" / "tiny" / "weights"
PILOT = 15
POLICY, CUSTOMER, JUDGE = "Qwen3.6-35B-A3B", "GLM-4.7-Flash", "DeepSeek-V4-Flash-0731"


async def play(folder: Path, env: str, tasks: Sequence[str], *, seed: int, **engine: Any) -> Path:
    """Play one episode of each task; returns the folder with the traces."""
    limits = Limits(concurrency=16, init_concurrency=8)
    with TraceWriter(folder / "traces.jsonl") as writer:  # makes the folder
        async with Engine(env, writer=writer, limits=limits, **engine) as playing:
            async for _ in playing.run(plan_requests(tasks, samples=1, seed=seed)):
                pass
    return folder


def compared(pilot: Sequence[EpisodeBill], run: Sequence[EpisodeBill], prices: Prices) -> Any:
    """A pilot's prediction of a run, per role, and what the run has cost.

    Args:
        pilot: Bills of its episodes.
        run: Those of the run.
        prices: What the policy's tokens cost, which no trace tells.
    """
    actual, sample = (
        add_up(run, pricing=_policy_at(prices)),
        sample_of(pilot, pricing=_policy_at(prices)),
    )
    workload = calibrate(
        sample, groups=actual.episodes, group_size=1, steps=1, prices={"policy": prices}
    )
    held = {one.role: one for one in against(plan_priced(workload), actual).roles}
    roles: dict[str, Any] = {}
    for found in predict(sample, actual.episodes):
        usd = actual.usd if found.role == "all" else actual.roles[found.role].usd
        assert usd is not None
        roles[found.role] = {
            "predicted_usd": found.mean,
            "low_usd": found.low,
            "high_usd": found.high,
            "actual_usd": usd,
            "off_by": found.off_by(usd),
            "in_interval": found.low <= usd <= found.high,
        }
        if found.role in held:
            roles[found.role]["actual_over_planned"] = held[found.role].usd_ratio
    return {
        "pilot_episodes": sample.counted,
        "run_episodes": actual.episodes,
        "actual_usd_per_episode": actual.usd_per_episode,
        "roles": roles,
    }


def all_pilots(run: Sequence[EpisodeBill], prices: Prices) -> dict[str, Any]:
    """How often a pilot is right: every block of so many tasks of a run predicts all the others."""
    shuffled = sorted((bill for bill in run if bill.counts), key=lambda bill: shuffle(bill.task))
    found = []
    for begin in range(0, len(shuffled) - PILOT + 1, PILOT):
        block = shuffled[begin : begin + PILOT]
        rest = [*shuffled[:begin], *shuffled[begin + PILOT :]]
        *_, total = compared(block, rest, prices)["roles"].values()
        found.append(total)
    off = [abs(one["off_by"]) for one in found]
    return {
        "pilots": len(found),
        "within_20_percent": sum(each <= 0.2 for each in off),
        "in_interval": sum(one["in_interval"] for one in found),
        "median_off_by": median(off),
        "worst_off_by": max(off),
    }


def both(pilot: Path, run: Path, prices: Prices) -> dict[str, Any]:
    """The pilot that was played, and those that could have been."""
    bills = list(bills_of([run]))
    return {
        **compared(list(bills_of([pilot])), bills, prices),
        "all_pilots": all_pilots(bills, prices),
    }


def _policy_at(prices: Prices) -> Pricing:
    return lambda role, _: prices if role == "policy" else None


def shuffle(text: str) -> bytes:
    """A key to sort by, in an order that has nothing to do with the text."""
    return hashlib.blake2b(text.encode()).digest()


# --- WebShop on vLLM --------------------------------------------------------------------------


@contextmanager
def tiny_server(folder: Path) -> Iterator[str]:
    """The tiny policy behind `vllm serve`; yields the server's root."""
    import vllm_server

    vllm_server._model_folder = lambda: str(WEIGHTS)  # rather than SmolLM2
    server = vllm_server.VllmServer(folder / "vllm.log", context=1024)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


def webshop(folder: Path, episodes: int) -> dict[str, Any]:
    """The tiny policy of the demo, on tasks of the validation split."""
    env_kwargs = {
        "split": "validation", "difficulty": "tiny", "num_products": 240, "page_size": 4,
        "max_turns": 6, "prompt": "", "invalid_action": "silent",
    }  # fmt: skip
    env = EnvSource("agentgym/WebShop-v0", env_kwargs).make()
    tasks = sorted(env.unwrapped.task_ids(), key=shuffle)  # type: ignore[attr-defined]
    env.close()
    prices = PriceBook.load().find(POLICY).prices.model_copy(update={"cached": 0.02})
    with tiny_server(folder) as url:
        endpoint = Endpoint(
            base_url=f"{url}/v1",
            model="smollm2",
            prices=prices,
            tokens=TokenPath(tokenizer=str(WEIGHTS)),
        )
        options = {
            "client": endpoint,
            "env_kwargs": env_kwargs,
            "sampling": SamplingParams(max_tokens=12),
        }
        name = "agentgym/WebShop-v0"
        pilot = asyncio.run(play(folder / "pilot", name, tasks[:PILOT], seed=1, **options))
        rest = tasks[PILOT : PILOT + episodes]
        run = asyncio.run(play(folder / "run", name, rest, seed=2, **options))
        return both(pilot, run, prices)


# --- SupportDesk with three paid roles ---------------------------------------------------------


class CountedPolicy:
    """The env's expert, billed as a model would be: by the length of what it reads and writes."""

    def __init__(self, policy: Any, prices: Prices) -> None:
        self._client = ScriptedClient(policy)
        self._prices = prices

    async def complete(
        self, messages: Sequence[Any], tools: Sequence[Any], sampling: Any, *, session: Any = None
    ) -> Completion:
        """The expert's answer, with a bill; a prefix cache holds the turn before."""
        said = await self._client.complete(messages, tools, sampling, session=session)
        turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        cached = length([messages[: turns[-1]], tools]) // 16 * 16 if turns else 0
        usage = Usage(
            prompt_tokens=length([messages, tools]),
            cached_tokens=cached,
            completion_tokens=length(said.message),
        )
        usage = usage.model_copy(update={"cost_usd": self._prices.cost_usd(usage)})
        return said.model_copy(update={"usage": usage})

    def observe(self, session: str, info: Mapping[str, Any]) -> None:
        """Pass it on."""
        self._client.observe(session, info)

    async def release(self, session: str) -> None:
        """Pass it on."""
        await self._client.release(session)

    async def aclose(self) -> None:
        """Pass it on."""
        await self._client.aclose()


def length(value: Any) -> int:
    """Tokens of something, at four characters each."""
    return len(json.dumps(value, ensure_ascii=False)) // 4


def luck(body: Any, *, of: slice = slice(None)) -> int:
    """0 to 99, from the request's messages or a part of them."""
    asked = json.dumps(body["messages"][of])
    return int.from_bytes(hashlib.blake2b(asked.encode(), digest_size=4).digest()) % 100


def customer(body: Any) -> dict[str, Any]:
    """Says what it wants and knows, agrees to anything, and has had enough after some replies."""
    told = body["messages"][0]["content"]
    known = dict(re.findall(r"- (\w+): (.+)", told))
    replies = sum(message["role"] == "assistant" for message in body["messages"])
    patience = 4 + luck(body, of=slice(1)) // 9  # the task's, 4 to 15
    if not replies:
        (goal,) = re.findall(r"Your goal: You want (.+)", told) or ["help"]
        text = f"I want {goal}"
    elif luck(body) % 2:
        text = "Yes, please go ahead."
    else:
        text = f"It's {known.get('email', 'me')}, order {known.get('order_id', 'unknown')}."
    text += " I would like this to be over soon." * (luck(body) // 25)
    if replies > patience:  # it has said so, and now it goes
        text = ""
    return billed(body, json.dumps({"say": text, "end": "done" if replies >= patience else "no"}))


def judge(body: Any) -> dict[str, Any]:
    """Grades, with a reason of some length."""
    reason = "The agent was polite and to the point. " * (1 + luck(body) // 20)
    return billed(body, json.dumps({"reason": reason, "grounded": 1, "tone": 0.5}))


def billed(body: Any, said: str) -> dict[str, Any]:
    """An answer with the tokens of both sides."""
    usage = {"prompt_tokens": length(body["messages"]), "completion_tokens": length(said)}
    return answer(said, usage=usage)


def supportdesk(folder: Path, episodes: int) -> dict[str, Any]:
    """The expert, with a customer and a judge that are paid for."""
    book = PriceBook.load()
    name = "agentgym/SupportDesk-v0"
    with QuirkyServer(customer) as customers, QuirkyServer(judge) as judges:
        env_kwargs = {
            role: Endpoint(
                base_url=server.url, model=model, role=role, prices=book.find(model).prices
            )
            for role, server, model in (
                ("simulator", customers, CUSTOMER),
                ("judge", judges, JUDGE),
            )
        }
        env = EnvSource(name, env_kwargs).make()
        core: Any = env.unwrapped
        policy = CountedPolicy(named_policy(core, "expert", seed=0), book.find(POLICY).prices)
        options = {"client": policy, "env_kwargs": env_kwargs}
        tasks = sorted(core.task_ids(), key=shuffle)
        pilot = asyncio.run(play(folder / "pilot", name, tasks[:PILOT], seed=1, **options))
        rest = tasks[PILOT : PILOT + episodes]
        run = asyncio.run(play(folder / "run", name, rest, seed=2, **options))
        env.close()
        return both(pilot, run, book.find(POLICY).prices)


def training(folder: Path) -> dict[str, Any]:
    """Of the first step's episodes a pilot predicts what all steps have taken."""
    bills = list(bills_of([folder]))
    start = [bill for bill in bills if bill.kind == "training" and bill.step == 0]
    chosen = sorted(enumerate(start), key=lambda pair: shuffle(f"{pair[1].task}/{pair[0]}"))
    prices = PriceBook.load().find(POLICY).prices
    return {
        "steps": len({bill.step for bill in bills}),
        **compared([bill for _, bill in chosen[:PILOT]], bills, prices),
    }


def main() -> None:
    """Measure and print or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--episodes", type=int, default=150, help="of each run")
    parser.add_argument("--training", type=Path, metavar="DIR", help="folder of a training run")
    parser.add_argument("--without-vllm", action="store_true", help="leave out WebShop")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        found["supportdesk"] = supportdesk(Path(folder) / "supportdesk", options.episodes)
        if not options.without_vllm:
            (Path(folder) / "webshop").mkdir()
            found["webshop_on_vllm"] = webshop(Path(folder) / "webshop", options.episodes)
    if options.training is not None:
        found["training"] = training(options.training)
    text = json.dumps(found, indent=2)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
