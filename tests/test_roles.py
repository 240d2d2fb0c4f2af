"""One file for all roles: what it takes, what it refuses and how it says so."""

from __future__ import annotations

import re

import pytest

from agentgym.client import Endpoint
from agentgym.errors import ConfigError
from agentgym.roles import Roles, needs_key, read_endpoint

FILE = """
[policy]
base_url = "http://localhost:8000/v1/"
model = "mine"

[judge]
base_url = "https://judge.example/v1"
model = "big"
api_key_env = "JUDGE_KEY"
prices = {input = 0.08, cached = 0.016, output = 0.18}
budget_usd = 5
rate = {requests_per_minute = 600}
dialect = {temperature = false}
"""


@pytest.fixture
def roles_file(tmp_path):
    def write(text: str):
        path = tmp_path / "roles.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_one_file_fills_the_roles_it_names(roles_file):
    roles = Roles.from_toml(roles_file(FILE))
    assert list(roles.filled()) == ["policy", "judge"]
    assert roles.simulator is None
    assert (roles.policy.role, roles.judge.role) == ("policy", "judge")
    assert roles.policy.base_url == "http://localhost:8000/v1"
    assert (roles.judge.prices.cached, roles.judge.budget_usd) == (0.016, 5)
    assert (roles.judge.rate.requests_per_minute, roles.judge.dialect.temperature) == (600, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[judges]\nmodel='m'", r"unknown table 'judges'; did you mean 'judge'\?"),
        ("[x]", "unknown table 'x'; there are policy, simulator, judge, baseline"),
        ("model='m'", "unknown table 'model'"),
        ("[judge]\nbase_url='http://h/v1'", r"\[judge\]: model: is missing"),
        ("[judge]\nbase_url='http://h/v1'\nmodel=''", r"\[judge\]: model: .*at least 1 character"),
        (
            "[judge]\nbase_url='http://h/v1'\nmodel='m'\nextra_body={since=2026-01-01}",
            r"\[judge\]: extra_body: must be what JSON can hold: .*date is not",
        ),
        (
            "[judge]\nbase_url='http://h/v1'\nmodel='m'\nextra_body={top_a=nan}",
            r"\[judge\]: extra_body: must be what JSON can hold: ",
        ),
        (
            "[judge]\nbase_url='http://h/v1'\nmodle='m'\nmodel='m'",
            r"\[judge\]: unknown field 'modle'; did you mean 'model'\?",
        ),
        (
            "[judge]\nbase_url='http://h/v1'\nmodel='m'\nprices={input=1, outptu=2}",
            r"prices.output: is missing; prices: unknown field 'outptu'; did you mean 'output'\?",
        ),
        ("[judge]\nbase_url='h/v1'\nmodel='m'", "base_url: base_url must start with http://"),
        ("[judge]\nbase_url='http://h/v1'\nmodel=3", r"model: .*string \(got 3\)"),
        (
            "[judge]\nbase_url='http://h/v1'\nmodel='m'\nmax_concurrency=0",
            r"max_concurrency: .*greater than or equal to 1 \(got 0\)",
        ),
        (
            "[judge]\nbase_url='http://h/v1'\nmodel='m'\nbudget_usd=5",
            r"\[judge\]: budget_usd needs prices",
        ),
        (
            "[judge]\nbase_url='http://h/v1'\nmodel='m'\nprices={input=-1, output=2}",
            r"prices.input: .*greater than or equal to 0 \(got -1\)",
        ),
        (
            "[judge]\nbase_url='http://h/v1'\nmodel='m'\nprices={input=nan, output=2}",
            r"prices.input: .*(finite|nan)",
        ),
        ("[judge]\nbase_url='http://h/v1'\nmodel='m'\nrole='policy'", "role: is 'judge' here"),
        ("judge = 3", r"\[judge\] must have the fields of an endpoint"),
        ("[judge]\nmodel = ", "not valid TOML: .*line 2"),
    ],
)  # fmt: skip
def test_refusal_names_file_table_and_field(roles_file, text, message):
    path = roles_file(text)
    with pytest.raises(ConfigError, match=message) as caught:
        Roles.from_toml(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"can't read .*none.toml: No such file"):
        Roles.from_toml(tmp_path / "none.toml")


