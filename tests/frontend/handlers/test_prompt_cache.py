"""How long a prompt is kept, and the tokens that a usage says were read and written, in each API."""

from __future__ import annotations

from typing import Any

import pytest

from model_repository.capabilities import Capability
from tests.fakes import FakeTriton, chunks, served_model
from tests.frontend.bodies import CHAT, COMPLETION
from tests.frontend.conftest import Serve

DAY = 86_400
MESSAGES = {"model": CHAT["model"], "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}
RESPONSES = {"model": CHAT["model"], "input": "Hello", "store": False}
PATHS = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}


def said(**mark: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "Hello"} | mark]}]


def asked(**mark: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "Hello"} | mark]}]


EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
EXPLICIT = {"prompt_cache_options": {"mode": "explicit"}}
OF_OPENAI = [
    ({}, 0),
    ({"prompt_cache_options": {}}, 0),
    ({"prompt_cache_options": {"ttl": "90s"}}, 90),
    ({"prompt_cache_options": {"mode": "implicit"}}, 1800),
    (EXPLICIT, 0),
    ({"prompt_cache_retention": "in_memory"}, 0),
    ({"prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "1h"}}, DAY),
]


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        *((path, *case) for path in list(PATHS)[:3] for case in OF_OPENAI),
        ("/v1/chat/completions", {"messages": said(**BREAKPOINT)}, 12 * 3600),
        ("/v1/chat/completions", {"messages": said(prompt_cache_breakpoint={}), **EXPLICIT}, 1800),
        ("/v1/responses", {"input": asked(**BREAKPOINT)}, 12 * 3600),
        ("/v1/responses", {"input": asked(prompt_cache_breakpoint={}), "prompt_cache_options": {"ttl": "1h"}}, 3600),
        ("/v1/messages", {}, 0),
        ("/v1/messages", EPHEMERAL, 300),
        ("/v1/messages", {"messages": said(**HOUR)} | EPHEMERAL, 3600),
        ("/v1/messages", {"system": [{"type": "text", "text": "a"} | EPHEMERAL]}, 300),
        ("/v1/messages", {"tools": [{"name": "a", "input_schema": {"type": "object"}} | HOUR]}, 3600),
    ],
)
async def test_a_prompt_is_kept_as_long_as_its_api_says(
    serve: Serve, path: str, fields: dict[str, Any], expected: float
) -> None:
    triton = FakeTriton(chunks("x"))
    http = await serve(triton)
    response = await http.post(path, json=PATHS[path] | fields)
    assert response.status == 200, await response.text()
    assert triton.requests[-1].params.keep_s == expected
    assert "x-ignored-params" not in response.headers
    usage = (await response.json())["usage"]
    match path:  # of 7 tokens, the cache had 3
        case "/v1/messages":
            found = [usage[name] for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")]
            assert found == ([0, 4, 3] if expected else [4, 0, 3])
        case "/v1/responses":
            assert usage["input_tokens_details"] == {"cached_tokens": 3, "cache_write_tokens": 4}
        case _:
            details = usage["prompt_tokens_details"]
            assert (details["cached_tokens"], details["cache_write_tokens"]) == (3, 4)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"prompt_cache_options": {"ttl": "25h"}}, "prompt_cache_options.ttl"),
        ("/v1/completions", {"prompt_cache_options": {"ttl": "0m"}}, "prompt_cache_options.ttl"),
        ("/v1/responses", {"prompt_cache_options": {"mode": "never"}}, "prompt_cache_options.mode"),
        ("/v1/chat/completions", {"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
        ("/v1/messages", {"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl"),
        ("/v1/messages", {"messages": said(cache_control={"type": "x"})}, "messages[0].content[0].cache_control.type"),
    ],
)
async def test_another_time_is_refused_by_name(serve: Serve, path: str, fields: dict[str, Any], param: str) -> None:
    http = await serve(FakeTriton(chunks("x")))
    response = await http.post(path, json=PATHS[path] | fields)
    assert response.status == 400
    body = await response.json()
    assert param in (body["error"].get("param") or body["error"]["message"])


@pytest.mark.parametrize(
    ("path", "fields", "ignored"),
    [
        ("/v1/chat/completions", {"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options"),
        ("/v1/responses", {"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
        ("/v1/messages", EPHEMERAL, "cache_control"),
    ],
)
async def test_a_runtime_that_keeps_no_prompt_says_so(
    serve: Serve, path: str, fields: dict[str, Any], ignored: str
) -> None:
    model = served_model(capabilities=frozenset(Capability) - {Capability.PROMPT_CACHE})
    http = await serve(FakeTriton(chunks("x"), models=[model]))
    response = await http.post(path, json=PATHS[path] | fields)
    assert response.headers["x-ignored-params"] == ignored
