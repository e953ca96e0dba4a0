"""An engine over a runtime that plays a script, and whom it answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from model_repository.engine.adapter_folder import Adapter
from model_repository.engine.emitter import Emitter
from model_repository.engine.engine import Engine
from model_repository.engine.runtime import EngineConfig, RuntimeStats, StepOutput
from model_repository.engine.silence_probes import PROBE_INTERVAL_S
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import EngineFailed, StageError
from model_repository.generation import SamplingParams
from model_repository.stage_messages import EngineRequest, Release

BYTE_TABLE = [bytes([byte]) for byte in range(256)]
EOS = 0  # a byte that no script contains
SILENCE_S = 1.25 * PROBE_INTERVAL_S
POLITE = Adapter(path=Path("unused"), key="1", num_bytes=7, source="teams/polite")
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
        self.on_prepare: Callable[[], None] = lambda: None

    def prepare(self, request: EngineRequest) -> None:
        self.on_prepare()

    def submit(self, sequence: int, request: EngineRequest, constraint: TokenConstraint | None = None) -> None:
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
        return [text_of(release) for release in self.releases if not release.is_probe]

    @property
    def last(self) -> Release:
        """The newest release."""
        return self.releases[-1]


def text_of(release: Release) -> str:
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
