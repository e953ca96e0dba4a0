"""One supervised child process: its log is forwarded with its name, its end is reported, and it can be ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from frontend.serve.child_lines import text_line
from model_repository.errors import LOAD_FAILURE

_NUM_LAST_LINES = 20
_LOAD_FAILURE = re.compile(rf"\S+ {LOAD_FAILURE} .*")
_DRAIN_S = 1.0  # for the log of a child that has ended; its own children may hold the pipe open


class Child:
    """A command that runs in a session of its own, so that Ctrl-C reaches the launcher alone. It may be started again.

    Args:
        name: of its log lines.
        environment: the whole of it.
        log: takes one line, without its end, from another thread.
        named: puts the name into a line.
        on_end: called from another thread when it has ended, however it did.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        log: Callable[[str], None],
        named: Callable[[str, str], str] = text_line,
        on_end: Callable[[Child], None] = lambda child: None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self._environment = dict(environment)
        self._log = log
        self._named = named
        self._on_end = on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self._load_failures: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self._reported = threading.Event()

    @property
    def pid(self) -> int:
        """The process id, which is also its process group's and its session's."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def last_lines(self) -> list[str]:
        """The end of its log."""
        return list(self._last_lines)

    @property
    def load_failures(self) -> list[str]:
        """The lines of its log in which a stage says why it does not load, without what stands before the stage."""
        return list(self._load_failures)

    def start(self) -> None:
        """Start it, or start it again after it has ended.

        Raises:
            OSError: the command cannot be run.
        """
        assert not self.is_running, "already running"
        self._last_lines.clear()
        self._load_failures.clear()
        self._reported.clear()
        self._process = subprocess.Popen(
            self.command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        reader = threading.Thread(target=self._forward, args=(self._process.stdout,), daemon=True)
        reader.start()
        threading.Thread(target=self._report_end, args=(self._process, reader), daemon=True).start()

    def stop(self, grace_s: float) -> None:
        """Ask it to end; after the grace, kill it and its process group."""
        if self.is_running:
            self.ask_to_end()
            if not self._reported.wait(grace_s):
                self.kill()

    def ask_to_end(self) -> None:
        """Ask it to end, if it runs; a frontend that is asked twice ends what is under way."""
        if self.is_running:
            self._signal(os.kill, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and its process group at once, and wait until it is gone."""
        if self._process is not None:
            self._signal(os.killpg, signal.SIGKILL)
            self._reported.wait()

    def how_it_ended(self) -> str:
        """Return a sentence for people."""
        assert self._process is not None and self._process.returncode is not None, "still running"
        status = self._process.returncode
        if status < 0:
            return f"{self.name} was killed by {signal.Signals(-status).name}"
        return f"{self.name} ended with status {status}"

    def _signal(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            send(self.pid, number)

    def _forward(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                text = line.decode("utf-8", "replace").rstrip()
                self._last_lines.append(text)
                if found := _LOAD_FAILURE.search(text):
                    self._load_failures.append(found[0])
                with contextlib.suppress(
                    OSError, ValueError
                ):  # nobody reads our output: the child goes on all the same
                    self._log(self._named(self.name, text))

    def _report_end(self, process: subprocess.Popen[bytes], reader: threading.Thread) -> None:
        process.wait()
        reader.join(_DRAIN_S)
        self._reported.set()
        self._on_end(self)
