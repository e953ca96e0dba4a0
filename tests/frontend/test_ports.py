"""What each port offers, route by route: docs/security.md says so, and whoever adds one must think of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from frontend.app import create_app
from frontend.operations.app import create_operations_app
from frontend.operations.supervisor import Supervisor
from frontend.server import app_runner
from frontend.settings import Settings
from tests.fakes import FakeTriton
from tests.frontend.access.key_files import KeyFile

HEALTH = {"GET /health", "GET /health/live", "GET /health/ready"}
OF_THE_API = {
    "POST /chat/completions",
    "POST /completions",
    "GET /models",
    "GET /models/{id}",
    "POST /tokenize",
    "POST /detokenize",
    "GET /version",
}
METRICS = "GET /metrics"
PUBLIC = HEALTH | {"GET /openapi.json"} | OF_THE_API | {route.replace(" ", " /v1") for route in OF_THE_API}
OPERATIONS = {
    *HEALTH,
    METRICS,
    "GET /admin/models",
    "POST /admin/models/{id}/load",
    "POST /admin/models/{id}/unload",
    "GET /admin/models/{id}/adapters",
    "POST /admin/models/{id}/adapters",
    "DELETE /admin/models/{id}/adapters/{name}",
    "POST /admin/keys/reload",
    "POST /admin/drain",
}


def offered(app: web.Application) -> set[str]:
    """Return the routes, but for those that only answer a GET without its body."""
    return {
        f"{route.method} {route.resource.canonical}"
        for route in app.router.routes()
        if route.method != "HEAD" and route.resource is not None
    }


@pytest.mark.parametrize(
    ("settings", "has_metrics"), [({}, True), ({"admin_port": 9}, False), ({"key_file": "keys.json"}, False)]
)
def test_the_api_port_offers_no_more_than_the_api(tmp_path: Path, settings: dict[str, Any], has_metrics: bool) -> None:
    if "key_file" in settings:
        file = KeyFile(tmp_path / settings["key_file"])
        file.add("somebody")
        settings = {"key_file": str(file.path)}
    assert offered(create_app(Settings(**settings))) == PUBLIC | ({METRICS} if has_metrics else set())


async def test_the_operations_port_offers_neither_the_api_nor_keys_nor_files() -> None:
    runner = app_runner(Settings(drain_timeout_s=0), {"fake:1": FakeTriton()})
    await runner.setup()
    assert isinstance(runner.app, web.Application)
    assert offered(create_operations_app(runner.app, Supervisor(0))) == OPERATIONS
    await runner.cleanup()
