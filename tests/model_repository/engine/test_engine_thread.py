"""The engine's own thread: it serves, survives, says that it is dead, and ends."""

from __future__ import annotations

import functools
import threading

import pytest

from model_repository.contract.output import TokenDelta
from model_repository.engine import engine, output_streams
from model_repository.engine.emitter import Emitter
from model_repository.engine.inbox import OpenStream
from model_repository.engine.output_streams import OutputStream
from model_repository.engine.sequence import EngineSequence
from model_repository.errors import EngineFailed
from tests.model_repository.engine.fake_engine import (
    DeafResponder,
    Fake,
    FakeResponder,
    Panic,
    SlowResponder,
    request,
)
from tests.waiting import DEADLINE_S, wait_until


@pytest.mark.parametrize("error", [KeyError("secret"), Panic("secret")])
def test_the_thread_survives_an_unforeseen_exception(caplog: pytest.LogCaptureFixture, error: BaseException) -> None:
    fake = Fake(b"hello")
    fake.runtime.step_error = error
    fake.engine.start()
    responder = fake.submit()
    assert responder.has_ended.wait(DEADLINE_S)
    assert responder.error_message == "[internal_error] the engine failed"
    after = fake.submit()
    assert after.has_ended.wait(DEADLINE_S)
    fake.engine.close()
    assert after.text() == "hello"
    assert type(error).__name__ in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_with_a_dead_thread_refuses_everything() -> None:
    """Its control answered as usual, so the model was never loaded again."""
    fake = Fake(b"hello")
    fake.runtime.step_error, fake.runtime.free_error = KeyError("broken"), KeyError("broken for good")
    responders = [fake.submit(), fake.submit()]
    fake.engine.start()
    for responder in responders:
        assert responder.has_ended.wait(DEADLINE_S)
    fake.engine._thread.join(DEADLINE_S)
    with pytest.raises(EngineFailed):
        fake.engine.stats()
    for call in (fake.submit, lambda: fake.engine.post(OpenStream("key", FakeResponder()))):
        with pytest.raises(EngineFailed):
            call()
    assert fake.runtime.is_closed


def test_a_token_delta_that_cannot_be_built_ends_its_request_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequence was forgotten first: its client waited for ever."""

    def fail(self: EngineSequence) -> TokenDelta:
        raise IndexError("no such token")

    fake = Fake(b"hello")
    fake.engine.start()
    monkeypatch.setattr(EngineSequence, "next_delta", fail)
    responder = fake.submit(is_stream=False)
    assert responder.has_ended.wait(DEADLINE_S)
    fake.engine.close()
    assert responder.error_message == "[internal_error] the engine failed"


def test_a_disconnected_client_does_not_keep_a_failure_from_the_others() -> None:
    fake = Fake(b"hello" * 100)
    fake.submit(responder=DeafResponder())
    other = fake.submit()
    fake.step()
    fake.runtime.step_error = EngineFailed("out of KV tokens")
    fake.step()
    assert other.error is not None


# --- the thread that sends --------------------------------------------------------------------------------------------


def test_steps_go_on_while_a_batch_is_sent_and_their_tokens_share_the_next_one() -> None:
    fake = Fake(b"hello, world", emitter=Emitter(max_wait_s=DEADLINE_S))
    fake.engine.start()
    responder = SlowResponder()
    fake.submit(responder=responder)
    wait_until(lambda: fake.engine.stats().num_steps >= 5, "steps go on")
    responder.may_send.set()
    assert responder.has_ended.wait(DEADLINE_S)
    fake.engine.close()
    assert responder.text() == "hello, world"
    assert responder.texts()[0] == "h" and len(responder.texts()[1]) > 1


@pytest.mark.parametrize(("fast_step_s", "at_most"), [(0.001, 16), (0.0, 8)], ids=["fast steps", "slow steps"])
def test_an_engine_waits_for_a_batch_that_is_not_sent_after_some_steps(
    monkeypatch: pytest.MonkeyPatch, fast_step_s: float, at_most: int
) -> None:
    """Otherwise a fast engine would give its clients a whole text at once. The steps of this one take no time."""
    monkeypatch.setattr(engine, "_MAX_SENDER_WAIT_S", DEADLINE_S)
    monkeypatch.setattr(engine, "_FAST_STEP_S", fast_step_s)
    fake = Fake(b"x" * 45, emitter=Emitter(max_wait_s=DEADLINE_S))
    fake.engine.start()
    responder = SlowResponder()
    timer = threading.Timer(0.02, responder.may_send.set)
    timer.start()
    fake.submit(responder=responder)
    assert responder.has_ended.wait(DEADLINE_S)
    timer.join()
    fake.engine.close()
    assert at_most // 2 < len(responder.texts()[1]) <= at_most


# --- output streams of frontends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_broken", [False, True])
def test_the_thread_wakes_up_to_end_idle_streams(monkeypatch: pytest.MonkeyPatch, is_broken: bool) -> None:
    monkeypatch.setattr(output_streams, "CHECK_INTERVAL_S", 0.001)
    monkeypatch.setattr(output_streams, "OutputStream", functools.partial(OutputStream, check_interval_s=0.001))
    monkeypatch.setattr(output_streams, "MAX_IDLE_S", 1e9 if is_broken else 0.01)
    fake = Fake(b"hello", has_real_clock=True)
    fake.engine.start()
    reader = FakeResponder()
    fake.engine.post(OpenStream("key", reader))
    reader.is_broken = is_broken
    assert reader.has_ended.wait(DEADLINE_S)
    fake.engine.close()
    assert reader.is_closed
    assert not any(reader.sizes)


def test_closing_ends_all_requests_and_streams_with_an_error_and_frees_the_model() -> None:
    fake = Fake(b"x" * 10_000_000)
    fake.engine.start()
    idle, busy = FakeResponder(), FakeResponder()
    fake.engine.post(OpenStream("idle", idle))
    fake.engine.post(OpenStream("busy", busy))
    fake.submit_batch("busy", {1: request(max_tokens=10_000_000)})
    single = fake.submit(max_tokens=10_000_000)
    assert busy.has_items.wait(DEADLINE_S) and single.has_items.wait(DEADLINE_S)
    fake.engine.close()
    assert (fake.runtime.is_closed, fake.runtime.has_work) == (True, False)
    for reader in (idle, busy, single):
        assert reader.error_message == "[engine_failed] the engine is shutting down"


def test_closing_sends_the_remaining_tokens() -> None:
    fake = Fake(b"hello")
    fake.engine.start()
    responder = SlowResponder()
    fake.submit(responder=responder, is_stream=False)
    wait_until(lambda: fake.engine.stats().num_finished == 1, "it has finished")
    threading.Timer(0.02, responder.may_send.set).start()
    fake.engine.close()
    assert responder.text() == "hello"
