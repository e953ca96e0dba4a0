"""Models on demand over HTTP: requests that wait for their model, all that they hold meanwhile, and the lists."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from frontend.handlers import completions
from frontend.handlers.keepalive import COMMENT
from frontend.handlers.large_answers import LARGE_ANSWERS
from frontend.request_context import LIMITS, TRITON
from model_repository.contract.arbiter import LoadRefusal
from model_repository.contract.output import Usage, VectorChunk
from tests.fakes import DEMO, FakeTriton, PlayedArbiter, chunks, served_model
from tests.frontend.answers import error_of
from tests.frontend.bodies import COMPLETION, EMBEDDING, MESSAGE
from tests.frontend.conftest import Serve
from tests.frontend.gateway.key_files import KeyFile
from tests.frontend.gateway.test_shared_limiter import until

LIMIT = 100_000  # tokens per minute
SOON_S = 0.02
OTHER = served_model("org/other", aliases=("alias",), adapters=("formal",))
EMBEDDER = served_model("org/embedder", pooling="mean")
TOO_LARGE = LoadRefusal("model_too_large", 12, 10, ("org/a", "org/b"))


def unloaded(*models: Any, is_holding: bool = False, script: Any = None) -> tuple[FakeTriton, PlayedArbiter]:
    """Return a Triton that has loaded none of its models, and its arbiter."""
    triton = FakeTriton(chunks("x") if script is None else script, models=models)
    arbiter = triton.arbiter = PlayedArbiter(*triton.models.ready.values())
    arbiter.is_holding = is_holding
    return triton, arbiter


def held_of(app: web.Application) -> list[int]:
    """Return the counts of all that a request holds."""
    [replica] = app[TRITON].replicas
    leases, memory = replica.leases, app[LARGE_ANSWERS]
    limits: Any = app[LIMITS]
    return [
        leases._num_used.total(),
        sum(map(len, leases._waiting.values())),
        memory._held.total(),
        sum(each.num_sequences + each.num_queued for each in limits.limiter.admissions.values()),
        replica.num_in_flight.total(),
    ]


async def remaining(http: aiohttp.ClientSession) -> str:
    """Return the remaining tokens of the key, by a request without tokens of a loaded model."""
    response = await http.post("/tokenize", json={"model": OTHER.id, "prompt": "a"})
    return response.headers["x-ratelimit-remaining-tokens"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", COMPLETION),
        ("/v1/completions", COMPLETION | {"stream": True}),
        ("/v1/embeddings", EMBEDDING | {"model": EMBEDDER.id}),
        ("/tokenize", {"model": DEMO.id, "prompt": "a"}),
        ("/detokenize", {"model": DEMO.id, "tokens": [1]}),
        ("/v1/messages/count_tokens", MESSAGE),
    ],
)
async def test_a_request_waits_for_its_model_longer_than_for_a_place(
    serve: Serve, path: str, body: dict[str, Any]
) -> None:
    vector = VectorChunk(usage=Usage(num_input_tokens=2, num_output_tokens=0), embedding=bytes(4))
    script = [vector] if "embeddings" in path else chunks("x")
    triton, arbiter = unloaded(DEMO, EMBEDDER, is_holding=True, script=script)
    http = await serve(triton, stream_keepalive_s=0, max_queue_wait_s=0.001)
    asking = asyncio.create_task(http.post(path, json=body))
    await until(lambda: arbiter.wishes)
    [wish] = arbiter.wishes.values()
    assert wish.sender == "127.0.0.1"
    await until(lambda: arbiter.wishes[body["model"]].waited_s > wish.waited_s)
    assert not asking.done() and not triton.requests
    arbiter.is_holding = False
    assert (await asking).status == 200
    assert arbiter.wished == [body["model"]]


@pytest.mark.parametrize(
    "fields", [{"prompt": [[1, 2]], "logprobs": 1}, {"prompt": ["a", "b"], "stream": True}], ids=["offsets", "check"]
)
async def test_a_request_does_not_wait_for_itself(
    serve: Serve, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease was recalled, and it wanted another one for a call of the tokenizer."""
    triton, arbiter = unloaded(DEMO)
    arbiter.states[DEMO.id], arbiter.is_holding = "loaded", True
    apps: list[web.Application] = []
    http = await serve(triton, apps)
    [replica] = apps[0][TRITON].replicas
    await until(lambda: replica.leases.may_begin(DEMO.id))
    prompt_lengths = completions._prompt_lengths

    async def measure_late(*arguments: Any) -> Any:
        arbiter.recalled = {DEMO.id}
        await until(lambda: not replica.leases.may_begin(DEMO.id))
        return await prompt_lengths(*arguments)

    monkeypatch.setattr(completions, "_prompt_lengths", measure_late)
    assert (await http.post("/v1/completions", json=COMPLETION | fields)).status == 200
    assert arbiter.wished == []


