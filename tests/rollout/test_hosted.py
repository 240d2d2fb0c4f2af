"""Models that an environment's parameters name: their keys are looked for before anybody plays."""

from __future__ import annotations

from typing import Any

import pytest

from agentgym.client import Endpoint
from agentgym.clients import ScriptedClient
from agentgym.clients.connect import connecting_by
from agentgym.errors import ConfigError
from agentgym.rollout import Engine, EpisodeRequest

JUDGE = {"base_url": "http://localhost:1/v1", "model": "j", "api_key_env": "NOT_THERE_KEY"}


def engine(client: ScriptedClient, **kwargs: Any) -> Engine:
    return Engine("agentgym/SupportDesk-v0", env_kwargs={"max_turns": 1, **kwargs}, client=client)


@pytest.mark.parametrize("role", ["judge", "simulator"])
@pytest.mark.parametrize("form", [dict, Endpoint.model_validate])
def test_a_missing_key_is_named_before_the_policy_is_asked(role, form, monkeypatch):
    monkeypatch.delenv("NOT_THERE_KEY", raising=False)
    policy = ScriptedClient(["Hello."])
    with pytest.raises(ConfigError, match=f"the {role} 'j'.*NOT_THERE_KEY is not set"):
        engine(policy, **{role: form(JUDGE)}).run_blocking([EpisodeRequest(seed=1)])
    assert policy.calls == 0


def test_what_is_not_asked_of_a_server_needs_no_key(monkeypatch):
    monkeypatch.delenv("NOT_THERE_KEY", raising=False)
    user = ScriptedClient(['{"say": "My toaster.", "end": "no"}'], repeat=True)
    playing = engine(ScriptedClient(["Hello."]), simulator=JUDGE)
    with connecting_by(lambda endpoint: user, asks_servers=False):
        (trace,) = playing.run_blocking([EpisodeRequest(seed=1)])
    assert trace.scored, trace.error
    assert user.calls >= 1
