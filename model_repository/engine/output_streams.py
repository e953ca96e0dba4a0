"""The output streams of an engine: outputs are gathered, and a thread sends those of a stream as one batch."""

from __future__ import annotations

import heapq
import logging
import queue
import secrets
import threading
from collections.abc import Callable, Set
from typing import Any, Protocol

from model_repository.contract.output import Announcement, OutputBatch, TokenDelta, VectorChunk
from model_repository.errors import InvalidRequest, OutputStreamNotOpen, StageError

logger = logging.getLogger(__name__)

# A stream that was silent for this time is checked: only the last stage can see that its client is gone.
CHECK_INTERVAL_S = 1.0
# The same for a single request without a cancel key: no other sign shows that its client is gone.
SINGLE_CHECK_INTERVAL_S = 0.1
# A frontend's stream without sequences ends after this time, and opens again on demand. Triton unloads no model with a
# request in progress, so an open stream would keep the old engine in memory beside the new one.
MAX_IDLE_S = 10.0
# Each check costs as much as a response. Single requests get one check per gap on average, ...
_CHECK_GAP_S = 0.02
# ... and at most five at once after a long step.
_MAX_CHECKS_AT_ONCE = 5


class OutputResponder(Protocol):
    """Sends the batches of one stream. Called by the sender's thread only."""

    def send(self, batch: OutputBatch) -> None:
        """Send a batch; more may follow."""

    def fail(self, error: StageError) -> None:
        """End the stream with an error; the last call."""

    def close(self, batch: OutputBatch | None = None) -> None:
        """End the stream, with or without a last batch; the last call."""


class OutputStream:
    """The outputs for one client, while it is connected.

    Args:
        number: the engine's own name for it. It is random: a message that names it to another stage is believed.
        key: the name in requests; empty: the stream of a single request of the public ensemble.
        check_interval_s: silence before a disconnect check.
    """

    def __init__(
        self,
        number: int,
        key: str,
        responder: OutputResponder,
        now_s: float,
        sender: OutputSender,
        check_interval_s: float = CHECK_INTERVAL_S,
    ) -> None:
        self.number = number
        self.key = key
        self.last_sent_s = now_s
        self.last_used_s = now_s  # when the last batch with items was sent, or requests came
        self.check_interval_s = check_interval_s
        self.is_open = True
        self.num_preparing = 0  # requests that wait for their grammars
        self.num_posted = 0  # batches and ends that the sender has got
        self.num_sent = 0  # batches and ends that are sent; written by the sender's thread
        self._responder = responder
        self._sender = sender
        self._serial = 0
        self._items: list[tuple[int, TokenDelta | Announcement | str]] = []
        self._vectors: list[tuple[int, VectorChunk]] = []
        self._unannounced: set[int] = set()  # accepted requests without an output so far

    @property
    def is_single(self) -> bool:
        """Whether it is the stream of one request of the public ensemble."""
        return not self.key

    @property
    def is_sending(self) -> bool:
        """Whether a batch is on its way to Triton. Meanwhile tokens gather for the next one."""
        return self.num_sent < self.num_posted

    @property
    def has_items(self) -> bool:
        return bool(self._items or self._vectors)

    def announce(self, item: int, ignored_keywords: tuple[str, ...] = ()) -> None:
        """Have the next batch say, by a delta without tokens, that the engine has accepted a request.

        Args:
            ignored_keywords: of the request; with them, an Announcement leaves at once.
        """
        if self.is_single:
            return
        if ignored_keywords:
            self._items.append((item, Announcement(ignored_keywords=ignored_keywords)))
        else:
            self._unannounced.add(item)

    def add(self, item: int, output: TokenDelta | VectorChunk) -> None:
        """Add an output to the next batch, under the client's number for its request."""
        self._unannounced.discard(item)
        if isinstance(output, VectorChunk):
            self._vectors.append((item, output))
        else:
            self._items.append((item, output))

    def fail(self, item: int, error: StageError) -> None:
        """Add the error of a request. The error of a single request ends its stream."""
        if self.is_single:
            self.end(error)
        else:
            self._unannounced.discard(item)
            self._items.append((item, error.message()))

    def drop(self, item: int) -> None:
        """Send nothing more for a cancelled request."""
        self._unannounced.discard(item)
        if self.is_single:
            self.end()

    def flush(self, now_s: float) -> None:
        """Send the next batch, even an empty one."""
        items, vectors, self._items, self._vectors = self._items, self._vectors, [], []
        announced = [(item, TokenDelta()) for item in sorted(self._unannounced)]
        self._unannounced.clear()
        batch = OutputBatch(self.number, self._serial, self.is_single, (*items, *announced), tuple(vectors))
        self._serial += 1
        self.last_sent_s = now_s
        if items or vectors:
            self.last_used_s = now_s
        self._sender.num_batches += 1
        self._sender.num_items += len(items) + len(vectors)
        _, last = (vectors or items or [(0, "")])[-1]
        if self.is_single and isinstance(last, TokenDelta | VectorChunk) and last.finish_reason is not None:
            self.is_open = False
            self._sender.post(self, self._responder.close, batch)
        else:
            self._sender.post(self, self._responder.send, batch)

    def end(self, error: StageError | None = None) -> None:
        """End the stream, with an error or without."""
        if self.is_open:
            self.is_open = False
            if error is None:
                self._sender.post(self, self._responder.close)
            else:
                self._sender.post(self, self._responder.fail, error)


