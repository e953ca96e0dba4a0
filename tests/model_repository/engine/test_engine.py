"""What ends, shapes and delivers a sequence, over a runtime that plays a script.

Most tests take the engine's turns one by one, on a clock that stands still; the last ones run its thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from model_repository.engine.adapter_folder import Adapter
from model_repository.engine.emitter import Emitter
from model_repository.engine.engine import (
    CANCELLED_KEY_TTL_S,
    KEYED_PROBE_INTERVAL_S,
    PROBE_GAP_S,
    PROBE_INTERVAL_S,
    Engine,
)
from model_repository.engine.runtime import EngineConfig, RuntimeStats, StepOutput
from model_repository.engine.sequence import EngineSequence
from model_repository.errors import EngineFailed, InvalidRequest, StageError
from model_repository.generation import FinishReason, SamplingParams, Usage
from model_repository.stage_messages import EngineRequest, Release

BYTE_TABLE = [bytes([byte]) for byte in range(256)]
EOS = 0  # a byte that no script contains
SILENCE_S = 1.25 * PROBE_INTERVAL_S
PATIENCE_S = 30.0  # for the engine's thread; a test that needs it has failed


class Panic(BaseException):
    """As Rust code raises it."""


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


class FakeRuntime:
    """Gives each sequence the bytes of the script, one per step, then the end-of-generation token for ever."""

    def __init__(self, script: bytes = b"", num_slots: int = 8) -> None:
        self.script = script
        self.num_slots = num_slots
        self.running: dict[int, Iterator[int]] = {}
        self.waiting: list[int] = []
        self.step_error: BaseException | None = None
        self.submit_error: BaseException | None = None
        self.free_error: Exception | None = None
        self.sequence_errors: dict[int, StageError] = {}  # by how many sequences were submitted before
        self.numbers: list[int] = []  # of sequences, in the order in which they were submitted
        self.num_cached_tokens = 0
        self.num_tokens = 1  # of each sequence in a step
        self.is_waiting = False  # for what somebody else computes
        self.failure: EngineFailed | None = None  # for good
        self.adapters: dict[str, Adapter] = {}
        self.adapter_error: StageError | None = None
        self.num_wakes = 0
        self.is_closed = False
        self.on_step: Callable[[], None] = lambda: None

    def submit(self, sequence: int, request: EngineRequest) -> None:
        """Queue a sequence, or fail as told."""
        self._check()
        if self.submit_error is not None:
            raise self.submit_error
        self.numbers.append(sequence)
        self.waiting.append(sequence)

    def free(self, sequence: int) -> None:
        """Forget a sequence, or fail as told."""
        if self.free_error is not None:
            raise self.free_error
        self.running.pop(sequence, None)
        self.waiting = [item for item in self.waiting if item != sequence]

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def step(self) -> Sequence[StepOutput] | None:
        """Give every running sequence its next tokens, or wait or fail as told."""
        self.on_step()
        if self.is_waiting:
            return None
        if self.step_error is not None:
            error, self.step_error = self.step_error, None
            self.running.clear()
            self.waiting.clear()
            raise error
        while self.waiting and len(self.running) < self.num_slots:
            self.running[self.waiting.pop(0)] = iter(self.script)
        return [
            StepOutput(sequence, error=self.sequence_errors[index])
            if (index := self.numbers.index(sequence)) in self.sequence_errors
            else StepOutput(sequence, next(token_ids, EOS), self.num_cached_tokens)
            for sequence, token_ids in self.running.items()
            for _ in range(self.num_tokens)
        ]

    def load_adapter(self, name: str, adapter: Adapter) -> None:
        """Note it, or fail as told."""
        if self.adapter_error is not None:
            raise self.adapter_error
        self.adapters[name] = adapter

    def unload_adapter(self, name: str) -> None:
        """Forget it."""
        del self.adapters[name]

    def wake(self) -> None:
        """Count it."""
        self.num_wakes += 1

    @property
    def has_work(self) -> bool:
        """Whether there is a sequence."""
        return bool(self.running or self.waiting)

    def stats(self) -> RuntimeStats:
        """Return what it holds; a cell per sequence."""
        self._check()
        return RuntimeStats(
            num_active=len(self.running),
            num_waiting=len(self.waiting),
            num_cells_used=len(self.running),
            num_cells=self.num_slots,
            adapters=dict(self.adapters),
            adapter_bytes=sum(adapter.num_bytes for adapter in self.adapters.values()),
        )

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


class FakeEnd:
    """Records how somebody's answer ends: once."""

    def __init__(self) -> None:
        self.error: StageError | None = None
        self.is_closed = False
        self.is_broken = False
        self.has_ended = threading.Event()

    def fail(self, error: StageError) -> None:
        """Record the error."""
        assert not self.has_ended.is_set(), "an error after the end"
        self.error = error
        self.has_ended.set()

    def close(self) -> None:
        """Record the end without an answer."""
        assert not self.has_ended.is_set(), "closed after the end"
        self.is_closed = True
        self.has_ended.set()


