"""The application as a whole: routes, headers, the log, and refusals outside the handlers."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import StreamReader
from backports import zstd

from frontend.errors import EngineFailed
from frontend.telemetry.log_lines import REQUEST_LOGGER
from frontend.triton.chunk_queue import Announced
from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import MAX_IGNORED_PLACES
from tests.fakes import DEMO, FakeTriton, chunks
from tests.frontend.answers import error_of
from tests.frontend.bodies import CHAT, COMPLETION, MESSAGE, RESPONSE
from tests.frontend.conftest import Serve
from tests.frontend.connections.raw_http import exchange, port_of
from tests.waiting import DEADLINE_S

JSON = {"Content-Type": "application/json"}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
}


@pytest.mark.parametrize("prefix", ["/v1", "", "/openai", "/openai/v1", "/inference/v1", "/inference/v1/v1"])
async def test_every_route_is_served_with_and_without_v1_and_below_every_root(serve: Serve, prefix: str) -> None:
    http = await serve(FakeTriton(chunks("x")), root_paths=("/openai", "/inference/v1"))
    assert (await http.post(f"{prefix}/chat/completions", json=CHAT)).status == 200
    assert (await http.post(f"{prefix}/completions", json=COMPLETION)).status == 200
    assert (await http.post(f"{prefix}/tokenize", json=COMPLETION)).status == 200
    assert (await http.post(f"{prefix}/detokenize", json={"model": DEMO.id, "tokens": [1]})).status == 200
    for path in ("/models", f"/models/{DEMO.id}", "/version"):
        assert (await http.get(prefix + path)).status == 200


async def test_unknown_fields_are_listed_in_a_header_of_bounded_length(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("x")))
    assert "x-ignored-params" not in (await http.post("/v1/completions", json=COMPLETION)).headers
    names = {"foo": 1, "b\r\nx-evil: 1": 2, "é": 3}
    for stream in (False, True):
        response = await http.post("/v1/completions", json=COMPLETION | names | {"stream": stream})
        assert response.status == 200
        assert response.headers["x-ignored-params"] == "foo,b%0D%0Ax-evil%3A%201,%C3%A9"
        assert "x-evil" not in response.headers
    many = {f"{index}{'é' * 300}": 1 for index in range(100)}
    response = await http.post("/v1/completions", json=COMPLETION | many)
    assert len(response.headers["x-ignored-params"]) < 2100
    assert response.headers["x-ignored-params"].endswith("%C3%A9,...")


OF_SCHEMA = ("schema.properties.größe.not", "schema.not")
WITH_FORMAT: list[Any] = [
    pytest.param(
        "/v1/chat/completions", CHAT | {"response_format": {"type": "json_object", "schema": {}}}, "response_format"
    ),
    pytest.param(
        "/v1/completions", COMPLETION | {"structured_outputs": {"json": {}}, "n": 2}, "structured_outputs.json"
    ),
    pytest.param(
        "/v1/messages",
        MESSAGE | {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        "output_config.format",
    ),
    pytest.param(
        "/v1/responses",
        RESPONSE | {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}},
        "text.format",
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "place"), WITH_FORMAT)
async def test_keywords_without_effect_are_listed_in_the_header_once_the_engine_tells_of_the_request(
    serve: Serve, path: str, body: dict[str, Any], place: str, stream: bool
) -> None:
    http = await serve(FakeTriton([Announced(text="", ignored_keywords=OF_SCHEMA), *chunks("x")]))
    response = await http.post(path, json=body | {"stream": stream, "foo": 1})
    place = place if place.endswith("json") else f"{place}.schema"
    names = ["foo", f"{place}.properties.gr%C3%B6%C3%9Fe.not", f"{place}.not"]
    assert (response.status, response.headers["x-ignored-params"]) == (200, ",".join(names))
    assert "x-ignored-params" not in await response.text()


async def test_keywords_beyond_the_limit_of_the_header_are_dots(serve: Serve) -> None:
    places = tuple(f"schema.{number}" for number in range(MAX_IGNORED_PLACES + 1))
    http = await serve(FakeTriton([Announced(text="", ignored_keywords=places), *chunks("x")]))
    response = await http.post("/v1/completions", json=COMPLETION | {"structured_outputs": {"json": {}}})
    listed = response.headers["x-ignored-params"].split(",")
    assert (listed[-2:], len(listed)) == (["structured_outputs.json.31", "..."], MAX_IGNORED_PLACES + 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "place"), WITH_FORMAT)
async def test_strict_extra_refuses_keywords_without_effect_and_cancels(
    serve: Serve, path: str, body: dict[str, Any], place: str, stream: bool
) -> None:
    triton = FakeTriton([Announced(text="", ignored_keywords=OF_SCHEMA), asyncio.Event()])
    http = await serve(triton, strict_extra=True)
    response = await http.post(path, json=body | {"stream": stream})
    assert response.status == 400
    answer = await response.json()
    assert (
        f"{place}." in answer["error"]["message"] and ".not: unknown, or without effect" in answer["error"]["message"]
    )
    if path != "/v1/messages":  # Anthropic's errors have neither
        found = answer["error"]["param"], answer["error"]["code"]
        assert found == (answer["error"]["message"].partition(": ")[0], "unknown_parameter")
    assert triton.num_open == 0


async def test_strict_extra_refuses_ignored_fields(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("x")), strict_extra=True)
    for path, body, place in (
        ("/v1/completions", COMPLETION | {"foo": 1}, "foo"),
        ("/v1/completions", COMPLETION | {"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ("/v1/chat/completions", CHAT | {"reasoning_effort": "low"}, "reasoning_effort"),
    ):
        error = await error_of(await http.post(path, json=body))
        assert (error["status"], error["param"], error["code"]) == (400, place, "unknown_parameter")


async def test_the_callers_request_id_comes_back(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("x")))
    for stream in (False, True):
        body = COMPLETION | {"stream": stream}
        response = await http.post("/v1/completions", json=body, headers={"x-request-id": "mine-1"})
        assert response.headers["x-request-id"] == "mine-1"
    assert (await http.post("/v1/nothing")).headers["x-request-id"].startswith("req_")
    long = await http.post("/v1/completions", json=COMPLETION, headers={"x-request-id": "x" * 200})
    assert long.headers["x-request-id"].startswith("req_")


async def test_every_answer_has_its_time_and_hides_the_software_below(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("x")))
    for response in (
        await http.post("/v1/completions", json=COMPLETION),
        await http.post("/v1/completions", json=COMPLETION | {"stream": True}),
        await http.post("/v1/completions", json={}),
        await http.get("/v1/nothing"),
        await http.get("/health/live"),
    ):
        assert response.headers["openai-processing-ms"].isdecimal()
        assert response.headers["Server"] == "conch"
    assert (await http.get("/health/live", headers={"X": "a" * 20_000})).headers["Server"] == "conch"


async def test_the_organization_comes_back_and_is_in_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    http = await serve(FakeTriton(chunks("x")))
    headers = {"OpenAI-Organization": "org-1", "OpenAI-Project": "proj-2"}
    for body in (COMPLETION, COMPLETION | {"stream": True}, {}):
        response = await http.post("/v1/completions", json=body, headers=headers)
        assert response.headers["openai-organization"] == "org-1"
        assert labels_in(caplog) == {"organization": "org-1", "project": "proj-2"}
    for strange in ("a b", "é", "x" * 129, ""):
        response = await http.post("/v1/completions", json=COMPLETION, headers={"OpenAI-Organization": strange})
        assert "openai-organization" not in response.headers
        assert labels_in(caplog) == {}


def labels_in(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Return the labels of the only log line, and clear the log."""
    (record,) = (each for each in caplog.records if each.name == REQUEST_LOGGER)
    caplog.clear()
    _, found, labels = record.getMessage().partition(" labels=")
    return dict(json.loads(labels)) if found else {}


