"""The order in which requests wait for a runtime: by arrival, with a head start for urgent ones."""

from __future__ import annotations

from model_repository.contract.request import EngineRequest

HEAD_START_S = 10.0  # a priority's, over the next lower one


def queue_order_s(request: EngineRequest, now_s: float) -> float:
    """Return a request's place in the queue: the smallest is next. `now_s` is its arrival, by one clock for all."""
    return now_s + request.params.priority * HEAD_START_S
