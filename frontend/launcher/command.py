"""The command `serve`: it prints a request to try once the models answer, and serves until a signal."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable
from types import FrameType
from typing import TextIO

from frontend.launcher.errors import LaunchError
from frontend.launcher.launcher import Interrupted, Launcher, LauncherSettings


def serve(settings: LauncherSettings, out: TextIO, err: TextIO) -> int:
    """Serve until a signal, and return 0; after an error, write it to `err` and return 1."""
    launcher = Launcher(settings, lambda line: _write(line, err), has_request_lines=not err.isatty())
    _call_at_signals(launcher.interrupt)
    try:
        with launcher:
            launcher.start()
            has_keys = bool(settings.frontend.key_file)
            _write(_ready_message(launcher.url, launcher.wait_until_ready(), has_keys), out)
            launcher.watch()
    except Interrupted:
        return 0
    except (LaunchError, OSError) as exc:
        _write(f"error: {exc}", err)
    return 1


def _call_at_signals(function: Callable[[], None]) -> None:
    """Call a function at each signal that would end the program."""

    def handle(number: int, frame: FrameType | None) -> None:
        function()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def _write(text: str, stream: TextIO) -> None:
    stream.write(f"{text}\n")
    stream.flush()


def _ready_message(url: str, model_ids: list[str], has_keys: bool) -> str:
    body = {"model": model_ids[0], "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    key = ' -H "Authorization: Bearer $API_KEY"' if has_keys else ""
    headers = f"-H 'Content-Type: application/json'{key}"
    return (
        f"\nReady: {url} serves {', '.join(model_ids)}. Ctrl-C stops it. Try:\n\n"
        f"  curl {url}/v1/chat/completions {headers} -d {shlex.quote(json.dumps(body))}\n"
    )
