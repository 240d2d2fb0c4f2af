"""Weight syncs against real vLLM servers: what they sample with is what the trainer has.

The second server runs with the plug-in for live weights switched off: it takes every sync without
complaint, and goes on with other weights. Only the comparison of log-probabilities tells.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_policy
from policy_server import CONTEXT, RANK, SERVED_NAME, policy_server

from agentgym.client import Endpoint
from agentgym.train.live_weights import DISABLE_VARIABLE
from agentgym.train.sync import FolderSync, LoraSync, Weights

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

PROMPT = [2 + i * 7 % 50 for i in range(80)]
"""Longer than two blocks of the prefix cache."""
TOLERANCE = 1e-4
"""Nats, per token, in float32."""


@pytest.fixture(scope="module")
def models(tied_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two policies of one shape; the servers start with the first."""
    other = tiny_policy.save_policy(tmp_path_factory.mktemp("other"), seed=1, tied=True)
    return [tied_policy, other]


@pytest.fixture(scope="module")
def servers(
    models: list[Path], live_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """One as it should be, one without the plug-in."""
    options = {"max_context": CONTEXT, "served_name": SERVED_NAME}
    log = tmp_path_factory.mktemp("stale") / "vllm.log"
    with policy_server(models[0], log, environment={DISABLE_VARIABLE: "1"}, **options) as stale:
        yield [live_server, stale]


def endpoint(server: str) -> Endpoint:
    return Endpoint(base_url=f"{server}/v1", model=SERVED_NAME)


def sample(
    server: str, *, model: str = "policy", tokens: int = 16, temperature: float = 0.7
) -> tuple[list[int], list[float]]:
    """Ids and log-probabilities of a continuation of the prompt."""
    asked = {
        "model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": temperature,
        "seed": 0, "logprobs": 0, "return_token_ids": True, "ignore_eos": True,
    }  # fmt: skip
    choice = post(server, "/v1/completions", asked)["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def post(server: str, path: str, body: Any) -> Any:
    request = urllib.request.Request(
        server + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def logprobs(model: Any, ids: Sequence[int], temperature: float = 0.7) -> list[float]:
    """What transformers gives for the ids."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *ids]])).logits[0, len(PROMPT) - 1 : -1]
    found = (logits / temperature).log_softmax(-1)
    return [float(row[token]) for row, token in zip(found, ids, strict=True)]


def gap(weights: Any, server: str, *, model: str = "policy") -> float:
    """The largest difference between a server and a model with some weights, nats."""
    ids, theirs = sample(server, model=model)
    ours = logprobs(weights, ids)
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def weights(model: Any) -> Weights:
    return Weights(model, lambda: ((name, p.data) for name, p in model.named_parameters()))


def test_every_replica_samples_with_the_trainers_weights_or_is_found_out(servers, models, tmp_path):
    live, stale = servers
    old, new = map(load, models)
    sync = FolderSync(tmp_path, shard_bytes=300_000)
    sync.check([endpoint(server) for server in servers])
    sync.push(weights(old), version="0")
    assert gap(old, live) <= TOLERANCE
    assert gap(new, live) > 0.01

    # Loaded by hand, and the prefix cache not reset: the prompt is that of the old weights.
    new.save_pretrained(tmp_path / "by-hand")
    asked = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "by-hand")}}
    post(live, "/collective_rpc", asked)
    assert gap(new, live) > 0.001

    report = sync.push(weights(new), version="1")
    assert report.servers == (live, stale)
    assert not sync.stale()
    assert gap(new, live) <= TOLERANCE
    assert gap(new, live) <= TOLERANCE  # and from the cache
    assert gap(new, stale) > 0.01
    sync.close()


def test_requests_in_flight_change_over_at_one_token(servers, models, tmp_path):
    live = servers[0]
    old, new = map(load, models)
    sync = FolderSync(tmp_path, in_flight="through")
    sync.check([endpoint(live)])
    sync.push(weights(old), version="0")
    found: list[tuple[list[int], list[float]]] = []
    threads = [
        threading.Thread(target=lambda: found.append(sample(live, tokens=400))) for _ in range(4)
    ]
    before = _generated(live)
    for thread in threads:
        thread.start()
    while _generated(live) < before + 40:
        assert any(thread.is_alive() for thread in threads)
    sync.push(weights(new), version="1")
    for thread in threads:
        thread.join()
    assert len(found) == 4
    changed = 0
    for ids, theirs in found:
        assert len(ids) == 400
        as_old, as_new = logprobs(old, ids), logprobs(new, ids)
        is_old = [abs(a - b) <= TOLERANCE for a, b in zip(as_old, theirs, strict=True)]
        is_new = [abs(a - b) <= TOLERANCE for a, b in zip(as_new, theirs, strict=True)]
        at = is_old.index(False) if False in is_old else len(ids)
        assert all(is_new[at:])
        changed += 0 < at < len(ids)
    assert changed


def test_adapters_are_served_under_their_versions(servers, models, tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model

    live = servers[0]
    base = load(models[0])
    folder = FolderSync(tmp_path / "base")
    folder.check([endpoint(live)])
    folder.push(weights(base), version="0")
    model = get_peft_model(
        base, LoraConfig(r=RANK, target_modules="all-linear", init_lora_weights=False)
    ).eval()
    sync = LoraSync(tmp_path / "adapters", rank=RANK)
    sync.check([endpoint(live)])
    first = sync.push(Weights(model, dict), version="1")
    assert first.model == "policy@1"
    assert gap(model, live, model="policy@1") <= TOLERANCE
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.mul_(-2)
    sync.push(Weights(model, dict), version="2")
    assert gap(model, live, model="policy@2") <= TOLERANCE
    assert gap(model, live, model="policy@1") > 0.01
    with model.disable_adapter():
        assert gap(model, live) <= TOLERANCE
    sync.close()


def _generated(server: str) -> float:
    """Tokens that a server has sampled since it was started."""
    with urllib.request.urlopen(f"{server}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    counts = [line.split()[-1] for line in lines if line.startswith("vllm:generation_tokens_total")]
    return sum(map(float, counts))
