"""Requests that wait for their grammars while their engine, or their stream, comes to an end."""

from __future__ import annotations

import pytest

from model_repository.contract.request import EngineRequestBatch
from model_repository.engine.inbox import Close, FailStreams, Submit
from model_repository.engine.output_streams import CHECK_INTERVAL_S
from model_repository.errors import InvalidRequest
from tests.model_repository.engine.fake_engine import REGEX, Fake, FakeResponder, request


@pytest.mark.parametrize("num_requests", [0, 2])
def test_a_batch_without_a_stream_must_have_one_request(num_requests: int) -> None:
    fake, responder = Fake(), FakeResponder()
    items = tuple((number, request()) for number in range(num_requests))
    fake.engine.post(Submit(EngineRequestBatch("", items), responder))
    fake.step()
    assert isinstance(responder.error, InvalidRequest)


def test_a_stream_with_a_waiting_grammar_is_not_idle() -> None:
    fake = Fake(b"x" * 100)
    reader = fake.open_stream()
    fake.submit()  # keeps the engine busy
    is_compiled = fake.hold_grammars()
    fake.submit_batch("key", {1: request(structured_output=REGEX)})
    fake.engine.is_draining = True
    fake.step(3, passed_s=CHECK_INTERVAL_S)
    is_compiled.set()
    assert not reader.is_closed


def test_a_request_that_arrives_while_the_engine_closes_fails_like_the_others() -> None:
    fake = Fake(b"hello")
    running = fake.submit()
    fake.step()
    fake.engine._intake.close()
    late = fake.submit(structured_output=REGEX)
    fake.engine.post(Close())
    fake.engine.start()
    fake.engine.close()
    for responder in (running, late):
        assert responder.error_message == "[engine_failed] the engine is shutting down"


def test_a_failed_stage_is_an_engine_failure_for_a_single_request_with_a_waiting_grammar() -> None:
    fake = Fake(b"x" * 100)
    is_compiled = fake.hold_grammars()
    single = fake.submit(structured_output=REGEX)
    fake.step()
    fake.engine.post(FailStreams())
    fake.step()
    is_compiled.set()
    assert single.error_message.startswith("[engine_failed]")
