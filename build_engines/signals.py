"""Signals that end a command like an exception."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator
from types import FrameType

from model_repository.system.process_start import ENDING_SIGNALS

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let signals raise SystemExit in the block, so that its `finally` clauses clean up."""

    def end(number: int, frame: FrameType | None) -> None:
        for other in ENDING_SIGNALS:
            signal.signal(other, signal.SIG_IGN)  # a second signal would interrupt the cleaning up
        logger.info(
            "%s: stopping; unfinished artifacts are removed, finished downloads are kept", signal.Signals(number).name
        )
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