@pytest.mark.parametrize("fields", [{"n": 3}, {"stream": True}, {"stream": True, "n": 3}])
async def test_a_client_that_hangs_up_while_it_waits_leaves_nothing_behind(
    serve: Serve, fields: dict[str, Any]
) -> None:
    triton, arbiter = unloaded(DEMO, OTHER, is_holding=True)
    arbiter.states[OTHER.id] = "loaded"
    apps: list[web.Application] = []
    http = await serve(triton, apps, tokens_per_minute=LIMIT, max_concurrent=3, stream_keepalive_s=0)
    body = COMPLETION | {"max_tokens": 2000, "logprobs": 5} | fields
    asking = asyncio.create_task(http.post("/v1/completions", json=body))
    await until(lambda: arbiter.wishes)
    assert 'conch_requests_in_flight{model="org/demo"} 1' in await (await http.get("/metrics")).text()
    assert held_of(apps[0])[1] == 1 and ("stream" in fields or held_of(apps[0])[2])
    asking.cancel()
    await until(lambda: not arbiter.wishes)
    await until(lambda: held_of(apps[0]) == [0] * 5)
    assert 'conch_requests_in_flight{model="org/demo"} 0' in await (await http.get("/metrics")).text()
    assert await remaining(http) == str(LIMIT)
    arbiter.is_holding = False
    allowed = await http.post("/v1/completions", json=COMPLETION | {"max_tokens": 9, "n": 3})  # max_concurrent
    assert allowed.status == 200


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
@pytest.mark.parametrize(("settings", "code"), [({}, "model_too_large"), ({"load_wait_s": 0.01}, "model_not_ready")])
async def test_a_request_that_waits_in_vain_leaves_nothing_behind(
    serve: Serve, fields: dict[str, Any], settings: dict[str, Any], code: str
) -> None:
    triton, arbiter = unloaded(DEMO, OTHER, is_holding="load_wait_s" in settings)
    arbiter.states[OTHER.id] = "loaded"
    arbiter.refusals = {DEMO.id: TOO_LARGE}
    apps: list[web.Application] = []
    http = await serve(triton, apps, tokens_per_minute=LIMIT, stream_keepalive_s=0, **settings)
    error = await error_of(await http.post("/v1/completions", json=COMPLETION | {"max_tokens": 500} | fields))
    assert (error["status"], error["code"]) == (503, code)
    assert held_of(apps[0]) == [0] * 5
    assert await remaining(http) == str(LIMIT)


async def test_a_refusal_behind_a_comment_is_an_event(serve: Serve) -> None:
    triton, arbiter = unloaded(DEMO, is_holding=True)
    arbiter.refusals = {DEMO.id: LoadRefusal("load_failed", cause="no such file", retry_after_s=8)}
    http = await serve(triton, stream_keepalive_s=SOON_S)
    response = await http.post("/v1/completions", json=COMPLETION | {"stream": True})
    assert (await response.content.readuntil(b"\n\n")).startswith(COMMENT.strip())
    arbiter.is_holding = False
    text = await response.text()
    assert '"code":"load_failed"' in text and "no such file" in text and text.endswith("data: [DONE]\n\n")
    status = await http.post("/v1/completions", json=COMPLETION)
    assert (status.status, status.headers["Retry-After"]) == (503, "8")


