"""A model that `--triton MODEL=` names, while nothing serves it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from frontend.errors import TritonUnreachable
from frontend.triton.models import ModelSnapshot
from model_repository.model_parameters import Preset
from tests.fakes import DEMO, FakeTriton, chunks, served_model
from tests.frontend.answers import error_of
from tests.frontend.bodies import CHAT, COMPLETION
from tests.frontend.conftest import Serve
from tests.frontend.gateway.key_files import KeyFile
from tests.waiting import DEADLINE_S

NAMED = (f"{DEMO.id}=fake:1",)
TOKENIZE = {"model": DEMO.id, "prompt": "hi"}


def away() -> FakeTriton:
    """Return a Triton that does not answer."""
    triton = FakeTriton(chunks("x"), models=[])
    triton.snapshot_error = triton.stats_error = TritonUnreachable()
    return triton


async def statuses(http: aiohttp.ClientSession, keys: KeyFile, *names: str) -> list[int]:
    """Return the statuses of completions that the key `demo` asks for by these names."""
    bodies = [COMPLETION | {"model": name} for name in names]
    return [(await http.post("/v1/completions", json=body, headers=keys.headers("demo"))).status for body in bodies]


async def shed(http: aiohttp.ClientSession, model: str = DEMO.id) -> list[str]:
    """Return the metric of requests for a model that were refused while nothing serves it."""
    lines = (await (await http.get("/metrics")).text()).splitlines()
    return [line.split()[-1] for line in lines if line.startswith("conch_shed_total{") and _is_about(line, model)]


def _is_about(line: str, model: str) -> bool:
    return 'code="model_not_ready"' in line and f'model="{model}"' in line


@pytest.mark.parametrize("is_away", [True, False], ids=["away", "nothing loaded"])
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION), ("/tokenize", TOKENIZE)]
)
async def test_it_is_not_ready_and_the_answer_says_when_to_come_back(
    serve: Serve, path: str, body: dict[str, object], *, is_away: bool
) -> None:
    http = await serve(away() if is_away else FakeTriton(models=[]), triton_endpoints=NAMED)
    response = await http.post(path, json=body)
    assert response.headers["Retry-After"] == "1"
    error = await error_of(response)
    assert (error["status"], error["code"]) == (503, "model_not_ready")
    assert "(state: not loaded)" in error["message"]


async def test_the_frontend_is_ready_and_other_models_are_not_found(serve: Serve) -> None:
    http = await serve(away(), triton_endpoints=NAMED)
    error = await error_of(await http.post("/v1/completions", json=COMPLETION | {"model": "other"}))
    assert (error["status"], error["code"]) == (404, "model_not_found")
    ready = await http.get("/health/ready")
    assert (ready.status, (await ready.json())["models"]) == (200, {DEMO.id: "not loaded"})
    models = await http.get("/v1/models")
    assert (models.status, (await models.json())["data"]) == (200, [])


async def test_beside_an_endpoint_of_unknown_models_every_name_waits_for_an_answer(serve: Serve) -> None:
    http = await serve(away(), triton_endpoints=(*NAMED, "fake:1"))
    error = await error_of(await http.post("/v1/completions", json=COMPLETION | {"model": "other"}))
    assert (error["status"], error["code"]) == (503, "triton_unreachable")
    assert (await http.get("/health/ready")).status == 503


async def test_its_demand_is_counted_from_zero_on(serve: Serve) -> None:
    http = await serve(away(), triton_endpoints=NAMED)
    assert await shed(http) == ["0.0"]
    text = await (await http.get("/metrics")).text()
    assert f'conch_requests_in_flight{{model="{DEMO.id}"}} 0.0' in text
    await http.post("/v1/completions", json=COMPLETION)
    await http.post("/v1/completions", json=COMPLETION | {"model": "other"})
    assert await shed(http) == ["1.0"]
    assert await shed(http, "other") == []


async def test_its_alias_is_counted_for_it_once_it_has_been_seen(serve: Serve) -> None:
    triton = FakeTriton(chunks("x"), models=[served_model(aliases=("gpt-4o",))])
    http = await serve(triton, triton_endpoints=NAMED)
    assert (await http.post("/v1/completions", json=COMPLETION)).status == 200
    triton.snapshot_error = triton.stats_error = TritonUnreachable()
    await http.get("/v1/models/gone")  # has the list of models fetched anew
    assert (await http.post("/v1/completions", json=COMPLETION | {"model": "gpt-4o"})).status == 503
    assert await shed(http) == ["1.0"]


async def test_an_alias_that_is_named_beside_it_is_known_before_it_has_been_seen(serve: Serve, tmp_path: Path) -> None:
    triton = away()
    keys = KeyFile(tmp_path / "keys.json")
    keys.add("demo", models=(DEMO.id,))
    http = await serve(triton, triton_endpoints=(f"{DEMO.id},gpt-4o,mine=fake:1",), key_file=str(keys.path))
    assert await statuses(http, keys, "gpt-4o", "mine") == [503, 503]
    triton.snapshot_error = triton.stats_error = None
    triton.models = ModelSnapshot(ready={DEMO.id: served_model(aliases=("gpt-4o",))})
    assert await statuses(http, keys, "gpt-4o", "mine") == [200, 200], "the operator's name is one of its names"


async def test_a_key_that_may_use_it_may_not_use_its_adapter_or_preset_while_it_is_away(
    serve: Serve, tmp_path: Path
) -> None:
    model = served_model(aliases=("gpt-4o",), adapters=("formal",), presets={"brief": Preset()})
    triton = FakeTriton(chunks("x"), models=[model])
    keys = KeyFile(tmp_path / "keys.json")
    keys.add("demo", models=(DEMO.id,))
    http = await serve(triton, triton_endpoints=NAMED, key_file=str(keys.path))
    assert await statuses(http, keys, "gpt-4o", "formal", "brief") == [200, 403, 403]
    triton.models = ModelSnapshot()
    # A name that is not known has the list of models fetched anew.
    assert await statuses(http, keys, "gone", "gpt-4o", "formal", "brief") == [403, 503, 403, 403]


async def test_a_key_that_may_not_use_it_cannot_tell_whether_it_exists(serve: Serve, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    keys.add("other", models=("other",))
    http = await serve(away(), triton_endpoints=NAMED, key_file=str(keys.path))
    answers = []
    for model in (DEMO.id, "x/demo"):
        error = await error_of(
            await http.post("/v1/completions", json=COMPLETION | {"model": model}, headers=keys.headers("other"))
        )
        answers.append((error["status"], error["code"], error["message"].replace(model, "")))
    assert answers[0] == answers[1]
    assert answers[0][:2] == (403, "permission_denied")


# --- requests that wait for it ---


WAKING: dict[str, Any] = {"triton_endpoints": NAMED, "wake_timeout_s": 20.0}


def wake(triton: FakeTriton) -> None:
    """Have it serve the model."""
    triton.snapshot_error = triton.stats_error = None
    triton.models = ModelSnapshot(ready={DEMO.id: DEMO})


async def until_in_flight(http: aiohttp.ClientSession, number: int) -> None:
    """Wait until the metric of requests in flight has this value."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await in_flight(http) == f"{number}.0":
                return
            await asyncio.sleep(0.01)


