"""A server with API keys and an operations port, as an administrator sees it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from frontend.launcher.launcher import Launcher
from frontend.settings import Settings
from tests.frontend.gateway.key_files import KeyFile
from tests.launching import free_port, launcher_settings


@dataclass(frozen=True)
class Server:
    """A running server with keys."""

    launcher: Launcher
    admin_url: str
    key_file: KeyFile

    def client(self, name: str, url: str = "") -> openai.OpenAI:
        """Return the official client with a key, of this server or of another that has the same keys."""
        base_url = f"{url or self.launcher.url}/v1"
        return openai.OpenAI(base_url=base_url, api_key=self.key_file.texts[name], max_retries=0, timeout=60)

    def admin(self, method: str, path: str, key: str = "admin", /, **body: Any) -> tuple[int, Any]:
        """Return status and body of an answer of the operations port."""
        headers = {**self.key_file.headers(key), "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(f"{self.admin_url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as exc:
            return exc.code, json.load(exc)


@contextmanager
def running_server(repository: Path, folder: Path, key_file: KeyFile) -> Iterator[Server]:
    """Run Triton and a frontend of two workers until the end of the block."""
    admin_port = free_port()
    frontend = Settings(  # requests may wait in the engine, where an unload finds them
        workers=2, key_file=str(key_file.path), admin_port=admin_port, stats_interval_s=0.2, max_in_flight=1024
    )
    settings = launcher_settings(repository, folder / "state", frontend)
    with (
        (folder / "log").open("w") as log,
        Launcher(settings, lambda line: print(line, file=log, flush=True)) as launcher,
    ):
        launcher.start()
        launcher.wait_until_ready()
        yield Server(launcher, f"http://127.0.0.1:{admin_port}", key_file)
