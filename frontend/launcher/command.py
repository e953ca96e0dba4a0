"""The command `serve`: it prints a request to try once the models answer, and serves until a signal.

On a terminal the log of Triton and the frontend goes to a file, and only what a person needs is printed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread
from types import FrameType
from typing import Any, TextIO

from frontend.launcher.child import json_line
from frontend.launcher.errors import LaunchError
from frontend.launcher.launcher import EVERY_ADDRESS, Interrupted, Launcher, LauncherSettings
from frontend.launcher.signals import EndingSignals
from frontend.launcher.triton_health import path_to_try
from frontend.launcher.triton_server import ADDRESS
from frontend.settings import Settings
from frontend.terminal import Colour, print_error, write_coloured
from model_repository.system.repeating import repeated
from model_repository.system.terminal_text import escaped_output, unescaped

LOG_FILE = "serve.log"
# Lines of the frontend that a person must see: failed requests, crashes, reloads.
_TOLD = re.compile(
    r'\[frontend\] \S+ (?:WARNING|ERROR|CRITICAL) |{"process": "frontend".*"level": ?"(?:WARNING|ERROR|CRITICAL)"'
)

# A body for each path, without the model.
_BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "What is the capital of France?"}]},
    "/v1/completions": {"prompt": "The capital of France is"},
    "/v1/embeddings": {"input": "The capital of France is Paris."},
    "/v1/rerank": {"query": "What is the capital of France?", "documents": ["Paris.", "Bread."]},
}


def serve(
    settings: LauncherSettings,
    out: TextIO,
    err: TextIO,
    *,
    signals: EndingSignals,
    lock: TextIO,
    is_verbose: bool = False,
    talk: Callable[[str, str], int] | None = None,
) -> int:
    """Serve until a signal, and return 0; after an error, write it to `err` and return 1.

    Args:
        signals: each ends serving.
        lock: of the server's folder, which gets the log.
        is_verbose: print the whole log, also on a terminal or beside a conversation.
        talk: called with the URL and the first model once the models answer; its end is the end of serving, and its
            result is returned. A signal before it is called gives the status of Ctrl-C.
    """
    status_of_signal = 0 if talk is None else 128 + signal.SIGINT
    is_quiet = (err.isatty() or talk is not None) and not is_verbose
    is_json = settings.frontend.log_format == "json"
    loading = _LoadingLine(unescaped(err) if is_quiet and err.isatty() else None)
    write_to_file: Callable[[str], None] | None = None

    def log(line: str) -> None:
        if write_to_file is None or _TOLD.match(line):
            notify(line)
        else:
            write_to_file(line)

    def notify(line: str) -> None:
        with loading.hidden():
            write_line(line, err)
        if write_to_file is not None:
            write_to_file(line)

    launcher = Launcher(settings, lock, log, notify)
    signals.call(lambda number: launcher.interrupt())
    try:
        with ExitStack() as stack, launcher:
            if is_quiet:
                path = Path(lock.name).parent / LOG_FILE
                write_to_file = stack.enter_context(_log_file(path, lambda text: write_line(text, err)))
                write_line(f"Starting Triton and the frontend. Their log is in {path}.", err)
            launcher.start()
            with loading:
                model_ids = launcher.wait_until_ready()
            for text in (*launcher.on_devices, *launcher.unserved):
                launcher.report(text)
            if talk is not None:
                status_of_signal = 0
                return _talk(launcher, signals, lambda: talk(launcher.url, model_ids[0]))
            grpc = f"{ADDRESS}:{launcher.triton_ports.grpc}"
            steps = _first_steps(launcher.url, grpc, model_ids, launcher.on_demand, launcher.frontend_settings)
            if is_json and not out.isatty():
                launcher.report(f"Ready: {steps}")
            else:
                with _lasting(out):
                    out.write("\n")
                    write_coloured("Ready:", Colour.GREEN, out)
                    out.write(f" {steps}\n")
                    out.flush()
            launcher.watch()
    except Interrupted:
        return status_of_signal
    except (LaunchError, OSError) as exc:
        write_error(exc, err, is_json=is_json)
    return 1


def write_error(error: Exception, err: TextIO, *, is_json: bool) -> None:
    """Write the line of an error, after the last lines of the children."""
    for line in error.log if isinstance(error, LaunchError) else ():
        write_line(json_line("serve", line) if is_json else line, err)
    if is_json:
        write_line(json_line("serve", f"error: {error}"), err)
    else:
        with _lasting(err):
            print_error(error, err)


def _talk(launcher: Launcher, signals: EndingSignals, talk: Callable[[], int]) -> int:
    """Talk in this thread while another one restarts ended children. Ctrl-C is for the conversation.

    Raises:
        Interrupted: another signal has ended the conversation.
        LaunchError: a child has ended too often.
    """
    failures: list[LaunchError] = []

    def watch() -> None:
        try:
            with suppress(Interrupted):
                launcher.watch()
        except LaunchError as exc:
            failures.append(exc)
            os.kill(os.getpid(), signal.SIGTERM)

    def end(number: int, frame: FrameType | None) -> None:
        raise failures[0] if failures else Interrupted

    watcher = Thread(target=watch, name="watch", daemon=True)
    watcher.start()
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: end, signal.SIGHUP: end}
    try:
        with signals.handled(handlers):
            return talk()
    finally:
        signals.call(lambda number: launcher.interrupt())
        launcher.interrupt()
        watcher.join()


class _LoadingLine:
    """A line that shows on a terminal how long the loading has taken so far; a context manager.

    Args:
        terminal: None: nothing is shown.
    """

    def __init__(self, terminal: TextIO | None) -> None:
        self._terminal = terminal
        self._lock = Lock()
        self._text = ""  # on the terminal now
        self._stack = ExitStack()

    def __enter__(self) -> None:
        if self._terminal is not None:
            self._started = time.monotonic()
            self._stack.callback(self._show, "")
            self._stack.enter_context(repeated(self._show_time, 1.0))

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Make room for another line; this one returns below it."""
        with self._lock:
            self._replace("")
            yield

    def _show_time(self) -> None:
        self._show(f"Loading the models: {time.monotonic() - self._started:.0f} s")

    def _show(self, text: str) -> None:
        with self._lock:
            self._replace(text)

    def _replace(self, text: str) -> None:
        if self._terminal is not None and self._text != text:
            with _lasting(self._terminal):
                self._terminal.write(f"\r\x1b[K{text}")
                self._terminal.flush()
            self._text = text


