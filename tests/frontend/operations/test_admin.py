"""The operations port over a fake Triton: health and the admin routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from frontend.errors import ModelNotFound, TritonUnreachable
from frontend.gateway.key_file import read_keys
from frontend.operations.models import EndpointsControl, ModelControl
from frontend.store.sql import SqlStore
from frontend.store.sqlite import SqliteDatabase
from frontend.store.types import Bounds, Item, Kind
from model_repository.contract.arbiter import ArbiterRequest, LoadRefusal
from tests.fakes import FakeTriton, PlayedArbiter, served_model
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
    ("GET", "/admin/store"),
    ("DELETE", "/admin/store/a"),
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


async def test_an_unload_waits_for_the_arbiter(operate: Operate, triton: FakeTriton) -> None:
    http = await operate()
    answer = await http.post("/admin/models/org/demo/unload")
    assert await answer.json() == {"id": "org/demo", "state": "unloaded", "num_ended": 0}
    assert cast(PlayedArbiter, triton.arbiter).orders == ["unload org/demo"]


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


async def test_a_model_is_loaded_and_its_failures_have_their_cause(operate: Operate, triton: FakeTriton) -> None:
    arbiter = triton.arbiter = PlayedArbiter(org_big="unloaded")
    http = await operate()
    answer = await http.post("/admin/models/org/big/load")
    assert await answer.json() == {"id": "org/big", "state": "ready"}
    arbiter.cause = "no such file"
    answer = await http.post("/admin/models/org/big/load")
    assert (answer.status, (await answer.json())["error"]["code"]) == (503, "load_failed")
    assert "no such file" in await answer.text()
    arbiter.refusals = {"org/big": LoadRefusal("model_too_large", 12, 10, ("org/pinned",))}
    answer = await http.post("/admin/models/org/big/load")
    assert (answer.status, (await answer.json())["error"]["code"]) == (503, "model_too_large")
    assert "needs 12 bytes of memory, and all models together have 10" in await answer.text()
    assert "org/pinned" in await answer.text()


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
    arbiters = [PlayedArbiter(org_demo="loaded"), PlayedArbiter(org_demo="loaded", org_big="unloaded"), PlayedArbiter()]
    for triton, arbiter in zip(tritons.values(), arbiters, strict=True):
        triton.arbiter, triton.num_active = arbiter, [2]
    control = EndpointsControl(lambda: tritons)
    assert await control.unload("org/demo", timeout_s=0) == 4
    await control.load("org/big")
    assert [arbiter.orders for arbiter in arbiters] == [["unload org/demo"], ["unload org/demo", "load org/big"], []]
    with pytest.raises(ModelNotFound):
        await control.load("org/other")


async def test_the_requests_of_all_replicas_end_at_the_timeout_of_an_unload() -> None:
    triton = FakeTriton(models=[served_model(), served_model(replica=2)])
    triton.arbiter, triton.num_active = PlayedArbiter(org_demo="loaded"), [2, 1]
    assert await ModelControl(triton).unload("org/demo", timeout_s=0) == 3
    assert {"fail org--demo", "fail org--demo@2"} == {*triton.calls}


async def test_an_endpoints_failure_is_raised_once_the_others_are_done() -> None:
    bad, good = FakeTriton(), FakeTriton()
    good.arbiter = arbiter = PlayedArbiter(org_demo="loaded")

    def away(_: ArbiterRequest) -> NoReturn:
        raise TritonUnreachable()

    bad.arbiter = away
    control = EndpointsControl(lambda: {"bad:1": bad, "good:1": good})
    with pytest.raises(TritonUnreachable):
        await control.unload("org/demo", timeout_s=0)
    assert arbiter.states == {"org/demo": "unloaded"}


async def test_a_slow_head_is_answered_with_408_as_on_the_apis_port(
    operate: Operate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.connections.connection.HEADER_TIMEOUT_S", 0.05)
    [answer] = await exchange(port_of(await operate()), b"GET /health/live")
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")


async def test_what_is_stored_for_a_key_is_counted_and_deleted(
    operate: Operate, key_file: KeyFile, tmp_path: Path
) -> None:
    path = tmp_path / "store.db"
    http = await operate(key_file=str(key_file.path), store=str(path))
    admin = key_file.headers("admin")
    assert await (await http.get("/admin/store", headers=admin)).json() == {"owners": []}
    store = SqlStore(SqliteDatabase(path), Bounds())
    [owner] = [key.caller().owner for key in read_keys(key_file.path) if key.name == "user"]
    for identity in ("x", "y"):
        await store.create(owner, Kind.RESPONSE, identity, b"head", [Item("1", b"item")])
    await store.create("gone", Kind.RESPONSE, "z", b"head")
    owners = {each["owner"]: each for each in (await (await http.get("/admin/store", headers=admin)).json())["owners"]}
    listed = owners[owner]
    assert owners["gone"]["key"] is None
    assert (listed["key"], listed["num_objects"]) == ("user", 2) and listed["num_bytes"] > 0
    deleted = await http.delete(f"/admin/store/{owner}", headers=admin)
    assert await deleted.json() == {key: listed[key] for key in ("owner", "num_objects", "num_bytes")}
    assert [*await store.usage()] == ["gone"]
    await store.close()
    again = await http.delete(f"/admin/store/{owner}", headers=admin)
    assert again.status == 404 and owner in (await again.json())["error"]["message"]
    none = await operate(key_file=str(key_file.path), store="none")
    assert (await none.get("/admin/store", headers=admin)).status == 404


async def test_what_is_stored_and_the_failures_of_its_place_are_metrics(operate: Operate) -> None:
    http = await operate()
    found = await (await http.get("/admin/store")).json(), await (await http.get("/metrics")).text()
    assert found[0] == {"owners": []} and "\nconch_stored_bytes 0.0\n" in found[1]
    assert '\nconch_store_calls_total{result="ok"} ' in found[1] and 'result="failed"' not in found[1]
    away = await operate(store="postgresql://user:password@/conch?host=/nowhere")
    refused = await away.get("/admin/store")
    assert (refused.status, (await refused.json())["error"]["code"]) == (503, "store_unavailable")
    assert '\nconch_store_calls_total{result="failed"} ' in await (await away.get("/metrics")).text()
