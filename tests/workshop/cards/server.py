"""Conch with a model on the card, or on the cores beside it, as a client sees it. Python's own library is enough."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.workshop.cards.build import ROOT

MAX_SEQUENCES = 8  # that the server decodes at the same time
WINDOW = 2048  # tokens of a prompt and its completion
_READY_S = 600.0  # a first use may compile code for the card
_ANSWER_S = 300.0
_STOP_S = 60.0
_ENGINE = re.compile(rb"triton_python_backend_stub.*engine")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server with one model."""

    url: str
    model: str
    pid: int
    ready_s: float
    lines: tuple[str, ...]  # that it printed before Ready

    def post(self, path: str, **fields: Any) -> Any:
        """Return the answer of an endpoint."""
        body = json.dumps({"model": self.model, **fields}).encode()
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            return json.load(answer)

    def complete(self, prompt: str | Sequence[int], num_tokens: int, **fields: Any) -> dict[str, Any]:
        """Return the answer to a completion with this number of tokens, greedy unless the fields say otherwise."""
        whole = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
        found: dict[str, Any] = self.post("/v1/completions", **(whole | fields))
        return found

    def texts(self, prompts: Sequence[str], num_tokens: int, num_clients: int) -> list[str]:
        """Return the greedy texts of prompts, asked by several clients at the same time."""
        with ThreadPoolExecutor(num_clients) as pool:
            answers = pool.map(lambda prompt: self.complete(prompt, num_tokens), prompts)
            return [str(answer["choices"][0]["text"]) for answer in answers]

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Return the log probabilities of tokens behind the first one."""
        answer = self.complete(token_ids, 0, echo=True, logprobs=1)
        return [float(each) for each in answer["choices"][0]["logprobs"]["token_logprobs"][1:]]

    def stream(self, prompt: str, num_tokens: int) -> Iterator[dict[str, Any]]:
        """Yield the events of a greedy stream; an error is one, too."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
        payload = json.dumps(body | {"stream": True}).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", payload, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    yield json.loads(line.removeprefix(b"data: "))

    def engine_pid(self) -> int:
        """Return the process that computes."""
        return next(pid for pid in _descendants(self.pid) if _ENGINE.search(_read(Path(f"/proc/{pid}/cmdline"))))


def _descendants(pid: int) -> Iterator[int]:
    for child in [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in _read(path).split()]:
        yield child
        yield from _descendants(child)


def _read(path: Path) -> bytes:
    with suppress(OSError):  # the process has ended
        return path.read_bytes()
    return b""


@contextmanager
def serving(python: Path, model: str, home: Path, log: Path, *options: str) -> Iterator[Server]:
    """Serve a model until the end of the block.

    Args:
        model: as `serve` takes it.

    Raises:
        RuntimeError: it does not start; with the end of its log.
    """
    ports = ("--port=0", "--triton-grpc-port=0", "--triton-metrics-port=0")
    limits = (f"--ready-timeout-s={_READY_S:g}", f"--max-sequences={MAX_SEQUENCES}", f"--context-window={WINDOW}")
    words = [str(python), "-u", "-m", "frontend", "serve", model, "--home", str(home), *ports, *limits, *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    began_s = time.monotonic()
    with log.open("w+") as file:
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
        try:
            while "\nReady: " not in (text := log.read_text(errors="replace")):
                if process.poll() is not None or time.monotonic() - began_s > _READY_S:
                    raise RuntimeError(f"{model} is not served: {text.splitlines()[-1:]}; see {log.name}")
                time.sleep(0.1)
            [url] = re.findall(r"listens on ([^\s\"]+)", text)[:1]
            with urllib.request.urlopen(f"{url}/v1/models", timeout=_ANSWER_S) as answer:
                name = json.load(answer)["data"][0]["id"]
            yield Server(url, name, process.pid, time.monotonic() - began_s, tuple(text.splitlines()))
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