async def test_pinned_models_are_named_to_keys_that_may_use_them(serve: Serve, tmp_path: Path) -> None:
    triton, arbiter = unloaded(DEMO)
    arbiter.refusals = {DEMO.id: TOO_LARGE}
    file = KeyFile(tmp_path / "keys.json")
    file.add("one", models=(DEMO.id, "org/a"))
    http = await serve(triton, key_file=str(file.path))
    error = await error_of(await http.post("/v1/completions", json=COMPLETION, headers=file.headers("one")))
    assert "org/a" in error["message"] and "org/b" not in error["message"]


async def test_replicas_that_were_loaded_meanwhile_give_places(serve: Serve) -> None:
    """The requests that had waited for a model had the places of one replica."""
    triton, arbiter = unloaded(DEMO, served_model(replica=2), is_holding=True, script=[asyncio.Event()])
    http = await serve(triton, max_in_flight=1, max_queue_wait_s=60)
    asking = [asyncio.create_task(http.post("/v1/completions", json=COMPLETION)) for _ in range(3)]
    await until(lambda: len(arbiter.wishes) == 1 and triton.num_open == 0)
    arbiter.is_holding = False
    await until(lambda: triton.num_open == 2)
    for each in asking:
        each.cancel()
    await until(lambda: not triton.num_open)


@pytest.mark.parametrize("name", ["alias", "formal", OTHER.id])
async def test_each_name_of_an_unloaded_model_is_found(serve: Serve, name: str) -> None:
    triton, arbiter = unloaded(OTHER)
    http = await serve(triton)
    assert (await http.post("/v1/completions", json=COMPLETION | {"model": name})).status == 200
    [request] = triton.requests
    assert request.params.lora_name == ("formal" if name == "formal" else "")
    assert arbiter.wished == [OTHER.id]


async def test_lists_show_unloaded_models_and_wish_for_nothing(serve: Serve) -> None:
    triton, arbiter = unloaded(DEMO, OTHER)
    arbiter.states[DEMO.id] = "loaded"
    http = await serve(triton)
    listed = {card["id"]: card["status"] for card in (await (await http.get("/v1/models")).json())["data"]}
    away = {"value": "unloaded", "memory_bytes": 1000}
    assert listed == {DEMO.id: away | {"value": "loaded"}, "alias": away, "formal": away, OTHER.id: away}
    assert (await (await http.get("/v1/models/alias")).json())["status"] == away
    for path in ("/health", "/health/ready"):
        health = await (await http.get(path)).json()
        assert (health["status"], health["models"]) == ("ready", {DEMO.id: "ready", OTHER.id: "unloaded"})
    arbiter.states[DEMO.id] = "unloaded"
    assert (await http.get("/health/ready")).status == 200
    assert arbiter.wished == []


async def test_lists_show_the_memory_of_devices(serve: Serve) -> None:
    triton, arbiter = unloaded(DEMO)
    arbiter.device_bytes = {"CUDA0": 7}
    http = await serve(triton)
    [card, *_] = (await (await http.get("/v1/models")).json())["data"]
    assert card["status"] == {"value": "unloaded", "memory_bytes": 1000, "device_bytes": {"CUDA0": 7}}


async def test_checks_and_tokenizations_leave_the_time_that_their_model_stays(serve: Serve) -> None:
    """They set it back to the model's own."""
    triton, arbiter = unloaded(DEMO)
    http = await serve(triton)
    body = COMPLETION | {"prompt": ["a", "b"], "stream": True, "keep_alive": 600}
    await (await http.post("/v1/completions", json=body)).read()
    await http.post("/tokenize", json={"model": DEMO.id, "prompt": "a"})
    await until(lambda: arbiter.held and not arbiter.held[DEMO.id].is_busy)
    assert arbiter.held[DEMO.id].keep_alive_s == 600
