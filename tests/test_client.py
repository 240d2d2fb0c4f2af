"""The contract with models: endpoints keep their secrets."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from agentgym.client import Endpoint, public_url

SECRET = "hunter2hunter2"


def test_an_endpoints_repr_shows_no_credentials() -> None:
    endpoint = Endpoint(
        base_url=f"https://me:{SECRET}@host:8000/v1?key={SECRET}",
        model="m",
        extra_body={"token": SECRET},
    )
    assert SECRET not in repr(endpoint)
    assert SECRET not in str(endpoint)
    assert "https://host:8000/v1" in repr(endpoint)


@pytest.mark.parametrize("url", [f"ftp://me:{SECRET}@host", f"me:{SECRET}@host/v1"])
def test_a_refused_url_is_not_quoted(url: str) -> None:
    with pytest.raises(ValidationError, match="must start with http") as caught:
        Endpoint(base_url=url, model="m")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://localhost:8000/v1", "http://localhost:8000/v1"),
        (f"https://u:{SECRET}@h/v1?key={SECRET}#{SECRET}", "https://h/v1"),
        (f"https://u:{SECRET}@[h/v1?key={SECRET}", "https://[h/v1"),
    ],
)
def test_public_urls_have_no_user_password_or_query(url: str, shown: str) -> None:
    assert public_url(url) == shown
