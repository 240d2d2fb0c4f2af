"""The OpenAPI page: complete, with words for everything, and no change that nobody meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgym.remote.schema import JobRequest
from agentgym.serve.app import create_app
from agentgym.serve.config import ServiceConfig

KNOWN = Path(__file__).parent / "openapi_operations.json"


@pytest.fixture(scope="module")
def page():
    app = create_app(ServiceConfig())
    yield app.openapi()
    app.state.service.store.close()


def operations(page):
    for path, methods in page["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_operation_says_what_it_does_and_what_it_refuses(page):
    ids = set()
    for name, operation in operations(page):
        assert operation.get("summary"), name
        assert operation.get("description"), name
        ids.add(operation["operationId"])
        if operation["tags"] != ["health"] or name == "GET /metrics":
            assert {"401", "403", "404"} & set(operation["responses"]) or "sessions" in name, name
    assert len(ids) == len(list(operations(page)))


def test_jobs_say_every_refusal_there_is(page):
    refusals = {"400", "401", "403", "404", "409", "413", "415", "422", "429", "500", "503", "507"}
    for name, operation in operations(page):
        if "/jobs" in name or "/policies" in name:
            assert refusals <= set(operation["responses"]), name


def test_every_path_is_versioned_but_health(page):
    odd = [path for path in page["paths"] if not path.startswith("/v1/")]
    assert sorted(odd) == ["/healthz", "/metrics", "/readyz"]


def test_every_field_of_a_jobs_record_has_words(page):
    for name in ("JobRequest", "Episodes", "Policy", "PolicyEndpoint", "Limits", "SamplingParams"):
        schema = page["components"]["schemas"][name]
        assert schema.get("description"), name
        silent = [
            field
            for field, told in schema["properties"].items()
            if "description" not in told and field not in SELF_EXPLAINING
        ]
        assert silent == [], name
        assert schema["additionalProperties"] is False


SELF_EXPLAINING = {"presence_penalty", "frequency_penalty", "rate", "dialect"}


def test_examples_are_jobs():
    examples = JobRequest.model_config["json_schema_extra"]["examples"]
    assert [JobRequest.model_validate(example) for example in examples]


def test_operations_are_those_that_clients_know(page):
    """A change here is a change of the API: add to `v1`, or make a `v2`."""
    found = {
        name: {
            "id": operation["operationId"],
            "query": sorted(p["name"] for p in operation.get("parameters", ())),
            "body": _body(operation),
        }
        for name, operation in operations(page)
        if "/sessions" not in name
    }
    assert found == json.loads(KNOWN.read_text(encoding="utf-8"))


def _body(operation):
    content = operation.get("requestBody", {}).get("content", {})
    return content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
