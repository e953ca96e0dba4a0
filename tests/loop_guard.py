"""A guard of an event loop: it sums the processor time of each callback, and knows the longest one of a request."""

from __future__ import annotations

import asyncio
import functools
import gc
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

MAX_UNITS = 50
NUM_TRIES = 3
_NUM_STEPS = 20_000  # of the loop that is the unit, about a millisecond
_CODE = Path(__file__).parents[1]
_PACKAGES = (str(_CODE / "frontend"), str(_CODE / "model_repository"))


def unit_s() -> float:
    """Return the processor time of a fixed loop of Python, the median of five."""

    def once() -> float:
        begun, number = time.thread_time(), 0
        for step in range(_NUM_STEPS):
            number = (number + step) & 0xFFFF
        return time.thread_time() - begun

    return statistics.median(once() for _ in range(5))


@dataclass(frozen=True, slots=True)
class Piece:
    """Work that lets nothing else run on the loop.

    Args:
        code: the callback, or the call of another thread that keeps Python's lock.
    """

    seconds: float
    code: str


_NO_PIECE = Piece(0.0, "nothing")


class LoopGuard:
    """Measures the callbacks of the loop that runs in one thread. Collections of garbage do not count.

    Args:
        thread: the loop's, by `threading.get_ident`.
        has_threads: also measures in threads that begin later how long they keep Python's lock, for which the loop
            waits: the time in one C function between two events of Python, at which the interpreter may pass the lock
            on. This makes such a thread slow.
    """

    def __init__(self, thread: int, *, has_threads: bool = False) -> None:
        self.longest = _NO_PIECE
        self.max_units = MAX_UNITS
        self._thread = thread
        self._has_threads = has_threads
        self._least_unit_s = unit_s()
        self._collections = threading.local()  # seconds of this thread, and the start of the present one
        self._profile: _Profile | None = None  # of the longest callback
        self._is_profiling = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure within a block."""
        run: Any = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            if threading.get_ident() == self._thread:
                self._measure(run, handle)
            else:
                run(handle)

        gc.callbacks.append(self._note_collection)
        if self._has_threads:
            threading.setprofile(lambda *event: _Watch(self)(*event))
        asyncio.Handle._run = measured  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign]
            threading.setprofile(None)
            gc.callbacks.remove(self._note_collection)

    def complaint(self, name: str, send: Callable[[], None]) -> str | None:
        """Return the longest piece of a request with its code if it is too long in each of three tries.

        Args:
            name: the request's.
            send: sends it, and returns when it is answered and nothing of it is left to run.
        """
        seconds = []
        for _ in range(NUM_TRIES):
            self._try(send)
            if self.longest.seconds <= self.max_units * self._least_unit_s:
                return None
            unit = unit_s()  # a busy machine takes longer for everything
            self._least_unit_s = min(self._least_unit_s, unit)
            if self.longest.seconds <= self.max_units * unit:
                return None
            seconds.append(self.longest.seconds)
        self._is_profiling = True
        gc.disable()  # a profile counts collections, too
        self._try(send)
        gc.enable()
        self._is_profiling = False
        best = min(seconds)
        return f"{name}: {best * 1000:.0f} ms ({best / self._least_unit_s:.0f} units) in one piece: {self._named()}"

    def note(self, piece: Piece) -> None:
        """Keep the longest piece."""
        if piece.seconds > self.longest.seconds:
            self.longest = piece

    def _try(self, send: Callable[[], None]) -> None:
        clear_caches()
        self.longest, self._profile = _NO_PIECE, None
        send()

    def _measure(self, run: Callable[[asyncio.Handle], None], handle: asyncio.Handle) -> None:
        profile = _Profile() if self._is_profiling else None
        before, begun = self.collections_s(), time.thread_time()
        sys.setprofile(profile)
        run(handle)
        sys.setprofile(None)
        seconds = time.thread_time() - begun - (self.collections_s() - before)
        if seconds > self.longest.seconds:
            self.longest, self._profile = Piece(seconds, _callback_name(handle)), profile

    def collections_s(self) -> float:
        """Return the time of this thread's collections of garbage so far."""
        return getattr(self._collections, "seconds", 0.0)

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collections.begun = time.thread_time()
        else:
            self._collections.seconds = self.collections_s() + time.thread_time() - self._collections.begun

    def _named(self) -> str:
        """Return the longest piece, with the function of ours that takes most of its time."""
        if self._profile is None:
            return self.longest.code
        ours, work = (max(each, key=each.__getitem__) for each in (self._profile.ours, self._profile.all))
        return f"{ours}, most of it in {work}, in {self.longest.code}"


class _Profile:
    """Sums the time of each function in one callback. cProfile would mix the threads."""

    def __init__(self) -> None:
        self.ours: defaultdict[str, float] = defaultdict(
            float
        )  # seconds of our functions, with the others that they call
        self.all: defaultdict[str, float] = defaultdict(float)  # of all functions, of each one alone
        self._inside = [("nothing of ours", "the event loop")]
        self._last_s = time.thread_time()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        spent_s = time.thread_time() - self._last_s
        ours, name = self._inside[-1]
        self.ours[ours] += spent_s
        self.all[name] += spent_s
        if event == "c_call":
            self._inside.append((ours, arg.__qualname__))
        elif event == "call":
            path, name = frame.f_code.co_filename, frame.f_code.co_qualname
            is_ours = path.startswith(_PACKAGES)
            self._inside.append((f"{Path(path).relative_to(_CODE)}:{name}" if is_ours else ours, name))
        elif len(self._inside) > 1:
            self._inside.pop()
        self._last_s = time.thread_time()


class _Watch:
    """Sees the events of one thread, and notes the time that it spends in C functions between them."""

    def __init__(self, guard: LoopGuard) -> None:
        self._guard = guard
        self._inside = [""]  # the functions that run now: a name for one of C
        self._last_s = 0.0
        sys.setprofile(self)

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        now_s = time.thread_time() - self._guard.collections_s()
        if name := self._inside[-1]:
            self._guard.note(Piece(now_s - self._last_s, name))
        if event == "c_call":
            self._inside.append(f"{arg.__qualname__} called by {frame.f_code.co_qualname} in another thread")
        elif event == "call":
            self._inside.append("")
        elif len(self._inside) > 1:
            self._inside.pop()
        self._last_s = time.thread_time() - self._guard.collections_s()


def clear_caches() -> None:
    """Forget what our functions have cached, so that a second try does the same work as the first."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("frontend.", "model_repository.")):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper) and value.cache_parameters()["maxsize"] is not None:
                    value.cache_clear()


def _callback_name(handle: asyncio.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"a task of {owner.get_coro().__qualname__}"  # type: ignore[union-attr]
    return getattr(callback, "__qualname__", repr(callback))
