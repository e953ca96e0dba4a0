"""Disconnect checks: an empty batch to a silent stream, so that the detokenizer sees a disconnected client."""

from __future__ import annotations

import pytest

from model_repository.engine.output_streams import CHECK_INTERVAL_S, MAX_IDLE_S, SINGLE_CHECK_INTERVAL_S
from tests.model_repository.engine.fake_engine import SILENCE_S, Fake, FakeResponder, request

KEYED_CHECK_INTERVAL_S = 5.0  # of a single request with a cancel key
MAX_CHECKS_PER_S = 50
NUM_TOKENS = 10_000
SCRIPT = b"x" * NUM_TOKENS


def submit_silent(fake: Fake, cancel_key: str = "") -> FakeResponder:
    """Submit a single request without streaming: nothing is sent before its end."""
    return fake.submit(is_stream=False, max_tokens=NUM_TOKENS, cancel_key=cancel_key)


def open_streams(fake: Fake, *keys: str) -> list[FakeResponder]:
    """Open streams, and submit a request without outputs for each."""
    readers = [fake.open_stream(key) for key in keys]
    for key in keys:
        fake.submit_batch(key, {1: request(is_stream=False, max_tokens=NUM_TOKENS)})
    fake.step()
    return readers


# --- single requests --------------------------------------------------------------------------------------------------


def test_a_silent_single_stream_is_checked_at_intervals() -> None:
    fake = Fake(SCRIPT)
    responder = submit_silent(fake)
    fake.step()
    assert responder.batches == []
    fake.step(passed_s=SILENCE_S)
    [batch] = responder.batches
    assert (batch.items, batch.is_disconnect_check, batch.is_single) == ((), True, True)
    fake.step(passed_s=SILENCE_S / 2)
    assert len(responder.batches) == 1
    fake.step(passed_s=SILENCE_S / 2)
    assert [batch.serial for batch in responder.batches] == [0, 1]


@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize("step_s", [0.09, 0.25])
def test_the_number_of_checks_does_not_grow_with_the_queue(has_keys: bool, step_s: float) -> None:
    """Each costs as much as a token: with 1,000 requests outstanding throughput fell to a fifth."""
    fake = Fake(SCRIPT, max_waiting=1000)
    responders = [submit_silent(fake, f"key {index}" if has_keys else "") for index in range(300)]
    duration_s = 3.0 * KEYED_CHECK_INTERVAL_S
    fake.step(round(duration_s / step_s), passed_s=step_s)
    num_checks = [len(responder.batches) for responder in responders]
    assert 0 < sum(num_checks) <= duration_s * MAX_CHECKS_PER_S
    assert max(num_checks) - min(num_checks) <= 1  # the longest silent first


def test_a_request_without_a_key_is_checked_in_time_among_many_with_one() -> None:
    fake = Fake(SCRIPT, max_waiting=1000)
    for index in range(300):
        submit_silent(fake, f"key {index}")
    lone = submit_silent(fake)
    fake.step(300, passed_s=0.05)
    assert len(lone.batches) > 15.0 / SINGLE_CHECK_INTERVAL_S / 2


# --- frontends' streams -----------------------------------------------------------------------------------------------


def test_a_silent_frontends_stream_is_checked_seldom() -> None:
    fake = Fake(SCRIPT)
    [reader] = open_streams(fake, "key")
    fake.step(7, passed_s=CHECK_INTERVAL_S / 8)
    assert reader.sizes == [0]
    fake.step(9, passed_s=CHECK_INTERVAL_S / 8)
    assert reader.sizes == [0, 1, 0]  # the first one announces the request
    assert [batch.serial for batch in reader.batches] == [0, 1, 2]


def test_silent_single_requests_do_not_delay_checks_of_frontends_streams() -> None:
    """The single requests took all the checks, and the frontend believed that a stage was stalled."""
    fake = Fake(SCRIPT, max_waiting=1000)
    for _ in range(100):
        submit_silent(fake)
    readers = open_streams(fake, *map(str, range(12)))
    for reader in readers:
        reader.batches.clear()
    fake.step(passed_s=CHECK_INTERVAL_S)
    assert [len(reader.batches) for reader in readers] == [1] * 12


def test_a_stream_without_sequences_is_ended_after_a_while_and_no_other() -> None:
    """Triton does not unload a model with an open stream: the old engine stayed in memory beside the new one."""
    fake = Fake(SCRIPT)
    [busy] = open_streams(fake, "busy")
    idle = fake.open_stream("idle")
    fake.submit_batch("idle", {1: request(max_tokens=2)})
    fake.step(2, passed_s=0.1)
    fake.step(19, passed_s=MAX_IDLE_S / 20)
    assert not idle.is_closed
    fake.step(4, passed_s=MAX_IDLE_S / 20)
    assert (idle.is_closed, idle.text(1), busy.is_closed) == (True, "xx", False)
    late = fake.submit_batch("idle", {2: request()})
    fake.step()
    assert late.error_message.startswith("[output_stream_not_open]")
    kept = fake.open_stream("kept")
    for _ in range(3):
        fake.step(19, passed_s=MAX_IDLE_S / 20)
        fake.submit_batch("kept", {})  # its requests are still in the tokenizer
    assert not kept.is_closed
    again = fake.open_stream("idle")
    fake.submit_batch("idle", {2: request(max_tokens=2)})
    fake.step(2)
    assert again.text(2) == "xx"


def test_a_drained_engine_ends_idle_streams_at_once_and_its_stats_count_the_others() -> None:
    """Triton waits in vain for them when it is to end, and then breaks off."""
    fake = Fake(SCRIPT)
    [busy] = open_streams(fake, "busy")
    idle = fake.open_stream("idle")
    fake.engine.is_draining = True
    fake.step(2, passed_s=CHECK_INTERVAL_S)
    assert (idle.is_closed, busy.is_closed) == (True, False)
    stats = fake.engine.stats()
    assert (stats.is_draining, stats.num_streams) == (True, 1)
    late = fake.open_stream("late")  # its frontend does not know of it yet
    fake.submit_batch("late", {2: request(max_tokens=2)})
    fake.step(3)
    assert late.text(2) == "xx"


def test_a_single_request_with_a_cancel_key_is_checked_seldom() -> None:
    fake = Fake(SCRIPT)
    keyed, plain = submit_silent(fake, "secret"), submit_silent(fake)
    fake.step(round(0.9 * KEYED_CHECK_INTERVAL_S / SILENCE_S), passed_s=SILENCE_S)
    assert (len(keyed.batches), len(plain.batches)) == (0, 35)  # the first turn admits them
    fake.step(8, passed_s=SILENCE_S)
    assert keyed.sizes == [0]
