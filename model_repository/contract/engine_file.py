"""Files by which the arbiter and the engines speak, in the folder that their server runs in. Each server makes it anew.

An engine locks its file for as long as its process lives, and writes its state there. The arbiter makes a second file
to stop it. They do not speak through Triton: a stage that asks for a model's state, or calls a stage, crashes (2.51).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

READY = "ready"  # it serves requests
LEFT = "left"  # it has freed its memory, and is of no use any more

_INTERVAL_S = 0.1
_SIZE = 5  # bytes of each state: a write of so few is read as a whole

_own: int | None = None  # the open file of this process
_own_stop: Path | None = None
_written_s = 0.0


def _state_file(ensemble: str) -> Path:
    return Path(f"{ensemble}.engine")


def _stop_file(ensemble: str) -> Path:
    return Path(f"{ensemble}.stop")


# --- the engine's end -------------------------------------------------------------------------------------------------
def begin_load(ensemble: str) -> None:
    """Make this process the engine of an ensemble, which loads."""
    global _own, _own_stop
    _own_stop = _stop_file(ensemble)
    for path in (_own_stop, _state_file(ensemble)):
        path.unlink(missing_ok=True)
    _own = os.open(_state_file(ensemble), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    fcntl.flock(_own, fcntl.LOCK_EX)
    note_state("0.000")


def note_share(share: float) -> bool:
    """Note the share that is loaded, 0 to 1; return whether the load shall go on."""
    global _written_s
    if _own_stop is None or time.monotonic() - _written_s < _INTERVAL_S:
        return True
    _written_s = time.monotonic()
    note_state(f"{share:.3f}")
    return not _own_stop.exists()


def note_state(state: str) -> None:
    """Note READY, LEFT, or the share that is loaded."""
    if _own is not None:
        os.pwrite(_own, state.ljust(_SIZE).encode(), 0)


# --- the arbiter's end ------------------------------------------------------------------------------------------------
def state_of(ensemble: str) -> str | None:
    """Return the state of an engine: READY, LEFT, or the share that is loaded; None: no such engine runs."""
    try:
        with _state_file(ensemble).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(_SIZE).decode().rstrip()
    except FileNotFoundError:
        pass
    return None


def share_of_load(ensemble: str) -> float | None:
    """Return the share that an engine has loaded; None: no engine of this name loads."""
    with contextlib.suppress(ValueError):
        return float(state_of(ensemble) or "")
    return None


def stop_engine(ensemble: str) -> None:
    """Have an engine stop its load, if it loads and its library can stop; count it as stopped in any case."""
    _stop_file(ensemble).touch()


def is_stopped(ensemble: str) -> bool:
    """Whether the engine that runs, or ran last, was to stop."""
    return _stop_file(ensemble).exists()
