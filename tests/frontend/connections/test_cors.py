"""Web pages of other origins: who may read answers, and how a browser asks."""

from __future__ import annotations

import pytest

from tests.fakes import FakeTriton, chunks
from tests.frontend.bodies import COMPLETION
from tests.frontend.conftest import Serve

PAGE = "https://a.example"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


@pytest.mark.parametrize(("origins", "answer"), [((PAGE,), PAGE), (("https://b.example", PAGE), PAGE), (("*",), "*")])
async def test_an_allowed_page_may_ask_and_read(serve: Serve, origins: tuple[str, ...], answer: str) -> None:
    http = await serve(FakeTriton(chunks("x")), cors_origins=origins)
    preflight = await http.options("/v1/completions", headers=PREFLIGHT)
    assert preflight.status == 204
    assert preflight.headers["Access-Control-Allow-Headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    responses = [preflight]
    for body in (COMPLETION, COMPLETION | {"stream": True}, {}):
        responses.append(await http.post("/v1/completions", json=body, headers={"Origin": PAGE}))
        assert "x-request-id" in responses[-1].headers["Access-Control-Expose-Headers"]
    for response in responses:
        assert response.headers["Access-Control-Allow-Origin"] == answer
        assert response.headers["Vary"] == "Origin"
        assert "Access-Control-Allow-Credentials" not in response.headers


@pytest.mark.parametrize("origin", ["https://b.example", "https://a.example.evil", "http://a.example", "null", ""])
async def test_another_page_is_told_nothing(serve: Serve, origin: str) -> None:
    http = await serve(FakeTriton(chunks("x")), cors_origins=(PAGE,))
    preflight = await http.options("/v1/completions", headers=PREFLIGHT | {"Origin": origin})
    response = await http.post("/v1/completions", json=COMPLETION, headers={"Origin": origin})
    for answer in (preflight, response):
        assert not any(name.startswith("Access-Control") for name in answer.headers)


async def test_without_the_setting_there_is_none_of_it(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("x")))
    assert (await http.options("/v1/completions", headers=PREFLIGHT)).status == 405
    response = await http.post("/v1/completions", json=COMPLETION, headers={"Origin": PAGE})
    assert not any(name.startswith("Access-Control") for name in response.headers)
