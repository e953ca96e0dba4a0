"""What the server says of itself."""

from __future__ import annotations

from importlib.metadata import version

from tests.fakes import FakeTriton
from tests.frontend.conftest import Serve


async def test_the_version_is_the_distributions(serve: Serve) -> None:
    http = await serve(FakeTriton(models=[]))
    assert await (await http.get("/version")).json() == {"version": version("conch")}


async def test_the_description_is_json_and_has_the_version(serve: Serve) -> None:
    http = await serve(FakeTriton(models=[]))
    response = await http.get("/openapi.json")
    assert response.content_type == "application/json"
    assert (await response.json())["info"]["version"] == version("conch")
