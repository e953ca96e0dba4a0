"""What is served, and whether it is ready."""

from __future__ import annotations

import contextlib

from aiohttp import web

from frontend.errors import APIError, Draining, Overloaded
from frontend.handlers.context import DRAIN, MODELS, TRITON, json_response
from frontend.translate.model_cards import model_card, model_list


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models."""
    return json_response(model_list(await request.app[MODELS].names()))


async def get_model(request: web.Request) -> web.Response:
    """GET /v1/models/{id}."""
    return json_response(model_card(await request.app[MODELS].get(request.match_info["id"])))


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
    is_draining = request.app[DRAIN].is_draining
    body = {
        "status": "draining" if is_draining else "ready" if is_ready else "not ready",
        "endpoints": triton.endpoints(),
        "models": models,
        "replicas": triton.states_by_endpoint(),
    }
    if is_ready and not is_draining:
        return json_response(body)
    return json_response(body, status=503, headers=Draining.headers if is_draining else Overloaded.headers)