class FakeResponder(FakeEnd):
    """Records what a client would get."""

    def __init__(self) -> None:
        super().__init__()
        self.releases: list[Release] = []
        self.has_release = threading.Event()

    def send(self, release: Release) -> None:
        """Record a release, or fail as told."""
        if self.is_broken:
            raise RuntimeError("the client's stream is broken")
        assert not self.has_ended.is_set(), "a release after the end"
        self.releases.append(release)
        self.has_release.set()
        if release.finish_reason is not None:
            self.has_ended.set()

    @property
    def texts(self) -> list[str]:
        """The text of each release but probes."""
        return [_text(release) for release in self.releases if not release.is_probe]

    @property
    def last(self) -> Release:
        """The newest release."""
        return self.releases[-1]


def _text(release: Release) -> str:
    """Return what the detokenizer makes of it: a token is its byte."""
    return bytes(release.token_ids)[: len(release.token_ids) - release.num_cut_bytes].decode("utf-8", "replace")


class Fake:
    """An engine on a fake runtime and a fake clock, whose turns are taken by hand."""

    def __init__(
        self,
        script: bytes = b"",
        *,
        emitter: Emitter | None = None,
        max_waiting: int = 100,
        config: EngineConfig | None = None,
        has_real_clock: bool = False,
    ) -> None:
        self.runtime = FakeRuntime(script)
        self.clock = FakeClock()
        config = config or EngineConfig(
            runtime="fake",
            artifact_dir=Path("unused"),
            context_window=100,
            eos_token_ids=frozenset([EOS]),
            max_sequences=self.runtime.num_slots,
            max_waiting=max_waiting,
        )
        emitter = emitter or Emitter(max_wait_s=0.0)  # everything leaves at once
        self.engine = Engine(
            config, self.runtime, BYTE_TABLE, emitter=emitter, clock=time.monotonic if has_real_clock else self.clock
        )

    def submit(
        self, *, max_tokens: int = 50, is_stream: bool = True, responder: FakeResponder | None = None, **fields: Any
    ) -> FakeResponder:
        """Submit a request with a prompt of three tokens."""
        responder = responder or FakeResponder()
        request = EngineRequest(
            prompt_token_ids=(1, 2, 3), max_tokens=max_tokens, sampling=SamplingParams(), is_stream=is_stream, **fields
        )
        self.engine.submit(request, responder)
        return responder

    def turn(self, num_turns: int = 1, *, passed_s: float = 0.0) -> None:
        """Take some turns; the clock moves before each."""
        for _ in range(num_turns):
            self.clock.now_s += passed_s
            if self.runtime.has_work or not self.engine._inbox.empty():
                self.engine._take_turn()


# --- how a sequence ends --------------------------------------------------------------------------------------------


