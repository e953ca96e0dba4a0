"""What is served, and whether it is ready."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from frontend.errors import APIError, ModelNotFound
from frontend.handlers.context import FACTS, IS_PUBLIC, MODELS, SETTINGS, WATCH, json_response
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
    """GET /health/ready: Triton answers and serves at least one model."""
    endpoint = request.app[SETTINGS].triton_endpoints[0]
    try:
        snapshot = await request.app[MODELS].snapshot()
    except APIError as exc:
        return _readiness(request, False, {endpoint: exc.code}, {})
    recovering = request.app[WATCH].recovering()
    models: dict[str, Any] = dict(snapshot.unready) | {
        model.id: "recovering" if model.slug in recovering else "ready" for model in snapshot.ready.values()
    }
    return _readiness(request, "ready" in models.values(), {endpoint: "ready"}, models)


def _readiness(request: web.Request, is_ready: bool, endpoints: dict[str, Any], models: dict[str, Any]) -> web.Response:
    body: dict[str, Any] = {"status": "ready" if is_ready else "not ready"}
    if not (request.app[IS_PUBLIC] and request.app[SETTINGS].key_file):  # it is open, the list of models is not
        body |= {"endpoints": endpoints, "models": models}
    return json_response(body, status=200 if is_ready else 503)
