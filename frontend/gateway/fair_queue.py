"""The order of waiting completions: self-clocked fair queueing between senders, weighted by priority.

Source: Golestani, "A self-clocked fair queueing scheme for broadband applications", 1994.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from frontend.protocol.priority import Priority

# Each priority gets four times the share of the next lower one, so the lowest does not starve.
WEIGHTS = {Priority.LOW: 1.0, Priority.NORMAL: 4.0, Priority.HIGH: 16.0}

type Flow = tuple[str, Priority]


@dataclass(frozen=True, slots=True, order=True)
class Entry[Item]:
    """A place in the queue. Entries sort in the order of service."""

    finish: float  # virtual time: cost per unit of weight
    number: int  # of arrival
    start: float = field(compare=False)
    flow: Flow = field(compare=False)
    item: Item = field(compare=False)


class FairQueue[Item]:
    """A queue in which senders share the service equally, measured by the cost of their items."""

    def __init__(self) -> None:
        self._entries: list[Entry[Item]] = []  # in order
        self._finishes: dict[Flow, float] = {}  # of each flow's last entry
        self._num_waiting: Counter[str] = Counter()  # entries of each sender
        self._now = 0.0  # virtual: the largest finish of an entry that was served
        self._num_entries = 0  # since the start

    def __len__(self) -> int:
        return len(self._entries)

    def first(self, may_pass: Callable[[str], bool]) -> Entry[Item] | None:
        """Return the first entry whose sender may pass; None: there is none."""
        if not any(map(may_pass, self._num_waiting)):  # the usual answer while one sender fills the queue
            return None
        return next(entry for entry in self._entries if may_pass(entry.flow[0]))

    def entry(self, item: Item, flow: Flow, cost: float) -> Entry[Item]:
        """Return the entry that an item would have now."""
        start = max(self._now, self._finishes.get(flow, 0.0))
        self._num_entries += 1
        return Entry(start + cost / WEIGHTS[flow[1]], self._num_entries, start, flow, item)

    def num_before(self, entry: Entry[Item]) -> int:
        """Return the number of entries that are served before this one."""
        return bisect_left(self._entries, entry)

    def push(self, entry: Entry[Item]) -> None:
        """Add an entry."""
        insort(self._entries, entry)
        self._num_waiting[entry.flow[0]] += 1
        self._finishes[entry.flow] = entry.finish

    def serve(self, entry: Entry[Item]) -> None:
        """Remove an entry, usually the first one, and count its cost."""
        self._pop(entry)
        self._now = max(self._now, entry.finish)
        self._forget_idle_flows()

    def remove(self, entry: Entry[Item]) -> None:
        """Remove an entry without service. Its flow does not pay for it if the entry is the flow's last."""
        self._pop(entry)
        if self._finishes.get(entry.flow) == entry.finish:
            self._finishes[entry.flow] = entry.start
        self._forget_idle_flows()

    def _pop(self, entry: Entry[Item]) -> None:
        self._entries.pop(self.num_before(entry))
        self._num_waiting[entry.flow[0]] -= 1
        if not self._num_waiting[entry.flow[0]]:
            del self._num_waiting[entry.flow[0]]

    def _forget_idle_flows(self) -> None:
        if not self._entries:
            self._now = 0.0
            self._finishes.clear()
