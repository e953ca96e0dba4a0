"""The drain of a server, over HTTP: requests in flight finish, new ones are refused."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from frontend.errors import Draining
from frontend.gateway.drain import Drain
from frontend.request_context import DRAIN
from tests.fakes import FakeTriton, chunks
from tests.frontend.answers import error_of
from tests.frontend.bodies import COMPLETION
from tests.frontend.conftest import Serve
from tests.waiting import DEADLINE_S


async def test_a_drain_refuses_new_requests_and_shows_in_the_health(serve: Serve) -> None:
    apps: list[web.Application] = []
    http = await serve(FakeTriton(chunks("x")), apps=apps)
    assert (await http.post("/v1/completions", json=COMPLETION)).status == 200
    apps[0][DRAIN].begin()
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        response = await http.post(path, json=COMPLETION)
        error = await error_of(response)
        assert (error["status"], error["code"], response.headers["Retry-After"]) == (503, "draining", "1")
        assert response.headers["Connection"] == "close"
    ready = await http.get("/health/ready")
    assert (ready.status, (await ready.json())["status"]) == (503, "draining")
    live = await http.get("/health/live")
    assert (live.status, live.headers["Connection"]) == (200, "close")


async def test_a_drain_without_requests_ends_at_once_and_notifies_the_others_once() -> None:
    calls: list[str] = []
    drain = Drain(lambda: calls.append("drain"))
    await asyncio.wait_for(drain.finish(60.0, asyncio.Event(), lambda error: 0), DEADLINE_S)
    drain.begin()
    assert calls == ["drain"]
    with pytest.raises(Draining), drain:
        pass
