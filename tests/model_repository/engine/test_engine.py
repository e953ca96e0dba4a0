"""Ends of sequences, their outputs, and failures, over a runtime that plays a script."""

from __future__ import annotations

import math
from types import NoneType

import numpy as np
import pytest

from model_repository.contract.output import DrawnLogprob, OutputBatch, Usage
from model_repository.engine.emitter import Emitter
from model_repository.engine.inbox import CancelKey, EndStream
from model_repository.engine.runtime import StepOutput
from model_repository.errors import EngineFailed, InvalidRequest, NotFinite
from tests.model_repository.engine.fake_engine import REGEX, Fake, FakeResponder, Panic, request
from tests.waiting import wait_until

# --- how a sequence ends --------------------------------------------------------------------------------------------


def test_tokens_that_a_step_brings_after_the_end_are_passed_over() -> None:
    fake = Fake(b"one, two, three")
    fake.runtime.num_tokens = 5
    responder, other = fake.submit(stop=("two",)), fake.submit(max_tokens=7)
    fake.step(3)
    assert (responder.text(), other.text()) == ("one, ", "one, tw")
    assert responder.last.usage == Usage(num_input_tokens=3, num_output_tokens=len("one, two"))
    assert fake.engine.stats().max_step_sequences == 2


# --- outputs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "is_finite"),
    [
        (StepOutput(1, 5, logprob=DrawnLogprob(-1.0, ((5, -1.0), (6, -math.inf)))), True),
        (StepOutput(1, 5, prompt_logprobs=(DrawnLogprob(None), DrawnLogprob(-math.inf))), True),
        (StepOutput(1, embedding=np.array([0.5, -0.5], np.float32).tobytes()), True),
        (StepOutput(1, 5, logprob=DrawnLogprob(math.nan)), False),
        (StepOutput(1, 5, logprob=DrawnLogprob(None, ((5, math.nan),))), False),
        (StepOutput(1, 5, prompt_logprobs=(DrawnLogprob(None), DrawnLogprob(math.nan))), False),
        (StepOutput(1, embedding=np.array([0.5, math.nan], np.float32).tobytes()), False),
        (StepOutput(1, embedding=np.array([0.5, math.inf], np.float32).tobytes()), False),
    ],
)
def test_numbers_that_are_not_finite_are_an_error(output: StepOutput, is_finite: bool) -> None:
    """JSON has null for them, and a ranking by them has no order."""
    assert isinstance(output.checked(), NoneType if is_finite else NotFinite)


def test_a_request_has_a_stream_interval_of_its_own() -> None:
    fake = Fake(b"abcdef", emitter=Emitter(max_share=0.0, max_wait_s=1.0))  # only due outputs are sent
    at_once, some, default = (fake.submit(stream_interval_ms=interval_ms) for interval_ms in (0, 20, None))
    fake.step(7, passed_s=0.01)
    assert at_once.texts() == ["a", "b", "c", "d", "e", "f", ""]
    assert some.texts() == ["a", "bc", "de", "f"]  # a step later the first of them would be late
    assert default.texts() == ["a", "bcdef"]


def test_only_the_end_of_a_request_without_a_frontend_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    fake = Fake(b"hi")
    fake.open_stream()
    fake.submit_batch("key", {1: request()})
    fake.submit(max_tokens=2)
    fake.step(4)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["length"]


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("5 is not a token", "input_ids"), "invalid_value"),
        (OSError(), "internal_error"),
        (Panic(), "internal_error"),
    ],
)
def test_a_request_that_the_runtime_refuses_fails_alone(error: BaseException, code: str) -> None:
    """An unforeseen exception left the request unanswered for ever, and failed all others."""
    fake = Fake(b"hello")
    other = fake.submit()
    fake.step()
    fake.runtime.submit_error = error
    refused = fake.submit(cancel_key="key")
    fake.step()
    fake.runtime.submit_error = None
    fake.step(4)
    assert refused.error_message.startswith(f"[{code}]")
    assert other.text() == "hello"


def test_no_step_waits_for_a_structured_output_that_is_being_compiled() -> None:
    fake = Fake(b"hello")
    may_go_on = fake.hold_grammars()
    structured, other = fake.submit(structured_output=REGEX), fake.submit()
    fake.step(6)
    assert (other.text(), structured.texts()) == ("hello", [])
    may_go_on.set()
    wait_until(lambda: fake.num_messages == 1, "it is compiled")
    fake.step(6)
    assert structured.text() == "hello"


