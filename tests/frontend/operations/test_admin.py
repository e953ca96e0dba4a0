"""The operations port over a fake Triton: health and the admin routes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from frontend.errors import ModelNotFound, TritonUnreachable
from frontend.operations.models import EndpointsControl, ModelControl
from tests.fakes import FakeTriton, served_model
from tests.frontend.connections.raw_http import exchange, port_of
from tests.frontend.gateway.key_files import KeyFile
from tests.frontend.operations.conftest import FakeSupervisor, Operate

ROUTES = [
    ("GET", "/admin/models"),
    ("POST", "/admin/models/org/demo/load"),
    ("POST", "/admin/models/org/demo/unload"),
    ("GET", "/admin/models/org/demo/adapters"),
    ("POST", "/admin/models/org/demo/adapters"),
    ("DELETE", "/admin/models/org/demo/adapters/polite"),
    ("POST", "/admin/keys/reload"),
    ("POST", "/admin/drain"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_admin_routes_want_an_admins_key(
    operate: Operate, key_file: KeyFile, triton: FakeTriton, supervisor: FakeSupervisor, method: str, path: str
) -> None:
    http = await operate(key_file=str(key_file.path))
    calls = list(triton.calls)
    assert (await http.request(method, path)).status == 401
    refused = await http.request(method, path, headers=key_file.headers("user"))
    assert (refused.status, (await refused.json())["error"]["type"]) == (403, "permission_error")
    assert (triton.calls, supervisor.signals) == (calls, [])
    assert (await http.request(method, path, headers=key_file.headers("admin"))).status not in (401, 403)


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_without_a_key_file_the_admin_routes_are_for_this_machine_and_no_web_page(
    operate: Operate, method: str, path: str
) -> None:
    http = await operate()
    for page in ({"Origin": "http://example.org"}, {"Origin": "http://evil:80", "Host": "evil:80"}):
        assert (await http.request(method, path, headers=page)).status == 403
    assert (await http.request(method, path)).status not in (401, 403)
    open_to_all = await operate(admin_host="0.0.0.0", admin_port=1, allow_anonymous=True)
    assert (await open_to_all.request(method, path)).status == 403


async def test_models_are_listed_with_their_states(operate: Operate, triton: FakeTriton) -> None:
    triton.models = type(triton.models)(ready=triton.models.ready, unready={"a": "unavailable"})
    http = await operate()
    assert (await (await http.get("/admin/models")).json())["models"] == [
        {"id": "a", "state": "unavailable"},
        {"id": "org/demo", "state": "ready", "runtime": "llama_cpp", "aliases": ["gpt-4o"], "adapters": ["formal"]},
    ]


async def test_an_unload_waits_for_running_requests_and_then_unloads_every_stage(
    operate: Operate, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.triton.health_monitor.STATS_INTERVAL_S", 1000.0)
    http = await operate()
    triton.num_active = [2, 1]
    answer = await http.post("/admin/models/org/demo/unload")
    assert await answer.json() == {"id": "org/demo", "state": "unloaded", "num_ended": 0}
    assert triton.num_active == []
    assert triton.calls == [
        "unload org--demo",
        "unload org--demo__tokenizer",
        "unload org--demo__engine",
        "unload org--demo__detokenizer",
        "unload org--demo__requests",
        "unload org--demo__outputs",
    ]


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("org/other/unload", None, 404, "org/other"),
        ("gpt-4o/unload", None, 404, "gpt-4o"),  # an alias is no model of its own
        ("a--b/unload", None, 400, "neither `--` nor `__`"),
        ("org/demo/unload", {"timeout_s": -1}, 400, "timeout_s=-1"),
        ("org/demo/unload", {"force": True}, 400, "force: unknown field"),
    ],
)
async def test_a_bad_command_is_refused_and_changes_nothing(
    operate: Operate, triton: FakeTriton, path: str, body: Any, status: int, word: str
) -> None:
    http = await operate()
    answer = await http.post(f"/admin/models/{path}", json=body) if body else await http.post(f"/admin/models/{path}")
    assert answer.status == status
    assert word in (await answer.json())["error"]["message"]
    assert triton.calls == []


async def test_a_model_is_loaded_by_its_engine_and_its_ensemble(operate: Operate, triton: FakeTriton) -> None:
    triton.loadable = {"org--big"}
    http = await operate()
    answer = await http.post("/admin/models/org/big/load")
    assert await answer.json() == {"id": "org/big", "state": "ready"}
    assert triton.calls == ["load org--big__engine"]
    assert (await http.post("/admin/models/org/demo/load")).status == 200  # it is there already
    assert triton.calls == ["load org--big__engine"]


async def test_a_bad_key_file_is_refused_with_its_fault_and_the_old_keys_stay(
    operate: Operate, key_file: KeyFile, supervisor: FakeSupervisor
) -> None:
    http = await operate(key_file=str(key_file.path))
    key_file.path.write_text('{"keys": [{"name": "x"}]}')
    answer = await http.post("/admin/keys/reload", headers=key_file.headers("admin"))
    assert answer.status == 400
    assert "Object missing required field `sha256` - at `$.keys[0]`" in (await answer.json())["error"]["message"]
    assert supervisor.signals == []
    assert (await http.get("/admin/models", headers=key_file.headers("admin"))).status == 200


async def test_a_drain_begins_in_every_worker_while_health_and_metrics_answer(
    operate: Operate, supervisor: FakeSupervisor
) -> None:
    http = await operate()
    for _ in range(2):
        answer = await http.post("/admin/drain")
        assert (answer.status, await answer.json()) == (202, {"status": "draining"})
    assert supervisor.signals == ["drain"]
    ready = await http.get("/health/ready")
    assert (ready.status, (await ready.json())["status"]) == (503, "draining")
    assert (await http.get("/metrics")).status == 200


async def test_a_model_is_loaded_and_unloaded_at_every_endpoint_that_has_it() -> None:
    tritons = {"a:1": FakeTriton(), "b:1": FakeTriton(), "c:1": FakeTriton(models=[])}
    for triton in tritons.values():
        triton.num_active = [2]
    control = EndpointsControl(lambda: tritons)
    assert await control.unload("org/demo", timeout_s=0) == 4
    assert [triton.calls[:1] for triton in tritons.values()] == [["unload org--demo"], ["unload org--demo"], []]
    tritons["b:1"].loadable = {"org--big"}
    await control.load("org/big")
    assert [triton.calls[-1:] == ["load org--big__engine"] for triton in tritons.values()] == [False, True, False]
    with pytest.raises(ModelNotFound):
        await control.load("org/other")


async def test_an_endpoint_loads_one_model_at_a_time() -> None:
    gate = asyncio.Event()

    class Slow(FakeTriton):
        async def load(self, ensemble: str, stage: str) -> None:
            await super().load(ensemble, stage)
            self.started.set()
            await gate.wait()

    triton = Slow()
    triton.loadable = {"org--a", "org--b"}
    control = EndpointsControl(lambda: {"a:1": triton})
    loads = [asyncio.create_task(control.load(model_id)) for model_id in ("org/a", "org/b")]
    await triton.started.wait()
    await asyncio.wait(loads, timeout=0)
    assert triton.calls == ["load org--a__engine"]
    gate.set()
    await asyncio.gather(*loads)
    assert triton.calls == ["load org--a__engine", "load org--b__engine"]


async def test_all_replicas_of_a_model_are_loaded_and_unloaded() -> None:
    triton = FakeTriton(models=[served_model(), served_model(replica=2)])
    triton.num_active = [2, 1]
    control = ModelControl(triton)
    assert await control.unload("org/demo", timeout_s=0) == 3
    assert {"unload org--demo", "unload org--demo__engine", "unload org--demo@2", "unload org--demo@2__engine"} <= {
        *triton.calls
    }
    triton.models = FakeTriton(models=[served_model(replica=2)]).models
    triton.loadable = {"org--demo", "org--demo@3"}
    triton.calls.clear()
    await control.load("org/demo")
    assert triton.calls == ["load org--demo__engine", "load org--demo@3__engine"]


async def test_an_endpoints_failure_is_raised_once_the_others_are_done() -> None:
    bad, good = FakeTriton(), FakeTriton()
    bad.unload_error = TritonUnreachable()
    control = EndpointsControl(lambda: {"bad:1": bad, "good:1": good})
    with pytest.raises(TritonUnreachable):
        await control.unload("org/demo", timeout_s=0)
    assert good.calls[-1] == "unload org--demo__outputs"


async def test_a_slow_head_is_answered_with_408_as_on_the_apis_port(
    operate: Operate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.connections.connection.HEADER_TIMEOUT_S", 0.05)
    [answer] = await exchange(port_of(await operate()), b"GET /health/live")
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")