def test_an_end_of_generation_token_is_a_stop_and_no_text() -> None:
    fake = Fake(b"hello")
    responder = fake.submit()
    fake.turn(6)
    assert responder.texts == ["h", "e", "l", "l", "o", ""]
    assert responder.last.finish_reason is FinishReason.STOP
    assert responder.last.usage == Usage(num_input_tokens=3, num_output_tokens=6)


def test_length_limited_completion_reports_length() -> None:
    fake = Fake(b"hello")
    responder = fake.submit(max_tokens=3)
    fake.turn(6)
    assert responder.texts == ["h", "e", "l"]
    assert responder.last.finish_reason is FinishReason.LENGTH
    assert responder.last.usage == Usage(num_input_tokens=3, num_output_tokens=3)


def test_an_end_of_generation_token_at_the_limit_is_a_stop() -> None:
    fake = Fake(b"hi")
    responder = fake.submit(max_tokens=3)
    fake.turn(3)
    assert responder.last.finish_reason is FinishReason.STOP


def test_a_stop_sequence_ends_generation_at_once() -> None:
    fake = Fake(b"one, two, three")
    responder = fake.submit(stop=("two",))
    fake.turn(8)
    assert "".join(responder.texts) == "one, "
    assert responder.last.finish_reason is FinishReason.STOP
    assert responder.last.usage == Usage(num_input_tokens=3, num_output_tokens=len("one, two"))
    assert not fake.runtime.has_work


def test_tokens_that_a_step_brings_after_the_end_are_passed_over() -> None:
    fake = Fake(b"one, two, three")
    fake.runtime.num_tokens = 5
    responder, other = fake.submit(stop=("two",)), fake.submit(max_tokens=7)
    fake.turn(3)
    assert ("".join(responder.texts), "".join(other.texts)) == ("one, ", "one, tw")
    assert responder.last.usage == Usage(num_input_tokens=3, num_output_tokens=len("one, two"))
    assert fake.engine.stats().max_step_sequences == 2


def test_a_stop_sequence_that_the_limit_cuts_short_is_text() -> None:
    fake = Fake(b"one, two, three")
    responder = fake.submit(stop=("two",), max_tokens=7)
    fake.turn(7)
    assert "".join(responder.texts) == "one, tw"
    assert responder.last.finish_reason is FinishReason.LENGTH


def test_a_stop_sequence_complete_at_the_limit_is_a_stop() -> None:
    fake = Fake(b"one, two, three")
    responder = fake.submit(stop=("two",), max_tokens=8)
    fake.turn(8)
    assert responder.last.finish_reason is FinishReason.STOP


def test_a_character_that_never_completes_is_replaced_at_the_end() -> None:
    fake = Fake("a€".encode()[:-1])
    responder = fake.submit()
    fake.turn(4)
    assert responder.texts == ["a", "\ufffd"]


def test_cells_are_free_before_the_last_text_leaves() -> None:
    fake = Fake(b"")

    class Watching(FakeResponder):
        def send(self, release: Release) -> None:
            super().send(release)
            assert not fake.runtime.has_work

    responder = fake.submit(responder=Watching())
    fake.turn()
    assert responder.has_ended.is_set()
    assert not responder.is_closed  # nor was it cancelled for the assertion above


# --- how it is delivered --------------------------------------------------------------------------------------------


def test_without_streaming_there_is_one_release() -> None:
    fake = Fake(b"hello")
    responder = fake.submit(is_stream=False)
    fake.turn(6)
    assert responder.texts == ["hello"]
    assert responder.last.usage == Usage(num_input_tokens=3, num_output_tokens=6)


def test_only_the_last_release_has_reason_and_usage() -> None:
    fake = Fake(b"hi")
    responder = fake.submit()
    fake.turn(3)
    assert [(release.finish_reason, release.usage is None) for release in responder.releases] == [
        (None, True),
        (None, True),
        (FinishReason.STOP, False),
    ]


