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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread
from types import FrameType
from typing import Any, TextIO

from frontend.launcher.errors import LaunchError
from frontend.launcher.launcher import EVERY_ADDRESS, Interrupted, Launcher, LauncherSettings
from frontend.launcher.triton_health import first_task, takes_chats
from frontend.launcher.triton_server import ADDRESS
from frontend.settings import Settings
from frontend.terminal import Colour, print_error, write_coloured
from model_repository.model_parameters import Task
from model_repository.system.repeating import repeated
from model_repository.system.terminal_text import escaped_output, unescaped

LOG_FILE = "serve.log"
# Lines of the frontend that a person must see: failed requests, crashes, reloads.
_TOLD = re.compile(r'\[frontend\] (?:WARNING|ERROR|CRITICAL) |.*"level": ?"(?:WARNING|ERROR|CRITICAL)"')


def serve(
    settings: LauncherSettings,
    out: TextIO,
    err: TextIO,
    *,
    is_verbose: bool = False,
    talk: Callable[[str, str], int] | None = None,
) -> int:
    """Serve until a signal, and return 0; after an error, write it to `err` and return 1.

    Args:
        is_verbose: print the whole log, also on a terminal or beside a conversation.
        talk: called with the URL and the first model once the models answer; its end is the end of serving, and its
            result is returned. A signal before it is called gives the status of Ctrl-C.
    """
    status_of_signal = 0 if talk is None else 128 + signal.SIGINT
    is_quiet = (err.isatty() or talk is not None) and not is_verbose
    streams = [err]  # these get the launcher's own lines; the last one has the children's log too

    def log(line: str) -> None:
        if _TOLD.match(line):
            notify(line)
        else:
            _write(line, streams[-1])

    def notify(line: str) -> None:
        for stream in streams:
            _write(line, stream)

    launcher = Launcher(settings, log, notify)
    _call_at_signals(launcher.interrupt)
    try:
        with ExitStack() as stack, launcher:
            if is_quiet:
                path = settings.state_dir / LOG_FILE
                streams.append(escaped_output(stack.enter_context(path.open("w", encoding="utf-8"))))
                _write(f"Starting Triton and the frontend. Their log is in {path}.", err)
            launcher.start()
            with _elapsed_time("Loading the models", unescaped(err) if is_quiet and err.isatty() else None):
                model_ids = launcher.wait_until_ready()
            for text in launcher.unserved:
                launcher.report(text)
            if talk is not None:
                status_of_signal = 0
                return _talk(launcher, lambda: talk(launcher.url, model_ids[0]))
            grpc = f"{ADDRESS}:{launcher.triton_ports.grpc}"
            steps = _first_steps(launcher.url, grpc, model_ids, launcher.frontend_settings)
            out.write("\n")
            write_coloured("Ready:", Colour.GREEN, out)
            _write(f" {steps}", out)
            launcher.watch()
    except Interrupted:
        return status_of_signal
    except (LaunchError, OSError) as exc:
        for line in exc.log if isinstance(exc, LaunchError) else ():
            _write(line, err)
        print_error(exc, err)
    return 1


def _talk(launcher: Launcher, talk: Callable[[], int]) -> int:
    """Talk in this thread while another one restarts ended children. Ctrl-C is for the conversation.

    Raises:
        Interrupted: another signal has ended the conversation.
        ChildEnded: a child has ended too often.
    """
    failures: list[LaunchError] = []

    def watch() -> None:
        try:
            with suppress(Interrupted):
                launcher.watch()
        except LaunchError as exc:
            failures.append(exc)
            os.kill(os.getpid(), signal.SIGTERM)

    def end() -> None:
        raise failures[0] if failures else Interrupted

    watcher = Thread(target=watch, name="watch", daemon=True)
    _call_at_signals(end)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    watcher.start()
    try:
        return talk()
    finally:
        _call_at_signals(launcher.interrupt)
        launcher.interrupt()
        watcher.join()


@contextmanager
def _elapsed_time(title: str, terminal: TextIO | None) -> Iterator[None]:
    """Show on a terminal how long the block has taken so far."""
    if terminal is None:
        yield
        return
    started = time.monotonic()

    def show() -> None:
        terminal.write(f"\r{title}: {time.monotonic() - started:.0f} s")
        terminal.flush()

    try:
        with repeated(show, 1.0):
            yield
    finally:
        terminal.write("\r\x1b[K")


def _call_at_signals(function: Callable[[], None]) -> None:
    """Call a function at each signal that would end the program."""

    def handle(number: int, frame: FrameType | None) -> None:
        function()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def _write(text: str, stream: TextIO) -> None:
    stream.write(f"{text}\n")
    stream.flush()


def _first_steps(url: str, grpc: str, model_ids: list[str], frontend: Settings) -> str:
    body: dict[str, Any] = {"model": model_ids[0]}
    if takes_chats(url, model_ids[0]):
        path = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": "What is the capital of France?"}]
    elif first_task(url) == Task.EMBED:
        path = "/v1/embeddings"
        body["input"] = "The capital of France is Paris."
    else:
        path = "/v1/completions"
        body["prompt"] = "The capital of France is"
    key = ' -H "Authorization: Bearer $API_KEY"' if frontend.key_file else ""
    headers = f"-H 'Content-Type: application/json'{key}"
    everywhere = (
        f" (and port {frontend.port} of every address of this machine)" if frontend.host in EVERY_ADDRESS else ""
    )
    browser = f" A browser shows a playground at {url}." if frontend.has_web_pages else ""
    return (
        f"{url}{everywhere} serves {', '.join(model_ids)}, and {grpc} gRPC clients. Ctrl-C stops it.{browser} Try:\n\n"
        f"  curl {url}{path} {headers} -d {shlex.quote(json.dumps(body))}\n"
    )
