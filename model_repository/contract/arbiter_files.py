"""Files by which the arbiter and an engine speak, in the folder that their server runs in: each has its own, made anew.

A Triton request from stage to stage is no way: the stage that sends it crashes (2.51).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

_INTERVAL_S = 0.1

_own: Path | None = None  # of this process, while it loads an engine
_written_s = 0.0


# --- a load: the engine writes its progress, and the arbiter removes the file to stop it ------------------------------
def _loading(ensemble: str) -> Path:
    return Path(f"{ensemble}.loading")


@contextlib.contextmanager
def told_progress(ensemble: str) -> Iterator[None]:
    """Keep the file while this process loads the engine of an ensemble."""
    global _own
    _own = _loading(ensemble)
    _own.write_text("0.000")
    try:
        yield
    finally:
        _own.unlink(missing_ok=True)
        _own = None


def note_share(share: float) -> bool:
    """Note the share that is loaded, 0 to 1; return whether the load shall go on."""
    global _written_s
    if _own is None or time.monotonic() - _written_s < _INTERVAL_S:
        return True
    _written_s = time.monotonic()
    try:
        with _own.open("r+") as file:  # makes no new one, and has no moment without text
            file.write(f"{share:.3f}")
    except FileNotFoundError:
        return False
    return True


def share_of_load(ensemble: str) -> float | None:
    """Return the share that an engine has loaded; None: no engine of this name loads."""
    with contextlib.suppress(OSError, ValueError):  # it may be half written
        return float(_loading(ensemble).read_text())
    return None


def stop_load(ensemble: str) -> None:
    """Have an engine stop its load, if it loads and its library can stop."""
    _loading(ensemble).unlink(missing_ok=True)


# --- an unload: the engine removes the file once it is idle, and its memory is free -----------------------------------
def busy_file(ensemble: str) -> Path:
    """Return the path of the file, which the arbiter makes before it sends LEAVE."""
    return Path(f"{ensemble}.busy")