async def test_bookkeeping_is_in_the_log_with_persons_as_hashes(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    http = await serve(FakeTriton(chunks("x")))
    fields = {"user": "ann@example.com", "safety_identifier": "ann", "metadata": {"run": "é" * 1000}}
    seen = []
    for body in (COMPLETION | fields | {"prompt_cache_key": "k"}, CHAT | fields, CHAT | {"user": "bob@example.com"}):
        await http.post("/v1/chat/completions" if "messages" in body else "/v1/completions", json=body)
        assert "ann" not in caplog.text
        seen.append(labels_in(caplog))
    assert seen[0]["prompt_cache_key"] == "k"
    assert seen[0]["metadata"].startswith('{"run":"éé')
    assert len(seen[0]["metadata"]) == 256
    assert seen[0]["user"] == seen[1]["user"] != seen[2]["user"]  # the hashes of two persons differ
    assert len(seen[0]["user"]) == len(seen[0]["safety_identifier"]) == 16


EVIL = "x\nINFO frontend.app: forged\r\u2028\u0085 status=200"


async def test_a_client_cannot_forge_a_line_of_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    http = await serve(FakeTriton(chunks("x")))
    named = {"user": EVIL, "safety_identifier": EVIL, "prompt_cache_key": EVIL, "metadata": {EVIL: EVIL}}
    await http.post("/v1/completions", json=COMPLETION | named)
    await http.post("/v1/completions", json=COMPLETION | {"model": EVIL})
    await http.post("/tokenize", json=COMPLETION | {"model": EVIL * 1000})
    await http.get(f"/v1/models/{quote(EVIL)}")
    await http.get(f"/v1/{quote(EVIL)}")
    lines = [record.getMessage() for record in caplog.records if record.name == REQUEST_LOGGER]
    assert len(lines) == 5
    for line in lines:
        assert line.splitlines() == [line]
        assert len(line) < 3000
        assert "INFO frontend.app: forged" not in line or " labels=" in line


async def test_the_log_has_the_code_of_an_error(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    http = await serve(FakeTriton([GenerationChunk(text="a"), EngineFailed()]))
    for body, facts in (
        (COMPLETION | {"stream": True}, ("status=200", "error=engine_failed", "model=org/demo")),
        (COMPLETION, ("status=500", "error=engine_failed")),
        (COMPLETION | {"model": "a b"}, ("status=404", "error=model_not_found", "model=a%20b")),
        ({}, ("status=400", "error=missing_required_parameter", "model=-", "ttft_ms=-")),
    ):
        await (await http.post("/v1/completions", json=body)).read()
        (line,) = [record.getMessage() for record in caplog.records if record.name == REQUEST_LOGGER]
        caplog.clear()
        assert all(fact in line for fact in facts)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "media_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", "json", "", None],
)
async def test_media_types_that_a_web_page_may_send_unasked_are_refused(
    serve: Serve, path: str, media_type: str | None
) -> None:
    http = await serve(triton := FakeTriton(chunks("x")))
    headers = {} if media_type is None else {"Content-Type": media_type}
    body = json.dumps(COMPLETION | CHAT | {"tokens": [1]}).encode()
    response = await http.post(path, data=body, headers=headers, skip_auto_headers=["Content-Type"])
    error = await error_of(response)
    assert (error["status"], error["code"], triton.requests) == (415, "unsupported_media_type", [])
    assert "-H 'Content-Type: application/json'" in error["message"]


