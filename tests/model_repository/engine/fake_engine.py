"""An engine over a runtime that plays a script, and the readers of its output streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from model_repository.contract.output import Announcement, OutputBatch, TokenDelta
from model_repository.contract.request import EngineRequest, EngineRequestBatch, OutputFormat, StructuredOutput
from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.emitter import Emitter
from model_repository.engine.engine import Engine
from model_repository.engine.inbox import OpenStream, Submit
from model_repository.engine.output_streams import SINGLE_CHECK_INTERVAL_S
from model_repository.engine.runtime import EngineConfig, Prepared, RuntimeStats, StepOutput
from model_repository.errors import EngineFailed, StageError
from tests.model_repository.engine.engine_requests import changed
from tests.waiting import DEADLINE_S

BYTE_TABLE = [bytes([byte]) for byte in range(256)]
EOS = 0  # a byte that no script contains
SILENCE_S = 1.25 * SINGLE_CHECK_INTERVAL_S
REGEX = StructuredOutput(OutputFormat.REGEX, "a")
REQUEST = EngineRequest(prompt_token_ids=(1, 2, 3), max_tokens=50)
POLITE = Adapter(path=Path("unused"), key="1", num_bytes=7, source="teams/polite")


class Panic(BaseException):
    """As Rust code raises it."""


class FakeClock:
    """Seconds that only a test lets pass."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class FakeRuntime:
    """Gives each sequence the bytes of the script, one per step, then the end-of-generation token for ever.

    Simplified: it computes nothing, so it cannot mix up sequences; `tests/exactness` runs the engine on llama.cpp.
    """

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
        self.num_tokens = 1  # of each sequence in a step
        self.is_waiting = False  # for another process
        self.failure: EngineFailed | None = None  # for good
        self.adapters: dict[str, Adapter] = {}
        self.adapter_error: StageError | None = None
        self.breaking_adapter = ""  # the source of one that breaks the runtime for good
        self.num_wakes = 0
        self.is_closed = False
        self.on_prepare: Callable[[], None] = lambda: None

    def prepare(self, request: EngineRequest) -> Prepared:
        self.on_prepare()
        return Prepared(request)

    def submit(self, sequence: int, request: EngineRequest, prepared: Prepared | None = None) -> None:
        self._check()
        if self.submit_error is not None:
            raise self.submit_error
        self.numbers.append(sequence)
        self.waiting.append(sequence)

    def free(self, sequence: int, *, is_reusable: bool = True) -> None:
        if self.free_error is not None:
            raise self.free_error
        self.running.pop(sequence, None)
        self.waiting = [item for item in self.waiting if item != sequence]

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def step(self) -> Sequence[StepOutput] | None:
        """Give every running sequence its next tokens, or wait or fail where a test says so."""
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
            else StepOutput(sequence, next(token_ids, EOS))
            for sequence, token_ids in self.running.items()
            for _ in range(self.num_tokens)
        ]

    def prepare_adapter(self, adapter: Adapter) -> Adapter:
        if adapter.source == self.breaking_adapter:
            self.failure = EngineFailed("broken")
        self._check()
        return adapter

    def load_adapter(self, name: str, adapter: Adapter) -> None:
        if self.adapter_error is not None:
            raise self.adapter_error
        self.adapters[name] = adapter

    def unload_adapter(self, name: str) -> None:
        del self.adapters[name]

    def wake(self) -> None:
        self.num_wakes += 1

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def stats(self) -> RuntimeStats:
        self._check()
        return RuntimeStats(
            num_active=len(self.running),
            num_waiting=len(self.waiting),
            num_kv_tokens_used=len(self.running),
            max_kv_tokens=self.num_slots,
            adapters=dict(self.adapters),
            adapter_bytes=sum(adapter.num_bytes for adapter in self.adapters.values()),
        )

    def kept_marks(self) -> list[bytes]:
        return []

    def close(self) -> None:
        self.is_closed = True


