"""Which sequences are probed because they have been silent: an empty release finds out whether anybody listens."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from model_repository.engine.sequence import EngineSequence

# A sequence that has sent nothing for so long is probed: its client may be gone, and only the detokenizer can tell.
PROBE_INTERVAL_S = 0.1
# One with a cancel key has somebody who cancels it, so probes only make up for a cancel that is lost.
KEYED_PROBE_INTERVAL_S = 5.0
# Each probe is a response and costs as much: there are no more than one in so long, over all sequences, ...
PROBE_GAP_S = 0.02
# ... but so many at once after a step that took longer.
_MAX_PROBES_PER_TURN = 5


class SilenceProbes:
    """The budget of probes.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_s = clock()

    def due(self, sequences: Iterable[EngineSequence]) -> list[EngineSequence]:
        """Return those that have been silent for the most of their intervals, as far as the budget goes.

        They count as heard. Those on a stream of deliveries are left out: the stream is probed.
        """
        now_s = self._clock()
        num_affordable = min(int((now_s - self._looked_s) / PROBE_GAP_S), _MAX_PROBES_PER_TURN)
        if not num_affordable:
            return []
        self._looked_s = now_s
        silences = (
            (_num_intervals_silent(item, now_s), item.number, item) for item in sequences if item.stream is None
        )
        due = [item for *_, item in heapq.nlargest(num_affordable, (each for each in silences if each[0] >= 1.0))]
        for sequence in due:
            sequence.heard_s = now_s
        return due


def _num_intervals_silent(sequence: EngineSequence, now_s: float) -> float:
    interval_s = KEYED_PROBE_INTERVAL_S if sequence.request.cancel_key else PROBE_INTERVAL_S
    return (now_s - sequence.heard_s) / interval_s