@pytest.mark.parametrize(
    "media_type", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"]
)
async def test_json_has_several_names(serve: Serve, media_type: str) -> None:
    http = await serve(FakeTriton(chunks("x")))
    body = json.dumps(COMPLETION).encode()
    assert (await http.post("/v1/completions", data=body, headers={"Content-Type": media_type})).status == 200


async def test_100_continue_comes_only_once_the_headers_are_accepted(serve: Serve) -> None:
    http = await serve(FakeTriton(chunks("x")), max_body_bytes=1000)
    for size, expected, media_type in ((10**9, 413, "application/json"), (10, 415, "text/plain")):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(http))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_type}\r\n"
        writer.write(f"{head}Content-Length: {size}\r\nExpect: 100-continue\r\n\r\n".encode())
        line = await asyncio.wait_for(reader.readline(), DEADLINE_S)
        assert int(line.split()[1]) == expected
        writer.close()
    assert (await http.post("/v1/completions", json=COMPLETION, expect100=True)).status == 200


@pytest.mark.parametrize("coding", PACK)
async def test_a_body_over_the_limit_is_refused_also_if_it_was_compressed(serve: Serve, coding: str) -> None:
    http = await serve(FakeTriton(chunks("x")), max_body_bytes=1000)
    for num_chars, status in ((800, 200), (100_000, 413)):
        body = json.dumps(COMPLETION | {"prompt": "x" * num_chars}).encode()
        response = await http.post(
            "/v1/completions", data=PACK[coding](body), headers=JSON | {"Content-Encoding": coding}
        )
        assert response.status == status
    assert (await error_of(response))["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("path", "media_type", "coding", "status"),
    [
        ("/v1/completions", "application/json", "gzip", 413),
        ("/v1/completions", "application/json", "zstd", 413),
        ("/v1/completions", "text/plain", "gzip", 415),
        ("/v1/nothing", "application/json", "gzip", 404),
    ],
)
async def test_the_rest_of_a_refused_body_is_not_unpacked(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, media_type: str, coding: str, status: int
) -> None:
    # aiohttp would unpack the rest of 100 MB on the event loop, to throw it away.
    num_unpacked = 0
    feed = StreamReader.feed_data

    def count(reader: StreamReader, data: bytes, *size: int) -> bool:
        nonlocal num_unpacked
        num_unpacked += len(data)
        return feed(reader, data, *size)

    monkeypatch.setattr(StreamReader, "feed_data", count)
    monkeypatch.setattr("frontend.connections.connection.LINGERING_S", 0.3)
    http = await serve(FakeTriton(), max_body_bytes=1000)
    body = PACK[coding](b" " * 100_000_000)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_type}\r\nContent-Encoding: {coding}\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    (answer,) = await exchange(port_of(http), head.encode() + body)
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert num_unpacked < 2_000_000


