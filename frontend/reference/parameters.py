"""The treatment of each request field by each runtime, for `/openapi.json` and docs/parameters.md.

Type, range and meaning come from the pydantic models. The needed capabilities come from translating an example
request. The runtimes declare their capabilities.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from frontend.endpoints import ENDPOINTS, Endpoint
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.embeddings import EncoderBody
from frontend.protocol.fields import QueuedBody
from frontend.settings import Settings
from frontend.translate.requests import chat_to_requests, completion_to_requests
from frontend.triton.models import ModelName, ServedModel
from model_repository.capabilities import HINTS, Capability, needed_capabilities
from model_repository.contract.request import GenerationRequest
from model_repository.model_parameters import ModelParameters
from model_repository.runtimes import RUNTIMES


class Treatment(StrEnum):
    """The treatment of a field."""

    ENFORCED = "enforced"  # the engine or the frontend does it
    EMULATED = "emulated"  # several requests to the ensemble do it
    LOGGED = "logged"  # bookkeeping: changes no answer
    REFUSED = "refused"  # 400, unless its value changes nothing
    HINT = "hint"  # listed in x-ignored-params if the model does not follow it, unless its value changes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One field of one endpoint."""

    endpoint: str
    name: str
    treatments: Mapping[str, Treatment]  # key: runtime
    needed: frozenset[Capability] = frozenset()
    body: Mapping[str, Any]  # a request with the field
    description: str = ""
    schema: Mapping[str, Any]  # type and range in JSON schema
    instead: str = ""  # the field to use in place of a refused one


@functools.cache
def parameters() -> tuple[Parameter, ...]:
    """Return every known field of the endpoints whose requests wait for the model."""
    rows: list[Parameter] = []
    for endpoint in ENDPOINTS:
        if endpoint.body is not None and issubclass(endpoint.body, QueuedBody):
            rows += _served(endpoint, endpoint.body)
            rows += _unserved(endpoint, endpoint.body)
    return tuple(rows)


def _served(endpoint: Endpoint, model: type[QueuedBody]) -> Iterator[Parameter]:
    schema = model.model_json_schema(by_alias=True)
    plain = _needs(model, endpoint.example)
    for name, field in model.model_fields.items():
        body = {**endpoint.example, **_companions(field), **({name: field.examples[0]} if field.examples else {})}
        needed = _needs(model, body) - plain
        yield Parameter(
            endpoint=endpoint.path,
            name=name,
            treatments={runtime: _treatment(model, name, body, needed, runtime) for runtime in RUNTIMES},
            needed=needed,
            body=body,
            description=field.description or "",
            schema=_resolved(schema["properties"][name], schema.get("$defs", {})),
        )


def _unserved(endpoint: Endpoint, model: type[QueuedBody]) -> Iterator[Parameter]:
    fields = [(name, Treatment.REFUSED, each.neutral, each.instead) for name, each in model.refused.items()]
    fields += [(name, Treatment.HINT, neutral, "") for name, neutral in model.hints.items()]
    for name, treatment, neutral, instead in fields:
        values = [None, *neutral]
        yield Parameter(
            endpoint=endpoint.path,
            name=name,
            treatments=dict.fromkeys(RUNTIMES, treatment),
            body={**endpoint.example, name: values[-1]},
            schema={"enum": values},
            instead=instead,
        )


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without references. An object is shortened to its type."""
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        return {"type": "object"} if target.get("type") == "object" else _resolved(target, definitions)
    resolved = dict(schema)
    if "anyOf" in schema:
        resolved["anyOf"] = [_resolved(each, definitions) for each in schema["anyOf"]]
    if "items" in schema:
        resolved["items"] = _resolved(schema["items"], definitions)
    return resolved


def _companions(field: FieldInfo) -> dict[str, Any]:
    extra = field.json_schema_extra
    needed: Any = extra.get("x-needs", {}) if isinstance(extra, dict) else {}
    return dict(needed)


def _treatment(
    model: type[QueuedBody], name: str, body: Mapping[str, Any], needed: frozenset[Capability], runtime: str
) -> Treatment:
    is_of_encoder = issubclass(model, EncoderBody)
    lacking = needed - RUNTIMES[runtime].capabilities
    if lacking - HINTS or (is_of_encoder and not RUNTIMES[runtime].encoder):
        return Treatment.REFUSED
    if lacking or needed & RUNTIMES[runtime].unsure:
        return Treatment.HINT
    if name in model.model_validate(body).bookkeeping():
        return Treatment.LOGGED
    return Treatment.EMULATED if len(_requests(model, body)) > 1 else Treatment.ENFORCED


def _needs(model: type[QueuedBody], body: Mapping[str, Any]) -> frozenset[Capability]:
    requests = _requests(model, body)
    needed = {capability for request in requests for capability in needed_capabilities(request)}
    needed |= {Capability.PROMPT_CACHE for request in requests if request.params.keep_s}
    return frozenset(needed | (HINTS & body.keys()))  # capabilities with the names of fields


def _requests(model: type[QueuedBody], body: Mapping[str, Any]) -> list[GenerationRequest]:
    request = model.model_validate(body)
    if isinstance(request, ChatCompletionRequest):
        return chat_to_requests(request, _SOME_MODEL, Settings().request_defaults)
    if isinstance(request, CompletionRequest):
        return completion_to_requests(request, _SOME_MODEL, Settings().request_defaults)
    return []  # of an encoder, which needs no capability


# The needs of a field do not depend on the model.
_SOME_MODEL = ModelName(
    requested="demo",
    model=ServedModel(
        ensemble="demo",
        parameters=ModelParameters(
            model_id="demo",
            context_window=2048,
            created=0,
            runtime="",
            artifact_dir=Path(),
            eos_token_ids=frozenset(),
            fingerprint="",
            aliases=(),
            capabilities=frozenset(Capability),
            tool_call_format="hermes",
            reasoning_format="",
            template_fields=(),
            defaults={},
        ),
    ),
)
