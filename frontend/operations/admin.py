"""What an administrator may do while the server runs."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from pydantic import Field

from frontend.access.authentication import KEYS
from frontend.access.caller import Role
from frontend.access.key_file import KeyFileError
from frontend.errors import InvalidRequest, PermissionDenied
from frontend.handlers.context import DRAIN, FACTS, MODELS, SETTINGS, TRITON, json_response
from frontend.operations.models import EndpointsControl
from frontend.operations.supervisor import Supervisor
from frontend.protocol.body import Body
from frontend.protocol.reading import parse
from frontend.settings import is_loopback

CONTROL = web.AppKey("control", EndpointsControl)
SUPERVISOR = web.AppKey("supervisor", Supervisor)


class UnloadRequest(Body):
    """The body of an unload; there may be none."""

    timeout_s: Annotated[float, Field(ge=0, le=3600)] = 30.0  # that requests under way may go on


async def list_models(request: web.Request) -> web.Response:
    """GET /admin/models: every model that is loaded or known, with its state."""
    _require_admin(request)
    snapshot = await request.app[MODELS].snapshot()
    triton = request.app[TRITON]
    loaded = [
        {
            "id": model.id,
            "state": triton.state_of(model.slug),
            "runtime": model.parameters.runtime,
            "aliases": list(model.parameters.aliases),
            "adapters": list(model.parameters.adapters),
        }
        for model in snapshot.ready.values()
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
    """POST /admin/models/{id}/unload: answers when no request runs any more and Triton gives up the stages."""
    _require_admin(request)
    model_id = request.match_info["id"]
    request[FACTS].model = model_id
    body, unknown = parse(UnloadRequest, await request.read() or b"{}", request.app[SETTINGS])
    if unknown:
        raise InvalidRequest(f"{unknown[0]}: unknown field", param=unknown[0], code="unknown_parameter")
    unloading = await request.app[CONTROL].unload(model_id, body.timeout_s)
    return json_response({"id": model_id, "state": "unloaded", "num_ended": unloading.num_ended})


async def reload_keys(request: web.Request) -> web.Response:
    """POST /admin/keys/reload: reads the key file now, in every worker."""
    _require_admin(request)
    keys = request.app.get(KEYS)
    if keys is None:
        raise InvalidRequest("There is no key file: the server was started without --key-file.")
    try:
        keys.reload()
    except KeyFileError as exc:
        raise InvalidRequest(f"{exc}; the keys as they were before stay in force") from exc
    request.app[SUPERVISOR].reload_keys()
    return json_response({"num_keys": keys.num_in_file})


async def drain(request: web.Request) -> web.Response:
    """POST /admin/drain: has every worker take no more requests; answers at once. A signal ends them."""
    _require_admin(request)
    request.app[DRAIN].begin()
    return json_response({"status": "draining"}, status=202)


def _require_admin(request: web.Request) -> None:
    """Check that the caller is an administrator.

    Raises:
        PermissionDenied: the key is not an admin's; or there are no keys, and others than this machine reach the port.
    """
    settings = request.app[SETTINGS]
    if settings.key_file:
        if request[FACTS].caller.role is not Role.ADMIN:
            raise PermissionDenied("This route needs an API key with the role admin")
    elif not is_loopback(settings.admin_host):
        raise PermissionDenied("Without a key file, the admin routes are served on loopback only (--admin-host)")
    elif "Origin" in request.headers:  # a page in a browser on this machine is not its administrator
        raise PermissionDenied("Without a key file, the admin routes are not for web pages")
