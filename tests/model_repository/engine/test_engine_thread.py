"""The engine's own thread: it serves, survives, says that it is dead, and ends."""

from __future__ import annotations

import pytest

from model_repository.engine.sequence import EngineSequence
from model_repository.errors import EngineFailed, StageError
from model_repository.stage_messages import Release
from tests.model_repository.engine.fake_engine import PATIENCE_S, Fake, FakeResponder, Panic


def test_the_thread_serves_and_waits_for_more() -> None:
    fake = Fake(b"hello")
    fake.engine.start()
    for _ in range(2):
        responder = fake.submit()
        assert responder.has_ended.wait(PATIENCE_S)
        assert "".join(responder.texts) == "hello"
    fake.engine.close()
    assert fake.runtime.is_closed


@pytest.mark.parametrize("error", [KeyError("secret"), Panic("secret")])
def test_the_thread_survives_an_unforeseen_exception(caplog: pytest.LogCaptureFixture, error: BaseException) -> None:
    fake = Fake(b"hello")
    fake.runtime.step_error = error
    fake.engine.start()
    responder = fake.submit()
    assert responder.has_ended.wait(PATIENCE_S)
    assert responder.error is not None
    assert responder.error.message() == "[internal_error] the engine failed"
    after = fake.submit()
    assert after.has_ended.wait(PATIENCE_S)
    fake.engine.close()
    assert "".join(after.texts) == "hello"
    assert type(error).__name__ in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_whose_thread_has_died_says_so_and_takes_nothing() -> None:
    """Its control answered as if all were well, so nobody loaded it anew."""
    fake = Fake(b"hello")
    fake.runtime.step_error, fake.runtime.free_error = KeyError("broken"), KeyError("broken for good")
    fake.engine.start()
    responders = [fake.submit(), fake.submit()]
    for responder in responders:
        assert responder.has_ended.wait(PATIENCE_S)
    fake.engine._thread.join(PATIENCE_S)
    with pytest.raises(EngineFailed):
        fake.engine.stats()
    with pytest.raises(EngineFailed):
        fake.submit()
    assert fake.runtime.is_closed


def test_a_release_that_cannot_be_built_ends_its_request_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequence was forgotten first: its client waited for ever."""

    def fail(self: EngineSequence, now_s: float) -> Release:
        raise IndexError("no such token")

    fake = Fake(b"hello")
    fake.engine.start()
    monkeypatch.setattr(EngineSequence, "next_release", fail)
    responder = fake.submit(is_stream=False)
    assert responder.has_ended.wait(PATIENCE_S)
    fake.engine.close()
    assert responder.error is not None
    assert responder.error.message() == "[internal_error] the engine failed"


def test_a_client_that_cannot_be_told_of_a_failure_does_not_keep_the_others_from_it() -> None:
    class Deaf(FakeResponder):
        def fail(self, error: StageError) -> None:
            raise RuntimeError("nobody there")

    fake = Fake(b"hello" * 100)
    fake.submit(responder=Deaf())
    other = fake.submit()
    fake.turn()
    fake.runtime.step_error = EngineFailed("out of cells")
    fake.turn()
    assert other.error is not None


def test_closing_fails_what_is_running_and_frees_the_model() -> None:
    fake = Fake(b"x" * 10_000_000)
    fake.engine.start()
    responder = fake.submit(max_tokens=10_000_000)
    assert responder.has_release.wait(PATIENCE_S)
    fake.engine.close()
    assert responder.error is not None
    assert responder.error.message() == "[engine_failed] the engine is shutting down"
    assert fake.runtime.is_closed
    assert not fake.runtime.has_work