def test_a_file_from_an_editor_that_marks_its_encoding_is_read(tmp_path):
    path = tmp_path / "roles.toml"
    path.write_text(FILE, encoding="utf-8-sig")
    assert list(Roles.from_toml(path).filled()) == ["policy", "judge"]


def test_a_key_in_place_of_its_variables_name_is_refused_unshown():
    values = {"base_url": "http://h/v1", "model": "m", "api_key_env": "sk-live-12345678"}
    with pytest.raises(ConfigError, match="api_key_env: must be the name of") as caught:
        read_endpoint(values)
    assert "12345678" not in str(caught.value)


def test_errors_show_no_secret():
    values = {"base_url": "ftp://user:hunter22@h/v1", "model": "m", "extra_body": ["sk-12345678"]}
    with pytest.raises(ConfigError) as caught:
        read_endpoint(values)
    shown = f"{caught.value}{caught.value.__cause__}"
    assert "hunter22" not in shown
    assert "sk-12345678" not in shown


def test_roles_from_the_environment():
    environ = {
        "AGENTGYM_POLICY_BASE_URL": "http://localhost:1/v1",
        "AGENTGYM_POLICY_MODEL": "p",
        "AGENTGYM_JUDGE_BASE_URL": "https://h/v1",
        "AGENTGYM_JUDGE_MODEL": "j",
        "AGENTGYM_JUDGE_API_KEY_ENV": "K",
        "AGENTGYM_SIMULATOR_MODEL": "",
    }
    roles = Roles.from_environ(environ)
    assert list(roles.filled()) == ["policy", "judge"]
    assert (roles.judge.model, roles.judge.api_key_env, roles.judge.role) == ("j", "K", "judge")
    assert Roles.from_environ({}) == Roles()


def test_half_an_endpoint_in_the_environment_is_refused():
    with pytest.raises(ConfigError, match="AGENTGYM_JUDGE_MODEL is not set, but .*_BASE_URL is"):
        Roles.from_environ({"AGENTGYM_JUDGE_BASE_URL": "http://h/v1"})


@pytest.mark.parametrize(
    ("url", "fields", "needed"),
    [
        ("http://localhost:8000/v1", {}, False),
        ("http://127.0.0.1/v1", {}, False),
        ("http://[::1]:8000/v1", {}, False),
        ("http://10.0.0.7/v1", {}, False),
        ("http://192.168.1.2/v1", {}, False),
        ("http://gpu-7:8000/v1", {}, False),
        ("http://gpu.cluster.local/v1", {}, False),
        ("http://localhost:8000/v1", {"api_key_env": "K"}, True),
        ("https://api.example.com/v1", {}, True),
        ("http://8.8.8.8/v1", {}, True),
        ("https://me:secret-pw@api.example.com/v1", {}, False),
    ],
)
def test_key_is_needed_where_named_and_on_the_public_internet(url, fields, needed):
    assert needs_key(Endpoint(base_url=url, model="m", **fields)) is needed


def test_missing_key_is_named_with_its_role(roles_file):
    roles = Roles.from_toml(roles_file(FILE))
    roles.check_keys({"JUDGE_KEY": "k"})
    for environ in ({}, {"JUDGE_KEY": "  "}):
        with pytest.raises(ConfigError, match="the judge 'big' at .* variable JUDGE_KEY"):
            roles.check_keys(environ)


def test_dump_and_repr_have_no_secrets():
    endpoint = Endpoint(
        base_url="https://u:hunter22@h/v1?key=sk-12345678",
        model="m",
        role="judge",
        extra_body={"top_k": 3, "auth": {"a": 1}, "options": [{"api_key": "sk-12345678"}]},
    )
    roles = Roles(judge=endpoint)
    for shown in (repr(roles), str(roles.public())):
        assert not re.search("hunter22|sk-12345678", shown)
    public = roles.public()["judge"]
    assert public["extra_body"] == {
        "top_k": 3,
        "auth": "[redacted]",
        "options": [{"api_key": "[redacted]"}],
    }
    assert Endpoint(**public).role == "judge"


