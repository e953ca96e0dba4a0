"""The endpoints that describe the server: models, health and version."""

from __future__ import annotations

import contextlib
from importlib.metadata import version as distribution_version
from typing import Any

from aiohttp import web

from frontend.errors import APIError, Draining, ModelNotFound, Overloaded
from frontend.protocol.answers import ModelCard, ModelList, Version
from frontend.request_context import FACTS, IS_PUBLIC, MODELS, SETTINGS, TRITON, is_draining, json_response
from frontend.triton.models import ModelName, in_order
from model_repository.model_parameters import API_SAMPLING


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models."""
    names = request[FACTS].caller.visible(await request.app[MODELS].names())
    answer: ModelList = {"object": "list", "data": [_card(name) for name in in_order(names.values())]}
    return json_response(answer)


async def get_model(request: web.Request) -> web.Response:
    """GET /v1/models/{id}: 404 also for a model that the key does not allow."""
    requested, caller = request.match_info["id"], request[FACTS].caller
    if not caller.models:
        return json_response(_card(await request.app[MODELS].get(requested)))
    names = caller.visible(await request.app[MODELS].names())
    if requested not in names:
        raise ModelNotFound(requested)
    return json_response(_card(names[requested]))


def _card(name: ModelName) -> ModelCard:
    return {
        "id": name.requested,
        "object": "model",
        "created": name.model.parameters.created,
        "owned_by": "conch",
        "root": name.model.id,
        "parent": name.model.id if name.lora_name else None,
        "task": name.model.parameters.task.value,
        "max_model_len": name.model.parameters.context_window,
        "tool_call_format": name.model.parameters.tool_call_format,
        "reasoning_format": name.model.parameters.reasoning_format or None,
        "default_parameters": {
            field: value for field, value in name.model.parameters.defaults.items() if field in API_SAMPLING
        },
    }


async def health_live(request: web.Request) -> web.Response:
    """GET /health/live: the process answers."""
    return json_response({"status": "live"})


async def health_ready(request: web.Request) -> web.Response:
    """GET /health/ready: the server takes requests and a Triton answers. The body has the state of each model."""
    triton, is_ready, models = request.app[TRITON], False, dict[str, str]()
    with contextlib.suppress(APIError):
        snapshot = await request.app[MODELS].snapshot()
        is_ready = True
        models = dict(snapshot.unready) | {model_id: triton.state_of(model_id) for model_id in snapshot.ready}
    stops = is_draining(request.app)
    body: dict[str, Any] = {"status": "draining" if stops else "ready" if is_ready else "not ready"}
    is_list_secret = request.app[IS_PUBLIC] and request.app[SETTINGS].key_file  # this route needs no key, the list does
    if not is_list_secret:
        body |= {"endpoints": triton.endpoints(), "models": models, "replicas": triton.states_by_endpoint()}
    if is_ready and not stops:
        return json_response(body)
    return json_response(body, status=503, headers=Draining.headers if stops else Overloaded.headers)


async def version(request: web.Request) -> web.Response:
    """GET /version."""
    answer: Version = {"version": distribution_version("conch")}
    return json_response(answer)