def test_reused_cells_are_reported_as_cached_tokens() -> None:
    fake = Fake(b"hi")
    fake.runtime.num_cached_tokens = 2
    responder = fake.submit()
    fake.turn(3)
    assert responder.last.usage is not None
    assert responder.last.usage.num_cached_tokens == 2


def test_sequences_run_together_and_are_told_apart() -> None:
    fake = Fake(b"hello")
    long, short = fake.submit(), fake.submit(max_tokens=2)
    fake.turn(6)
    assert ("".join(long.texts), "".join(short.texts)) == ("hello", "he")
    assert {release.sequence for release in long.releases}.isdisjoint(release.sequence for release in short.releases)


def test_under_load_tokens_share_a_response() -> None:
    fake = Fake(b"abcdef", emitter=Emitter(max_share=0.1, max_wait_s=0.01))  # half a response per step
    responders = [fake.submit() for _ in range(3)]
    fake.turn(7, passed_s=0.001)
    assert [("".join(responder.texts)) for responder in responders] == ["abcdef"] * 3
    assert [responder.texts[0] for responder in responders] == ["a"] * 3  # first tokens never wait
    assert max(len(text) for responder in responders for text in responder.texts) > 1


def test_a_request_has_a_stream_interval_of_its_own() -> None:
    fake = Fake(b"abcdef", emitter=Emitter(max_share=0.0, max_wait_s=1.0))  # nothing leaves before it must
    at_once, some, default = (fake.submit(stream_interval_ms=interval_ms) for interval_ms in (0, 20, None))
    fake.turn(7, passed_s=0.01)
    assert at_once.texts == ["a", "b", "c", "d", "e", "f", ""]
    assert some.texts == ["a", "bcd", "ef"]
    assert default.texts == ["a", "bcdef"]


def test_a_response_that_cannot_be_sent_ends_only_its_own_request() -> None:
    fake = Fake(b"hi")
    broken, other = FakeResponder(), FakeResponder()
    broken.is_broken = True
    fake.submit(responder=broken)
    fake.submit(responder=other)
    fake.turn(3)
    assert (broken.is_closed, "".join(other.texts)) == (True, "hi")
    assert fake.engine.stats().num_cancelled == 1


# --- cancellation ---------------------------------------------------------------------------------------------------


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
    fake.clock.now_s += CANCELLED_KEY_TTL_S + 1
    if next_key:
        fake.engine.cancel_key(next_key)
    late = fake.submit(cancel_key="old")
    fake.turn(6)
    assert "".join(late.texts) == "hello"


def test_a_key_that_is_cancelled_again_is_remembered_from_then_on() -> None:
    fake = Fake(b"hello")
    for key in ("again", "other", "again", "last"):
        fake.engine.cancel_key(key)
        fake.turn(passed_s=0.6 * CANCELLED_KEY_TTL_S)
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


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_beyond_the_queue_a_request_is_refused() -> None:
    fake = Fake(b"hello", max_waiting=1)
    fake.runtime.num_slots = 8
    responders = [fake.submit() for _ in range(10)]
    fake.turn()
    assert [responder.error.code if responder.error else "" for responder in responders] == [""] * 9 + ["overloaded"]


def test_without_a_queue_free_slots_are_still_used() -> None:
    """Requests that arrive between two steps were counted as queued, although the next step lets them in."""
    fake = Fake(b"hello", max_waiting=0)
    responders = [fake.submit() for _ in range(8)]
    fake.turn(6)
    assert ["".join(responder.texts) for responder in responders] == ["hello"] * 8


def test_a_failing_runtime_fails_what_runs_and_serves_on(caplog: pytest.LogCaptureFixture) -> None:
    fake = Fake(b"hello")
    fake.runtime.num_slots = 1
    running, queued = fake.submit(cancel_key="a"), fake.submit()
    fake.turn()
    fake.runtime.step_error = EngineFailed("out of cells")
    fake.turn()
    for responder in (running, queued):
        assert responder.error is not None
        assert responder.error.message() == "[engine_failed] out of cells"
    after = fake.submit(cancel_key="a")
    fake.turn(6)
    assert "".join(after.texts) == "hello"
    assert "the runtime failed" in caplog.text