async def in_flight(http: aiohttp.ClientSession) -> str:
    text = await (await http.get("/metrics")).text()
    [line] = [line for line in text.splitlines() if line.startswith("conch_requests_in_flight{")]
    return line.split()[-1]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION | {"stream": True}), ("/tokenize", TOKENIZE)],
)
async def test_a_request_waits_for_a_model_that_was_never_seen(
    serve: Serve, path: str, body: dict[str, object]
) -> None:
    triton = away()
    http = await serve(triton, **WAKING)
    asking = asyncio.create_task(http.post(path, json=body))
    await until_in_flight(http, 1)
    assert not asking.done()
    wake(triton)
    assert (await asking).status == 200
    assert (await in_flight(http), await shed(http)) == ("0.0", ["0.0"])


async def test_a_stream_tells_that_a_model_starts_that_was_seen_before(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.handlers.keepalive._WAITING_INTERVAL_S", 0.02)
    triton = FakeTriton(chunks("x"), models=[DEMO])
    http = await serve(triton, **WAKING)
    assert (await http.post("/v1/completions", json=COMPLETION)).status == 200
    triton.models = ModelSnapshot()
    await http.get("/v1/models/gone")  # has the list of models fetched anew
    [card] = (await (await http.get("/v1/models")).json())["data"]
    assert (card["id"], card["status"]) == (DEMO.id, {"value": "unloaded", "memory_bytes": 0})
    response = await http.post("/v1/completions", json=COMPLETION | {"stream": True})
    assert await response.content.readline() == b": keepalive: the model is loading\n"
    wake(triton)
    text = await response.text()
    assert text.endswith("data: [DONE]\n\n") and ": Server-Timing: load;dur=" in text


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_model_that_does_not_start_in_time_is_refused(serve: Serve, *, is_stream: bool) -> None:
    http = await serve(away(), triton_endpoints=NAMED, wake_timeout_s=0.01)
    error = await error_of(await http.post("/v1/completions", json=COMPLETION | {"stream": is_stream}))
    assert (error["status"], error["code"]) == (503, "model_not_ready")
    assert error["message"] == "The model was not loaded within 0.01 seconds: no server of it has started."
    assert (await in_flight(http), await shed(http)) == ("0.0", ["1.0"])


async def test_only_so_many_requests_wait_for_it(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.triton.leases.MAX_WAITING", 1)
    triton = away()
    http = await serve(triton, **WAKING)
    first = asyncio.create_task(http.post("/v1/completions", json=COMPLETION))
    await until_in_flight(http, 1)
    error = await error_of(await http.post("/v1/completions", json=COMPLETION))
    assert (error["status"], error["code"]) == (503, "overloaded")
    first.cancel()
    await until_in_flight(http, 0)
    second = asyncio.create_task(http.post("/v1/completions", json=COMPLETION))
    await asyncio.sleep(0)
    wake(triton)
    assert (await second).status == 200
