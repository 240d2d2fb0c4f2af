"""Policies that are asked in token ids, by the service."""

from __future__ import annotations

import pytest
from serving import COUNTER, Client, job, serving
from token_policy import counter_server, saved_tokenizer

from agentgym.client import Endpoint, TokenPath
from agentgym.errors import ConfigError
from agentgym.serve import allowed as allowed_module
from agentgym.serve.allowed import Allowed
from agentgym.serve.faults import ServiceFault


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return saved_tokenizer(folder)


def endpoint(url, tokenizer, **fields):
    tokens = {"tokenizer": str(tokenizer), **fields}
    return {"base_url": url, "model": "policy", "tokens": tokens}


def asked(tokenizer, **fields):
    path = TokenPath(tokenizer=str(tokenizer), **fields)
    return Endpoint(base_url="http://localhost:1/v1", model="policy", tokens=path)


async def test_traces_of_a_job_hold_the_ids(tokenizer, folder):
    allowed = Allowed(envs=(COUNTER,), tokenizers=(str(folder),))
    async with (
        counter_server(tokenizer) as policy,
        serving(allowed=allowed) as server,
        Client(server.url) as client,
    ):
        policies = {"endpoints": [endpoint(policy.url, folder)]}
        body = {**job(policy.url), "policy": policies, "sampling": {"max_tokens": 400}}
        status, told = await client.ask("POST", "/v1/jobs", body)
        assert status == 201, told
        found, _ = await client.until_over(told["job_id"])
    turns = [turn for item in found for turn in item["trace"]["turns"]]
    sent = {tuple(request["prompt"]) for request in policy.requests}
    assert turns
    assert {tuple(turn["prompt_ids"]) for turn in turns} == sent
    assert all(len(turn["completion_ids"]) == len(turn["logprobs"]) for turn in turns)


@pytest.mark.parametrize("name", ["/etc", "someone/model", "."])
async def test_tokenizer_that_is_not_allowed_is_refused_unseen(name, folder, monkeypatch):
    def load(name):
        raise AssertionError(f"{name} was looked at")

    monkeypatch.setattr(allowed_module, "load_tokenizer", load)
    allowed = Allowed(envs=(COUNTER,), tokenizers=(str(folder),))
    async with serving(allowed=allowed) as server, Client(server.url) as client:
        for way, path in (("jobs", "/v1/jobs"), ("pool", "/v1/policies/p/endpoints")):
            endpoints = {"endpoints": [endpoint("http://127.0.0.1:1/v1", name)]}
            body = {**job(""), "policy": endpoints} if way == "jobs" else endpoints
            status, told = await client.ask("POST", path, body)
            assert status == 403, told
            assert "start it with --allow-tokenizer" in str(told)
            assert name == "." or name not in str(told)


def test_no_tokenizer_is_allowed_unless_it_is_said(folder):
    with pytest.raises(ServiceFault, match=r"only tokenizers that it is told to \(none\)"):
        Allowed().endpoint(asked(folder), where="endpoints.0")


@pytest.mark.parametrize("almost", ["{}/", "{}/.", "{}/../x", " {}"])
def test_tokenizers_are_matched_whole(folder, almost):
    allowed = Allowed(tokenizers=(str(folder),))
    with pytest.raises(ServiceFault, match="only tokenizers that it is told to"):
        allowed.endpoint(asked(almost.format(folder)), where="endpoints.0")


def test_simulators_and_judges_are_held_to_the_same(folder):
    kwargs = {"judge": asked(folder).model_dump(mode="json", exclude_unset=True)}
    with pytest.raises(ServiceFault, match=r"env_kwargs\.judge\.tokens\.tokenizer"):
        Allowed().env_kwargs(COUNTER, kwargs)


def test_tokenizer_that_cannot_be_loaded_is_told_without_a_why(tmp_path, caplog):
    allowed = Allowed(tokenizers=(str(tmp_path),))
    with pytest.raises(ServiceFault, match="its log says why") as caught:
        allowed.endpoint(asked(tmp_path), where="endpoints.0")
    assert caught.value.status == 422
    assert "a folder with a tokenizer's files" in caplog.text


@pytest.mark.parametrize(
    "kwargs", [{"api_key": "sk-123456789"}, {"a": {"b": [{"hub_token": "hf_123456789"}]}}]
)
def test_secret_for_the_template_is_refused_and_not_repeated(folder, kwargs):
    allowed = Allowed(tokenizers=(str(folder),))
    with pytest.raises(ServiceFault, match="named like a secret") as caught:
        allowed.endpoint(asked(folder, template_kwargs=kwargs), where="endpoints.0")
    assert "123456789" not in str(caught.value)


def test_caller_brings_no_chat_template():
    with pytest.raises((ConfigError, ValueError), match="may not set chat_template"):
        asked("t", template_kwargs={"chat_template": "{{ 1 }}"})
