"""The endpoints that describe the server: models, health and version."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version as distribution_version
from typing import Any

from aiohttp import web

from frontend.errors import APIError, Draining, InvalidRequest, ModelNotFound, Overloaded, shown
from frontend.protocol.answers import (
    MessageModel,
    MessageModelList,
    ModelCard,
    ModelCardStatus,
    ModelList,
    Version,
)
from frontend.request_context import FACTS, IS_PUBLIC, MODELS, SETTINGS, TRITON, is_draining, json_response
from frontend.triton.models import ModelName, in_order
from frontend.triton.pool import ReplicaPool
from model_repository.model_parameters import API_SAMPLING

_PAGE, _MAX_PAGE = 20, 1000  # models of a page for clients of Anthropic: the default and the largest number


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models: all models, or a page of them for clients of Anthropic."""
    visible = request[FACTS].caller.visible(await request.app[MODELS].names())
    names = in_order(visible.values())
    if is_for_anthropic(request):
        return json_response(_page(request, names))
    triton = request.app[TRITON]
    answer: ModelList = {"object": "list", "data": [_card(triton, name) for name in names]}
    return json_response(answer)


async def get_model(request: web.Request) -> web.Response:
    """GET /v1/models/{id}: 404 also for a model that the key does not allow."""
    requested, caller = request.match_info["id"], request[FACTS].caller
    card = _anthropic_card if is_for_anthropic(request) else partial(_card, request.app[TRITON])
    if not caller.models:
        return json_response(card(await request.app[MODELS].get(requested)))
    names = caller.visible(await request.app[MODELS].names())
    if requested not in names:
        raise ModelNotFound(requested)
    return json_response(card(names[requested]))


def is_for_anthropic(request: web.Request) -> bool:
    """Whether a client of Anthropic asks: the same paths have OpenAI's form for others."""
    return "anthropic-version" in request.headers


def _page(request: web.Request, names: Sequence[ModelName]) -> MessageModelList:
    """Return the page of models that the query asks for.

    Raises:
        InvalidRequest: the query breaks a rule.
    """
    limit = request.query.get("limit", str(_PAGE))
    if not re.fullmatch("[1-9][0-9]{0,3}", limit) or int(limit) > _MAX_PAGE:
        raise InvalidRequest(f"limit={shown(limit)}: must be an integer from 1 to {_MAX_PAGE}", param="limit")
    places = {name.requested: place for place, name in enumerate(names)}
    after, before = (request.query.get(field) for field in ("after_id", "before_id"))
    if after is not None and before is not None:
        raise InvalidRequest("before_id: excludes after_id", param="before_id")
    for field, model_id in (("after_id", after), ("before_id", before)):
        if model_id is not None and model_id not in places:
            raise InvalidRequest(f"{field}={shown(model_id)}: no model of this server", param=field)
    start = 0 if after is None else places[after] + 1
    end = len(names) if before is None else places[before]
    page = names[start:end][: int(limit)] if before is None else names[start:end][-int(limit) :]
    return {
        "data": [_anthropic_card(name) for name in page],
        "has_more": len(page) < end - start,
        "first_id": page[0].requested if page else None,
        "last_id": page[-1].requested if page else None,
    }


def _anthropic_card(name: ModelName) -> MessageModel:
    created = datetime.fromtimestamp(name.model.parameters.created, UTC)
    return {
        "type": "model",
        "id": name.requested,
        "display_name": name.requested,
        "created_at": created.isoformat().replace("+00:00", "Z"),
    }


def _card(triton: ReplicaPool, name: ModelName) -> ModelCard:
    return {
        "id": name.requested,
        "object": "model",
        "created": name.model.parameters.created,
        "owned_by": "conch",
        "root": name.model.id,
        "parent": None if name.is_plain else name.model.id,
        "task": name.model.parameters.task.value,
        "max_model_len": name.model.parameters.context_window,
        "tool_call_format": name.model.parameters.tool_call_format,
        "reasoning_format": name.model.parameters.reasoning_format or None,
        "default_parameters": _default_parameters(name),
        "status": status_of(triton, name.model.id),
    }


def _default_parameters(name: ModelName) -> dict[str, Any]:
    """Return the fields that a chat has without its own."""
    defaults = name.model.parameters.defaults_of(name.preset)
    sampling = {field: value for field, value in defaults.items() if field in API_SAMPLING}
    limit = defaults.get("chat_max_tokens")
    return sampling | ({} if limit is None else {"max_tokens": limit})


def status_of(triton: ReplicaPool, model_id: str) -> ModelCardStatus:
    """Return the state of a model; a Triton without an arbiter lists loaded ones only."""
    status = triton.status_of(model_id)
    if status is None:
        return {"value": "loaded"}
    card: ModelCardStatus = {"value": status.state, "memory_bytes": status.memory_bytes}
    if status.device_bytes:
        card["device_bytes"] = dict(status.device_bytes)
    if status.share is not None:
        card["progress"] = round(status.share, 3)
    if status.position is not None:
        card["position"] = status.position
    if status.idle_s is not None:
        card["idle_s"] = round(status.idle_s, 1)
    if status.expires_s is not None:
        card["expires_s"] = round(status.expires_s, 1)
    if status.cause:
        card["cause"] = status.cause
    return card


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
        models |= {model_id: status_of(triton, model_id)["value"] for model_id in snapshot.asleep}
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
