"""Adapters at every endpoint of a model, and the admin routes for them."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import APIError, InvalidRequest, ModelNotFound, NotFound, StageUnhealthy, TritonUnreachable
from frontend.operations.adapters import AdapterCommands
from frontend.triton.models import ModelSnapshot
from tests.fakes import FakeTriton, served_model
from tests.frontend.operations.conftest import Operate

ROUTE = "/admin/models/org/demo/adapters"
POLITE = {"name": "polite", "source": "teams/polite"}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"name": "polite"}, "source"),
        ({"name": "", "source": "x"}, "name"),
        ({"name": "polite", "source": 1}, "source=1"),
        (POLITE | {"scale": 2}, "scale: unknown field"),
        (POLITE | {"name": "gpt-4o"}, "already a name of the model org/demo"),
    ],
)
async def test_a_bad_body_or_a_name_that_is_taken_is_refused(
    operate: Operate, triton: FakeTriton, body: Any, word: str
) -> None:
    answer = await (await operate()).post(ROUTE, json=body)
    assert answer.status == 400
    assert word in (await answer.json())["error"]["message"]
    assert triton.adapters == {}


class Settling:
    """Notes the waiting times for the workers."""

    def __init__(self) -> None:
        self.slept_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Return at once."""
        self.slept_s.append(seconds)


def control_of(settling: Settling | None = None, **tritons: FakeTriton) -> AdapterCommands:
    return AdapterCommands(lambda: tritons, settle_s=2.0, sleep=(settling or Settling()).sleep)


async def test_every_endpoint_with_the_model_loads_it_and_the_workers_get_time_to_notice() -> None:
    settling = Settling()
    a, b, c = FakeTriton(), FakeTriton(), FakeTriton(models=[served_model("org/other")])
    control = control_of(settling, a=a, b=b, c=c)
    loaded = await control.load("org/demo", "polite", "x", ModelSnapshot())
    assert (set(loaded.by_endpoint), loaded.failure, settling.slept_s) == ({"a", "b"}, None, [2.0])
    assert (a.adapters, b.adapters, c.adapters) == ({"polite": "x"}, {"polite": "x"}, {})
    assert set((await control.list("org/demo")).by_endpoint) == {"a", "b"}
    assert set((await control.unload("org/demo", "polite")).by_endpoint) == {"a", "b"}
    assert (a.adapters, b.adapters) == ({}, {})


async def test_an_endpoint_that_fails_does_not_stop_the_others() -> None:
    good, bad, away = FakeTriton(), FakeTriton(), FakeTriton()
    bad.adapter_error, away.snapshot_error = StageUnhealthy("org--demo__engine"), TritonUnreachable()
    control = control_of(good=good, bad=bad, away=away)
    loaded = await control.load("org/demo", "polite", "x", ModelSnapshot())
    described = loaded.describe(lambda stats: {"state": "loaded"})
    assert {endpoint: outcome["state"] for endpoint, outcome in described.items()} == {
        "good": "loaded",
        "bad": "failed",
        "away": "failed",
    }
    assert isinstance(loaded.failure, StageUnhealthy)
    bad.adapter_error = away.snapshot_error = None
    unloaded = await control.unload("org/demo", "polite")  # it is not everywhere
    assert (set(unloaded.by_endpoint), unloaded.failure) == ({"good"}, None)


async def test_an_adapter_that_is_nowhere_is_not_found() -> None:
    with pytest.raises(NotFound, match="name='polite': the model org/demo has no adapter of this name") as refused:
        await control_of(a=FakeTriton()).unload("org/demo", "polite")
    assert (refused.value.param, refused.value.code) == ("name", "adapter_not_found")


@pytest.mark.parametrize(("model", "kind"), [("org/nothing", ModelNotFound), ("a--b", InvalidRequest)])
async def test_a_model_that_is_nowhere_is_not_found(model: str, kind: type[APIError]) -> None:
    control = control_of(a=FakeTriton())
    for work in (control.list(model), control.load(model, "x", "y", ModelSnapshot()), control.unload(model, "x")):
        with pytest.raises(kind):
            await work


async def test_a_name_of_another_model_is_taken() -> None:
    other = served_model("org/other", aliases=("short",), adapters=("brief",))
    served = ModelSnapshot(ready={other.id: other})
    triton = FakeTriton()
    for name in ("org/other", "short", "brief"):
        with pytest.raises(InvalidRequest, match="already a name of the model org/other"):
            await control_of(a=triton).load("org/demo", name, "x", served)
    assert triton.adapters == {}


async def test_each_replica_of_an_endpoint_loads_it() -> None:
    control = control_of(a=FakeTriton(models=[served_model(), served_model(replica=2)]), b=FakeTriton())
    loaded = await control.load("org/demo", "polite", "x", ModelSnapshot())
    assert (set(loaded.by_endpoint), loaded.failure) == ({"a", "a@2", "b"}, None)
