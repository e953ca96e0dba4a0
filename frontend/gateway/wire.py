"""What goes over the admission process's socket: one JSON object to a line."""

from __future__ import annotations

from typing import Any

import orjson

from frontend.errors import APIError, QueueFull, RateLimited, ServerError
from frontend.gateway.outage import LimitsUnavailable
from frontend.gateway.types import AdmissionRequest, Lease, RateLimits, Reading, Resource, Scope
from frontend.protocol.priority import Priority


def line(message: dict[str, Any]) -> bytes:
    """Return a message as a line."""
    return orjson.dumps(message) + b"\n"


def request_from_wire(fields: dict[str, Any]) -> AdmissionRequest:
    """Return what a worker asks."""
    scopes = tuple(Scope(each["key"], each["model"], RateLimits(**each["limits"])) for each in fields["scopes"])
    return AdmissionRequest(**fields | {"scopes": scopes, "priority": Priority(fields["priority"])})


def lease_to_wire(lease: Lease) -> dict[str, Any]:
    """Return what the worker does not know of its lease."""
    return {"lease": lease.id, "readings": lease.readings}


def lease_from_wire(number: int, request: AdmissionRequest, answer: dict[str, Any]) -> Lease:
    """Return a lease by the number that the worker gave it."""
    readings = (Reading(**each | {"resource": Resource(each["resource"])}) for each in answer["readings"])
    return Lease(str(number), request, tuple(readings))


def error_to_wire(error: APIError) -> dict[str, Any]:
    """Return a refusal."""
    return {"error": type(error).__name__, "message": error.message, "code": error.code, "headers": error.headers}


def error_from_wire(answer: dict[str, Any]) -> APIError:
    """Return the refusal as it was raised."""
    error: APIError
    match answer["error"]:
        case RateLimited.__name__:
            error = RateLimited(answer["message"], code=answer["code"], retry_after_s=None, headers={})
        case QueueFull.__name__:
            error = QueueFull(answer["message"], retry_after_s=0)
        case LimitsUnavailable.__name__:
            error = LimitsUnavailable()
        case _:
            return ServerError()
    error.headers = answer["headers"]
    return error