class OutputSender:
    """A thread that sends the batches of all streams one after the other, so that no step waits for Triton.

    Args:
        on_failure: called from that thread with the number of a stream that could not send.
    """

    def __init__(self, on_failure: Callable[[int], None]) -> None:
        self.num_batches = 0
        self.num_items = 0  # token deltas, vectors and errors in them
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[tuple[OutputStream, Callable[..., None], tuple[Any, ...]] | None]
        self._queue = queue.SimpleQueue()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._thread = threading.Thread(target=self._run, name="output sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, stream: OutputStream, send: Callable[..., None], *arguments: Any) -> None:
        """Have a function of a stream's responder called."""
        stream.num_posted += 1
        self._is_idle.clear()
        self._queue.put((stream, send, arguments))

    def wait_until_idle(self, timeout_s: float) -> None:
        """Wait until everything is sent, or the time is up."""
        self._is_idle.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Send everything and end the thread, unless that takes too long."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (posted := self._queue.get()) is not None:
            stream, send, arguments = posted
            try:
                send(*arguments)
            except Exception:
                if stream.is_open:  # else its client may be gone
                    logger.exception("stream %d: a batch could not be sent, its sequences are cancelled", stream.number)
                    self._on_failure(stream.number)
            stream.num_sent += 1
            if self._queue.empty():
                self._is_idle.set()


class OutputStreams:
    """All output streams of an engine. They belong to the engine's thread."""

    def __init__(self, clock: Callable[[], float], sender: OutputSender) -> None:
        self._sender = sender
        self._clock = clock
        self._streams: dict[int, OutputStream] = {}
        self._by_key: dict[str, OutputStream] = {}
        self._checked_s = clock()

    def __len__(self) -> int:
        return len(self._by_key)

    def open(self, key: str, responder: OutputResponder) -> None:
        """Open a frontend's stream and send an empty batch. A key in use is an error for the responder."""
        stream = OutputStream(secrets.randbits(64), key, responder, self._clock(), self._sender)
        if key in self._by_key:
            stream.end(InvalidRequest("names another stream, which has not ended yet", "open_stream"))
            return
        self._streams[stream.number] = self._by_key[key] = stream
        stream.flush(self._clock())

    def open_single(self, responder: OutputResponder, *, has_cancel_key: bool) -> OutputStream:
        """Open the stream of a single request of the public ensemble."""
        # With a cancel key the checks only replace a lost cancel, so they can be rare.
        interval_s = 50 * SINGLE_CHECK_INTERVAL_S if has_cancel_key else SINGLE_CHECK_INTERVAL_S
        stream = OutputStream(secrets.randbits(64), "", responder, self._clock(), self._sender, interval_s)
        self._streams[stream.number] = stream
        return stream

    def find(self, key: str) -> OutputStream:
        """Return the stream that a batch of requests names by this key. Even an empty batch keeps it open.

        Raises:
            OutputStreamNotOpen: no stream has this key.
        """
        if key not in self._by_key:
            raise OutputStreamNotOpen("no output stream is open under this key", "request_batch")
        stream = self._by_key[key]
        stream.last_used_s = self._clock()
        return stream

    def flush(self) -> None:
        """Send the gathered outputs, and forget ended streams."""
        for stream in list(self._streams.values()):
            if stream.is_open and stream.has_items:
                stream.flush(self._clock())
            if not stream.is_open:
                self._forget(stream)

    def check_readers(self, busy: Callable[[], Set[int]], *, is_draining: bool = False) -> None:
        """Check the clients of silent streams by an empty batch, and end unused streams.

        Args:
            busy: returns the numbers of the streams with sequences.
            is_draining: no new requests are expected, so silent streams without sequences end at once.
        """
        now_s = self._clock()
        silences = [
            ((now_s - stream.last_sent_s) / stream.check_interval_s, stream)
            for stream in self._streams.values()
            if now_s - stream.last_sent_s >= stream.check_interval_s
        ]
        due = [stream for _, stream in silences if not stream.is_single]
        num_affordable = min(int((now_s - self._checked_s) / _CHECK_GAP_S), _MAX_CHECKS_AT_ONCE)
        if num_affordable:
            self._checked_s = now_s
            singles = (silence for silence in silences if silence[1].is_single)
            due += [stream for _, stream in heapq.nlargest(num_affordable, singles, key=lambda silence: silence[0])]
        used = busy() if due else set()
        max_idle_s = 0.0 if is_draining else MAX_IDLE_S
        for stream in due:
            is_used = stream.is_single or stream.num_preparing or stream.number in used
            if is_used or now_s - stream.last_used_s < max_idle_s:
                stream.flush(now_s)
            else:
                self.end(stream.number)

    def end(self, number: int) -> None:
        """End a stream: its client is gone, or it is unused. Its sequences have already ended."""
        if (stream := self._streams.get(number)) is not None:  # else it has ended in the meantime
            self._forget(stream)
            stream.end()

    def fail(self, error: StageError, single_error: StageError) -> None:
        """End all streams with an error, single requests with another one. Their sequences have already ended."""
        for stream in list(self._streams.values()):
            self._forget(stream)
            stream.end(single_error if stream.is_single else error)

    def _forget(self, stream: OutputStream) -> None:
        self._streams.pop(stream.number, None)
        if stream.key:
            self._by_key.pop(stream.key, None)
