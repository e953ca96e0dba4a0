"""Output streams: the outputs of many requests are sent together, and end with their client."""

from __future__ import annotations

import itertools

import pytest

from model_repository.contract.output import Announcement, FinishReason, TokenDelta, Usage
from model_repository.engine.inbox import EndStream, FailStreams
from model_repository.errors import EngineFailed, InvalidRequest, OutputStreamNotOpen, PromptTooLong
from model_repository.fair_pool import MAX_WAITING
from tests.model_repository.engine.fake_engine import REGEX, DeafResponder, Fake, FakeResponder, request
from tests.waiting import wait_until

# --- outputs ----------------------------------------------------------------------------------------------------------


def test_the_outputs_of_a_step_are_sent_as_one_batch() -> None:
    fake = Fake(b"hi")
    reader = fake.open_stream()
    calls = [fake.submit_batch("key", {number: request()}) for number in (7, 0, -3)]
    fake.step(3)
    assert reader.sizes == [0, 3, 3, 3]
    assert [batch.serial for batch in reader.batches] == [0, 1, 2, 3]
    assert len({batch.stream for batch in reader.batches}) == 1
    for number in (7, 0, -3):
        assert reader.texts(number) == ["h", "i", ""]
        assert reader.deltas(number)[-1].finish_reason is FinishReason.STOP
    assert [(call.is_closed, call.batches) for call in calls] == [(True, [])] * 3


def test_keywords_without_effect_leave_at_once_with_the_announcement_and_before_all_tokens() -> None:
    fake = Fake(b"ab")
    reader = fake.open_stream()
    fake.submit_batch("key", {1: request(ignored_keywords=("schema.not",)), 2: request()})
    fake.step()
    assert reader.items(1)[0] == Announcement(ignored_keywords=("schema.not",))
    assert reader.texts(1) == ["a"]
    single = fake.submit(ignored_keywords=("schema.not",))  # a gRPC client of the public ensemble
    fake.step()
    assert single.items() == single.deltas()


def test_a_request_that_waits_for_its_first_token_is_announced_once() -> None:
    """So a client knows that the tokenizer is done, and that the engine knows the request's cancel key."""
    fake = Fake(b"hi")
    reader = fake.open_stream()
    fake.runtime.num_slots = 1
    call = fake.submit_batch("key", {1: request(max_tokens=2), 2: request(max_tokens=1)})
    fake.step()
    assert call.is_closed
    fake.step(2)
    assert reader.sizes == [0, 2, 1, 1]
    announcement, delta = reader.items(2)
    assert announcement == TokenDelta() != delta


def test_the_number_of_a_stream_cannot_be_guessed_from_others() -> None:
    """They counted upwards, and any caller can have the detokenizer stage say that a stream's client is gone."""
    fake = Fake(b"hi")
    readers = [*(fake.open_stream(f"key {number}") for number in range(4)), *(fake.submit() for _ in range(4))]
    fake.step()
    numbers = sorted(reader.number for reader in readers)
    assert min(high - low for low, high in itertools.pairwise(numbers)) > 2**32


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_batch_for_a_stream_that_is_not_open_is_refused_as_a_whole() -> None:
    fake = Fake(b"hi")
    reader = fake.open_stream()
    call = fake.submit_batch("another", {1: request(), 2: request()})
    fake.step()
    assert isinstance(call.error, OutputStreamNotOpen)
    assert "another" not in call.error.message()
    assert (reader.sizes, fake.runtime.has_work) == ([0], False)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (PromptTooLong("9 tokens", "messages").message(), "[context_length_exceeded] messages: 9 tokens"),
        ("no stage's error", "[internal_error] internal error, see the server's log"),
    ],
)
def test_a_request_that_the_tokenizer_refused_is_an_item_beside_the_others_of_its_batch(
    message: str, expected: str
) -> None:
    fake = Fake(b"hi")
    reader = fake.open_stream()
    call = fake.submit_batch("key", {1: request(), 2: message, 3: request()})
    fake.step(3)
    assert (call.is_closed, reader.items(2)) == (True, [expected])
    assert (reader.text(1), reader.text(3)) == ("hi", "hi")
    single = fake.submit_batch("", {0: message})
    fake.step()
    assert (single.error_message, single.batches) == (expected, [])


