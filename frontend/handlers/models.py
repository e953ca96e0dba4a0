"""What is served, and whether it is ready."""

from __future__ import annotations

import contextlib
from typing import Any

from aiohttp import web

from frontend.errors import APIError, Draining, ModelNotFound, Overloaded
from frontend.request_context import FACTS, IS_PUBLIC, MODELS, SETTINGS, TRITON, is_draining, json_response
from frontend.translate.model_cards import model_card, model_list


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models."""
    names = await request.app[MODELS].names()
    return json_response(model_list(request[FACTS].caller.visible(names)))


async def get_model(request: web.Request) -> web.Response:
    """GET /v1/models/{id}. What the key does not allow is not there, as it is not in the list."""
    asked, caller = request.match_info["id"], request[FACTS].caller
    if not caller.models:
        return json_response(model_card(await request.app[MODELS].get(asked)))
    names = caller.visible(await request.app[MODELS].names())
    if asked not in names:
        raise ModelNotFound(asked)
    return json_response(model_card(names[asked]))


async def health_live(request: web.Request) -> web.Response:
    """GET /health/live: this process answers."""
    return json_response({"status": "live"})


async def health_ready(request: web.Request) -> web.Response:
    """GET /health/ready: requests are taken, and at least one Triton answers; the body has the state of each model."""
    triton, is_ready, models = request.app[TRITON], False, dict[str, str]()
    with contextlib.suppress(APIError):
        snapshot = await request.app[MODELS].snapshot()
        is_ready = True
        models = dict(snapshot.unready) | {model.id: triton.state_of(model.slug) for model in snapshot.ready.values()}
    stops = is_draining(request.app)
    body: dict[str, Any] = {"status": "draining" if stops else "ready" if is_ready else "not ready"}
    if not (request.app[IS_PUBLIC] and request.app[SETTINGS].key_file):  # it is open, the list of models is not
        body |= {"endpoints": triton.endpoints(), "models": models, "replicas": triton.states_by_endpoint()}
    if is_ready and not stops:
        return json_response(body)
    return json_response(body, status=503, headers=Draining.headers if stops else Overloaded.headers)