def test_everything_is_ended_when_the_model_is_unloaded_before_it_has_finished() -> None:
    fake = Fake(b"hello")
    fake.runtime.num_slots = 1
    running, queued = fake.submit(), fake.submit()
    fake.turn()
    fake.engine.fail_running()
    fake.turn()
    for responder in (running, queued):
        assert responder.error is not None
        assert responder.error.message() == "[unloading] the model is being unloaded"
    assert fake.runtime.stats().num_active == fake.runtime.stats().num_waiting == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("5 is not a token", "input_ids"), "invalid_value"),
        (OSError(), "internal_error"),
        (Panic(), "internal_error"),
    ],
)
def test_a_request_that_the_runtime_does_not_take_fails_alone(error: BaseException, code: str) -> None:
    """An unforeseen exception left the request unanswered for ever, and failed all others."""
    fake = Fake(b"hello")
    other = fake.submit()
    fake.turn()
    fake.runtime.submit_error = error
    refused = fake.submit(cancel_key="key")
    fake.turn()
    fake.runtime.submit_error = None
    fake.turn(4)
    assert refused.error is not None
    assert refused.error.code == code
    assert "".join(other.texts) == "hello"


def test_a_sequence_that_fails_in_a_step_fails_alone() -> None:
    """A constraint that could not go on would have ended everybody's request."""
    fake = Fake(b"hello")
    fake.runtime.sequence_errors = {1: InvalidRequest("nothing can follow", "guided_decoding_guide")}
    other, failing = fake.submit(), fake.submit(cancel_key="key")
    fake.turn()
    assert failing.error is not None
    assert failing.error.message() == "[invalid_value] guided_decoding_guide: nothing can follow"
    after = fake.submit(cancel_key="key")
    fake.turn(6)
    assert ("".join(other.texts), "".join(after.texts)) == ("hello", "hello")
    assert fake.engine.stats().num_active == 0


def test_what_nobody_asks_for_does_not_travel() -> None:
    """Each further tensor of a response costs as much as a token."""
    fake = Fake(b"hello")
    responder = fake.submit()
    fake.turn(6)
    assert [release.details for release in responder.releases] == [None] * 6


def test_the_text_of_an_unforeseen_exception_stays_inside() -> None:
    fake = Fake(b"hello")
    fake.runtime.submit_error = OSError("secret path")
    responder = fake.submit()
    fake.turn()
    assert "secret" not in str(responder.error)


def test_stats_say_what_the_engine_does() -> None:
    fake = Fake(b"hello")
    fake.runtime.num_slots = 2
    for _ in range(3):
        fake.submit()
    fake.turn(2)
    stats = fake.engine.stats()
    assert (stats.num_active, stats.num_waiting, stats.num_cells_used, stats.num_cells) == (2, 1, 2, 2)
    assert (stats.num_steps, stats.num_step_tokens, stats.max_step_sequences) == (2, 4, 2)
    assert (stats.num_finished, stats.step_age_ms) == (0, 0.0)
    fake.turn(20)
    stats = fake.engine.stats()
    assert (stats.num_active, stats.num_waiting, stats.num_finished, stats.num_cancelled) == (0, 0, 3, 0)


def test_stats_tell_how_long_a_step_has_been_running() -> None:
    fake = Fake(b"hello")
    ages: list[float] = []

    def look_in_the_middle() -> None:
        fake.clock.now_s += 3.0
        ages.append(fake.engine.stats().step_age_ms)

    fake.runtime.on_step = look_in_the_middle
    fake.submit()
    fake.turn()
    assert ages == [pytest.approx(3000)]