def test_a_key_that_is_in_use_is_refused_and_its_stream_goes_on() -> None:
    fake = Fake(b"hi")
    first, second = fake.open_stream(), fake.open_stream()
    fake.submit_batch("key", {1: request()})
    fake.step(3)
    assert second.error_message.startswith("[invalid_value]")
    assert (second.batches, first.texts(1)) == ([], ["h", "i", ""])


def test_a_request_beyond_the_queue_is_refused_alone() -> None:
    """Requests that arrived between two steps were counted as queued, although the next step admits them."""
    fake = Fake(b"hi", max_waiting=0)
    reader = fake.open_stream()
    fake.submit_batch("key", {number: request() for number in range(9)})
    fake.step()
    assert [reader.texts(number) for number in range(8)] == [["h"]] * 8
    assert reader.items(8) == ["[overloaded] 0 requests are waiting already"]


def test_a_request_beyond_the_context_window_is_refused_alone() -> None:
    """A runtime may fail as a whole on it."""
    fake = Fake(b"hi")
    reader = fake.open_stream()
    long, far = {"prompt_token_ids": (1,) * 9, "max_tokens": 19_999_992}, {"max_tokens": 19_999_998}
    fake.submit_batch("key", {1: request(**long), 2: request(**far), 3: request(), 4: request(max_tokens=19_999_997)})
    fake.step(3)
    for number in (1, 2):
        [refused] = reader.items(number)
        assert isinstance(refused, str) and refused.startswith("[context_length_exceeded] prompt_token_ids: ")
    assert reader.texts(3) == reader.texts(4) == ["h", "i", ""]


def test_a_request_beyond_the_grammars_of_its_sender_is_refused_alone() -> None:
    fake = Fake(b"hi")
    reader, may_go_on = fake.open_stream(), fake.hold_grammars()
    num_requests = 1 + MAX_WAITING + 1
    fake.submit_batch("key", {number: request(structured_output=REGEX, sender="a") for number in range(num_requests)})
    fake.step()
    [(number, error)] = reader.batches[-1].items
    assert number == num_requests - 1
    assert isinstance(error, str) and error.startswith("[too_many_waiting]")
    may_go_on.set()
    fake.engine._intake.close()


@pytest.mark.parametrize("submit_error", [None, InvalidRequest("no")])
def test_a_disconnected_caller_does_not_harm_the_others(submit_error: Exception | None) -> None:
    """It ended every running request."""
    fake = Fake(b"hello")
    reader = fake.open_stream()
    other = fake.submit()
    fake.step()
    fake.runtime.submit_error = submit_error
    fake.submit_batch("key", {1: request()}, DeafResponder())
    fake.submit_batch("unknown", {2: request()}, DeafResponder())
    fake.step(6)
    assert (other.text(), reader.text(1)) == ("hello", "" if submit_error else "hello")


# --- the end of a stream ----------------------------------------------------------------------------------------------


def test_a_disconnected_client_ends_only_its_own_sequences() -> None:
    fake = Fake(b"hello")
    fake.runtime.num_slots = 3
    gone, stays = fake.open_stream("gone"), fake.open_stream("stays")
    fake.submit_batch("gone", {1: request()})
    fake.submit_batch("stays", {1: request()})
    single = fake.submit()
    fake.submit_batch("gone", {2: request()})  # waits for a slot
    fake.step()
    fake.engine.post(EndStream(gone.number))
    fake.step(6)
    assert (gone.is_closed, gone.texts(1), gone.texts(2)) == (True, ["h"], [])
    assert (stays.text(1), single.text()) == ("hello", "hello")
    assert (fake.engine.stats().num_cancelled, fake.engine.stats().num_active) == (2, 0)
    late = fake.submit_batch("gone", {3: request()})
    fake.step()
    assert isinstance(late.error, OutputStreamNotOpen)


