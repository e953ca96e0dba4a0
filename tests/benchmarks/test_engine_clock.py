from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from model_repository.contract.codec import unpack
from model_repository.contract.request import EngineRequest, EngineRequestBatch
from model_repository.contract.tensors import stage_name
from tests.benchmarks.engine_clock import EngineClock


class Engine:
    """Answers each call with two responses, as the first of which the token comes."""

    def __init__(self, error_message: str = "") -> None:
        self.asked_for: list[Any] = []
        self.was_asked_thrice = threading.Event()
        self._error_message = error_message

    def ModelStreamInfer(self, messages: Any, timeout: float) -> Any:
        self.asked_for += list(messages)
        if len(self.asked_for) >= 3:
            self.was_asked_thrice.set()
        yield SimpleNamespace(error_message=self._error_message)
        yield SimpleNamespace(error_message="")


def test_steps_are_noted_in_order_while_the_clock_is_watched() -> None:
    engine = Engine()
    clock = EngineClock(engine, "org/model")
    begin_s = time.monotonic()
    with clock.watching():
        assert engine.was_asked_thrice.wait(10)
    times_s = [begin_s, *clock.steps_s, time.monotonic()]
    assert len(times_s) >= 5
    assert times_s == sorted(times_s)


def test_the_engine_stage_is_asked_for_one_token() -> None:
    engine = Engine()
    assert EngineClock(engine, "org/model").idle_round_trip_s(itl_s=0.0) >= 0
    message = engine.asked_for[0]
    assert message.model_name == stage_name("org--model", "engine")
    assert [each.name for each in message.inputs] == ["engine_requests"]
    [(_, asked)] = unpack(EngineRequestBatch, message.raw_input_contents[0][4:], "engine_requests").items
    assert isinstance(asked, EngineRequest)
    assert (asked.max_tokens, asked.prompt_token_ids) == (1, (1,))


def test_an_error_of_the_engine_is_raised() -> None:
    with pytest.raises(RuntimeError, match="no room"):
        EngineClock(Engine("no room"), "m").idle_round_trip_s(itl_s=0.0)
