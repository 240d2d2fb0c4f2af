"""What a client can't have the service do: import, read files, send keys, ask hidden addresses."""

from __future__ import annotations

import socket

import pytest

from agentgym.client import Endpoint
from agentgym.serve.allowed import NO_KEY, Allowed, path_parameters
from agentgym.serve.faults import ServiceFault

WEBSHOP, DESK, WORLD = "agentgym/WebShop-v0", "agentgym/SupportDesk-v0", "agentgym/ToolWorld-v0"
HOSTED = {"base_url": "https://api.example.com/v1", "model": "m", "api_key_env": "JUDGE_KEY"}


def refusal(call, *args, **kwargs):
    with pytest.raises(ServiceFault) as caught:
        call(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        (WEBSHOP, {"split": "train", "max_turns": 5, "data": None, "nouns": "rule"}),
        (WEBSHOP, {"data_seed": 2**31}),
        (WORLD, {"domains": ["home", "clinic"], "gates": ["truncated"]}),
        (WORLD, {"gates": [{"name": "over_tokens", "limit": 2000}]}),
        (DESK, {"prompt": "Be kind: always."}),
        (DESK, {"simulator": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}}),
    ],
)
def test_ordinary_parameters_pass(env, kwargs):
    assert set(Allowed().env_kwargs(env, kwargs)) == set(kwargs)


@pytest.mark.parametrize(
    ("env", "kwargs", "told"),
    [
        (WEBSHOP, {"data": "/etc/passwd"}, "file"),
        (WEBSHOP, {"nouns": "../../secrets"}, "file"),
        (WORLD, {"gates": [{"kind": "custom", "name": "x", "predicate": "os:system"}]}, "code"),
        (WORLD, {"gates": [{"kind": "custom", "name": "x", "predicate": 3}]}, "code"),
        (DESK, {"prompt": "os.path:join"}, "code"),
        (WORLD, {"render_mode": "human"}, "render_mode"),
        (WORLD, {"tasks_per_family": 10**9}, "at most"),
        (WORLD, {"judge": HOSTED}, "requests may go to"),
        (DESK, {"simulator": {**HOSTED, "base_url": "http://169.254.169.254/v1"}}, "metadata"),
    ],
)
def test_files_code_and_strange_hosts_are_refused(env, kwargs, told):
    fault = refusal(Allowed().env_kwargs, env, kwargs)
    assert fault.status == 403
    assert told in fault.message


def test_operator_may_allow_a_file_parameter():
    for name in ("data", f"{WEBSHOP}.data"):
        allowed = Allowed(parameters=(name,))
        assert allowed.env_kwargs(WEBSHOP, {"data": "x.json"}) == {"data": "x.json"}
    assert refusal(Allowed(parameters=(f"{DESK}.data",)).env_kwargs, WEBSHOP, {"data": "x"})


def test_file_parameters_are_found_by_their_annotation():
    assert set(path_parameters(WEBSHOP)) == {"data", "nouns"}


def test_deep_parameters_are_refused():
    deep = []
    for _ in range(50):
        deep = [deep]
    assert refusal(Allowed().env_kwargs, WORLD, {"prompt": deep}).status == 422


@pytest.mark.parametrize(
    ("env", "status"),
    [("agentgym/WebShop-v9", 404), ("webshop", 404), ("os:path", 403), ("a.b:agentgym/X-v0", 403)],
)
def test_env_that_is_not_allowed_is_refused_without_an_import(env, status):
    assert refusal(Allowed().env, env).status == status


def test_env_that_exists_but_is_not_allowed_is_forbidden():
    assert refusal(Allowed(envs=(WEBSHOP,)).env, DESK).status == 403


# --- addresses ------------------------------------------------------------------------------------


def endpoint(url, **fields):
    return Endpoint(base_url=url, model="m", **fields)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/v1",
        "http://[::ffff:169.254.169.254]/v1",
        "http://[fe80::1]/v1",
        "http://[fd00:ec2::254]/v1",
        "http://metadata.google.internal/v1",
        "http://metadata.google.internal./v1",
        "http://0.0.0.0:8000/v1",
        "http://224.0.0.1/v1",
        "http://2852039166/v1",  # 169.254.169.254 as one number
        "http://0xa9fea9fe/v1",
        "http://①⑥⑨.②⑤④.①⑥⑨.②⑤④/v1",
        "http://[64:ff9b::a9fe:a9fe]/v1",  # through the gateways of a network without IPv4
        "http://[2002:a9fe:a9fe::]/v1",
        "http://[fd20:ce::254]/v1",
        "http://[fd00:ec2::23]/v1",
        "http://168.63.129.16/v1",
    ],
)
def test_metadata_and_link_local_are_never_asked(url):
    fault = refusal(Allowed(policy_hosts=("*",)).endpoint, endpoint(url), where="endpoints.0")
    assert fault.status == 403