@pytest.mark.parametrize(("error", "code"), [(InvalidRequest("no", "f"), "invalid_value"), (Panic(), "internal_error")])
def test_a_structured_output_that_does_not_compile_fails_its_request_and_blocks_no_other(
    error: BaseException, code: str
) -> None:
    fake, errors = Fake(b"hello"), iter([error])

    def fail_once() -> None:
        if (found := next(errors, None)) is not None:
            raise found

    fake.runtime.on_prepare = fail_once
    refused, other = (fake.submit(structured_output=REGEX) for _ in range(2))

    def have_ended() -> bool:
        fake.step(6)
        return refused.has_ended.is_set() and other.has_ended.is_set()

    wait_until(have_ended, "both are compiled")
    assert refused.error_message.startswith(f"[{code}]")
    assert other.text() == "hello"


def test_stats_count_the_work_of_the_engine() -> None:
    fake = Fake(b"hello")
    fake.runtime.num_slots = 2
    for _ in range(3):
        fake.submit()
    fake.step(2)
    stats = fake.engine.stats()
    assert (stats.num_active, stats.num_waiting, stats.num_kv_tokens_used, stats.max_kv_tokens) == (2, 1, 2, 2)
    assert (stats.num_steps, stats.num_step_tokens, stats.max_step_sequences) == (2, 4, 2)
    assert (stats.num_finished, stats.step_age_ms) == (0, 0.0)
    fake.step(20)
    stats = fake.engine.stats()
    assert (stats.num_active, stats.num_waiting, stats.num_finished, stats.num_cancelled) == (0, 0, 3, 0)


def test_a_step_that_only_waits_goes_on() -> None:
    fake = Fake(b"hello")
    fake.runtime.is_waiting = True
    responder = fake.submit()
    fake.step(3, passed_s=2.0)
    stats = fake.engine.stats()
    assert stats.num_steps == 0
    assert stats.step_age_ms == pytest.approx(4000)
    fake.runtime.is_waiting = False
    fake.step(passed_s=1.0)
    stats = fake.engine.stats()
    assert (stats.num_steps, stats.step_age_ms, responder.texts()) == (1, 0.0, ["h"])


def test_a_step_without_results_is_not_counted() -> None:
    fake = Fake(b"hello")
    fake.runtime.num_tokens = 0
    fake.submit()
    fake.step(passed_s=2.0)
    stats = fake.engine.stats()
    assert (stats.num_steps, stats.step_age_ms) == (0, 0.0)


def test_a_runtime_that_is_broken_for_good_refuses_and_has_no_stats() -> None:
    """Its refusal was treated as a failure of the engine, and the request waited for ever."""
    fake = Fake(b"hello")
    fake.runtime.failure = EngineFailed("the GPU is gone")
    responder = fake.submit()
    fake.step()
    assert responder.error is fake.runtime.failure
    with pytest.raises(EngineFailed, match="the GPU is gone"):
        fake.engine.stats()


def test_every_load_has_an_epoch_and_stream_numbers_of_its_own() -> None:
    first, second = Fake(b"a"), Fake(b"a")
    one, two = first.submit(), second.submit()
    first.step()
    second.step()
    assert first.engine.stats().epoch != second.engine.stats().epoch
    assert one.number != two.number


def test_kv_tokens_are_free_before_the_last_text_is_sent() -> None:
    fake = Fake(b"")

    class Watching(FakeResponder):
        def send(self, batch: OutputBatch) -> None:
            super().send(batch)
            assert not fake.runtime.has_work

    responder = fake.submit(responder=Watching())
    fake.step()
    assert responder.has_ended.is_set()
    assert not responder.is_closed  # nor was it cancelled for the assertion above


def test_a_step_without_requests_is_over() -> None:
    fake = Fake(b"hello")
    fake.runtime.is_waiting = True
    fake.submit(cancel_key="k")
    fake.step(2, passed_s=2.0)
    fake.engine.post(CancelKey("k"))
    fake.step(passed_s=2.0)
    assert fake.engine.stats().step_age_ms == 0.0


def test_each_message_wakes_the_runtime() -> None:
    fake = Fake(b"hello")
    fake.submit(cancel_key="k")
    fake.engine.post(CancelKey("k"))
    fake.engine.post(EndStream(1))
    assert fake.runtime.num_wakes == 3
