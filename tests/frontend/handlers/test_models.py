"""What is served, and whether it is ready, over HTTP."""

from __future__ import annotations

from frontend.errors import TritonUnreachable
from frontend.triton.models import ModelSnapshot
from tests.fakes import DEMO, FakeTriton, chunks, served_model
from tests.frontend.answers import error_of
from tests.frontend.bodies import COMPLETION
from tests.frontend.conftest import Serve


async def test_models_are_listed_with_their_window(serve: Serve) -> None:
    http = await serve(FakeTriton())
    models = await (await http.get("/v1/models")).json()
    assert models["object"] == "list"
    (card,) = models["data"]
    assert (card["id"], card["root"], card["max_model_len"]) == (DEMO.id, DEMO.id, 2048)
    for path in (f"/v1/models/{DEMO.id}", "/v1/models/org%2Fdemo"):
        assert await (await http.get(path)).json() == card


async def test_a_model_that_is_being_reloaded_is_refused_at_once(serve: Serve) -> None:
    triton = FakeTriton(chunks("x"))
    triton.load_error = triton.stage_errors["tokenizer"] = TritonUnreachable()
    http = await serve(triton)
    await http.get("/health/ready")
    triton.on_stage_down("org--demo__tokenizer", float("inf"))
    error = await error_of(await http.post("/v1/completions", json=COMPLETION))
    assert (error["status"], error["code"]) == (503, "model_not_ready")
    assert triton.requests == []
    ready = await http.get("/health/ready")
    assert (ready.status, (await ready.json())["models"]) == (200, {DEMO.id: "recovering"})


async def test_health_is_live_without_triton_and_ready_with_a_model(serve: Serve) -> None:
    triton = FakeTriton()
    http = await serve(triton)
    ready = await http.get("/health/ready")
    assert (ready.status, (await ready.json())["models"]) == (200, {DEMO.id: "ready"})


async def test_health_is_not_ready_while_no_triton_answers(serve: Serve) -> None:
    triton = FakeTriton()
    triton.snapshot_error = triton.stats_error = TritonUnreachable()
    http = await serve(triton)
    assert (await http.get("/health/live")).status == 200
    ready = await http.get("/health/ready")
    assert (ready.status, ready.headers["Retry-After"]) == (503, "1")
    body = await ready.json()
    assert (body["status"], body["endpoints"]) == ("not ready", {"fake:1": "triton_unreachable"})


async def test_health_says_which_models_are_not_loaded(serve: Serve) -> None:
    triton = FakeTriton()
    triton.models = ModelSnapshot(unready={DEMO.id: "unavailable"})
    ready = await (await serve(triton)).get("/health/ready")
    assert (ready.status, (await ready.json())["models"]) == (200, {DEMO.id: "unavailable"})


async def test_every_name_has_a_card(serve: Serve) -> None:
    model = served_model("org/team/demo", aliases=("gpt-4o",), adapters=("org/formal",))
    http = await serve(FakeTriton(models=[model]))
    cards = (await (await http.get("/v1/models")).json())["data"]
    assert [(card["id"], card["root"], card["parent"]) for card in cards] == [
        ("gpt-4o", "org/team/demo", None),
        ("org/formal", "org/team/demo", "org/team/demo"),
        ("org/team/demo", "org/team/demo", None),
    ]
    for card in cards:
        assert await (await http.get(f"/v1/models/{card['id']}")).json() == card


async def test_nothing_served_is_an_empty_list(serve: Serve) -> None:
    http = await serve(FakeTriton(models=[]))
    assert await (await http.get("/v1/models")).json() == {"object": "list", "data": []}
