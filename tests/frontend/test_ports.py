"""The routes of our ports and their users are those of docs/security.md, also after a new route."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from frontend.app import create_app
from frontend.operations.supervisor import Supervisor
from frontend.server import app_runner, operations_runner
from frontend.settings import Settings
from tests.fakes import FakeTriton
from tests.frontend.conftest import client_of
from tests.frontend.gateway.key_files import KeyFile
from tests.security_page import EVERYBODY, offered_to

METRICS = "GET /metrics"


def routes_of(app: web.Application) -> set[str]:
    """Return the routes, but for those that only answer a GET without its body."""
    return {
        f"{route.method} {route.resource.canonical}"
        for route in app.router.routes()
        if route.method != "HEAD" and route.resource is not None
    }


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    """With the key of somebody."""
    file = KeyFile(tmp_path / "keys.json")
    file.add("somebody")
    return file


@pytest.mark.parametrize("port", ["the API", "operations"])
async def test_the_page_names_every_route_and_its_users(key_file: KeyFile, port: str) -> None:
    offered = offered_to(port)
    async with AsyncExitStack() as stack:
        runner = app_runner(Settings(drain_timeout_s=0, key_file=str(key_file.path)), {"fake:1": FakeTriton()})
        http = await client_of(runner, stack)
        app = runner.app
        assert isinstance(app, web.Application)
        if port == "operations":
            operations = operations_runner(runner, Supervisor(0))
            http, app = await client_of(operations, stack), operations.app
        routes = routes_of(app)
        assert routes == offered.keys() | {route.replace("/v1", "", 1) for route in offered}
        for route in routes:
            assert (await status_of(http, route) == 401) is not (offered.get(route) == EVERYBODY), route


async def status_of(http: aiohttp.ClientSession, route: str) -> int:
    """Return the status of the answer to a stranger."""
    method, path = route.split()
    async with http.request(method, re.sub(r"{\w+}", "demo", path)) as answer:
        return answer.status


@pytest.mark.parametrize(("admin_port", "has_keys"), [(0, False), (9, False), (0, True)])
def test_metrics_are_on_the_api_port_without_keys_and_an_operations_port(
    key_file: KeyFile, admin_port: int, has_keys: bool
) -> None:
    settings = Settings(admin_port=admin_port, key_file=str(key_file.path) if has_keys else "")
    assert (METRICS in routes_of(create_app(settings))) is (admin_port == 0 and not has_keys)
