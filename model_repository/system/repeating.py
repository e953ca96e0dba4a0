"""A function that is called again and again beside other work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(function: Callable[[], None], period_s: float) -> Iterator[None]:
    """Call a function in a thread of its own after each period until the block ends. It must not raise."""
    has_ended = threading.Event()

    def run() -> None:
        while not has_ended.wait(period_s):
            function()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
