"""The command `serve`: it says when the models answer and how to ask them, and serves until a signal."""

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
    """Serve until a signal, then return 0; after an error say on `err` what it was, and return 1."""
    launcher = Launcher(settings, lambda line: _say(line, err))
    _call_at_signals(launcher.interrupt)
    try:
        with launcher:
            launcher.start()
            has_keys = bool(settings.frontend.key_file)
            _say(_ready_message(launcher.url, launcher.wait_until_ready(), has_keys), out)
            launcher.watch()
    except Interrupted:
        return 0
    except (LaunchError, OSError) as exc:
        _say(f"error: {exc}", err)
    return 1


def _call_at_signals(function: Callable[[], None]) -> None:
    """Have the signals that end a program call this instead."""

    def handle(number: int, frame: FrameType | None) -> None:
        function()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)


def _say(text: str, stream: TextIO) -> None:
    stream.write(f"{text}\n")
    stream.flush()


def _ready_message(url: str, model_ids: list[str], has_keys: bool) -> str:
    question = {"model": model_ids[0], "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    key = ' -H "Authorization: Bearer $API_KEY"' if has_keys else ""
    headers = f"-H 'Content-Type: application/json'{key}"
    return (
        f"\nReady: {url} serves {', '.join(model_ids)}. Ctrl-C stops it. Try:\n\n"
        f"  curl {url}/v1/chat/completions {headers} -d {shlex.quote(json.dumps(question))}\n"
    )
