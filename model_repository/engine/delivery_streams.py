"""The streams of deliveries that are open at an engine: found by key, filled by sequences, probed, ended."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Set

from model_repository.engine.delivery_stream import DeliveryResponder, DeliveryStream
from model_repository.errors import DeliveriesNotOpen, InvalidRequest, StageError

logger = logging.getLogger(__name__)

# One that has been silent for so long is probed, also while the engine has nothing else to do.
PROBE_INTERVAL_S = 1.0
# One without sequences is ended after so long, and opened again when it is needed: Triton unloads no model that has a
# request under way, so an open one would keep the old engine in memory beside the new one.
MAX_IDLE_S = 10.0


class DeliveryStreams:
    """Belongs to the engine's thread.

    Args:
        on_end: called with a stream's number and a time when nobody reads it any more, and since then.
        clock: monotonic seconds.
    """

    def __init__(self, on_end: Callable[[int, float], None], clock: Callable[[], float]) -> None:
        self.num_deliveries = 0
        self.num_delivered = 0  # items in them
        self._on_end = on_end
        self._clock = clock
        self._streams: dict[int, DeliveryStream] = {}
        self._by_key: dict[str, DeliveryStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, number: int) -> bool:
        return number in self._streams

    def open(self, number: int, key: str, responder: DeliveryResponder) -> None:
        """Open a stream under this number, no sequence's, and deliver nothing to say so.

        A key that is in use is the responder's error.
        """
        if key in self._by_key:
            with contextlib.suppress(Exception):
                responder.fail(InvalidRequest("it names another stream, which has not ended yet", "open_deliveries"))
            return
        stream = DeliveryStream(number, key, responder, self._clock())
        self._streams[number] = self._by_key[key] = stream
        self._send(stream)

    def find(self, key: str) -> DeliveryStream:
        """Return the stream that requests name by this key.

        Raises:
            DeliveriesNotOpen: there is none.
        """
        if key not in self._by_key:
            raise DeliveriesNotOpen("no stream of deliveries is open under this key", "delivery_key")
        return self._by_key[key]

    def deliver(self) -> None:
        """Send what has been gathered."""
        for stream in [stream for stream in self._streams.values() if stream.has_items]:
            self._send(stream)

    def tend(self, busy: Callable[[], Set[int | None]], *, is_draining: bool = False) -> None:
        """Probe the streams that have been silent for a while, and end those that nobody has used for long.

        Args:
            busy: returns the numbers of the streams that have sequences.
            is_draining: no more requests are expected, so that a silent one without sequences is of no use.
        """
        max_idle_s = 0.0 if is_draining else MAX_IDLE_S
        now_s = self._clock()
        silent = [stream for stream in self._streams.values() if now_s - stream.heard_s >= PROBE_INTERVAL_S]
        used = busy() if silent else set()
        for stream in silent:
            if stream.number in used or now_s - stream.used_s < max_idle_s:
                self._send(stream)
            else:
                self.end(stream.number, now_s)

    def end(self, number: int, since_s: float) -> None:
        """End a stream: its reader is gone, or it is of no use."""
        stream = self._streams.pop(number)
        del self._by_key[stream.key]
        self._on_end(number, since_s)
        with contextlib.suppress(Exception):  # it may be the one that could not be sent to
            stream.responder.close()

    def fail(self, error: StageError) -> None:
        """End all of them with an error. Nothing is told of their sequences, which the caller has ended."""
        streams = list(self._streams.values())
        self._streams.clear()
        self._by_key.clear()
        for stream in streams:
            with contextlib.suppress(Exception):  # one that cannot be told must not keep the others from being told
                stream.responder.fail(error)

    def _send(self, stream: DeliveryStream) -> None:
        try:
            num_items = stream.deliver(self._clock())
        except Exception:
            logger.exception("stream %d: a delivery could not be sent, its sequences are cancelled", stream.number)
            self.end(stream.number, self._clock())
            return
        self.num_deliveries += 1
        self.num_delivered += num_items
