"""The OpenAPI document, from the types of requests and answers."""

from __future__ import annotations

import functools
from importlib.metadata import version
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter

from frontend.endpoints import ENDPOINTS, Cost, Endpoint
from frontend.protocol import answers
from frontend.reference.parameters import parameters
from frontend.request_context import json_response

_REFERENCE = "#/components/schemas/{model}"
_JSON = "application/json"
_SECURITY = {"type": "http", "scheme": "bearer", "description": "An API key, if the server has a key file"}

_ERRORS = {
    "400": "The request breaks a rule",
    "401": "The API key is missing or unknown",
    "403": "The API key does not allow the model, the organization or the project; or a foreign web page sent it",
    "408": "The request took too long to arrive",
    "414": "The URL is too long",
    "431": "The headers are too long, or too many",
    "500": "The server failed",
    "503": "Full, or not ready: try again",
}
_ERRORS_OF_BODIES = {
    "413": "The body is too long",
    "415": "The body is not sent as JSON",
    "422": "The body breaks the schema; 400 by default",
}
DESCRIBED = [endpoint for endpoint in ENDPOINTS if endpoint.answer is not None]
_RETRIED = ("429", "503", "529")
_RETRY_HEADERS = {
    "Retry-After": {"description": "Seconds after which to try again", "schema": {"type": "integer"}},
    "retry-after-ms": {"description": "The same in milliseconds", "schema": {"type": "integer"}},
}


async def openapi(request: web.Request) -> web.Response:
    """GET /openapi.json."""
    return json_response(openapi_document())


@functools.cache
def openapi_document() -> dict[str, Any]:
    """Return the document in OpenAPI 3.1. Every /v1 route also works without the prefix."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for endpoint in DESCRIBED:
        described = _describe(endpoint, schemas)
        for path in filter(None, (endpoint.path, endpoint.other_path)):
            paths.setdefault(path, {})[endpoint.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Conch", "version": version("conch"), "description": "The OpenAI API, served by Triton."},
        "paths": paths,
        "security": [{"key": []}, {}],  # {}: a server without a key file needs no key
        "components": {"schemas": dict(sorted(schemas.items())), "securitySchemes": {"key": _SECURITY}},
    }


def _describe(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    content = {_JSON: {"schema": _schema(endpoint.answer, "serialization", schemas)}}
    if endpoint.event is not None:
        event = _schema(endpoint.event, "serialization", schemas)
        data: dict[str, Any] = {"type": "string", "contentMediaType": _JSON, "contentSchema": event}
        fields = (
            {"event": {"type": "string"}, "data": data}
            if endpoint.has_names
            else {"data": {"anyOf": [{"const": "[DONE]"}, data]}}
        )
        content["text/event-stream"] = {"schema": {"type": "object", "properties": fields, "required": list(fields)}}
    responses: dict[str, Any] = {"200": {"description": "The answer", "content": content}}
    envelope = {_JSON: {"schema": _schema(endpoint.error, "serialization", schemas)}}
    for status, description in sorted(_errors(endpoint).items()):
        responses[status] = {"description": description, "content": envelope}
        if status in _RETRIED:
            responses[status]["headers"] = _RETRY_HEADERS
    described: dict[str, Any] = {"summary": endpoint.summary, "responses": responses}
    if endpoint.body is not None:
        schema = _schema(endpoint.body, "validation", schemas)
        described["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
        properties = schemas[endpoint.body.__name__]["properties"]
        for row in parameters():
            if row.endpoint == endpoint.path and row.name in properties:
                properties[row.name]["x-runtimes"] = dict(row.treatments)
    of_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in endpoint.parts
    ]
    of_query = [{"name": name, "in": "query", "schema": schema} for name, schema in endpoint.query.items()]
    if of_path or of_query:
        described["parameters"] = [*of_path, *of_query]
    return described


def _errors(endpoint: Endpoint) -> dict[str, str]:
    """Return the error statuses of an endpoint with their meanings."""
    statuses = dict(_ERRORS)
    if endpoint.body is not None:
        statuses |= _ERRORS_OF_BODIES
    if endpoint.cost is not Cost.NOTHING:
        statuses["429"] = "A limit of the API key is reached: try again later, unless x-should-retry is false"
    if endpoint.has_model:
        is_stored = any(part.endswith("_id") for part in endpoint.parts)
        statuses["404"] = "Nothing of this id is stored" if is_stored else "There is no model of this name"
    if endpoint.event is not None and endpoint.call is not None:
        statuses["504"] = "The answer took longer than the server allows"
    if endpoint.error is answers.MessageError:
        statuses["529"] = statuses.pop("503")
    return statuses


def _schema(kind: Any, mode: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to a type's schema; add the schema and those it refers to."""
    schema = TypeAdapter(kind).json_schema(mode=mode, ref_template=_REFERENCE, by_alias=True)
    name = schema.get("title", kind.__name__)
    for each, description in (schema.pop("$defs", {}) | {name: schema}).items():
        assert schemas.setdefault(each, description) == description, f"two types are called {each}"
    return {"$ref": _REFERENCE.format(model=name)}
