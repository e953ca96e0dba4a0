"""Images by URL: fetched only from allowed hosts, never from private addresses, within bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientResponse

import frontend.app
from frontend.handlers import fetching, shared_memory
from tests.fakes import FakeTriton, chunks
from tests.frontend.answers import error_of
from tests.frontend.bodies import CHAT, COMPLETION
from tests.frontend.conftest import Serve
from tests.frontend.file_hosts import file_host
from tests.launching import free_port
from tests.waiting import DEADLINE_S

IMAGE = b"\x89PNG and so on"
PARAM = "messages[0].content[0].image_url.url"


@pytest.fixture
def fetched() -> list[str]:
    """The paths that were asked of the host, in order."""
    return []


@pytest.fixture
async def host(fetched: list[str]) -> AsyncIterator[str]:
    """The host and port of a server with an image, on loopback."""
    async with file_host({"/a.png": IMAGE}, fetched) as found:
        yield found


def chat(url: str) -> dict[str, object]:
    image = {"type": "image_url", "image_url": {"url": url}}
    return CHAT | {"messages": [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}]}


async def ask(serve: Serve, triton: FakeTriton, url: str, *hosts: str, **settings: int) -> ClientResponse:
    http = await serve(triton, fetch_hosts=hosts, **settings)
    return await http.post("/v1/chat/completions", json=chat(url))


async def refusal(serve: Serve, url: str, *hosts: str, **settings: int) -> str:
    """Return the message of a 400 that names the part of the chat."""
    error = await error_of(await ask(serve, FakeTriton(chunks("x")), url, *hosts, **settings))
    assert (error["status"], error["param"]) == (400, PARAM)
    return str(error["message"])


@pytest.mark.usefixtures("loopback_is_public")
@pytest.mark.parametrize("path", ["/a.png", "/moved?to=/a.png", "/moved?to=/moved%3Fto=/a.png"])
async def test_an_image_of_an_allowed_host_reaches_the_model(serve: Serve, host: str, path: str) -> None:
    triton = FakeTriton(chunks("x"))
    http = await serve(triton, fetch_hosts=(host,))
    response = await http.post("/v1/chat/completions", json=chat(f"http://{host}{path}") | {"n": 2})
    assert response.status == 200
    assert [request.images for request in triton.requests] == [(IMAGE,)] * 2


async def test_without_an_allowed_host_nothing_is_fetched(serve: Serve, host: str) -> None:
    assert "this server does not fetch it" in await refusal(serve, f"http://{host}/a.png")


@pytest.mark.usefixtures("loopback_is_public")
@pytest.mark.parametrize(
    "url",
    [
        "http://HOST/moved?to=http://127.0.0.1:1/a.png",
        "http://HOST/moved?to=http://elsewhere.example/a.png",
        "http://HOST/moved?to=file:///etc/passwd",
        "http://localhost:1/a.png",
        "http://127.0.0.1:1/a.png",
        "http://[::1]:1/a.png",
        "http://user@elsewhere.example/a.png",
        "http:///a.png",
    ],
)
async def test_another_host_is_refused_also_behind_a_redirect(serve: Serve, host: str, url: str) -> None:
    message = await refusal(serve, url.replace("HOST", host), host, "127.0.0.1:1")
    assert "a host that this server may fetch from" in message


@pytest.mark.parametrize("hosts", [("localhost",), ("*",)])
async def test_a_name_with_a_private_address_is_refused(serve: Serve, hosts: tuple[str, ...]) -> None:
    assert "its address is not public" in await refusal(serve, "http://localhost/a.png", *hosts)


@pytest.mark.usefixtures("loopback_is_public")
@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("/none", "status 404"),
        ("/held", "nothing within 0.2 s"),
        ("/moved?to=/moved%3Fto=/moved%253Fto=/moved%25253Fto=/a.png", "more than 3 redirects"),
    ],
)
async def test_what_cannot_be_fetched_is_refused_with_the_reason(
    serve: Serve, host: str, path: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT_S", 0.2 if path == "/held" else 10.0)
    assert rule in await refusal(serve, f"http://{host}{path}", host)


async def test_too_many_images_are_refused_before_one_is_fetched(serve: Serve, host: str) -> None:
    image = {"type": "image_url", "image_url": {"url": f"http://{host}/a.png"}}
    http = await serve(FakeTriton(chunks("x")), fetch_hosts=(host,))
    body = CHAT | {"messages": [{"role": "user", "content": [image] * 17}]}
    error = await error_of(await http.post("/v1/chat/completions", json=body))
    assert (error["status"], error["message"]) == (400, "messages: 17 images: a request may have 16")


@pytest.mark.usefixtures("loopback_is_public")
async def test_a_fetched_image_counts_as_a_part_of_the_body(serve: Serve, host: str) -> None:
    url = f"http://{host}/a.png"
    size = len(json.dumps(chat(url)))
    assert "more than 5 bytes" in await refusal(serve, url, host, max_body_bytes=size + 5)


@pytest.mark.usefixtures("loopback_is_public")
async def test_a_key_without_requests_left_has_nothing_fetched(serve: Serve, host: str, fetched: list[str]) -> None:
    http = await serve(FakeTriton(chunks("x")), fetch_hosts=(host,), requests_per_minute=1)
    body = chat(f"http://{host}/a.png")
    assert [(await http.post("/v1/chat/completions", json=body)).status for _ in range(2)] == [200, 429]
    assert len(fetched) == 1


@pytest.mark.usefixtures("loopback_is_public")
async def test_fetched_images_take_memory_until_the_request_ends(
    serve: Serve, host: str, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_WAIT_S", 0.0)
    monkeypatch.setattr(frontend.app, "MAX_LARGEST", 1)
    triton = FakeTriton([asyncio.Event()])
    http = await serve(triton, fetch_hosts=(host,))
    body = chat(f"http://{host}/a.png")
    first = asyncio.create_task(http.post("/v1/chat/completions", json=body))
    await asyncio.wait_for(triton.started.wait(), DEADLINE_S)
    error = await error_of(await http.post("/v1/chat/completions", json=body))
    assert (error["status"], error["code"], len(fetched)) == (503, "overloaded", 1)
    triton.script = chunks("x")
    first.cancel()
    await asyncio.wait_for(triton.closed.wait(), DEADLINE_S)
    while (await http.post("/v1/chat/completions", json=body)).status == 503:
        pass


@pytest.mark.usefixtures("loopback_is_public")
async def test_a_request_with_a_fetched_image_waits_for_its_place_as_any_other(serve: Serve, host: str) -> None:
    triton = FakeTriton([asyncio.Event()])
    http = await serve(triton, fetch_hosts=(host,), max_in_flight=1, max_queue_wait_s=0.01)
    first = asyncio.create_task(http.post("/v1/completions", json=COMPLETION))
    await asyncio.wait_for(triton.started.wait(), DEADLINE_S)
    error = await error_of(await http.post("/v1/chat/completions", json=chat(f"http://{host}/a.png")))
    assert (error["status"], error["message"].startswith("The model is at its limit")) == (503, True)
    first.cancel()


@pytest.mark.usefixtures("loopback_is_public")
async def test_a_host_that_does_not_answer_is_refused(serve: Serve) -> None:
    nobody = f"localhost:{free_port()}"
    assert ": cannot be fetched" in await refusal(serve, f"http://{nobody}/a.png", nobody)


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("2002:5db8:d70e::1", True),
        *[(address, False) for address in ("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254")],
        *[(address, False) for address in ("0.0.0.0", "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1")],
        *[(address, False) for address in ("::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:10.0.0.1")],
        *[(address, False) for address in ("64:ff9b::a00:1", "2002:a00:1::1", "2001:0:a00:1::1")],
        *[
            (address, False)
            for address in ("64:ff9b:1::a00:1", "::10.0.0.1", "::ffff:0:10.0.0.1", "fec0::1", "5f00::1")
        ],
    ],
)
def test_which_addresses_are_public(address: str, is_public: bool) -> None:
    assert fetching.is_public(address) is is_public
