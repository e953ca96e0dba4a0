"""API keys and their rights: the real application over a fake Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from frontend.caller import KeyRole
from frontend.errors import TritonUnreachable
from tests.fakes import FakeTriton, chunks, served_model
from tests.frontend.bodies import COMPLETION
from tests.frontend.conftest import Serve
from tests.frontend.gateway.key_files import KeyFile

ROUTES = [
    ("POST", "/chat/completions"),
    ("POST", "/openai/v1/completions"),
    ("GET", "/nowhere"),
    ("DELETE", "/v1/models"),
    ("GET", "/health/../v1/models"),
    ("GET", "/metrics"),
]


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def triton() -> FakeTriton:
    demo = served_model(aliases=("gpt-4o",), adapters=("formal", "org/formal"))
    return FakeTriton(chunks("hi"), models=[demo, served_model("org/other"), served_model("third")])


@pytest.fixture
async def http(serve: Serve, triton: FakeTriton, key_file: KeyFile) -> aiohttp.ClientSession:
    key_file.add("all")
    key_file.add("demo", models=("org/demo",))
    key_file.add("pattern", models=("org/*",))
    key_file.add("adapter", models=("formal",))
    key_file.add("alias", models=("gpt-4o",))
    key_file.add("bound", organizations=("org-1", "org-2"), projects=("p-1",))
    key_file.add("admin", role=KeyRole.ADMIN)
    return await serve(triton, key_file=str(key_file.path), root_paths=("/openai",))


async def refused(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """Return the error of an answer."""
    error: dict[str, Any] = (await response.json())["error"]
    return error | {"status": response.status}


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_without_a_key_every_route_but_health_is_401(http: aiohttp.ClientSession, method: str, path: str) -> None:
    response = await http.request(method, path, json=None if method == "GET" else COMPLETION)
    error = await refused(response)
    assert (error["status"], error["type"], error["code"]) == (401, "authentication_error", "invalid_api_key")
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready"])
async def test_health_needs_no_key_and_names_no_model(http: aiohttp.ClientSession, path: str) -> None:
    response = await http.get(path)
    assert response.status == 200
    assert set(await response.json()) == {"status"}


async def test_health_names_no_endpoint_when_triton_is_away(
    serve: Serve, triton: FakeTriton, key_file: KeyFile
) -> None:
    key_file.add("all")
    triton.snapshot_error = TritonUnreachable()
    http = await serve(triton, key_file=str(key_file.path))
    response = await http.get("/health/ready")
    assert (response.status, await response.json()) == (503, {"status": "not ready"})


@pytest.mark.parametrize(
    "header",
    ["Bearer {}", "bearer {}", "BEARER   {} "],
)
async def test_the_scheme_is_read_in_any_case(http: aiohttp.ClientSession, key_file: KeyFile, header: str) -> None:
    headers = {"Authorization": header.format(key_file.texts["all"])}
    assert (await http.get("/v1/models", headers=headers)).status == 200


@pytest.mark.parametrize(
    "header",
    ["{}", "Basic {}", "Bearer", "Bearer ", "Bearer{}", "Bearer {} x", "Bearer x {}", "Token {}", "Bearer none"],
)
async def test_other_headers_are_refused(http: aiohttp.ClientSession, key_file: KeyFile, header: str) -> None:
    headers = {"Authorization": header.format(key_file.texts["all"])}
    response = await http.get("/v1/models", headers=headers)
    assert response.status == 401
    assert key_file.texts["all"] not in await response.text()


async def test_the_key_may_come_as_x_api_key(http: aiohttp.ClientSession, key_file: KeyFile) -> None:
    key = key_file.texts["all"]
    assert (await http.get("/v1/models", headers={"x-api-key": key})).status == 200
    assert (await http.get("/v1/models", headers={"x-api-key": "no"})).status == 401
    assert (await http.get("/v1/models", headers={"x-api-key": key, "Authorization": "Bearer no"})).status == 401


@pytest.mark.parametrize(
    ("name", "visible"),
    [
        ("all", ["gpt-4o", "org/demo", "org/other", "third", "formal", "org/formal"]),
        ("demo", ["gpt-4o", "org/demo"]),
        ("pattern", ["gpt-4o", "org/demo", "org/other", "org/formal"]),
        ("adapter", ["formal"]),
        ("alias", ["gpt-4o"]),
    ],
)
async def test_a_key_sees_and_uses_only_its_models(
    http: aiohttp.ClientSession, triton: FakeTriton, key_file: KeyFile, name: str, visible: list[str]
) -> None:
    headers = key_file.headers(name)
    models = (await (await http.get("/v1/models", headers=headers)).json())["data"]
    assert [model["id"] for model in models] == visible
    for model in ("formal", "gpt-4o", "org/demo", "org/formal", "org/other", "third"):
        is_allowed = model in visible
        assert (await http.get(f"/v1/models/{model}", headers=headers)).status == (200 if is_allowed else 404)
        for path, body in (
            ("/v1/completions", COMPLETION),
            ("/tokenize", COMPLETION),
            ("/detokenize", {"tokens": [1]}),
        ):
            response = await http.post(path, json=body | {"model": model}, headers=headers)
            assert response.status == (200 if is_allowed else 403)
            if not is_allowed:
                error = await refused(response)
                assert (error["type"], error["param"]) == ("permission_error", "model")


async def test_a_key_cannot_find_out_about_other_models(http: aiohttp.ClientSession, key_file: KeyFile) -> None:
    answers = []
    for model in ("third", "nothing"):
        response = await http.post(
            "/v1/completions", json=COMPLETION | {"model": model}, headers=key_file.headers("demo")
        )
        answers.append((response.status, (await response.text()).replace(model, "")))
    assert answers[0] == answers[1]
    response = await http.post(
        "/v1/completions", json=COMPLETION | {"model": "org/x"}, headers=key_file.headers("pattern")
    )
    assert response.status == 404


@pytest.mark.parametrize(
    ("given", "status", "organization"),
    [
        ({}, 200, "org-1"),
        ({"OpenAI-Organization": "org-2", "OpenAI-Project": "p-1"}, 200, "org-2"),
        ({"OpenAI-Organization": "org-3"}, 403, "org-3"),
        ({"OpenAI-Organization": ""}, 403, None),
        ({"OpenAI-Project": "p-2"}, 403, None),
    ],
)
async def test_a_bound_key_is_for_its_organizations_and_projects(
    http: aiohttp.ClientSession, key_file: KeyFile, given: dict[str, str], status: int, organization: str | None
) -> None:
    response = await http.post("/v1/completions", json=COMPLETION, headers=key_file.headers("bound", **given))
    assert response.status == status
    assert response.headers.get("openai-organization") == organization
    if status == 403:
        assert (await refused(response))["type"] == "permission_error"
