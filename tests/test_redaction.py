"""Secrets are taken out of JSON: all of them, and nothing else."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.redaction import Redactor, credentials_in_environment

KEYS = [
    "sk-proj-aB3dE5gH7jK9mN1pQ3",
    "sk-or-v1-0123456789abcdef0123",
    "hf_aBcDeFgHiJkLmNoPqRsTuVwX",
    "ghp_0123456789abcdefABCDEF0123456789abcd",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrst",
    "glpat-abcdefghij0123456789",
    "xoxb-123456789012-abcdefABCDEF",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("around", ["{}", "K={}", "{{'K': '{}'}}", "a\n{}\n", "x {}, y", '"{}"'])
def test_keys_are_known_by_their_form_however_deep(key, around):
    text = around.format(key)
    expected = around.format("[redacted]")
    for _ in range(3):
        text, expected = json.dumps(text), json.dumps(expected)
        assert Redactor()(text) == expected


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_what_an_authorization_header_bears_is_taken_out(scheme):
    text = json.dumps({"Authorization": f"{scheme} eyJhbGciOi.J9.abc-123_x=="})
    assert json.loads(Redactor()(text)) == {"Authorization": f"{scheme} [redacted]"}


@pytest.mark.parametrize(
    "text",
    [
        "task-0123456789abcdef01234567 and risk-management-of-2024",
        "a desk-organizer-with-3-drawers, sk-8 boards, sk-learn-compatible-estimators",
        "hf_hub_download(repo) in the AKIA region; ghp_ is a prefix",
        "Bearer tokens are described in authentication-documents-of-ours",
        "the bearer of this letter has 12345678901234567890 reasons",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "iVBORw0KGgoAAAANSUhEUgAAAKIAAKIAIOSFODNN7EXAMPLEAA+AA",
    ],
)
def test_ordinary_text_stays(text):
    line = json.dumps({"content": text})
    assert Redactor()(line) == line


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("OPENAI_API_KEY", "12345678", True),
        ("openai_api_key", "12345678", True),
        ("AZURE_APIKEY_2", "12345678", True),
        ("HF_TOKEN", "  12345678\n", True),
        ("AWS_SECRET_ACCESS_KEY", "12345678", True),
        ("DB_PASSWORD", "12345678", True),
        ("TOKEN", "12345678", True),
        ("OPENAI_API_KEY", "1234567", False),
        ("MONKEY", "12345678", False),
        ("MAX_TOKENS", "12345678", False),
        ("KEYBOARD_LAYOUT", "12345678", False),
        ("PATH_TO_THINGS", "12345678", False),
    ],
)
def test_variables_named_like_credentials_are_secret(monkeypatch, name, value, known):
    monkeypatch.setattr("os.environ", {name: value})
    assert credentials_in_environment() == ({value.strip()} if known else set())


TEXT = st.text() | st.sampled_from(KEYS) | st.sampled_from(["Bearer ", "sk-", "\\n", '"', "1"])
TEXTS = st.lists(TEXT, max_size=5).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.lists(st.text(min_size=1, max_size=12), max_size=3), st.booleans())
def test_json_stays_json_and_twice_is_once(value, secrets, to_ascii):
    redact = Redactor()
    line = json.dumps(value, ensure_ascii=to_ascii)
    once = redact(line)
    json.loads(once)
    assert redact(once) == once
    json.loads(Redactor(secrets)(line))


@given(st.text(), st.text(min_size=8), st.text())
def test_no_secret_survives_in_a_string(before, secret, after):
    line = json.dumps([before + secret + after])
    (found,) = json.loads(Redactor([secret])(line))
    assert secret not in found or secret in "[redacted]"


def test_secrets_are_taken_out_of_plain_text():
    text = f'refused "secret-1": {KEYS[0]}'
    assert Redactor(["secret-1"]).from_text(text) == 'refused "[redacted]": [redacted]'


def test_secret_that_looks_like_an_escape_or_a_number_or_a_field_leaves_the_line_whole():
    value = {"seed": 12345678, "metadata": "\nabcd1234", "text": "nabcd1234 metadata 12345678"}
    redact = Redactor(["nabcd1234", "12345678", "metadata"])
    expected = value | {"text": "[redacted] [redacted] [redacted]"}
    assert json.loads(redact(json.dumps(value))) == expected


@pytest.mark.parametrize("piece", ["sk-", "sk-a", "Bearer ", "\\", '"', "task-1 ", "a"])
@pytest.mark.thorough
def test_time_is_linear(piece):
    line = json.dumps([piece * (2_000_000 // len(piece)), "sk-"])
    started = time.process_time()
    Redactor(["a-secret-value"])(line)
    assert time.process_time() - started < 5
