"""`agentgym serve`: what it is told, and what it says when that won't do."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from agentgym.cli import build_parser, main
from agentgym.cli._serve import read_config_of, welcome
from agentgym.errors import ConfigError


def config_of(*argv):
    return read_config_of(build_parser().parse_args(["serve", *argv]))


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.delenv("AGENTGYM_SERVICE_TOKEN", raising=False)


def test_without_flags_it_is_for_this_machine_and_keeps_jobs():
    config = config_of()
    assert (config.host, config.port, config.store) == ("127.0.0.1", 8800, Path("runs/service.db"))
    assert not config.tokens
    assert config.allowed.policy_hosts == ("loopback",)


def test_tokenizers_are_allowed_one_by_one():
    assert config_of().allowed.tokenizers == ()
    config = config_of("--allow-tokenizer", "/models/p", "--allow-tokenizer", "org/model")
    assert config.allowed.tokenizers == ("/models/p", "org/model")


def test_flags_go_before_the_file(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(
        'port = 9000\nstore = "x.db"\n[limits]\nconcurrency = 7\neval_concurrency = 3\n'
        '[allowed]\npolicy_hosts = ["10.0.0.0/8"]\n[quota]\nopen_jobs = 2\n'
        '[judge]\nbase_url = "https://api.example.com/v1"\nmodel = "j"\napi_key_env = "J_KEY"\n'
    )
    config = config_of(
        *("--config", str(file), "--concurrency", "9", "--env", "agentgym/WebShop-v0"),
        *("--key", "J_KEY=api.example.com", "--key", "J_KEY=b.example.com", "--port", "0"),
    )
    assert (config.port, config.store) == (0, Path("x.db"))
    assert (config.limits.concurrency, config.limits.eval_concurrency) == (9, 3)
    assert config.allowed.envs == ("agentgym/WebShop-v0",)
    assert config.allowed.policy_hosts == ("10.0.0.0/8",)
    assert config.allowed.keys == {"J_KEY": ("api.example.com", "b.example.com")}
    assert config.tokens.named("anybody").quota.open_jobs == 2
    assert config.roles.judge.model == "j"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--host", "0.0.0.0"], "AGENTGYM_SERVICE_TOKEN"),
        (["--port", "70000"], "port"),
        (["--concurrency", "0"], "concurrency"),
        (["--key", "J_KEY"], "VAR=HOST"),
        (["--token-file", "/nonexistent/t.toml"], "can't read /nonexistent/t.toml"),
        (["--config", "/nonexistent/s.toml"], "can't read /nonexistent/s.toml"),
    ],
)
def test_what_will_not_do_is_one_line(argv, told, capsys):
    assert main(["serve", *argv]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot = 1\n", "did you mean 'port'"),
        ("[limits]\nconcurency = 1\n", "did you mean 'concurrency'"),
        ("[limits]\nconcurrency = -1\n", "concurrency"),
        ("limits = 3\n", "must be a table"),
        ("port = \n", "not valid TOML"),
    ],
)
def test_slips_in_the_file_are_told(tmp_path, text, told):
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told):
        config_of("--config", str(file))


def test_a_cluster_without_ray_is_refused_at_the_start(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    store = tmp_path / "s.db"
    assert main(["serve", "--ray", "--port", "0", "--store", str(store)]) == 1
    assert "agentgym-envs[ray]" in capsys.readouterr().err
    assert not store.exists()


def test_port_in_use_is_one_line_and_leaves_nothing(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        store = tmp_path / "s.db"
        assert main(["serve", "--port", str(port), "--store", str(store)]) == 1
    assert capsys.readouterr().err == (
        f"agentgym: error: port {port} on 127.0.0.1 is in use; choose another one, 0 takes a "
        "free one\n"
    )
    assert not store.exists()


def test_welcome_says_where_how_many_and_for_whom_without_a_token(monkeypatch):
    monkeypatch.setenv("AGENTGYM_SERVICE_TOKEN", "very-secret-0123456789")
    text = welcome(config_of("--concurrency", "12"), "http://127.0.0.1:8800")
    assert "http://127.0.0.1:8800" in text
    assert "12 RUN" in text
    assert "tokens of default" in text
    assert "very-secret" not in text


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:8800"), ("::", "http://[::1]:8800")],
)
def test_welcome_of_all_interfaces_names_addresses_that_can_be_called(host, url, monkeypatch):
    monkeypatch.setenv("AGENTGYM_SERVICE_TOKEN", "very-secret-0123456789")
    monkeypatch.setattr("agentgym.cli._serve.gethostname", lambda: "node7")
    text = welcome(config_of("--host", host), url)
    assert f"agentgym serves at {url} " in text
    assert f"on all interfaces ({host}); from other machines: http://node7:8800\n" in text
    assert f"http://{host}" not in text


def test_welcome_of_one_interface_names_that_alone():
    text = welcome(config_of(), "http://127.0.0.1:8800")
    assert "other machines" not in text


def test_help_teaches(capsys):
    assert main(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    for word in ("curl", "--policy-host", "AGENTGYM_SERVICE_TOKEN", "--store", "Examples"):
        assert word in text
