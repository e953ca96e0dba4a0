"""Models, health, version and the OpenAPI document over HTTP."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from frontend.errors import StageUnhealthy, TritonUnreachable
from model_repository.model_parameters import Preset
from tests.fakes import DEMO, FakeTriton, served_model
from tests.frontend.answers import error_of
from tests.frontend.bodies import COMPLETION
from tests.frontend.conftest import Serve


async def test_every_name_of_a_model_has_a_card_in_order(serve: Serve) -> None:
    defaults = {"chat_max_tokens": 5, "temperature": 0.6, "top_k": 20}
    model = served_model(
        "org/team/demo",
        aliases=("gpt-4o", 'a "b"/é:1'),
        adapters=("org/formal",),
        defaults=defaults,
        presets={
            "brief": Preset(system="Be brief.", defaults={"temperature": 0.1, "chat_max_tokens": 9, "stop": ("a",)})
        },
    )
    http = await serve(FakeTriton(models=[model]))
    answer = await (await http.get("/v1/models")).json()
    parent = "org/team/demo"
    names = {'a "b"/é:1': None, "gpt-4o": None, parent: None, "brief": parent, "org/formal": parent}
    cards = [
        {
            "id": name,
            "object": "model",
            "created": 1700000000,
            "owned_by": "conch",
            "root": "org/team/demo",
            "parent": parent,
            "task": "generate",
            "max_model_len": 2048,
            "tool_call_format": model.parameters.tool_call_format,
            "reasoning_format": None,
            "default_parameters": {"top_k": 20}
            | ({"temperature": 0.1, "max_tokens": 9} if name == "brief" else {"temperature": 0.6, "max_tokens": 5}),
            "status": {"value": "loaded"},
        }
        for name, parent in names.items()
    ]
    assert answer == {"object": "list", "data": cards}
    for card in cards:
        assert await (await http.get(f"/v1/models/{card['id']}")).json() == card
    assert await (await http.get("/v1/models/org%2Fteam%2Fdemo")).json() == cards[2]


ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ({}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "c"}, "de", False),
        ({"after_id": "e"}, "", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"limit": "2", "before_id": "c"}, "ab", False),
    ],
)
async def test_a_client_of_anthropic_gets_pages_of_models(
    serve: Serve, query: dict[str, str], ids: str, has_more: bool
) -> None:
    http = await serve(FakeTriton(models=[served_model(name) for name in "abcde"]))
    page = await (await http.get("/v1/models", params=query, headers=ANTHROPIC)).json()
    assert "".join(each["id"] for each in page["data"]) == ids
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    assert (page["has_more"], page["first_id"], page["last_id"]) == (has_more, first, last)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "a"}, "limit"),
        ({"after_id": "x"}, "after_id"),
        ({"before_id": "x"}, "before_id"),
        ({"before_id": "a", "after_id": "a"}, "before_id"),
    ],
)
async def test_a_page_that_is_not_there_is_refused_in_anthropics_form(
    serve: Serve, query: dict[str, str], field: str
) -> None:
    http = await serve(FakeTriton(models=[served_model("a")]))
    answer = await http.get("/v1/models", params=query, headers=ANTHROPIC)
    error = await answer.json()
    assert (answer.status, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error")
    assert error["error"]["message"].startswith(field)


async def test_models_have_the_users_order_and_those_that_generate_come_first(serve: Serve) -> None:
    """Many clients chat with the first model of the list."""
    poolings = {"a": "mean", "d": "", "c": "rank", "b": ""}
    models = [served_model(name, pooling=each, position=n) for n, (name, each) in enumerate(poolings.items())]
    http = await serve(FakeTriton(models=models))
    cards = (await (await http.get("/v1/models")).json())["data"]
    assert [(card["id"], card["task"]) for card in cards] == [
        ("d", "generate"),
        ("b", "generate"),
        ("a", "embed"),
        ("c", "score"),
    ]


async def test_a_model_that_is_being_reloaded_is_refused_at_once(serve: Serve) -> None:
    triton = FakeTriton([StageUnhealthy("org--demo__tokenizer")])
    triton.load_error = triton.stage_errors["tokenizer"] = TritonUnreachable()
    http = await serve(triton, resume_within_s=0)
    await http.get("/health/ready")
    await http.post("/v1/completions", json=COMPLETION)
    error = await error_of(await http.post("/v1/completions", json=COMPLETION))
    assert (error["status"], error["code"]) == (503, "model_not_ready")
    assert len(triton.requests) == 1
    ready = await http.get("/health/ready")
    assert (ready.status, (await ready.json())["models"]) == (200, {DEMO.id: "recovering"})


async def test_health_is_not_ready_while_no_triton_answers(serve: Serve) -> None:
    triton = FakeTriton()
    triton.snapshot_error = triton.stats_error = TritonUnreachable()
    http = await serve(triton)
    assert (await http.get("/health/live")).status == 200
    ready = await http.get("/health/ready")
    assert (ready.status, ready.headers["Retry-After"]) == (503, "1")
    body = await ready.json()
    assert (body["status"], body["endpoints"]) == ("not ready", {"fake:1": "triton_unreachable"})


async def test_the_version_is_the_distributions(serve: Serve) -> None:
    http = await serve(FakeTriton(models=[]))
    assert await (await http.get("/version")).json() == {"version": version("conch")}
    response = await http.get("/openapi.json")
    assert response.content_type == "application/json"
    assert (await response.json())["info"]["version"] == version("conch")