@contextmanager
def _log_file(path: Path, tell: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Begin a log, and yield a function that writes a line to it. A full disk is told once, and ends nothing."""
    told: list[str] = []

    def write(line: str) -> None:
        try:
            stream.write(f"{line}\n")
            stream.flush()
        except OSError as exc:
            if not told:
                told.append(f"{path}: {exc.strerror}: lines of the log are missing")
                tell(told[0])

    file = path.open("a", encoding="utf-8")  # a program that rotates logs may empty it
    file.truncate(0)
    stream = escaped_output(file)
    try:
        yield write
    finally:
        with suppress(OSError):  # closing writes the rest
            file.close()


def write_line(text: str, stream: TextIO) -> None:
    """Write a line to a stream that may be gone."""
    with _lasting(stream):
        stream.write(f"{text}\n")
        stream.flush()


@contextmanager
def _lasting(stream: TextIO) -> Iterator[None]:
    """Write to a stream. A reader that is gone, or a full disk, ends no server."""
    try:
        yield
    except BrokenPipeError:
        with open(os.devnull, "w") as null:  # else the flush at exit fails
            os.dup2(null.fileno(), stream.fileno())
    except OSError:
        pass


def _first_steps(url: str, grpc: str, model_ids: list[str], on_demand: list[str], frontend: Settings) -> str:
    path = path_to_try(frontend, model_ids[0])
    body = {"model": model_ids[0], **_BODIES[path]}
    key = ' -H "Authorization: Bearer $API_KEY"' if frontend.key_file else ""
    headers = f"-H 'Content-Type: application/json'{key}"
    everywhere = (
        f" (and port {frontend.port} of every address of this machine)" if frontend.host in EVERY_ADDRESS else ""
    )
    browser = f" A browser shows a playground at {url}." if frontend.has_web_pages else ""
    later = f" A request loads {', '.join(on_demand)}." if on_demand else ""
    return (
        f"{url}{everywhere} serves {', '.join(model_ids)}, and {grpc} gRPC clients.{later} Ctrl-C stops it.{browser} "
        "Try:\n\n"
        f"  curl {url}{path} {headers} -d {shlex.quote(json.dumps(body))}\n"
    )
