"""The OpenAPI document: valid and complete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import schemathesis

from frontend.app import create_app
from frontend.errors import APIError
from frontend.reference.openapi import openapi_document
from frontend.settings import Settings
from tests.fakes import FakeTriton

DOCUMENT = openapi_document()
SCHEMAS = DOCUMENT["components"]["schemas"]
# Routes for people and health checks, not for clients.
UNDESCRIBED = {"/", "/docs", "/pages/{name}", "/metrics", "/health", "/health/live", "/health/ready", "/openapi.json"}


def references(value: Any) -> Iterator[str]:
    """Yield every $ref in a part of the document."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_it_is_openapi_3_1() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(json.loads(json.dumps(DOCUMENT))).validate()


def test_every_reference_has_a_schema_and_every_schema_a_reference() -> None:
    assert set(references(DOCUMENT)) == {f"#/components/schemas/{name}" for name in SCHEMAS}


def test_every_described_path_is_a_route_and_every_route_is_described() -> None:
    app = create_app(Settings(root_paths=("/openai",)), {"fake:1": FakeTriton()})
    routes = {
        (route.method.lower(), (route.resource.canonical if route.resource else ""))
        for route in app.router.routes()
        if route.method != "HEAD"
    }
    described = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described <= routes
    for method, path in routes:
        short = path.removeprefix("/openai").removeprefix("/v1")
        assert path in UNDESCRIBED or described & {(method, short), (method, f"/v1{short}")}


def test_every_status_of_an_error_is_described() -> None:
    def statuses(error: type[APIError]) -> set[str]:
        return {str(error.status)}.union(*map(statuses, error.__subclasses__()))

    responses = DOCUMENT["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert statuses(APIError) - {"405"} == responses.keys() - {"200", "422"}  # 405 is of no operation
    assert {status for status in responses if "headers" in responses[status]} == {"429", "503"}


def test_a_stored_answer_is_an_object_or_a_stream() -> None:
    described = DOCUMENT["paths"]["/v1/responses/{response_id}"]["get"]
    assert [field["name"] for field in described["parameters"]] == ["response_id", "stream", "starting_after"]
    content = described["responses"]["200"]["content"]
    created = DOCUMENT["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]
    assert content["text/event-stream"] == created["text/event-stream"]
