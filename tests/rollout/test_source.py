"""EnvSource: ids, and modules that register them."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import pytest

from agentgym.errors import ConfigError
from agentgym.rollout.source import EnvSource

MODULE = """
import gymnasium

from agentgym.testing.envs import CounterEnv


class {name}(CounterEnv):
    pass


gymnasium.register("mine/{name}-v0", entry_point="{module}:{name}")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, which isn't importable; modules and ids are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    elsewhere = [p for p in sys.path if p and Path(p).resolve() != tmp_path.resolve()]
    monkeypatch.setattr(sys, "path", elsewhere)
    modules, ids = set(sys.modules), set(gymnasium.registry)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if "agentgym" not in name:
            del sys.modules[name]
    for env_id in set(gymnasium.registry) - ids:
        del gymnasium.registry[env_id]


def test_module_of_the_current_directory_is_imported_for_its_env(folder):
    (folder / "hilo_a.py").write_text(MODULE.format(name="HiLo", module="hilo_a"))
    env = EnvSource("hilo_a:mine/HiLo-v0").make()
    assert type(env.unwrapped).__module__ == "hilo_a"
    assert '"mine/HiLo-v0"' in EnvSource("hilo_a:mine/HiLo-v0").spec_json
    assert sys.path[0] == str(Path.cwd())
    env.close()


def test_module_in_a_package(folder):
    (folder / "hilo_b").mkdir()
    (folder / "hilo_b" / "game.py").write_text(MODULE.format(name="HiLo", module="hilo_b.game"))
    EnvSource("hilo_b.game:mine/HiLo-v0").make().close()


def test_importable_module_leaves_the_path_alone(folder):
    before = list(sys.path)
    EnvSource("agentgym.envs:agentgym/WebShop-v0")
    assert sys.path == before


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("hilo_none:mine/HiLo-v0", "can't import 'hilo_none'.*No module named 'hilo_none'"),
        ("hilo_c:mine/HiLo-v0", "can't import 'hilo_c'.*No module named 'not_installed'"),
        ("hilo_d:mine/HiLo-v0", "can't import 'hilo_d'.*ZeroDivisionError"),
        (":mine/HiLo-v0", "can't import ''"),
        ("hilo_e:mine/HiLow-v0", "no env 'mine/HiLow-v0' in 'hilo_e'; did you mean 'mine/HiLo-v0'"),
    ],
)
def test_module_that_does_not_help_is_named(folder, env_id, message):
    (folder / "hilo_c.py").write_text("import not_installed")
    (folder / "hilo_d.py").write_text("1 / 0")
    (folder / "hilo_e.py").write_text(MODULE.format(name="HiLo", module="hilo_e"))
    with pytest.raises(ConfigError, match=message) as caught:
        EnvSource(env_id)
    assert "\n" not in str(caught.value)
