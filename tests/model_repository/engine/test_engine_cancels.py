"""Who is cancelled, and who is probed because nobody may be listening any more."""

from __future__ import annotations

import pytest

from model_repository.engine.early_cancels import REMEMBERED_S
from model_repository.engine.silence_probes import KEYED_PROBE_INTERVAL_S, PROBE_GAP_S, PROBE_INTERVAL_S
from tests.model_repository.engine.fake_engine import SILENCE_S, Fake


def test_a_sequence_is_cancelled_by_its_number() -> None:
    fake = Fake(b"hello")
    gone, stays = fake.submit(), fake.submit()
    fake.turn()
    fake.engine.cancel_sequence(gone.last.sequence)
    fake.turn(5)
    assert (gone.is_closed, gone.texts, "".join(stays.texts)) == (True, ["h"], "hello")


def test_a_running_request_is_cancelled_by_its_key() -> None:
    fake = Fake(b"hello")
    gone, stays = fake.submit(cancel_key="secret"), fake.submit(cancel_key="other")
    fake.turn()
    fake.engine.cancel_key("secret")
    fake.turn(5)
    assert (gone.is_closed, "".join(stays.texts)) == (True, "hello")


def test_a_queued_request_is_cancelled_by_its_key() -> None:
    fake = Fake(b"hello")
    fake.runtime.num_slots = 1
    stays, gone = fake.submit(), fake.submit(cancel_key="secret")
    fake.turn()
    fake.engine.cancel_key("secret")
    fake.turn(5)
    assert (gone.is_closed, gone.releases, "".join(stays.texts)) == (True, [], "hello")


def test_a_cancel_that_overtakes_its_request_is_remembered() -> None:
    fake = Fake(b"hello")
    fake.engine.cancel_key("secret")
    fake.turn(passed_s=1.0)
    gone, stays = fake.submit(cancel_key="secret"), fake.submit()
    fake.turn(6)
    assert (gone.is_closed, gone.releases, "".join(stays.texts)) == (True, [], "hello")
    assert fake.engine.stats().num_cancelled == 1


def test_a_remembered_cancel_is_used_once() -> None:
    fake = Fake(b"hello")
    fake.engine.cancel_key("secret")
    fake.submit(cancel_key="secret")
    second = fake.submit(cancel_key="secret")
    fake.turn(6)
    assert "".join(second.texts) == "hello"


@pytest.mark.parametrize("next_key", ["new", ""])
def test_cancelled_keys_are_forgotten_after_a_while(next_key: str) -> None:
    """One lived on until the next cancel came."""
    fake = Fake(b"hello")
    fake.engine.cancel_key("old")
    fake.turn()
    fake.clock.now_s += REMEMBERED_S + 1
    if next_key:
        fake.engine.cancel_key(next_key)
    late = fake.submit(cancel_key="old")
    fake.turn(6)
    assert "".join(late.texts) == "hello"


def test_a_key_that_is_cancelled_again_is_remembered_from_then_on() -> None:
    fake = Fake(b"hello")
    for key in ("again", "other", "again", "last"):
        fake.engine.cancel_key(key)
        fake.turn(passed_s=0.6 * REMEMBERED_S)
    responders = [fake.submit(cancel_key=key) for key in ("again", "other", "last")]
    fake.turn(6)
    assert [responder.is_closed for responder in responders] == [True, False, True]


def test_a_key_in_use_is_refused() -> None:
    """A second request under it could not be cancelled once one of the two had ended."""
    fake = Fake(b"hello")
    first, second = fake.submit(cancel_key="secret"), fake.submit(cancel_key="secret")
    fake.turn()
    assert second.error is not None
    assert second.error.message().startswith("[invalid_value] cancel_key: ")
    fake.engine.cancel_key("secret")
    fake.turn()
    assert first.is_closed


def test_an_empty_cancel_key_names_nobody() -> None:
    """A cancelled empty key was remembered, and took the next request without a key with it."""
    fake = Fake(b"hello")
    fake.engine.cancel_key("")
    responder = fake.submit()
    fake.turn(6)
    assert "".join(responder.texts) == "hello"


