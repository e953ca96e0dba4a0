"""The order in which requests wait for a runtime: as they came, the urgent ones as if they had come earlier."""

from __future__ import annotations

from model_repository.contract.request import EngineRequest

HEAD_START_S = 10.0  # of a request over one of the next lower priority: who comes later than that does not pass it


def turn_s(request: EngineRequest, now_s: float) -> float:
    """Return what requests are ordered by that wait: the earliest is next.

    Args:
        now_s: when it came, by a clock that is the same for all of them.
    """
    return now_s + request.params.priority * HEAD_START_S