def test_public_form_has_what_differs_from_the_defaults():
    endpoint = Endpoint(base_url="http://h/v1", model="m", max_concurrency=3)
    assert endpoint.public() == {
        "base_url": "http://h/v1",
        "model": "m",
        "role": "policy",
        "max_concurrency": 3,
    }


# --- several servers of one policy --------------------------------------------------------------


@pytest.mark.parametrize(
    "table",
    [
        'base_url = ["http://a:1/v1", "http://b:2/v1/"]\nmodel = "m"\n',
        'base_url = "http://a:1/v1"\nreplicas = ["http://b:2/v1"]\nmodel = "m"\n',
        'replicas = ["http://a:1/v1", "http://b:2/v1"]\nmodel = "m"\n',
        """model = "m"
        [[policy.replicas]]
        base_url = "http://a:1/v1"
        [[policy.replicas]]
        base_url = "http://b:2/v1"
        """,
    ],
    ids=["urls", "further", "list", "tables"],
)
def test_a_policy_may_have_several_servers(roles_file, table):
    roles = Roles.from_toml(roles_file(f"[policy]\n{table}"))
    assert [server.base_url for server in roles.policy_servers] == [
        "http://a:1/v1",
        "http://b:2/v1",
    ]
    assert {server.model for server in roles.policy_servers} == {"m"}
    assert roles.filled() == {"policy": roles.policy_servers[0]}
    assert roles.public()["replicas"][0]["base_url"] == "http://b:2/v1"


def test_a_replica_may_differ_from_the_others(roles_file):
    path = roles_file(
        '[policy]\nbase_url = "http://a:1/v1"\nmodel = "m"\nmax_concurrency = 8\n'
        'replicas = [{base_url = "http://b:2/v1", max_concurrency = 32}]\n'
    )
    assert [s.max_concurrency for s in Roles.from_toml(path).policy_servers] == [8, 32]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("base_url = []", r"\[policy\]: base_url is an empty list; name at least one server"),
        ('base_url = ["http://a", "http://a/"]', r"\[policy\]: http://a is there twice"),
        ("replicas = 3", "replicas must be a list of URLs or tables"),
        ('replicas = ["ftp://a"]', "base_url must start with http:// or https://"),
        ('replicas = [{base_url = "http://a", modle = "m"}]', "did you mean 'model'"),
    ],
)
def test_wrong_replicas_are_one_line(roles_file, table, message):
    with pytest.raises(ConfigError, match=message) as failure:
        Roles.from_toml(roles_file(f'[policy]\nmodel = "m"\n{table}\n'))
    assert "\n" not in str(failure.value)


def test_only_a_policy_has_several_servers(roles_file):
    path = roles_file('[judge]\nmodel = "m"\nbase_url = ["http://a", "http://b"]\n')
    with pytest.raises(ConfigError, match=r"\[judge\]: base_url"):
        Roles.from_toml(path)


def test_key_of_every_replica_must_be_there():
    roles = Roles.from_tables(
        {
            "policy": {
                "model": "m",
                "replicas": [
                    {"base_url": "http://localhost/v1"},
                    {"base_url": "http://a.example/v1", "api_key_env": "OTHER_KEY"},
                ],
            }
        }
    )
    with pytest.raises(ConfigError, match="OTHER_KEY is not set"):
        roles.check_keys({})
    roles.check_keys({"OTHER_KEY": "k"})


def test_replicas_from_the_environment():
    environ = {
        "AGENTGYM_POLICY_BASE_URL": "http://a/v1, http://b/v1",
        "AGENTGYM_POLICY_MODEL": "m",
    }
    servers = Roles.from_environ(environ).policy_servers
    assert [server.base_url for server in servers] == ["http://a/v1", "http://b/v1"]
