"""Who is next among those who wait: self-clocked fair queueing between keys, weighted by priority. Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from frontend.protocol.priority import Priority

# A class that is one step more urgent gets four times the share of the one below, which is never starved.
WEIGHTS = {Priority.LOW: 1.0, Priority.NORMAL: 4.0, Priority.HIGH: 16.0}

type Flow = tuple[str, Priority]


@dataclass(frozen=True, slots=True, order=True)
class Entry[Item]:
    """One that waits; the order of entries is the order of service."""

    finish: float  # in virtual time: cost for each unit of weight
    number: int  # of those with the same time the first comes first
    start: float = field(compare=False)
    flow: Flow = field(compare=False)
    item: Item = field(compare=False)


class FairQueue[Item]:
    """Items of several keys. Each key's requests take turns with the others', by what they cost.

    Source: Golestani, "A self-clocked fair queueing scheme for broadband applications", 1994.
    """

    def __init__(self) -> None:
        self._entries: list[Entry[Item]] = []  # in order
        self._finishes: dict[Flow, float] = {}  # of each flow's last entry
        self._now = 0.0  # virtual: the finish of the last entry that was served
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Item]:
        return (entry.item for entry in self._entries)

    def entry(self, item: Item, flow: Flow, cost: float) -> Entry[Item]:
        """Return the place that an item would have; it is not in the queue yet."""
        start = max(self._now, self._finishes.get(flow, 0.0))
        self._count += 1
        return Entry(start + cost / WEIGHTS[flow[1]], self._count, start, flow, item)

    def num_before(self, entry: Entry[Item]) -> int:
        """Return how many are served before an entry."""
        low, high = 0, len(self._entries)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._entries[middle] < entry else (low, middle)
        return low

    def push(self, entry: Entry[Item]) -> None:
        """Put an entry in its place."""
        insort(self._entries, entry)
        self._finishes[entry.flow] = entry.finish

    def first(self) -> Entry[Item]:
        """Return who is next."""
        return self._entries[0]

    def pop(self) -> Item:
        """Take the next one out to be served."""
        entry = self._entries.pop(0)
        self._now = entry.finish
        self._forget_idle_flows()
        return entry.item

    def remove(self, entry: Entry[Item]) -> None:
        """Take one out that is not to be served; if it is the last of its flow, the flow is not charged for it."""
        self._entries.pop(self.num_before(entry))
        if self._finishes.get(entry.flow) == entry.finish:
            self._finishes[entry.flow] = entry.start
        self._forget_idle_flows()

    def _forget_idle_flows(self) -> None:
        if not self._entries:
            self._now = 0.0
            self._finishes.clear()
