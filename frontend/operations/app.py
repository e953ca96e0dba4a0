"""The operations port: health, metrics and the admin routes. It is never the API's port."""

from __future__ import annotations

from aiohttp import web

from frontend.app import name_request, serve_request
from frontend.gateway.install import share_gateway
from frontend.handlers import models, pages
from frontend.handlers.stored import STORE
from frontend.operations import admin
from frontend.operations.adapters import AdapterCommands
from frontend.operations.admin import ADAPTERS, CONTROL, SUPERVISOR
from frontend.operations.models import EndpointsControl
from frontend.operations.supervisor import Supervisor
from frontend.request_context import IS_PUBLIC, MODELS, SETTINGS, TRITON
from frontend.telemetry import scrape
from frontend.telemetry.observer import OBSERVER
from frontend.triton.health_monitor import STATS_INTERVAL_S
from frontend.triton.models import MAX_AGE_S


def create_operations_app(public: web.Application, supervisor: Supervisor) -> web.Application:
    """Return the application of the operations port.

    Args:
        public: the started application of the API. Both share Triton, models, metrics and the gateway.
        supervisor: sends signals to all workers.
    """
    app = web.Application(middlewares=[serve_request])
    app[SETTINGS], app[TRITON] = public[SETTINGS], public[TRITON]
    app[MODELS], app[OBSERVER] = public[MODELS], public[OBSERVER]
    app[IS_PUBLIC] = False
    share_gateway(public, app)
    if STORE in public:
        app[STORE] = public[STORE]
    tritons = app[TRITON].tritons
    app[CONTROL] = EndpointsControl(tritons)
    app[ADAPTERS] = AdapterCommands(tritons, settle_s=MAX_AGE_S + STATS_INTERVAL_S)
    app[SUPERVISOR] = supervisor
    app.on_response_prepare.append(name_request)
    app.router.add_routes(
        [
            web.get("/", pages.status),
            web.get("/pages/{name:.+}", pages.part),
            web.get("/health", models.health_ready),
            web.get("/health/live", models.health_live),
            web.get("/health/ready", models.health_ready),
            web.get("/metrics", scrape.metrics),
            web.get("/admin/models", admin.list_models),
            web.post("/admin/models/{id:.+}/load", admin.load_model),
            web.post("/admin/models/{id:.+}/unload", admin.unload_model),
            web.get("/admin/models/{id:.+}/adapters", admin.list_adapters),
            web.post("/admin/models/{id:.+}/adapters", admin.load_adapter),
            web.delete("/admin/models/{id:.+}/adapters/{name:.+}", admin.unload_adapter),
            web.get("/admin/store", admin.list_stored),
            web.delete("/admin/store/{id}", admin.delete_stored),
            web.post("/admin/keys/reload", admin.reload_keys),
            web.post("/admin/drain", admin.drain),
        ]
    )
    return app
