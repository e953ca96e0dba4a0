"""A reader of many sequences at the engine: what happens to them is gathered, and leaves as one delivery."""

from __future__ import annotations

from typing import Protocol

from model_repository.deliveries import Delivery
from model_repository.errors import StageError
from model_repository.stage_messages import Release


class DeliveryResponder(Protocol):
    """Where a reader's deliveries go. Called by the engine's thread only."""

    def deliver(self, delivery: Delivery) -> None:
        """Send a delivery; more may follow."""
        ...

    def fail(self, error: StageError) -> None:
        """End the stream with an error; the last call."""
        ...

    def close(self) -> None:
        """End the stream: nobody reads it; the last call."""
        ...


class DeliveryStream:
    """One reader's stream, from its opening until the reader is gone.

    Args:
        number: the engine's own name for it, no sequence's.
        key: what requests name it by.
        responder: the reader.
        now_s: when it was opened.
    """

    def __init__(self, number: int, key: str, responder: DeliveryResponder, now_s: float) -> None:
        self.number = number
        self.key = key
        self.heard_s = now_s  # when the last delivery left
        self.used_s = now_s  # when the last one left that had something to tell
        self.responder = responder
        self._serial = 0
        self._items: list[tuple[int, Release | str]] = []
        self._untold: dict[int, Release] = {}  # of sequences of which nothing was told: that they are here

    @property
    def has_items(self) -> bool:
        """Whether something waits to be delivered."""
        return bool(self._items)

    def add(self, number: int, item: Release | str) -> None:
        """Add to the next delivery what a reader's number stands for: a release, or the message of an error."""
        self._untold.pop(number, None)
        self._items.append((number, item))

    def take(self, number: int, sequence: int) -> None:
        """Have the next delivery say, by a release without tokens, that a sequence is here if nothing else does."""
        self._untold[number] = Release(sequence=sequence)

    def drop(self, number: int) -> None:
        """Say nothing more of a sequence."""
        self._untold.pop(number, None)

    def deliver(self, now_s: float) -> int:
        """Send what was gathered, if only to find out whether the reader is still there; return how much it was."""
        items, self._items = self._items, []
        delivery = Delivery(self.number, self._serial, (*items, *self._untold.items()))
        self._untold.clear()
        self._serial += 1
        self.heard_s = now_s
        if items:
            self.used_s = now_s
        self.responder.deliver(delivery)
        return len(items)


class DeliveredSequence:
    """The responder of one sequence whose reader reads many.

    Args:
        stream: where its releases go.
        number: what the reader calls it.
    """

    def __init__(self, stream: DeliveryStream, number: int) -> None:
        self.stream = stream
        self._number = number

    def send(self, release: Release) -> None:
        """Add a release to the next delivery."""
        self.stream.add(self._number, release)

    def fail(self, error: StageError) -> None:
        """Add the error."""
        self.stream.add(self._number, error.message())

    def close(self) -> None:
        """Say nothing: nobody reads it."""
        self.stream.drop(self._number)
