"""Triton's door to the engine stage: requests, readiness, draining, adapters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from model_repository.contract.codec import Tensors, message_tensor, pack
from model_repository.contract.output import EngineStats
from model_repository.contract.request import EngineRequest, EngineRequestBatch
from model_repository.contract.tensors import ENGINE_REQUESTS, OPEN_STREAM
from model_repository.errors import EngineFailed, InvalidRequest, KeyRefused
from tests.fakes import stats
from tests.model_repository.python_backend import stage_door


class Engine:
    """An engine that works while it has no error."""

    error: Exception | None = None
    is_draining = False

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def submit(self, batch: EngineRequestBatch, responder: Any) -> None:
        self.calls.append(batch)

    def open_stream(self, key: str, responder: Any) -> None:
        self.calls.append(key)

    def stats(self) -> EngineStats:
        if self.error is not None:
            raise self.error
        return stats(7)


class Adapters:
    """Records orders, and finishes them at once."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, ...]] = []

    def load(self, name: str, source: str, done: Callable[[], None], reply_to: Any) -> None:
        self.orders.append(("load", name, source))
        done()

    def unload(self, name: str, done: Callable[[], None], reply_to: Any) -> None:
        self.orders.append(("unload", name))
        done()


class Responder:
    """Records the answers."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def close_with(self, tensors: Any) -> None:
        self.answers.append(tensors)


@pytest.fixture
def model() -> Iterator[Any]:
    with stage_door("engine") as door:
        door.engine, door.adapters, door.key = Engine(), Adapters(), ""
        yield door


def test_it_is_ready_while_its_engine_works(model: Any) -> None:
    assert model.is_ready() is True
    model.engine.error = EngineFailed("the runtime is broken")
    assert model.is_ready() is False


def test_batches_of_requests_and_new_streams_go_to_the_engine(model: Any) -> None:
    batch = EngineRequestBatch("key", ((1, EngineRequest(prompt_token_ids=(1, 2), max_tokens=3)), (2, "an error")))
    model._serve(message_tensor(ENGINE_REQUESTS, pack(batch)), Responder())
    model._serve(message_tensor(OPEN_STREAM, b"key"), Responder())
    assert model.engine.calls == [batch, "key"]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (message_tensor(ENGINE_REQUESTS, b"{}"), "^not a EngineRequestBatch"),
        (message_tensor(OPEN_STREAM, b""), "^the key is empty"),
        ({}, "^expected `control`, `open_stream` or `engine_requests`"),
    ],
)
def test_a_request_without_a_proper_message_is_refused(model: Any, tensors: Tensors, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        model._serve(tensors, Responder())
    assert model.engine.calls == []


def control(model: Any, message: Any) -> EngineStats:
    responder = Responder()
    model._control(json.dumps(message).encode(), responder)
    [answer] = responder.answers
    return msgspec.json.decode(answer["stats"].item(), type=EngineStats)


def test_it_is_drained_until_a_second_message(model: Any) -> None:
    for is_draining in (True, False):
        assert control(model, {"drain": is_draining}) == stats(7)
        assert model.engine.is_draining is is_draining
    with pytest.raises(InvalidRequest, match="expected"):
        control(model, {"drain": 1})


def test_only_the_holder_of_the_key_controls_an_engine_that_has_one(model: Any) -> None:
    model.key = "k" * 32
    for message in ({"drain": True}, {"drain": True, "key": "x"}, {"fail": "running", "cancel_key": "a"}):
        with pytest.raises(KeyRefused):
            control(model, message)
    assert model.engine.is_draining is False
    assert control(model, {}) == stats(7)
    assert control(model, {"drain": True, "key": model.key}) == stats(7)
    assert model.engine.is_draining is True


def test_adapters_are_loaded_and_unloaded_by_their_control(model: Any) -> None:
    assert control(model, {"load_adapter": "polite", "source": "teams/polite"}) == stats(7)
    assert control(model, {"unload_adapter": "polite"}) == stats(7)
    assert model.adapters.orders == [("load", "polite", "teams/polite"), ("unload", "polite")]


@pytest.mark.parametrize(
    "message", [{"load_adapter": "x"}, {"load_adapter": "x", "source": 1}, {"unload_adapter": "x", "source": "y"}]
)
def test_a_malformed_order_is_refused(model: Any, message: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected"):
        control(model, message)
    assert model.adapters.orders == []
