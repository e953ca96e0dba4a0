"""Web pages of other origins: preflights, allowed pages and refused ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeTriton, chunks
from tests.frontend.answers import error_of
from tests.frontend.bodies import COMPLETION
from tests.frontend.conftest import Serve
from tests.frontend.connections.raw_http import port_of
from tests.frontend.gateway.key_files import KeyFile

PAGE = "https://a.example"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


@pytest.mark.parametrize(("origins", "answer"), [((PAGE,), PAGE), (("https://b.example", PAGE), PAGE), (("*",), "*")])
async def test_an_allowed_page_may_send_requests_and_read_responses(
    serve: Serve, origins: tuple[str, ...], answer: str
) -> None:
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
async def test_another_page_is_refused_and_reads_nothing(serve: Serve, origin: str) -> None:
    http = await serve(triton := FakeTriton(chunks("x")), cors_origins=(PAGE,))
    preflight = await http.options("/v1/completions", headers=PREFLIGHT | {"Origin": origin})
    response = await http.post("/v1/completions", json=COMPLETION, headers={"Origin": origin})
    assert (response.status, triton.requests) == (403, [])
    for answer in (preflight, response):
        assert not any(name.startswith("Access-Control") for name in answer.headers)


async def test_without_the_setting_every_page_is_refused(serve: Serve) -> None:
    http = await serve(triton := FakeTriton(chunks("x")))
    assert (await http.options("/v1/completions", headers=PREFLIGHT)).status == 403
    response = await http.post("/v1/completions", json=COMPLETION, headers={"Origin": PAGE})
    assert (response.status, triton.requests) == (403, [])
    assert "--cors-origin" in (await error_of(response))["message"]
    assert not any(name.startswith("Access-Control") for name in response.headers)


async def test_a_page_of_the_server_itself_may_send_requests(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("x")))
    own = f"http://127.0.0.1:{port_of(http)}"
    assert (await http.post("/v1/completions", json=COMPLETION, headers={"Origin": own})).status == 200


async def test_with_api_keys_a_page_is_admitted_by_its_key(serve: Serve, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    keys.add("page")
    http = await serve(FakeTriton(chunks("x")), key_file=str(keys.path))
    foreign = {"Origin": PAGE, "Host": "llm.example.com"}
    assert (await http.post("/v1/completions", json=COMPLETION, headers=foreign)).status == 401
    assert (await http.post("/v1/completions", json=COMPLETION, headers=foreign | keys.headers("page"))).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil", ""])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/metrics", "/openapi.json", "/v1/nothing"])
async def test_a_foreign_name_that_resolves_to_loopback_is_refused(serve: Serve, host: str, path: str) -> None:
    http = await serve(triton := FakeTriton(chunks("x")))
    headers = {"Host": host, "Origin": f"http://{host}"}  # for the browser, the page is the server's own
    response = await (
        http.post(path, json=COMPLETION, headers=headers) if "comp" in path else http.get(path, headers=headers)
    )
    assert (response.status, triton.requests) == (403, [])
    assert "--allow-host" in (await error_of(response))["message"]


@pytest.mark.parametrize(
    ("host", "settings"),
    [
        ("localhost", {}),
        ("LocalHost:9000", {}),  # a tunnel has another port
        ("[::1]:8000", {}),
        ("llm.example.com", {"allow_hosts": ("LLM.example.com",)}),
        ("anything", {"allow_hosts": ("*",)}),
        ("anything", {"host": "0.0.0.0", "allow_anonymous": True}),  # a pod has names of the cluster
    ],
)
async def test_names_of_loopback_and_of_a_proxy_are_accepted(serve: Serve, host: str, settings: dict[str, Any]) -> None:
    http = await serve(FakeTriton(chunks("x")), **settings)
    assert (await http.post("/v1/completions", json=COMPLETION, headers={"Host": host})).status == 200
