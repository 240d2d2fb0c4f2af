"""Prices from the book, with flags over the roles file."""

from __future__ import annotations

import pytest

from agentgym.cli import build_parser
from agentgym.cli._endpoints import RunEndpoints, endpoints_table
from agentgym.errors import ConfigError

ROLES = """
[policy]
base_url = "http://localhost:8000/v1"
model = "mine"

[judge]
base_url = "https://api.deepinfra.com/v1/openai"
model = "deepseek-ai/DeepSeek-V4-Flash-0731"
prices = "book"
"""


@pytest.fixture
def endpoints(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "roles.toml"
    path.write_text(ROLES, encoding="utf-8")

    def read(*flags: str) -> RunEndpoints:
        words = ["rollout", "--env", "agentgym/WebShop-v0", "--roles", str(path), *flags]
        return RunEndpoints(build_parser().parse_args(words))

    return read


def test_the_row_is_shown_with_the_endpoints(endpoints):
    shown = endpoints_table(endpoints().roles)
    assert "$0.08 in, 0.016 cached, 0.18 out per Mtok (price book: DeepSeek-V4-Flash-0731)" in shown


def test_another_model_by_flag_has_its_own_row(endpoints):
    judge = endpoints("--judge-model", "zai-org/GLM-5.1").roles.judge
    assert (judge.prices.input, judge.prices.book) == (1.05, "GLM-5.1")


def test_another_model_by_flag_without_a_row_is_refused(endpoints):
    with pytest.raises(ConfigError, match="judge: prices: no price for the model 'foo/bar'"):
        endpoints("--judge-model", "foo/bar")


def test_another_server_by_flag_has_its_own_price(endpoints):
    """As in the file: the row is the provider's, and another one may ask another price."""
    with pytest.raises(ConfigError, match=r"judge: prices: .* and localhost may ask another price"):
        endpoints("--judge-url", "http://localhost:8001/v1")
    same = endpoints("--judge-url", "https://api.deepinfra.com/v2").roles.judge
    assert same.prices.book == "DeepSeek-V4-Flash-0731"
    assert endpoints("--judge-key-env", "K").roles.judge.prices == same.prices


def test_a_row_that_was_named_holds_whatever_the_server(endpoints, tmp_path):
    file = tmp_path / "roles.toml"
    named = ROLES.replace('"book"', '"GLM-5.1"').replace("api.deepinfra.com", "gateway.example")
    file.write_text(named, encoding="utf-8")
    judge = endpoints("--judge-url", "http://localhost:8001/v1").roles.judge
    assert judge.prices.book == "GLM-5.1"
