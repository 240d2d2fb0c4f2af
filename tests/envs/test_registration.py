"""Environments are registered as strings, under names that Gymnasium can find from anywhere."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import pytest

import agentgym
from agentgym.core import AgentEnv
from agentgym.envs.registration import ENTRY_POINTS, register_envs

IDS = sorted(ENTRY_POINTS)


@pytest.mark.parametrize("env_id", IDS)
def test_entry_point_is_an_agent_env(env_id: str) -> None:
    module, _, name = ENTRY_POINTS[env_id].partition(":")
    cls = getattr(importlib.import_module(module), name)
    assert issubclass(cls, AgentEnv)


@pytest.mark.parametrize("env_id", IDS)
def test_package_of_an_env_has_a_card(env_id: str) -> None:
    module = ENTRY_POINTS[env_id].partition(":")[0]
    package = Path(agentgym.__file__).parent.parent.joinpath(*module.split(".")).parent
    assert (package / "README.md").is_file()


def test_registering_twice_is_silent() -> None:
    before = dict(gymnasium.registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_envs()
    assert gymnasium.registry == before


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.thorough
def test_module_prefix_registers_in_a_fresh_process(env_id: str) -> None:
    program = f"import gymnasium; env = gymnasium.make('agentgym:{env_id}'); print(env.spec.id)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert result.stdout.strip() == env_id


def test_misspelt_id_is_answered_with_the_right_one() -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match="Did you mean: `WebShop`"):
        gymnasium.make("agentgym/Webshop-v0")


def test_spec_survives_json_without_the_registry() -> None:
    for env_id in IDS:
        spec = gymnasium.spec(env_id)
        assert gymnasium.envs.registration.EnvSpec.from_json(spec.to_json()) == spec


@pytest.mark.thorough
def test_spawned_workers_need_no_registry_of_their_own() -> None:
    envs = gymnasium.make_vec(
        "agentgym/WebShop-v0",
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"context": "spawn", "shared_memory": False},
    )
    try:
        observations, _ = envs.reset(seed=0)
        assert [each[-1]["role"] for each in observations] == ["user", "user"]
    finally:
        envs.close()
