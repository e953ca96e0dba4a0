"""The gateway before an application's handlers, and an application without it."""

from __future__ import annotations

import pytest

from tests.fakes import DEMO, FakeTriton, chunks
from tests.frontend.bodies import CHAT, COMPLETION
from tests.frontend.conftest import Serve


async def test_an_application_without_the_gateway_serves_every_request(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.app.install_gateway", lambda app, tell_others: None)
    http = await serve(FakeTriton(chunks("x")))
    tokenization = {"model": DEMO.id, "prompt": "x"}
    for path, body in (
        ("/v1/completions", COMPLETION),
        ("/v1/chat/completions", CHAT | {"stream": True}),
        ("/tokenize", tokenization),
    ):
        response = await http.post(path, json=body)
        assert response.status == 200, await response.text()
        await response.read()
    for path in ("/v1/models", "/health/ready"):
        assert (await http.get(path)).status == 200
