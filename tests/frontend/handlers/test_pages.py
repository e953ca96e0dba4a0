"""The pages over HTTP: who gets them, and with which rules for the browser. tests/workshop/playground has the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frontend.handlers.pages import FOLDER
from tests.fakes import FakeTriton
from tests.frontend.conftest import Serve
from tests.frontend.gateway.key_files import KeyFile

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def test_a_browser_gets_the_playground_and_others_the_health(serve: Serve) -> None:
    http = await serve(FakeTriton())
    page = await http.get("/", headers=BROWSER)
    assert (page.content_type, page.headers["Vary"]) == ("text/html", "Accept")
    assert "<title>Conch playground</title>" in await page.text()
    for accept in ({}, {"Accept": "application/json"}):
        assert await (await http.get("/", headers=accept)).json() == {"status": "live"}
    assert (await http.head("/")).status == 200


async def test_every_file_that_a_page_names_is_served_with_a_strict_policy(serve: Serve) -> None:
    http = await serve(FakeTriton())
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r'(?:(?:src|href)="pages/|from "\./)([^"]+)"', text):
            answer = await http.get(f"/pages/{name}")
            assert answer.status == 200, name
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
            assert "unsafe" not in policy and "require-trusted-types-for 'script'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for unknown in ("/pages/none.js", "/pages/../settings.py", "/pages/%2e%2e/settings.py"):
        assert (await http.get(unknown)).status == 404


@pytest.mark.parametrize("path", ["/", "/docs", "/pages/style.css"])
async def test_with_keys_there_are_no_pages_unless_asked_for(serve: Serve, tmp_path: Path, path: str) -> None:
    key_file = KeyFile(tmp_path / "keys.json")
    key_file.add("somebody")
    without = await (await serve(FakeTriton(), key_file=str(key_file.path))).get(path, headers=BROWSER)
    assert without.content_type == "application/json"
    asked_for = await (await serve(FakeTriton(), key_file=str(key_file.path), web_pages="on")).get(
        path, headers=BROWSER
    )
    assert (asked_for.status, asked_for.content_type[:5]) == (200, "text/")
    off = await (await serve(FakeTriton(), web_pages="off")).get(path, headers=BROWSER)
    assert off.content_type == "application/json"


def test_the_pages_are_small_and_load_nothing_from_elsewhere() -> None:
    texts = [path.read_text(encoding="utf-8") for path in FOLDER.iterdir()]
    assert sum(text.count("\n") for text in texts) <= 2100
    for text in texts:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert not re.search(r'(src|href)="(https?:)?//', text)
