"""Who gets in, and with what: tokens, versions, sizes, depths; nothing allocated for strangers."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from serving import Client, Policy, config_for_tests, job, serving

import agentgym
from agentgym.errors import ConfigError
from agentgym.serve import gate
from agentgym.serve.access import Caller, Quota, Tokens
from agentgym.serve.config import ServiceConfig
from agentgym.serve.gate import nests_deeper
from agentgym.serve.server import ServiceServer

TOKEN = "a-token-0123456789"
TOKENS = Tokens({TOKEN: Caller("me")})


# --- who (case J05) -------------------------------------------------------------------------------


def test_service_off_loopback_needs_a_token():
    with pytest.raises(ValidationError, match="AGENTGYM_SERVICE_TOKEN"):
        ServiceConfig(host="0.0.0.0")
    assert ServiceConfig(host="0.0.0.0", tokens=TOKENS).host == "0.0.0.0"
    assert ServiceConfig().host == "127.0.0.1"


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"Authorization": "Bearer wrong-token-0123456789"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN}x"},
    ],
)
async def test_who_has_no_token_gets_401_everywhere(header):
    async with serving(tokens=TOKENS) as server, Client(server.url) as client:
        paths = ["/v1/status", "/v1/jobs", "/v1/openapi.json", "/metrics", "/v1/nowhere"]
        for path in paths:
            status, told = await client.ask("GET", path, headers=header)
            assert status == 401, path
            assert client.headers["WWW-Authenticate"] == "Bearer"
            assert TOKEN not in json.dumps(told)


async def test_health_says_nothing_and_needs_no_token():
    async with serving(tokens=TOKENS) as server, Client(server.url) as client:
        assert await client.ask("GET", "/healthz") == (200, "ok\n")
        assert await client.ask("GET", "/readyz") == (200, "ready\n")


async def test_token_says_who_asks():
    async with serving(tokens=TOKENS) as server, Client(server.url, TOKEN) as client:
        status, told = await client.ask("GET", "/v1/status")
        assert (status, told["caller"], told["open_jobs"]) == (200, "me", 0)
        status, text = await client.ask("GET", "/metrics")
        assert status == 200
        assert "# HELP" in text


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}],
)
async def test_without_tokens_a_browsers_page_gets_nothing(headers):
    async with serving() as server, Client(server.url) as client:
        status, told = await client.ask("GET", "/v1/status", headers=headers)
        assert (status, told["error"]["code"]) == (403, "foreign_origin")


async def test_body_that_says_it_is_no_json_is_refused():
    async with serving() as server, Client(server.url) as client:
        status, told = await client.ask(
            "POST", "/v1/jobs", data="{}", headers={"Content-Type": "text/plain"}
        )
        assert (status, told["error"]["code"]) == (415, "not_json")


# --- which version --------------------------------------------------------------------------------


async def test_another_version_of_the_api_is_told_apart():
    async with serving() as server, Client(server.url) as client:
        status, told = await client.ask("GET", "/v1/jobs", headers={"AgentGym-Api-Version": "v2"})
        assert (status, told["error"]["code"]) == (400, "wrong_api_version")
        status, told = await client.ask("GET", "/v2/jobs")
        assert (status, told["error"]["code"]) == (404, "wrong_api_version")
        assert "v1" in told["error"]["message"]
        status, told = await client.ask("GET", "/v1/nowhere")
        assert (status, told["error"]["code"]) == (404, "not_found")
        status, told = await client.ask("PUT", "/v1/jobs")
        assert (status, told["error"]["code"]) == (405, "method_not_allowed")
        assert (await client.ask("GET", "/v1/jobs"))[0] == 200
        assert client.headers["AgentGym-Api-Version"] == "v1"


# --- how much (case J05) --------------------------------------------------------------------------


async def test_large_body_is_refused_before_it_is_read():
    config = config_for_tests(max_body_bytes=2000)
    async with serving(config) as server, Client(server.url) as client:
        status, told = await client.ask("POST", "/v1/jobs", data=b"[" + b" " * 5000)
        assert (status, told["error"]["code"]) == (413, "body_too_large")


async def test_large_body_of_unsaid_length_is_refused_while_it_comes():
    config = config_for_tests(max_body_bytes=2000)
    async with serving(config) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(40):  # never ends
            writer.write(b"64\r\n" + b" " * 100 + b"\r\n")
        answer = await reader.readuntil(b"}")
        writer.close()
        assert b" 413 " in answer.splitlines()[0]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"env_kwargs": ' + b"[" * 500 + b"]" * 500 + b"}",
    ],
)
async def test_deep_body_is_refused_before_it_is_parsed(body):
    async with serving() as server, Client(server.url) as client:
        status, told = await client.ask("POST", "/v1/jobs", data=body)
        assert (status, told["error"]["code"]) == (400, "too_deep")


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"note": "\ud800"}},
        {"metadata": {"\udfff": 1}},
        {"env_kwargs": {"prompt": "half \ud83d of a smile"}},
        {"episodes": {"requests": [{"seed": 1, "group": "\ud800"}]}},
    ],
)
async def test_text_that_is_none_is_refused_before_anything_is_made_of_it(fields):
    async with serving() as server, Client(server.url) as client:
        status, told = await client.ask("POST", "/v1/jobs", job("http://127.0.0.1:9/v1", **fields))
        assert (status, told["error"]["code"]) == (400, "not_text")


async def test_text_may_be_escaped():
    async with serving() as server, Client(server.url) as client:
        body = job("http://127.0.0.1:9/v1", metadata={"note": "\U0001f642", "code": "\\ud800"})
        assert (await client.ask("POST", "/v1/jobs", body))[0] == 201


@pytest.mark.parametrize("body", [b"{", b"nonsense", b"\xff\xfe", b'{"env": ' + b"9" * 9000])
async def test_what_is_no_json_is_a_clear_error(body):
    async with serving() as server, Client(server.url) as client:
        status, told = await client.ask("POST", "/v1/jobs", data=body)
        assert status in (400, 422)
        assert set(told["error"]) == {"code", "message"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def depth(value):
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return 0
    return 1 + max(map(depth, value), default=0)


@given(JSON, st.integers(0, 6), st.booleans())
def test_nesting_seen_without_parsing_is_the_nesting(value, levels, ascii_only):
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert nests_deeper(body, levels) == (depth(value) > levels)


def test_looking_for_nesting_does_not_look_again_at_a_string_that_never_ends():
    body = b'"' + b'\\"' * 1_600_000 + b"[" * 200  # looked at from each quote, it takes hours
    assert not nests_deeper(body, 100)


async def test_unknown_ids_allocate_nothing():  # case J13
    async with serving() as server, Client(server.url) as client:
        for number in range(200):
            status, _ = await client.ask("GET", f"/v1/jobs/{number:022}/traces")
            assert status == 404
        assert server.service.jobs._jobs == {}


async def test_job_ids_are_not_to_be_guessed():
    async with Policy() as policy, serving() as server, Client(server.url) as client:
        ids = {await client.submit(policy.url) for _ in range(5)}
        assert len(ids) == 5
        assert all(len(job_id) * 6 >= 128 for job_id in ids)  # base64


def test_nothing_is_pickled():
    package = Path(agentgym.__file__).parent
    unpickling = re.compile(r"\bpickle\b|\bmarshal\b|\bshelve\b|\beval\(|\bexec\(")
    for path in (package / "serve").glob("*.py"):
        assert not unpickling.search(path.read_text(encoding="utf-8")), path


async def test_a_fault_of_the_service_itself_says_nothing_of_it(monkeypatch):
    async with serving() as server, Client(server.url) as client:

        def broken(*_):
            raise RuntimeError("sk-secret-0123456789abcdef")

        monkeypatch.setattr(server.service.jobs, "of", broken)
        status, told = await client.ask("GET", "/v1/jobs")
        assert (status, told["error"]["code"]) == (500, "internal")
        assert "sk-secret" not in json.dumps(told)


# --- tokens ---------------------------------------------------------------------------------------


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_token_file_names_clients_with_quotas(tmp_path):
    path = write(
        tmp_path / "t.toml",
        '[trainer]\ntoken = "trainer-0123456789abc"\nopen_jobs = 2\n'
        '[eval]\ntoken = "evaluation-0123456789"\n',
    )
    tokens = Tokens.read(
        path, default=Quota(sessions=7), environ={"AGENTGYM_SERVICE_TOKEN": "of-environment-01234"}
    )
    trainer = tokens.caller("Bearer trainer-0123456789abc")
    assert (trainer.name, trainer.quota.open_jobs, trainer.quota.sessions) == ("trainer", 2, 7)
    assert tokens.caller("bearer evaluation-0123456789").name == "eval"
    assert tokens.caller("Bearer of-environment-01234").name == "default"
    for secret in ("trainer-0123456789abc", "of-environment-01234"):
        assert secret not in repr(tokens) + repr(vars(tokens))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[a]\ntoken = "short"\n', "16"),
        ("[a]\nopen_jobs = 3\n", "needs a token"),
        ('[a]\ntoken = "secret-0123456789abc"\nopenjobs = 3\n', "open_jobs"),
        ('[a]\ntoken = "secret-0123456789abc"\nopen_jobs = 0\n', "open_jobs"),
        ('[a]\ntoken = "secret-0123456789abc"\n[b]\ntoken = "secret-0123456789abc"\n', "same"),
        ('[a]\ntoken = "secret-0123456789abc\n', "not valid TOML"),
    ],
)
def test_bad_token_file_is_one_line_without_the_token(tmp_path, text, told):
    with pytest.raises(ConfigError) as caught:
        Tokens.read(write(tmp_path / "t.toml", text), environ={})
    assert told in str(caught.value)
    assert "secret-0123456789abc" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_port_in_use_is_one_line():
    first = ServiceServer(config_for_tests())
    try:
        with pytest.raises(ConfigError, match=f"port {first.port} on 127.0.0.1 is in use"):
            ServiceServer(ServiceConfig(port=first.port))
    finally:
        first._socket.close()
        first.service.store.close()


@pytest.mark.thorough
async def test_a_body_that_stalls_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(gate, "_PART_S", 0.01)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
        writer.write(head.encode())
        answer = await reader.read()  # to the end: the connection is closed, too
        writer.close()
    assert b" 408 " in answer
    assert b'"too_slow"' in answer


async def test_errors_repeat_no_value_of_the_request():
    async with serving() as server, Client(server.url) as client:
        secret = "sk-mine-0123456789abcdef"
        body = job("http://127.0.0.1:1/v1", sampling={"temperature": secret}, nonsense=secret)
        status, told = await client.ask("POST", "/v1/jobs", body)
        assert status == 422
        assert secret not in json.dumps(told)
