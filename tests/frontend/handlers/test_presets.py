"""Requests for a preset: the system prompt and the defaults that they leave out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from model_repository.contract.request import ChatPrompt, GenerationRequest, TextPrompt
from model_repository.model_parameters import Preset
from tests.fakes import FakeTriton, chunks, served_model
from tests.frontend.bodies import CHAT, COMPLETION, MESSAGE, RESPONSE, USER
from tests.frontend.conftest import Serve

BRIEF = Preset(
    system="Be brief.",
    defaults={"temperature": 0.5, "seed": 7, "stop": ("a",), "chat_max_tokens": 5, "completion_max_tokens": 5},
)
SYSTEM = {"role": "system", "content": "Be brief."}
OTHER = {"role": "system", "content": "Be formal."}
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
BODIES = dict(zip(PATHS, (CHAT, COMPLETION, RESPONSE, MESSAGE), strict=True))


async def asked(serve: Serve, path: str, **fields: Any) -> GenerationRequest:
    """Return what a request for the preset is for Triton."""
    triton = FakeTriton(
        chunks("x"), models=[served_model(defaults={"temperature": 0.6, "top_k": 20}, presets={"brief": BRIEF})]
    )
    http = await serve(triton)
    answer = await http.post(path, json={**BODIES[path], "model": "brief", **fields})
    assert (answer.status, (await answer.json())["model"]) == (200, "brief")
    [request] = triton.requests
    return request


@pytest.mark.parametrize("path", PATHS)
async def test_its_values_hold_for_fields_that_a_request_leaves_out(serve: Serve, path: str) -> None:
    params = (await asked(serve, path)).params
    assert (params.sampling.temperature, params.sampling.top_k, params.sampling.seed) == (0.5, 20, 7)
    assert (params.stop, params.max_tokens) == (("a",), BODIES[path].get("max_tokens", 5))


@pytest.mark.parametrize(
    ("path", "fields", "changes"),
    [
        (
            "/v1/chat/completions",
            {"stop": "b", "seed": 3, "max_tokens": 2},
            {"stop": ("b",), "max_tokens": 2, "seed": 3},
        ),
        ("/v1/completions", {"stop": [], "seed": 3, "max_tokens": 2}, {"stop": (), "max_tokens": 2, "seed": 3}),
        ("/v1/responses", {"max_output_tokens": 2}, {"max_tokens": 2, "seed": 7}),
        ("/v1/messages", {"max_tokens": 2, "stop_sequences": ["b"]}, {"stop": ("b",), "max_tokens": 2, "seed": 7}),
    ],
)
async def test_a_requests_own_values_hold(
    serve: Serve, path: str, fields: dict[str, Any], changes: dict[str, Any]
) -> None:
    before, after = (await asked(serve, path)).params, (await asked(serve, path, temperature=0.25, **fields)).params
    sampling = replace(before.sampling, temperature=0.25, seed=changes.pop("seed"))
    assert after == replace(before, sampling=sampling, cancel_key=after.cancel_key, **changes)


@pytest.mark.parametrize(
    ("path", "fields", "messages"),
    [
        ("/v1/chat/completions", {}, (SYSTEM, USER)),
        ("/v1/chat/completions", {"messages": [OTHER, USER]}, (OTHER, USER)),
        (
            "/v1/chat/completions",
            {"messages": [USER, {"role": "developer", "content": "Go on."}]},
            (USER, {"role": "developer", "content": "Go on."}),
        ),
        ("/v1/responses", {}, (SYSTEM, USER)),
        ("/v1/responses", {"instructions": "Be formal."}, (OTHER, USER)),
        ("/v1/responses", {"input": [OTHER, USER]}, (OTHER, USER)),
        ("/v1/messages", {}, (SYSTEM, USER)),
        ("/v1/messages", {"system": "Be formal."}, (OTHER, USER)),
        ("/v1/messages", {"system": "x-anthropic-billing-header: cc_version=2.1;"}, (SYSTEM, USER)),
    ],
)
async def test_its_system_prompt_begins_conversations_without_one(
    serve: Serve, path: str, fields: dict[str, Any], messages: tuple[dict[str, str], ...]
) -> None:
    prompt = (await asked(serve, path, **fields)).prompt
    assert isinstance(prompt, ChatPrompt) and prompt.messages == messages


async def test_a_text_prompt_has_no_system_prompt(serve: Serve) -> None:
    assert (await asked(serve, "/v1/completions")).prompt == TextPrompt("hi")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"messages": [USER]}),
        ("/v1/messages/count_tokens", {"messages": [USER]}),
        ("/v1/responses/input_tokens", {"input": "hi"}),
    ],
)
async def test_its_system_prompt_is_counted(serve: Serve, path: str, body: dict[str, Any]) -> None:
    triton = FakeTriton(models=[served_model(presets={"brief": BRIEF})])
    http = await serve(triton)
    assert (await http.post(path, json={"model": "brief", **body})).status == 200
    assert [prompt for prompt, _ in triton.tokenized] == [ChatPrompt(messages=(SYSTEM, USER))]
