"""The recent turns of models in memory, and the keys that pay for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from model_repository.arbiter.types import OPERATOR

RECENT_S = 60.0  # turns and loads of a key count for this time
MAX_RECENT_LOADS = 60  # of a key: idle models may change places at every request, but a loop of aborted loads ends


@dataclass(slots=True)
class Turn:
    """The time of a model in memory, which the key that caused the load pays for."""

    key: str
    began_s: float
    granted_s: float = math.inf  # the first grant
    ended_s: float = math.inf


class Turns:
    """The recent turns of all models."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []  # in order of their beginning

    def begin(self, key: str, now: float) -> Turn:
        self._turns = [turn for turn in self._turns if now < turn.ended_s + RECENT_S]
        self._turns.append(Turn(key, now))
        return self._turns[-1]

    def recent_s(self, key: str, now: float) -> float:
        """Return the time of recent turns that a key has caused."""
        turns = (turn for turn in self._turns if turn.key == key)
        return sum(max(0.0, min(now, turn.ended_s) - max(turn.began_s, now - RECENT_S)) for turn in turns)

    def may_load_at_s(self, key: str, now: float) -> float:
        """Return the time from which a key may cause a load. Until then it waits: a refusal would break a request."""
        loads = [turn.began_s for turn in self._turns if turn.key == key and now < turn.began_s + RECENT_S]
        return -math.inf if key == OPERATOR or len(loads) < MAX_RECENT_LOADS else loads[0] + RECENT_S