@pytest.mark.parametrize(
    ("url", "hosts", "passes"),
    [
        ("http://127.0.0.1:8000/v1", ("loopback",), True),
        ("http://localhost:8000/v1", ("loopback",), True),
        ("http://[::1]:8000/v1", ("loopback",), True),
        ("http://10.0.0.7:8000/v1", ("loopback",), False),
        ("http://name-of-a-stranger.test:8000/v1", ("loopback",), False),
        ("http://10.0.0.7:8000/v1", ("10.0.0.0/8",), True),
        ("http://11.0.0.7:8000/v1", ("10.0.0.0/8",), False),
        ("http://10.0.0.7:8000/v1", ("10.0.0.7:8000",), True),
        ("http://10.0.0.7:9000/v1", ("10.0.0.7:8000",), False),
        ("https://api.example.com/v1", ("*.example.com",), True),
        ("https://badexample.com/v1", ("*.example.com",), False),
        ("https://api.example.com.evil.net/v1", ("api.example.com",), False),
        ("https://API.example.com/v1", ("api.example.com",), True),
        ("https://api.example.com/v1", (), False),
    ],
)
def test_hosts_are_matched_whole(monkeypatch, url, hosts, passes):
    allowed = Allowed(policy_hosts=hosts)
    monkeypatch.setattr(socket, "getaddrinfo", leads_to("127.0.0.1"))
    if passes:
        assert allowed.endpoint(endpoint(url), where="e").base_url == url
    else:
        assert refusal(allowed.endpoint, endpoint(url), where="e").status == 403


def leads_to(*addresses):
    """A lookup that finds these for every name."""

    def getaddrinfo(host, port, **kwargs):
        if not addresses:
            raise socket.gaierror("no such name")
        return [(0, 0, 0, "", (address, 0)) for address in addresses]

    return getaddrinfo


@pytest.mark.parametrize(
    ("addresses", "code"),
    [
        (["10.0.0.7"], None),
        (["10.0.0.7", "11.0.0.7"], "not_allowed"),
        (["169.254.169.254"], "not_allowed"),
        ([], "unknown_host"),
    ],
)
def test_name_belongs_to_a_range_by_all_its_addresses(monkeypatch, addresses, code):
    monkeypatch.setattr(socket, "getaddrinfo", leads_to(*addresses))
    allowed, asked = Allowed(policy_hosts=("10.0.0.0/8",)), endpoint("http://policy.test/v1")
    if code is None:
        assert allowed.endpoint(asked, where="e").base_url == asked.base_url
    else:
        assert refusal(allowed.endpoint, asked, where="e").code == code


# --- keys -----------------------------------------------------------------------------------------


def test_key_goes_only_where_it_may():
    allowed = Allowed(policy_hosts=("*",), keys={"JUDGE_KEY": ("api.example.com",)})
    there = endpoint("https://api.example.com/v1", api_key_env="JUDGE_KEY")
    assert allowed.endpoint(there, where="e").api_key_env == "JUDGE_KEY"
    elsewhere = endpoint("https://evil.example.net/v1", api_key_env="JUDGE_KEY")
    fault = refusal(allowed.endpoint, elsewhere, where="e")
    assert fault.status == 403
    assert "JUDGE_KEY" in fault.message
    other = endpoint("https://api.example.com/v1", api_key_env="AWS_SECRET_ACCESS_KEY")
    assert refusal(allowed.endpoint, other, where="e").status == 403


def test_the_default_key_is_not_sent_unless_allowed():
    url = "http://127.0.0.1:8000/v1"
    assert Allowed().endpoint(endpoint(url), where="e").api_key_env == NO_KEY
    allowed = Allowed(keys={"OPENAI_API_KEY": ("loopback",)})
    assert allowed.endpoint(endpoint(url), where="e").api_key_env == "OPENAI_API_KEY"


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("http://user:hunter2hunter2@127.0.0.1/v1", {}),
        ("http://127.0.0.1/v1?key=hunter2hunter2", {}),
        ("http://127.0.0.1/v1", {"extra_body": {"api_key": "hunter2hunter2"}}),
    ],
)
def test_secret_in_the_endpoint_itself_is_refused_and_not_repeated(url, fields):
    fault = refusal(Allowed().endpoint, endpoint(url, **fields), where="endpoints.0")
    assert fault.status == 422
    assert "hunter2" not in fault.message
