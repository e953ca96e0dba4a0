"""The admin routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

from aiohttp import web
from pydantic import Field

from frontend.caller import KeyRole
from frontend.errors import InvalidRequest, NotFound, PermissionDenied, shown
from frontend.handlers.bodies import require_json
from frontend.handlers.models import status_of
from frontend.handlers.stored import store_of, stored
from frontend.operations.adapters import AdapterCommands, Outcomes
from frontend.operations.models import EndpointsControl
from frontend.operations.supervisor import Supervisor
from frontend.protocol.body import Body
from frontend.protocol.reading import parse
from frontend.request_context import DRAIN, FACTS, KEYS, MODELS, SETTINGS, TRITON, json_response
from frontend.settings import SettingsError, is_loopback
from model_repository.contract.output import EngineStats

CONTROL = web.AppKey("control", EndpointsControl)
ADAPTERS = web.AppKey("adapters", AdapterCommands)
SUPERVISOR = web.AppKey("supervisor", Supervisor)


class UnloadRequest(Body):
    """The optional body of an unload."""

    timeout_s: Annotated[float, Field(ge=0, le=3600)] = 30.0  # time for running requests


class LoadAdapterRequest(Body):
    """The body of a load."""

    name: Annotated[str, Field(min_length=1, max_length=256)]  # the adapter's name for clients
    source: Annotated[str, Field(min_length=1, max_length=4096)]  # its folder below the engines' root of adapters


async def list_models(request: web.Request) -> web.Response:
    """GET /admin/models: every known model with its state."""
    _require_admin(request)
    snapshot = await request.app[MODELS].snapshot()
    triton = request.app[TRITON]
    loaded = [
        {
            "id": model.id,
            "state": triton.state_of(model.id) or status_of(triton, model.id)["value"],
            "runtime": model.parameters.runtime,
            "aliases": list(model.parameters.aliases),
            "adapters": list(model.parameters.adapters),
        }
        for model in (*snapshot.ready.values(), *snapshot.asleep.values())
    ]
    others = [{"id": model_id, "state": state} for model_id, state in snapshot.unready.items()]
    return json_response({"models": sorted(loaded + others, key=lambda model: str(model["id"]))})


async def load_model(request: web.Request) -> web.Response:
    """POST /admin/models/{id}/load: answers when the model is ready."""
    _require_admin(request)
    model_id = request.match_info["id"]
    request[FACTS].model = model_id
    await request.app[CONTROL].load(model_id)
    return json_response({"id": model_id, "state": "ready"})


async def unload_model(request: web.Request) -> web.Response:
    """POST /admin/models/{id}/unload: answers when no request is running and its memory is free."""
    _require_admin(request)
    model_id = request.match_info["id"]
    request[FACTS].model = model_id
    body = await _body(request, UnloadRequest)
    num_ended = await request.app[CONTROL].unload(model_id, body.timeout_s)
    return json_response({"id": model_id, "state": "unloaded", "num_ended": num_ended})


async def list_adapters(request: web.Request) -> web.Response:
    """GET /admin/models/{id}/adapters: the adapters of each engine with their sources; null: built in."""
    _require_admin(request)
    outcomes = await request.app[ADAPTERS].list(request.match_info["id"])
    endpoints = outcomes.describe(
        lambda stats: {
            "adapters": {name: source or None for name, source in stats.adapters.items()},
            "adapter_bytes": stats.adapter_bytes,
            "num_unloading": stats.num_unloading,
        }
    )
    return json_response({"id": request.match_info["id"], "endpoints": endpoints})


async def load_adapter(request: web.Request) -> web.Response:
    """POST /admin/models/{id}/adapters: answers when every worker knows the adapter."""
    _require_admin(request)
    model_id = request.match_info["id"]
    body = await _body(request, LoadAdapterRequest)
    request[FACTS].model = body.name
    served = await request.app[MODELS].snapshot()
    outcomes = await request.app[ADAPTERS].load(model_id, body.name, body.source, served)
    return _adapter_response(model_id, body.name, outcomes, lambda stats: {"state": "loaded"})


async def unload_adapter(request: web.Request) -> web.Response:
    """DELETE /admin/models/{id}/adapters/{name}: answers when new requests cannot use it; some may still run."""
    _require_admin(request)
    model_id, name = request.match_info["id"], request.match_info["name"]
    request[FACTS].model = name
    outcomes = await request.app[ADAPTERS].unload(model_id, name)
    return _adapter_response(
        model_id, name, outcomes, lambda stats: {"state": "unloaded", "num_unloading": stats.num_unloading}
    )


async def list_stored(request: web.Request) -> web.Response:
    """GET /admin/store: how much is stored for each key; null: the key was removed, or the server has no keys."""
    _require_admin(request)
    usage = await stored(store_of(request).usage())
    keys = request.app.get(KEYS)
    names = keys.owners if keys is not None else {}
    owners = [{"owner": owner, "key": names.get(owner), **asdict(usage[owner])} for owner in sorted(usage)]
    return json_response({"owners": owners})


async def delete_stored(request: web.Request) -> web.Response:
    """DELETE /admin/store/{id}: delete all that is stored for an owner."""
    _require_admin(request)
    owner = request.match_info["id"]
    dropped = await stored(store_of(request).drop(owner))
    if not dropped.num_objects:
        raise NotFound(
            f"owner={shown(owner)}: nothing is stored for it; GET /admin/store has the owners", param="owner"
        )
    return json_response({"owner": owner, **asdict(dropped)})


async def reload_keys(request: web.Request) -> web.Response:
    """POST /admin/keys/reload: every worker reads the key file now."""
    _require_admin(request)
    keys = request.app.get(KEYS)
    if keys is None:
        raise InvalidRequest("There is no key file: the server was started without --key-file.")
    try:
        keys.reload()
    except SettingsError as exc:
        raise InvalidRequest(f"{exc}; the old keys stay in force") from exc
    request.app[SUPERVISOR].reload_keys()
    return json_response({"num_keys": keys.num_keys})


async def drain(request: web.Request) -> web.Response:
    """POST /admin/drain: every worker refuses new requests. Answers at once; a signal ends the workers."""
    _require_admin(request)
    request.app[DRAIN].begin()
    return json_response({"status": "draining"}, status=202)


async def _body[Request: Body](request: web.Request, model: type[Request]) -> Request:
    if request.body_exists:
        require_json(request)
    body, unknown = parse(model, await request.read() or b"{}", request.app[SETTINGS])
    if unknown:
        raise InvalidRequest(f"{unknown[0]}: unknown field", param=unknown[0], code="unknown_parameter")
    return body


def _adapter_response(
    model_id: str, name: str, outcomes: Outcomes, done: Callable[[EngineStats], Mapping[str, Any]]
) -> web.Response:
    """Return the results of all endpoints, with the status and the error of the first failure."""
    body = {"id": model_id, "name": name, "endpoints": outcomes.describe(done)}
    failure = outcomes.failure
    if failure is None:
        return json_response(body)
    return json_response(failure.envelope() | body, status=failure.status, headers=failure.headers)


def _require_admin(request: web.Request) -> None:
    """Check that the caller is an administrator.

    Raises:
        PermissionDenied: the key has another role; or there are no keys, and other machines can reach the port.
    """
    settings = request.app[SETTINGS]
    if settings.key_file:
        if request[FACTS].caller.role is not KeyRole.ADMIN:
            raise PermissionDenied("This route needs an API key with the role admin")
    elif not is_loopback(settings.admin_host):
        raise PermissionDenied("Without a key file, the admin routes are served on loopback only (--admin-host)")