class FakeResponder:
    """Records the output batches of one stream, and its end: there is one."""

    def __init__(self) -> None:
        self.batches: list[OutputBatch] = []
        self.error: StageError | None = None
        self.is_closed = False  # without an error and without a last batch
        self.is_broken = False
        self.has_items = threading.Event()
        self.has_ended = threading.Event()

    def send(self, batch: OutputBatch) -> None:
        if self.is_broken:
            raise RuntimeError("the reader is gone")
        assert not self.has_ended.is_set(), "a batch after the end"
        self.batches.append(batch)
        if batch.items:
            self.has_items.set()

    def fail(self, error: StageError) -> None:
        assert not self.has_ended.is_set(), "an error after the end"
        self.error = error
        self.has_ended.set()

    def close(self, batch: OutputBatch | None = None) -> None:
        if batch is not None:
            self.send(batch)
        assert not self.has_ended.is_set(), "closed after the end"
        self.is_closed = batch is None
        self.has_ended.set()

    @property
    def error_message(self) -> str:
        """The message of the error that ended the stream; empty without one."""
        return "" if self.error is None else self.error.message()

    @property
    def number(self) -> int:
        return self.batches[-1].stream

    @property
    def sizes(self) -> list[int]:
        return [len(batch.items) for batch in self.batches]

    def items(self, number: int = 0) -> list[TokenDelta | Announcement | str]:
        return [item for batch in self.batches for each, item in batch.items if each == number]

    def deltas(self, number: int = 0) -> list[TokenDelta]:
        """Return the token deltas of one request, without the one that only says that the engine has it."""
        return [item for item in self.items(number) if isinstance(item, TokenDelta) and item != TokenDelta()]

    @property
    def last(self) -> TokenDelta:
        """The newest token delta of a single request."""
        return self.deltas()[-1]

    def texts(self, number: int = 0) -> list[str]:
        return [text_of(delta) for delta in self.deltas(number)]

    def text(self, number: int = 0) -> str:
        return "".join(self.texts(number))


class SlowResponder(FakeResponder):
    """Sends nothing until a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_send = threading.Event()

    def send(self, batch: OutputBatch) -> None:
        assert self.may_send.wait(DEADLINE_S)
        super().send(batch)


class DeafResponder(FakeResponder):
    """Fails at every end."""

    def fail(self, error: StageError) -> None:
        raise RuntimeError("the reader is gone")

    def close(self, batch: OutputBatch | None = None) -> None:
        raise RuntimeError("the reader is gone")


def text_of(delta: TokenDelta) -> str:
    """Return the text that the detokenizer makes of it: a token is its byte."""
    return bytes(delta.token_ids)[: len(delta.token_ids) - delta.num_cut_bytes].decode("utf-8", "replace")


def request(**fields: Any) -> EngineRequest:
    """Return a request of 50 tokens that streams, unless the fields say otherwise."""
    return changed(REQUEST, **{"is_stream": True} | fields)


class Fake:
    """An engine on a fake runtime and a fake clock. `step` runs its loop once."""

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
            context_window=20_000_000,
            eos_token_ids=frozenset([EOS]),
            max_sequences=self.runtime.num_slots,
            max_waiting=max_waiting,
        )
        emitter = emitter or Emitter(max_wait_s=0.0)  # everything is sent at once
        self.engine = Engine(
            config,
            self.runtime,
            BYTE_TABLE,
            emitter=emitter,
            clock=time.monotonic if has_real_clock else self.clock,
        )

    def submit(self, *, responder: FakeResponder | None = None, **fields: Any) -> FakeResponder:
        """Submit a single request. Its responder is its output stream."""
        return self.submit_batch("", {0: request(**fields)}, responder)

    def submit_batch(
        self, stream: str, items: dict[int, EngineRequest | str], responder: FakeResponder | None = None
    ) -> FakeResponder:
        responder = responder or FakeResponder()
        self.engine.post(Submit(EngineRequestBatch(stream, tuple(items.items())), responder))
        return responder

    def hold_grammars(self) -> threading.Event:
        """Compile no grammar before the event is set."""
        may_go_on = threading.Event()

        def wait() -> None:
            assert may_go_on.wait(DEADLINE_S)

        self.runtime.on_prepare = wait
        return may_go_on

    def open_stream(self, key: str = "key") -> FakeResponder:
        responder = FakeResponder()
        self.engine.post(OpenStream(key, responder))
        self.step()
        return responder

    @property
    def num_messages(self) -> int:
        return self.engine.inbox._queue.qsize()

    def step(self, num_steps: int = 1, *, passed_s: float = 0.0) -> None:
        """Run the engine's loop some times; the clock moves before each."""
        for _ in range(num_steps):
            self.clock.now_s += passed_s
            if self.runtime.has_work or self.num_messages:
                self.engine._run_once()
                self._send()

    def _send(self) -> None:
        """Send the posted batches in this thread."""
        sender = self.engine._sender
        sender._queue.put(None)
        sender._run()