def test_a_stream_that_is_cancelled_twice_ends_once() -> None:
    """Several of its batches may be in flight when the client disconnects."""
    fake = Fake(b"hello")
    reader = fake.open_stream()
    for _ in range(2):
        fake.engine.post(EndStream(reader.number))
    fake.step()
    assert reader.is_closed


def test_a_batch_that_cannot_be_sent_ends_the_sequences_of_its_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    fake = Fake(b"hello")
    broken, other, single = fake.open_stream("secret one"), fake.open_stream("secret two"), FakeResponder()
    single.is_broken = True
    fake.submit(responder=single)
    fake.submit_batch("secret one", {1: request()})
    fake.submit_batch("secret two", {1: request()})
    broken.is_broken = True
    fake.step(6)
    assert (other.text(1), broken.is_closed, single.is_closed) == ("hello", True, True)
    assert fake.engine.stats().num_cancelled == 2
    assert "secret" not in caplog.text


def test_a_request_is_dropped_if_its_stream_ends_while_its_grammar_is_compiled() -> None:
    fake = Fake(b"hello")
    reader, may_go_on = fake.open_stream(), fake.hold_grammars()
    fake.submit_batch("key", {1: request(structured_output=REGEX)})
    fake.step()
    fake.engine.post(EndStream(reader.number))
    fake.step()
    may_go_on.set()
    wait_until(lambda: bool(fake.num_messages), "it is compiled")
    fake.step()
    assert (reader.is_closed, reader.items(1), fake.runtime.has_work) == (True, [], False)
    assert fake.engine.stats().num_cancelled == 1


# --- failures ---------------------------------------------------------------------------------------------------------


def test_the_failure_of_a_runtime_is_sent_at_once_and_new_requests_are_served(caplog: pytest.LogCaptureFixture) -> None:
    """After it there may be no other: an engine without work sleeps."""
    fake = Fake(b"hello")
    fake.runtime.num_slots = 1
    reader = fake.open_stream()
    fake.submit_batch("key", {1: request(cancel_key="a"), 2: request()})
    single = fake.submit()
    fake.step()
    fake.runtime.step_error = EngineFailed("out of KV tokens")
    fake.step()
    assert not fake.runtime.has_work
    assert "the runtime failed" in caplog.text
    message = "[engine_failed] out of KV tokens"
    assert [reader.items(1)[-1], reader.items(2)[-1], single.error_message] == [message] * 3
    fake.submit_batch("key", {3: request(cancel_key="a")})
    fake.step(6)
    assert reader.text(3) == "hello"


def test_the_error_of_one_sequence_is_sent_beside_the_tokens_of_the_others() -> None:
    fake = Fake(b"hello")
    fake.runtime.sequence_errors = {1: InvalidRequest("nothing can follow", "guided_decoding_guide")}
    reader = fake.open_stream()
    fake.submit_batch("key", {5: request(), 6: request()})
    fake.step()
    message = "[invalid_value] guided_decoding_guide: nothing can follow"
    usage = Usage(num_input_tokens=3, num_output_tokens=1)
    assert dict(reader.batches[-1].items) == {5: TokenDelta(tuple(b"h"), usage=usage), 6: message}
    fake.step(6)
    assert reader.text(5) == "hello"


def test_after_the_unload_of_a_stage_streams_and_sequences_end_with_errors() -> None:
    """The detokenizer was reloaded: outputs in flight would pass through the old one."""
    fake = Fake(b"hello")
    reader = fake.open_stream()
    fake.submit_batch("key", {1: request()})
    single = fake.submit()
    fake.step()
    fake.engine.post(FailStreams())
    fake.step()
    assert isinstance(reader.error, OutputStreamNotOpen)
    assert isinstance(single.error, EngineFailed)
    assert fake.runtime.stats().num_active == 0
    refused = fake.submit_batch("key", {2: request()})
    fake.step()
    assert isinstance(refused.error, OutputStreamNotOpen)
    again = fake.open_stream()
    fake.submit_batch("key", {1: request()})
    fake.step(7)
    assert again.text(1) == "hello"
