"""Sequences whose reader reads many: what happens to them leaves together, and ends with the reader."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from model_repository.deliveries import Delivery
from model_repository.engine import delivery_streams
from model_repository.engine.delivery_streams import MAX_IDLE_S, PROBE_INTERVAL_S
from model_repository.engine.emitter import Emitter
from model_repository.errors import EngineFailed, InvalidRequest, StageError
from model_repository.generation import FinishReason
from model_repository.stage_messages import Release
from tests.model_repository.engine.test_engine import PATIENCE_S, Fake, FakeEnd, FakeResponder, Panic, _text


class FakeReader(FakeEnd):
    """Records the deliveries of one stream, as its reader gets them."""

    def __init__(self) -> None:
        super().__init__()
        self.deliveries: list[Delivery] = []
        self.has_items = threading.Event()

    def deliver(self, delivery: Delivery) -> None:
        """Record a delivery, or fail as told."""
        if self.is_broken:
            raise RuntimeError("the reader's stream is broken")
        assert not self.has_ended.is_set(), "a delivery after the end"
        self.deliveries.append(delivery)
        if delivery.items:
            self.has_items.set()

    def items(self, number: int) -> list[Release | str]:
        """Return what was told of one of its numbers."""
        return [item for delivery in self.deliveries for each, item in delivery.items if each == number]

    def texts(self, number: int) -> list[str]:
        """Return the text of each of its releases, without what only says that it is there."""
        return [_text(item) for item in self.items(number) if isinstance(item, Release) and not item.is_probe]

    @property
    def sizes(self) -> list[int]:
        """How many items each delivery has."""
        return [len(delivery.items) for delivery in self.deliveries]


def opened(fake: Fake, key: str = "key") -> FakeReader:
    """Open a stream."""
    reader = FakeReader()
    fake.engine.open_deliveries(key, reader)
    fake.turn()
    return reader


def submit(fake: Fake, number: int, key: str = "key", **fields: Any) -> FakeResponder:
    """Submit a request whose releases go to a stream."""
    return fake.submit(delivery_key=key, delivery_number=number, **fields)


# --- what a reader gets ----------------------------------------------------------------------------------------------


def test_an_empty_delivery_says_that_the_stream_is_open() -> None:
    reader = opened(Fake())
    assert [(delivery.serial, delivery.items) for delivery in reader.deliveries] == [(0, ())]


def test_what_happens_in_a_turn_leaves_as_one_delivery() -> None:
    fake = Fake(b"hi")
    reader = opened(fake)
    responders = [submit(fake, number) for number in (7, 0, -3)]
    fake.turn(3)
    assert reader.sizes == [0, 3, 3, 3]
    assert [delivery.serial for delivery in reader.deliveries] == [0, 1, 2, 3]
    assert len({delivery.stream for delivery in reader.deliveries}) == 1
    for number in (7, 0, -3):
        assert reader.texts(number) == ["h", "i", ""]
        last = reader.items(number)[-1]
        assert isinstance(last, Release)
        assert last.finish_reason is FinishReason.STOP
    assert [(each.is_closed, each.releases) for each in responders] == [(True, [])] * 3


def test_a_request_is_closed_when_it_is_taken_and_before_its_first_token() -> None:
    fake = Fake(b"hi")
    opened(fake)
    fake.runtime.num_slots = 0
    responder = submit(fake, 1)
    fake.turn()
    assert responder.is_closed
    assert fake.engine.stats().num_waiting == 1


def test_a_request_that_waits_for_its_first_token_is_told_of_once() -> None:
    """A reader learns that the tokenizer has done its part, and that a cancel has been overtaken by its request."""
    fake = Fake(b"hi")
    reader = opened(fake)
    fake.runtime.num_slots = 1
    submit(fake, 1, max_tokens=2)
    submit(fake, 2, max_tokens=1)
    fake.turn(3)
    assert reader.sizes == [0, 2, 1, 1]
    [taken, release] = reader.items(2)
    assert isinstance(taken, Release) and taken.is_probe
    assert isinstance(release, Release) and taken.sequence == release.sequence


def test_a_request_that_is_cancelled_before_anything_was_told_of_it_is_not_told_of() -> None:
    fake = Fake(b"hi")
    reader = opened(fake)
    fake.runtime.num_slots = 1
    submit(fake, 1)
    submit(fake, 2, cancel_key="gone")
    fake.engine.cancel_key("gone")
    fake.turn(3)
    assert reader.items(2) == []


def test_streams_get_only_what_is_theirs() -> None:
    fake = Fake(b"hi")
    one, two = opened(fake, "one"), opened(fake, "two")
    submit(fake, 1, "one")
    submit(fake, 1, "two", max_tokens=1)
    plain = fake.submit()
    fake.turn(3)
    assert (one.texts(1), two.texts(1), plain.texts) == (["h", "i", ""], ["h"], ["h", "i", ""])
    assert one.deliveries[0].stream != two.deliveries[0].stream


def test_a_request_that_does_not_stream_can_be_delivered_too() -> None:
    fake = Fake(b"hi")
    reader = opened(fake)
    submit(fake, 1, is_stream=False)
    fake.turn(3)
    assert reader.texts(1) == ["hi"]


def test_under_load_tokens_share_a_delivery() -> None:
    fake = Fake(b"abcdefgh", emitter=Emitter(max_share=0.1, max_wait_s=0.01))
    reader = opened(fake)
    for number in range(4):
        submit(fake, number)
    fake.turn(9, passed_s=0.001)
    assert ["".join(reader.texts(number)) for number in range(4)] == ["abcdefgh"] * 4
    assert [reader.texts(number)[0] for number in range(4)] == ["a"] * 4
    assert len(reader.deliveries) < 8


def test_stats_count_deliveries_and_what_is_in_them() -> None:
    fake = Fake(b"hi")
    opened(fake)
    for number in range(3):
        submit(fake, number)
    fake.submit()
    fake.turn(3)
    stats = fake.engine.stats()
    assert (stats.num_deliveries, stats.num_delivered) == (4, 9)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_key_that_names_no_stream_is_refused_by_the_requests_own_call() -> None:
    fake = Fake(b"hi")
    reader = opened(fake)
    responder = submit(fake, 1, "another")
    fake.turn()
    assert responder.error is not None
    assert responder.error.code == "deliveries_not_open"
    assert "another" not in responder.error.message()
    assert (reader.sizes, fake.runtime.has_work) == ([0], False)


def test_no_key_names_no_stream() -> None:
    fake = Fake(b"hi")
    opened(fake)
    responder = fake.submit(delivery_key="", delivery_number=1)
    fake.turn(3)
    assert responder.texts == ["h", "i", ""]


def test_a_key_that_is_open_is_refused_and_stays_its_first_readers() -> None:
    fake = Fake(b"hi")
    first = opened(fake)
    second = opened(fake)
    submit(fake, 1)
    fake.turn(3)
    assert second.error is not None
    assert second.error.code == "invalid_value"
    assert (second.deliveries, first.texts(1)) == ([], ["h", "i", ""])


@pytest.mark.parametrize(
    ("error", "code"), [(InvalidRequest("5 is not a token", "input_ids"), "invalid_value"), (Panic(), "internal_error")]
)
def test_what_is_refused_on_arrival_is_told_by_the_requests_own_call(error: BaseException, code: str) -> None:
    fake = Fake(b"hi")
    reader = opened(fake)
    fake.runtime.submit_error = error
    responder = submit(fake, 1)
    fake.turn()
    assert responder.error is not None
    assert (responder.error.code, reader.sizes) == (code, [0])


def test_beyond_the_queue_the_requests_own_call_says_so() -> None:
    fake = Fake(b"hi", max_waiting=0)
    reader = opened(fake)
    responders = [submit(fake, number) for number in range(9)]
    fake.turn()
    assert [each.error.code if each.error else "" for each in responders] == [""] * 8 + ["overloaded"]
    assert reader.sizes == [0, 8]


@pytest.mark.parametrize("submit_error", [None, InvalidRequest("no")])
def test_a_client_that_cannot_be_told_does_not_take_the_others_with_it(submit_error: Exception | None) -> None:
    """It ended every running request."""

    class Deaf(FakeResponder):
        def fail(self, error: StageError) -> None:
            raise RuntimeError("nobody there")

        def close(self) -> None:
            raise RuntimeError("nobody there")

    fake = Fake(b"hello")
    reader = opened(fake)
    other = fake.submit()
    fake.turn()
    fake.runtime.submit_error = submit_error
    submit(fake, 1, responder=Deaf())
    submit(fake, 2, key="unknown", responder=Deaf())
    fake.turn(6)
    assert "".join(other.texts) == "hello"
    assert "".join(reader.texts(1)) == ("" if submit_error else "hello")


# --- a reader that is gone --------------------------------------------------------------------------------------------


def test_a_reader_that_is_gone_ends_all_its_sequences_and_nobody_elses() -> None:
    fake = Fake(b"hello")
    fake.runtime.num_slots = 3
    gone, stays = opened(fake, "gone"), opened(fake, "stays")
    submit(fake, 1, "gone")
    submit(fake, 1, "stays")
    plain = fake.submit()
    submit(fake, 2, "gone")  # waits for a slot
    fake.turn()
    fake.engine.cancel_sequence(gone.deliveries[0].stream)
    fake.turn(6)
    assert (gone.is_closed, gone.texts(1), gone.texts(2)) == (True, ["h"], [])
    assert ("".join(stays.texts(1)), "".join(plain.texts)) == ("hello", "hello")
    assert (fake.engine.stats().num_cancelled, fake.engine.stats().num_active) == (2, 0)
    late = submit(fake, 3, "gone")
    fake.turn()
    assert late.error is not None
    assert late.error.code == "deliveries_not_open"


def test_a_stream_that_is_cancelled_twice_is_gone_once() -> None:
    """Several of its deliveries may be under way when the reader goes."""
    fake = Fake(b"hello")
    reader = opened(fake)
    for _ in range(2):
        fake.engine.cancel_sequence(reader.deliveries[0].stream)
    fake.turn()
    assert reader.is_closed


def test_a_delivery_that_cannot_be_sent_ends_its_readers_sequences_only(caplog: pytest.LogCaptureFixture) -> None:
    fake = Fake(b"hello")
    broken, other = opened(fake, "secret one"), opened(fake, "secret two")
    submit(fake, 1, "secret one")
    submit(fake, 1, "secret two")
    broken.is_broken = True
    fake.turn(6)
    assert ("".join(other.texts(1)), broken.is_closed) == ("hello", True)
    assert fake.engine.stats().num_cancelled == 1
    assert "secret" not in caplog.text


def test_a_silent_stream_is_probed_seldom_and_its_sequences_not_at_all() -> None:
    fake = Fake(b"x" * 1000)
    reader = opened(fake)
    submit(fake, 1, is_stream=False, max_tokens=1000)
    fake.turn()
    fake.turn(7, passed_s=PROBE_INTERVAL_S / 8)
    assert reader.sizes == [0]
    fake.turn(9, passed_s=PROBE_INTERVAL_S / 8)
    assert reader.sizes == [0, 1, 0]  # the first one tells of the sequence
    assert [delivery.serial for delivery in reader.deliveries] == [0, 1, 2]


def test_a_probe_that_cannot_be_sent_ends_the_stream() -> None:
    fake = Fake(b"x" * 1000)
    reader = opened(fake)
    submit(fake, 1, is_stream=False, max_tokens=1000)
    fake.turn()
    reader.is_broken = True
    fake.turn(2, passed_s=PROBE_INTERVAL_S)
    assert (reader.is_closed, fake.runtime.has_work) == (True, False)


def test_a_stream_without_sequences_is_ended_after_a_while_and_no_other() -> None:
    """Triton does not unload a model with an open stream: the old engine stayed in memory beside the new one."""
    fake = Fake(b"x" * 1000)
    idle, busy = opened(fake, "idle"), opened(fake, "busy")
    submit(fake, 1, "busy", is_stream=False, max_tokens=1000)
    submit(fake, 1, "idle", max_tokens=2)
    fake.turn(2, passed_s=0.1)
    fake.turn(19, passed_s=MAX_IDLE_S / 20)
    assert not idle.is_closed
    fake.turn(4, passed_s=MAX_IDLE_S / 20)
    assert (idle.is_closed, "".join(idle.texts(1)), busy.is_closed) == (True, "xx", False)
    late = submit(fake, 2, "idle")
    fake.turn()
    assert late.error is not None
    assert late.error.code == "deliveries_not_open"
    again = opened(fake, "idle")
    submit(fake, 2, "idle", max_tokens=2)
    fake.turn(2)
    assert "".join(again.texts(2)) == "xx"


def test_an_engine_that_is_drained_ends_idle_streams_at_once_and_says_when_none_is_left() -> None:
    """Triton waits in vain for them when it is to end, and then breaks off."""
    fake = Fake(b"x" * 1000)
    idle, busy = opened(fake, "idle"), opened(fake, "busy")
    submit(fake, 1, "busy", is_stream=False, max_tokens=1000)
    fake.engine.is_draining = True
    fake.turn(2, passed_s=PROBE_INTERVAL_S)
    assert (idle.is_closed, busy.is_closed) == (True, False)
    stats = fake.engine.stats()
    assert (stats.is_draining, stats.num_streams) == (True, 1)
    late = opened(fake, "late")  # its frontend has not heard of it yet
    submit(fake, 2, "late", max_tokens=2)
    fake.turn(3)
    assert "".join(late.texts(2)) == "xx"


def test_a_delivered_sequence_is_cancelled_by_its_key() -> None:
    fake = Fake(b"hello")
    reader = opened(fake)
    submit(fake, 1, cancel_key="secret")
    submit(fake, 2)
    fake.turn()
    fake.engine.cancel_key("secret")
    fake.turn(6)
    assert (reader.texts(1), "".join(reader.texts(2))) == (["h"], "hello")
    assert not reader.is_closed


def test_a_cancel_that_overtakes_a_delivered_request_is_remembered() -> None:
    fake = Fake(b"hello")
    reader = opened(fake)
    fake.engine.cancel_key("secret")
    responder = submit(fake, 1, cancel_key="secret")
    fake.turn(6)
    assert (responder.is_closed, reader.sizes) == (True, [0])


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_failing_runtime_is_told_in_the_same_turn() -> None:
    """After it there may be no other: an engine without work sleeps."""
    fake = Fake(b"hello")
    reader = opened(fake)
    submit(fake, 1)
    submit(fake, 2)
    fake.turn()
    fake.runtime.step_error = EngineFailed("out of cells")
    fake.turn()
    assert not fake.runtime.has_work
    assert [reader.items(number)[-1] for number in (1, 2)] == ["[engine_failed] out of cells"] * 2
    submit(fake, 3)
    fake.turn(6)
    assert "".join(reader.texts(3)) == "hello"


def test_a_sequence_that_fails_alone_is_told_beside_what_the_others_release() -> None:
    fake = Fake(b"hello")
    fake.runtime.sequence_errors = {1: InvalidRequest("nothing can follow", "guided_decoding_guide")}
    reader = opened(fake)
    for number in (5, 6):
        submit(fake, number)
    fake.turn()
    assert sorted(reader.deliveries[-1].items, key=lambda item: item[0])[1] == (
        6,
        "[invalid_value] guided_decoding_guide: nothing can follow",
    )
    fake.turn(6)
    assert "".join(reader.texts(5)) == "hello"


# --- the engine's own thread ------------------------------------------------------------------------------------------


def test_the_thread_delivers_what_an_unforeseen_exception_ends() -> None:
    fake = Fake(b"hello")
    reader = opened(fake)
    fake.runtime.step_error = KeyError("secret")
    fake.engine.start()
    submit(fake, 1)
    assert reader.has_items.wait(PATIENCE_S)
    assert reader.items(1) == ["[internal_error] the engine failed"]
    fake.engine.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_has_told_its_readers() -> None:
    fake = Fake(b"hello")
    reader = opened(fake)
    fake.runtime.step_error, fake.runtime.free_error = KeyError("broken"), KeyError("broken for good")
    fake.engine.start()
    submit(fake, 1)
    assert reader.has_items.wait(PATIENCE_S)
    fake.engine._thread.join(PATIENCE_S)
    with pytest.raises(EngineFailed):
        fake.engine.open_deliveries("other", FakeReader())


@pytest.mark.parametrize("is_broken", [False, True])
def test_the_thread_wakes_up_to_end_idle_streams(monkeypatch: pytest.MonkeyPatch, is_broken: bool) -> None:
    monkeypatch.setattr(delivery_streams, "PROBE_INTERVAL_S", 0.001)
    monkeypatch.setattr(delivery_streams, "MAX_IDLE_S", 1e9 if is_broken else 0.01)
    fake = Fake(b"hello", has_real_clock=True)
    fake.engine.start()
    reader = FakeReader()
    fake.engine.open_deliveries("key", reader)
    reader.is_broken = is_broken
    assert reader.has_ended.wait(PATIENCE_S)
    fake.engine.close()
    assert reader.is_closed
    assert not any(reader.sizes)


def test_closing_ends_the_streams_with_an_error() -> None:
    fake = Fake(b"x" * 10_000_000)
    fake.engine.start()
    idle, busy = FakeReader(), FakeReader()
    fake.engine.open_deliveries("idle", idle)
    fake.engine.open_deliveries("busy", busy)
    submit(fake, 1, "busy", max_tokens=10_000_000)
    assert busy.has_items.wait(PATIENCE_S)
    fake.engine.close()
    for reader in (idle, busy):
        assert reader.error is not None
        assert reader.error.message() == "[engine_failed] the engine is shutting down"


def test_when_nothing_arrives_any_more_streams_and_sequences_end_with_errors() -> None:
    """The detokenizer was loaded anew: what is under way would go through the old one."""
    fake = Fake(b"hello")
    reader = opened(fake)
    submit(fake, 1)
    alone = fake.submit()
    fake.turn()
    fake.engine.fail_streams()
    fake.turn()
    assert reader.error is not None and reader.error.message().startswith("[deliveries_not_open]")
    assert alone.error is not None and alone.error.message().startswith("[engine_failed]")
    assert fake.runtime.stats().num_active == 0
    refused = submit(fake, 2)
    fake.turn()
    assert refused.error is not None and refused.error.message().startswith("[deliveries_not_open]")
    again = opened(fake)
    submit(fake, 1)
    fake.turn(7)
    assert "".join(again.texts(1)) == "hello"
