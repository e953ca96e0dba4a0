"""The served models by their names, and how often Triton is asked for them."""

from __future__ import annotations

import asyncio

import pytest

from frontend.errors import ModelNotFound, ModelNotReady, TritonUnreachable
from frontend.triton.models import (
    MAX_AGE_FOR_REQUESTS_S,
    MAX_AGE_S,
    ModelDirectory,
    ModelName,
    ModelSnapshot,
    ServedModel,
)
from model_repository.model_parameters import Preset
from tests.fakes import DEMO, FakeTriton, served_model


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_requests_within_a_second_cost_one_question() -> None:
    triton, clock = FakeTriton(), Clock()
    models = ModelDirectory(triton, clock)
    assert [(await models.get(DEMO.id)).model for _ in range(3)] == [DEMO] * 3
    assert triton.num_snapshots == 1
    clock.now += MAX_AGE_S
    await models.snapshot()
    assert triton.num_snapshots == 2


async def test_a_request_uses_the_last_list_while_a_newer_one_is_fetched() -> None:
    triton, clock = FakeTriton(), Clock()
    models = ModelDirectory(triton, clock)
    await models.get(DEMO.id)
    triton.models = ModelSnapshot()
    clock.now += MAX_AGE_S
    assert (await models.get(DEMO.id)).model == DEMO
    await asyncio.sleep(0.01)
    assert triton.num_snapshots == 2
    with pytest.raises(ModelNotFound):
        await models.get(DEMO.id)


async def test_a_name_that_is_no_longer_served_is_asked_for_at_once() -> None:
    triton, clock = FakeTriton(), Clock()
    models = ModelDirectory(triton, clock, is_served=lambda name: False)
    await models.get(DEMO.id)
    triton.models = ModelSnapshot()
    clock.now += MAX_AGE_S
    with pytest.raises(ModelNotFound):
        await models.get(DEMO.id)


async def test_an_unknown_id_is_asked_for_at_once() -> None:
    triton = FakeTriton()
    models = ModelDirectory(triton, Clock())
    triton.models = ModelSnapshot()
    with pytest.raises(ModelNotFound, match="model='org/demo'"):
        await models.get(DEMO.id)
    triton.models = ModelSnapshot(ready={DEMO.id: DEMO})
    assert (await models.get(DEMO.id)).model == DEMO


async def test_an_adapter_that_was_loaded_later_is_known_while_its_model_is_not_loaded() -> None:
    """After the death of an engine its name was not found, until the adapter was back."""
    triton, clock = FakeTriton(models=[served_model(adapters=("polite",))]), Clock()
    models = ModelDirectory(triton, clock)
    await models.get("polite")
    for snapshot, is_known in (
        (ModelSnapshot(asleep={DEMO.id: DEMO}), True),
        (ModelSnapshot(asleep={DEMO.id: DEMO}), True),
        (ModelSnapshot(ready={DEMO.id: DEMO}), False),
    ):
        triton.models = snapshot
        clock.now += MAX_AGE_S
        await models.snapshot()
        if is_known:
            assert (await models.get("polite")).lora_name == "polite"
        else:
            with pytest.raises(ModelNotFound):
                await models.get("polite")


async def test_an_unloaded_model_is_not_ready_under_all_its_names_and_a_removed_adapter_is_not_found() -> None:
    triton, clock = FakeTriton(models=[served_model(aliases=("gpt-4o",), adapters=("formal", "brief"))]), Clock()
    models = ModelDirectory(triton, clock)
    await models.get("gpt-4o")
    triton.models = ModelSnapshot(ready={DEMO.id: served_model(aliases=("gpt-4o",), adapters=("formal",))})
    clock.now += MAX_AGE_FOR_REQUESTS_S
    with pytest.raises(ModelNotFound):
        await models.get("brief")
    triton.models = ModelSnapshot(unready={DEMO.id: "unavailable"})
    clock.now += MAX_AGE_FOR_REQUESTS_S
    for name in ("gpt-4o", "formal"):
        with pytest.raises(ModelNotReady, match=f"The model {name} is not ready now"):
            await models.get(name)
    with pytest.raises(ModelNotFound):
        await models.get("brief")
    triton.models = ModelSnapshot()
    clock.now += MAX_AGE_FOR_REQUESTS_S
    with pytest.raises(ModelNotFound):
        await models.get("formal")


