"""The gateway before an application's handlers, and an application without it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from frontend.store.sql import SqlStore
from frontend.store.sqlite import SqliteDatabase
from frontend.store.types import Bounds
from tests.fakes import DEMO, FakeTriton, chunks
from tests.frontend.bodies import CHAT, COMPLETION
from tests.frontend.conftest import Serve
from tests.frontend.gateway.key_files import KeyFile


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


async def test_what_is_stored_for_a_key_is_its_own_and_leaves_with_it(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("frontend.gateway.install.KEY_INTERVAL_S", 0.01)
    keys = KeyFile(tmp_path / "keys.json")
    for name in ("alice", "bob", "admin"):
        keys.add(name, owner=name.encode().hex().zfill(32))
    http = await serve(FakeTriton(chunks("x")), key_file=str(keys.path), store=str(tmp_path / "store.db"))
    urls = {}
    for name in ("alice", "bob"):
        created = await http.post("/v1/conversations", json={}, headers=keys.headers(name))
        urls[name] = f"/v1/conversations/{(await created.json())['id']}"
        assert (await http.get(urls[name], headers=keys.headers(name))).status == 200
        assert (await http.get(urls[name], headers=keys.headers("admin"))).status == 404
    keys.remove("alice")
    async with asyncio.timeout(30):
        while "the key alice is removed" not in caplog.text:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0.01)
    assert "1 stored objects with " in caplog.text
    store = SqlStore(SqliteDatabase(tmp_path / "store.db"), Bounds())
    assert [*await store.usage()] == [b"bob".hex().zfill(32)]
    await store.close()