def test_a_step_that_only_waits_goes_on() -> None:
    fake = Fake(b"hello")
    fake.runtime.is_waiting = True
    responder = fake.submit()
    fake.turn(3, passed_s=2.0)
    stats = fake.engine.stats()
    assert stats.num_steps == 0
    assert stats.step_age_ms == pytest.approx(4000)
    fake.runtime.is_waiting = False
    fake.turn(passed_s=1.0)
    stats = fake.engine.stats()
    assert (stats.num_steps, stats.step_age_ms, responder.texts) == (1, 0.0, ["h"])


def test_a_step_that_nobody_waits_for_any_more_is_over() -> None:
    fake = Fake(b"hello")
    fake.runtime.is_waiting = True
    fake.submit(cancel_key="k")
    fake.turn(2, passed_s=2.0)
    fake.engine.cancel_key("k")
    fake.turn(passed_s=2.0)
    assert fake.engine.stats().step_age_ms == 0.0


def test_whatever_arrives_wakes_the_runtime() -> None:
    fake = Fake(b"hello")
    fake.submit(cancel_key="k")
    fake.engine.cancel_key("k")
    fake.engine.cancel_sequence(1)
    assert fake.runtime.num_wakes == 3


def test_a_runtime_that_is_broken_for_good_refuses_and_has_no_stats() -> None:
    """Its refusal was taken for a failure of the engine's turn, and the request waited for ever."""
    fake = Fake(b"hello")
    fake.runtime.failure = EngineFailed("the GPU is gone")
    responder = fake.submit()
    fake.turn()
    assert responder.error is fake.runtime.failure
    with pytest.raises(EngineFailed, match="the GPU is gone"):
        fake.engine.stats()


def test_every_load_has_an_epoch_and_sequence_numbers_of_its_own() -> None:
    first, second = Fake(b"a"), Fake(b"a")
    one, two = first.submit(), second.submit()
    first.turn()
    second.turn()
    assert first.engine.stats().epoch != second.engine.stats().epoch
    assert one.last.sequence != two.last.sequence


# --- the engine's own thread ----------------------------------------------------------------------------------------


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


# --- adapters --------------------------------------------------------------------------------------------------------

POLITE = Adapter(path=Path("unused"), key="1", num_bytes=7, source="teams/polite")


def test_adapters_are_changed_between_two_steps_and_told_with_the_stats() -> None:
    fake = Fake(b"hello")
    loaded = fake.engine.between_steps(lambda runtime: runtime.load_adapter("polite", POLITE))
    assert (loaded.done(), fake.engine.stats().adapters, fake.runtime.num_wakes) == (False, {}, 1)
    fake.turn()
    assert loaded.result(0) is None
    stats = fake.engine.stats()
    assert (stats.adapters, stats.adapter_bytes, fake.engine.adapters()) == (
        {"polite": "teams/polite"},
        7,
        {"polite": POLITE},
    )


def test_an_adapter_that_does_not_load_harms_nobody() -> None:
    fake = Fake(b"hello")
    responder = fake.submit()
    fake.runtime.adapter_error = InvalidRequest("bad", "source")
    loaded = fake.engine.between_steps(lambda runtime: runtime.load_adapter("polite", POLITE))
    fake.turn(6)
    assert loaded.exception(0) is fake.runtime.adapter_error
    assert responder.texts == ["h", "e", "l", "l", "o", ""]


def test_sequences_whose_adapter_is_unloaded_are_counted_until_they_end() -> None:
    fake = Fake(b"hello")
    fake.runtime.adapters["polite"] = POLITE
    for name in ("polite", ""):
        fake.submit(lora_name=name)
    fake.turn()
    assert fake.engine.stats().num_unloading == 0
    fake.engine.between_steps(lambda runtime: runtime.unload_adapter("polite"))
    fake.turn()
    assert fake.engine.stats().num_unloading == 1
    fake.turn(6)
    assert fake.engine.stats().num_unloading == 0