async def test_what_triton_served_before_it_went_away_is_not_served_from_memory() -> None:
    triton, clock = FakeTriton(), Clock()
    models = ModelDirectory(triton, clock)
    await models.get(DEMO.id)
    clock.now += MAX_AGE_FOR_REQUESTS_S
    triton.snapshot_error = TritonUnreachable()
    with pytest.raises(TritonUnreachable):
        await models.get(DEMO.id)
    triton.snapshot_error = None
    assert (await models.get(DEMO.id)).model == DEMO


async def test_requests_that_come_together_ask_once() -> None:
    triton = FakeTriton()
    models = ModelDirectory(triton, Clock())
    await asyncio.gather(*(models.get(DEMO.id) for _ in range(10)))
    assert triton.num_snapshots == 1


async def test_a_model_that_is_not_ready_hides_no_name_of_another() -> None:
    triton = FakeTriton(models=[served_model(aliases=("org/broken",))])
    triton.models = ModelSnapshot(ready=triton.models.ready, unready={"org/broken": "unavailable"})
    assert (await ModelDirectory(triton, Clock()).get("org/broken")).model.id == DEMO.id


def names_of(*models: ServedModel) -> dict[str, tuple[str, str]]:
    """Return what each name stands for: model and adapter."""
    names = ModelSnapshot(ready={model.id: model for model in models}).names()
    assert all(names[asked].requested == asked for asked in names)
    return {asked: (name.model.id, name.lora_name) for asked, name in names.items()}


def test_a_model_has_its_id_its_aliases_its_adapters_and_its_presets_as_names() -> None:
    brief = Preset(system="Be brief.")
    model = served_model("org/a", aliases=("gpt-4o", 'a "b"/é:1'), adapters=("formal",), presets={"brief": brief})
    assert names_of(model) == {
        "org/a": ("org/a", ""),
        "gpt-4o": ("org/a", ""),
        'a "b"/é:1': ("org/a", ""),
        "formal": ("org/a", "formal"),
        "brief": ("org/a", ""),
    }
    assert ModelSnapshot(ready={model.id: model}).names()["formal"] == ModelName(
        requested="formal", model=model, lora_name="formal"
    )
    names = ModelSnapshot(asleep={model.id: model}).names()
    assert names["brief"] == ModelName(requested="brief", model=model, preset=brief)
    assert [name for name, each in names.items() if not each.is_plain] == ["formal", "brief"]


def test_an_id_wins_over_an_alias_and_an_adapter_of_its_name() -> None:
    first = served_model("org/a", aliases=("org/b", "org/c"), adapters=("org/c",))
    assert names_of(first, served_model("org/b"))["org/b"] == ("org/b", "")
    assert names_of(first, served_model("org/c"))["org/c"] == ("org/c", "")


def test_of_two_models_with_one_alias_the_first_by_id_has_it_whatever_the_order() -> None:
    models = [served_model("org/b", aliases=("x",)), served_model("org/a", adapters=("x",))]
    assert names_of(*models)["x"] == names_of(*reversed(models))["x"] == ("org/a", "x")
    both = served_model("org/a", aliases=("x",), adapters=("x",))
    assert names_of(both)["x"] == ("org/a", "")


async def test_a_model_is_served_under_the_aliases_of_the_option_too() -> None:
    """They were only known until the model had told its own."""
    triton = FakeTriton(models=[served_model(aliases=("own",)), served_model("org/b")])
    models = ModelDirectory(triton, Clock(), aliases={"gpt-4o": DEMO.id, "own": "org/b", "x": "org/absent"})
    assert {name: meant.model.id for name, meant in (await models.names()).items()} == {
        DEMO.id: DEMO.id,
        "org/b": "org/b",
        "gpt-4o": DEMO.id,
        "own": DEMO.id,
    }
