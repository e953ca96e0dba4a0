"""Answers of the application, read as a client does."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from frontend.json_pieces import json_pieces


def written(value: Any) -> Any:
    """Return what a client reads of an answer or event."""
    return json.loads(b"".join(json_pieces(value)))


async def events_of(response: aiohttp.ClientResponse) -> list[Any]:
    """Return the events of a stream; the last one has to be [DONE], which is left out."""
    lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """Check the envelope of an error, and return the error."""
    body = await response.json()
    assert set(body) == {"error", "detail"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return {"status": response.status, **body["error"]}