@pytest.mark.parametrize("coding", [coding for coding in PACK if coding != "identity"])
async def test_a_body_that_does_not_unpack_is_refused(serve: Serve, coding: str) -> None:
    http = await serve(FakeTriton())
    response = await http.post("/v1/completions", data=b"{}", headers=JSON | {"Content-Encoding": coding})
    assert (await error_of(response))["message"] == "The body is not encoded as its Content-Encoding says"


# With brotli aiohttp decodes br; without it, it refuses the head.
@pytest.mark.parametrize(("coding", "has_brotli"), [("br", True), ("br", False), ("gzip, gzip", True)])
async def test_the_refusal_of_another_coding_names_it_and_those_that_are_decoded(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, coding: str, has_brotli: bool
) -> None:
    monkeypatch.setattr("aiohttp.http_parser.HAS_BROTLI", has_brotli)
    http = await serve(FakeTriton())
    response = await http.post("/v1/completions", data=b"{}", headers=JSON | {"Content-Encoding": coding})
    assert response.headers["Accept-Encoding"] == "gzip, deflate, zstd"
    error = await error_of(response)
    assert error["status"] == 415
    assert error["message"] == f"Content-Encoding={coding!r}: must be gzip, deflate, zstd or absent"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/models/unknown/model", 404, "model_not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("GET", "/openai/v1/models", 404, "not_found"),
        ("GET", "/v1/models/", 404, "not_found"),
    ],
)
async def test_aiohttps_own_refusals_have_the_envelope(
    serve: Serve, method: str, path: str, status: int, code: str
) -> None:
    http = await serve(FakeTriton())
    response = await http.request(method, path)
    error = await error_of(response)
    assert (error["status"], error["code"]) == (status, code)
    assert ("Allow" in response.headers) == (status == 405)


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("/api/chat", "/v1/chat/completions"),
        ("/api/tags", "/v1/models"),
        ("/api/version", "/version"),
        ("/v1/v1/chat/completions", "a base URL with one /v1"),
    ],
)
async def test_the_404_of_another_api_names_ours(serve: Serve, path: str, ours: str) -> None:
    http = await serve(FakeTriton())
    error = await error_of(await http.post(path, json={}))
    assert error["message"] == f"There is no POST {path}: use {ours}"