def test_cancelling_what_has_finished_changes_nothing() -> None:
    fake = Fake(b"hi")
    responder = fake.submit(cancel_key="secret")
    fake.turn(3)
    fake.engine.cancel_sequence(responder.last.sequence)
    fake.turn()
    assert (responder.is_closed, fake.engine.stats().num_cancelled) == (False, 0)


def test_the_key_of_a_finished_request_may_come_again() -> None:
    fake = Fake(b"hi")
    fake.submit(cancel_key="secret")
    fake.turn(3)
    fake.engine.cancel_key("secret")  # overtakes the second request
    second = fake.submit(cancel_key="secret")
    fake.turn(3)
    assert (second.is_closed, second.releases) == (True, [])


def test_the_time_from_cancel_to_free_is_measured() -> None:
    fake = Fake(b"hello")
    responder = fake.submit()
    fake.turn()
    fake.engine.cancel_sequence(responder.last.sequence)
    fake.turn(passed_s=0.25)
    assert fake.engine.stats().last_cancel_to_free_ms == pytest.approx(250)


def test_a_sequence_that_has_said_nothing_for_a_while_is_probed() -> None:
    fake = Fake(b"hello")
    responder = fake.submit(is_stream=False)
    fake.turn()
    assert responder.releases == []
    fake.turn(passed_s=SILENCE_S)
    assert [release.is_probe for release in responder.releases] == [True]
    fake.turn(passed_s=SILENCE_S / 2)
    assert len(responder.releases) == 1
    fake.turn(passed_s=SILENCE_S / 2)
    assert len(responder.releases) == 2


def test_a_queued_request_is_probed() -> None:
    fake = Fake(b"hello")
    fake.runtime.num_slots = 1
    fake.submit()
    queued = fake.submit()
    fake.turn(passed_s=SILENCE_S)
    fake.turn(passed_s=SILENCE_S)
    assert [release.is_probe for release in queued.releases] == [True]


def test_a_sequence_that_streams_is_not_probed() -> None:
    fake = Fake(b"hello")
    responder = fake.submit()
    fake.turn(6, passed_s=SILENCE_S)
    assert not any(release.is_probe for release in responder.releases)


def test_a_sequence_that_its_client_can_cancel_is_probed_seldom() -> None:
    fake = Fake(b"x" * 1000)
    keyed = fake.submit(is_stream=False, max_tokens=1000, cancel_key="secret")
    plain = fake.submit(is_stream=False, max_tokens=1000)
    fake.turn(round(0.9 * KEYED_PROBE_INTERVAL_S / SILENCE_S), passed_s=SILENCE_S)
    assert (len(keyed.releases), len(plain.releases)) == (0, 35)  # the first turn lets them in
    fake.turn(8, passed_s=SILENCE_S)
    assert [release.is_probe for release in keyed.releases] == [True]


@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize("step_s", [0.01, 0.09, 0.25])
def test_the_number_of_probes_does_not_grow_with_the_queue(has_keys: bool, step_s: float) -> None:
    """Each costs as much as a token: with 1,000 requests outstanding throughput fell to a fifth."""
    fake = Fake(b"x" * 10_000, max_waiting=1000)
    keys = [f"key {index}" if has_keys else "" for index in range(300)]
    responders = [fake.submit(is_stream=False, max_tokens=10_000, cancel_key=key) for key in keys]
    duration_s = 3.0 * KEYED_PROBE_INTERVAL_S
    fake.turn(round(duration_s / step_s), passed_s=step_s)
    probes = [len(responder.releases) for responder in responders]
    assert 0 < sum(probes) <= duration_s / PROBE_GAP_S
    assert max(probes) - min(probes) <= 1  # the longest silent first


def test_a_request_without_a_key_is_probed_in_time_among_many_with_one() -> None:
    fake = Fake(b"x" * 10_000, max_waiting=1000)
    for index in range(300):
        fake.submit(is_stream=False, max_tokens=10_000, cancel_key=f"key {index}")
    lone = fake.submit(is_stream=False, max_tokens=10_000)
    fake.turn(3000, passed_s=0.005)
    assert len(lone.releases) > 15.0 / PROBE_INTERVAL_S / 2
