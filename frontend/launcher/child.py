"""One supervised child process: it forwards the log of the process and reports its end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from model_repository.errors import LOAD_FAILURE
from model_repository.system.log_time import TIME, time_text
from model_repository.system.process_start import blocked

_NUM_LAST_LINES = 20
_ARG_START = 48 - 3  # field 48 of /proc/PID/stat (see proc(5)); the first two are cut off
# The name of a stage, and the first line of the reason, as the stage and Triton log them.
_LOAD_FAILURE = re.compile(rf"(\S+) {LOAD_FAILURE} (.+)")
_TRITON_LOAD_FAILURE = re.compile(
    r"(?:failed to load|Poll failed for model directory) '([^']+)'(?: version \d+)?: ([^\"\\]+)"
)
_NO_GPU = r"E\d{4} .*(?:CudaDriverHelper|CUDA driver)"
_WITHOUT_GPU = re.compile(_NO_GPU)  # Triton's errors at each start on a machine without GPUs; not logged there
_NVIDIA_DRIVER = Path("/proc/driver/nvidia")
# Lines of Triton that name no cause: progress, tables, and that there is no GPU.
_NO_CAUSE = re.compile(rf"[IW]\d{{4}} \d\d:|[+|]|$|{_NO_GPU}|Error: Failed to initialize NVML")
_TRITON_LINE = re.compile(rb"[IWEF]\d{4} \d\d:")  # a log line of a server; it has read its command line by then
# SIGABRT and SIGSEGV. After this line Triton prints its stack and ends, or waits for itself: its heap may be corrupt.
_CRASH = re.compile(r"Signal \((?:6|11)\) received\.")
_CRASH_S = 2.0  # time to write the stack
# The beginning of a line: of a stage, of Triton, or of a command's error.
_PREFIX = re.compile(
    rf"(?:(?P<time>{TIME.pattern}) )?"
    r"(?:(?P<level>INFO|WARNING|ERROR|CRITICAL) |(?=(?P<other>[IWEF](?=\d{4} \d\d:)|error: )))?"
)
_LEVELS = {"W": "WARNING", "E": "ERROR", "F": "CRITICAL", "error: ": "ERROR"}
_READ_BYTES = 65_536
_READ_PAUSE_S = 0.01  # a busy server writes many lines a second, and each read wakes this process
_DRAIN_S = 1.0  # time for the rest of an ended child's log; its own children may hold the pipe open


def text_line(process: str, line: str) -> str:
    """Return a log line for people, with a time."""
    return f"[{process}] {line}" if TIME.match(line) else f"[{process}] {time_text(time.time())} {line}"


def json_line(process: str, line: str) -> str:
    """Return a log line as a JSON object with the name of the process; another line becomes its message."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        found = _PREFIX.match(line)
        assert found is not None, "each of its parts may be absent"
        level = found["level"] or _LEVELS.get(found["other"], "INFO")
        fields = {"time": found["time"] or time_text(time.time()), "level": level, "message": line[found.end() :]}
    return json.dumps({"process": process} | fields, ensure_ascii=False)


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while chunk := os.read(stream.fileno(), _READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        time.sleep(_READ_PAUSE_S)
    if rest:
        yield rest


class Child:
    """A command that runs in a session of its own, so that Ctrl-C reaches the launcher alone. It can be started again.

    Args:
        name: the name in its log lines.
        environment: the whole environment.
        folder: the current folder of the command; None: that of the launcher.
        log: called with each line, without its end, from another thread.
        named: adds the name to a line.
        on_end: called from another thread when the process has ended, for any reason.
        secret: a part of the command line that is overwritten, since every user of the machine sees command lines.
            This happens at the first log line of a Triton, which has read its options by then.
        is_deaf: SIGTERM is blocked. A supervisor such as systemd may send it to every process of a service, but Triton
            has to go on while the frontend finishes its requests.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: Path | None = None,
        log: Callable[[str], None],
        named: Callable[[str, str], str] = text_line,
        on_end: Callable[[Child], None] = lambda child: None,
        secret: str = "",
        is_deaf: bool = False,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self._environment = dict(environment)
        self._folder = folder
        self._log = log
        self._named = named
        self._on_end = on_end
        self._secret = secret.encode()
        self._blocked = {signal.SIGTERM} if is_deaf else set[signal.Signals]()
        self._process: subprocess.Popen[bytes] | None = None
        self._last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self._load_failures: dict[str, str] = {}
        self._reported = threading.Event()

    @property
    def pid(self) -> int:
        """The id of the process, of its process group and of its session."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def last_lines(self) -> list[str]:
        """The last lines of its log."""
        return list(self._last_lines)

    @property
    def last_problem(self) -> str:
        """The last line of its log that may name the cause of its end."""
        lines = (line.strip() for line in reversed(self.last_lines) if not _NO_CAUSE.match(line))
        return TIME.sub("", next(lines, "its log names no cause"), count=1).strip()

    @property
    def load_failures(self) -> dict[str, str]:
        """The reasons why stages of Triton do not load, from its log, by the names of the stages."""
        return dict(self._load_failures)

    def ended_stages(self) -> dict[int, str]:
        """Return how stages of a Triton ended that failed, and for which it has not waited, by their process ids."""
        ends = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it is gone
                # See proc(5). The name in front may be cut inside a character.
                state, parent, *_, status = (folder / "stat").read_bytes().rpartition(b") ")[2].split()
                if state == b"Z" and int(parent) == self.pid and int(status):
                    ends[int(folder.name)] = _end(f"a stage of {self.name}", os.waitstatus_to_exitcode(int(status)))
        return ends

    def start(self) -> None:
        """Start the process, or start it again after its end.

        Raises:
            OSError: the command cannot be run.
        """
        assert not self.is_running, "already running"
        self._last_lines.clear()
        self._load_failures.clear()
        self._reported.clear()
        with blocked(self._blocked):
            self._process = subprocess.Popen(
                self.command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        reader = threading.Thread(target=self._forward, args=(self._process, self._process.stdout), daemon=True)
        reader.start()
        threading.Thread(target=self._report_end, args=(self._process, reader), daemon=True).start()

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM; after the grace period, kill the process and its process group."""
        if self.is_running:
            self.send(signal.SIGTERM)
            if not self._reported.wait(grace_s):
                self.kill()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        if self.is_running:
            self._signal(os.kill, number)

    def kill(self) -> None:
        """Kill the process and its process group at once, and wait until the process is gone."""
        if self._process is not None:
            self._signal(os.killpg, signal.SIGKILL)
            self._reported.wait()

    @property
    def has_crashed(self) -> bool:
        """Whether the process has ended by a fault of its own code."""
        return self._process is not None and self._process.returncode in (-signal.SIGABRT, -signal.SIGSEGV)

    def how_it_ended(self) -> str:
        """Return the end of the process as a sentence for people."""
        assert self._process is not None and self._process.returncode is not None, "still running"
        return _end(self.name, self._process.returncode)

    def _signal(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            send(self.pid, number)

    def _forward(self, process: subprocess.Popen[bytes], stream: IO[bytes]) -> None:
        secret = self._secret
        with stream:
            for line in _lines(stream):
                if secret and _TRITON_LINE.match(line):
                    self._hide(secret)
                    secret = b""
                text = line.decode("utf-8", "replace").rstrip()
                if _WITHOUT_GPU.match(text) and not _NVIDIA_DRIVER.exists():
                    continue
                self._last_lines.append(text)
                pattern = _LOAD_FAILURE if LOAD_FAILURE in text else _TRITON_LOAD_FAILURE
                if found := pattern.search(text):
                    self._load_failures.setdefault(*found.groups())
                with contextlib.suppress(OSError, ValueError):  # our own output may be closed: the child goes on
                    self._log(self._named(self.name, text))
                if _CRASH.match(text):
                    threading.Thread(target=self._end_crash, args=(process,), daemon=True).start()

    def _end_crash(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a Triton that does not end after a fatal signal."""
        try:
            process.wait(_CRASH_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _hide(self, secret: bytes) -> None:
        """Overwrite a part of the command line in the memory of the process."""
        try:
            folder = Path("/proc", str(self.pid))
            command_line = (folder / "cmdline").read_bytes()
            begin = int((folder / "stat").read_text().rpartition(")")[2].split()[_ARG_START])
            with (folder / "mem").open("r+b", buffering=0) as memory:
                for found in re.finditer(re.escape(secret), command_line):
                    memory.seek(begin + found.start())
                    memory.write(b"*" * len(secret))
        except OSError as exc:  # a hardened kernel, or the process has ended
            self._log(
                self._named(self.name, f"other users of this machine can read the key in its command line: {exc}")
            )

    def _report_end(self, process: subprocess.Popen[bytes], reader: threading.Thread) -> None:
        process.wait()
        reader.join(_DRAIN_S)
        self._reported.set()
        self._on_end(self)


def _end(name: str, status: int) -> str:
    """Return the end of a process as a sentence for people; a negative status is a signal."""
    if status < 0:
        return f"{name} was killed by {signal.Signals(-status).name}"
    return f"{name} ended with status {status}"
