"""What a client says, and its key, are in no log, no metric, no trace, and no error that says something else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.gateway.key_files import KeyFile
from tests.integration.api import CHAT, COMPLETIONS, Answer, Api
from tests.integration.logs import logged
from tests.integration.stack import Stack
from tests.launching import free_port
from tests.otlp_receiver import Receiver, receiving
from tests.waiting import DEADLINE_S, wait_until

SECRET = "xyzzy-4711"  # in everything that a client says
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": SECRET,
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": SECRET}}},
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [SECRET]}}, "required": ["a"], "additionalProperties": False}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
MESSAGES = [{"role": "system", "content": SECRET}, {"role": "user", "content": f"Say {SECRET}"}]
TALK: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_tokens": 12}
TEXT: dict[str, Any] = {"model": "demo", "prompt": SECRET, "max_tokens": 12}

SERVED = [
    (CHAT, TALK),
    (CHAT, TALK | {"stream": True, "tools": [TOOL]}),
    (CHAT, TALK | {"response_format": FORM, "max_tokens": 100}),
    (CHAT, TALK | {"chat_template_kwargs": {"mood": SECRET}, "user": SECRET, "stop": [SECRET]}),
    (COMPLETIONS, TEXT | {"stream": True, "echo": True, "n": 2, "logprobs": 1}),
    ("/tokenize", {"model": "demo", "prompt": SECRET}),
]
REFUSED = [  # each for something that is not secret: who sent a value that breaks a rule is told that value
    (CHAT, TALK | {"temperature": 9}),
    (CHAT, TALK | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "another"}}}),
    (CHAT, TALK | {"messages": [*MESSAGES, {"role": "nobody", "content": SECRET}]}),
    (CHAT, TALK | {"response_format": {**FORM, "json_schema": {"schema": SCHEMA}}}),
    (CHAT, TALK | {"chat_template_kwargs": {"messages": SECRET}}),
    (COMPLETIONS, TEXT | {"prompt": SECRET * 1000}),
    (COMPLETIONS, TEXT | {"prompt": [SECRET, SECRET * 1000], "stream": True}),
    (COMPLETIONS, TEXT | {"n": 0}),
    (COMPLETIONS, TEXT | {"model": "nothing"}),
    ("/v1/nothing", TEXT),
]


@dataclass(frozen=True)
class Frontend:
    """A running frontend with keys, traces and an operations port."""

    log: Path
    key_file: KeyFile
    receiver: Receiver
    admin_url: str

    @property
    def api(self) -> Api:
        """Its API, once it listens."""
        found = re.findall(r"process \d+ listens on ([^\s\"]+)", self.log.read_text())
        return Api(found[0] if found else "http://127.0.0.1:1")

    def is_ready(self) -> bool:
        """Whether it serves."""
        try:
            return self.api.get("/health/ready").status == 200
        except OSError:
            return False


@contextmanager
def serving(stack: Stack, folder: Path, log_format: str) -> Iterator[Frontend]:
    """Run a frontend of this Triton, and end it."""
    key_file = KeyFile(folder / "keys.json")
    key_file.add("somebody")
    admin_port = free_port()
    with receiving() as receiver, (folder / "log").open("wb") as log:
        options = {
            "triton": stack.endpoint,
            "port": 0,
            "admin-port": admin_port,
            "key-file": key_file.path,
            "log-format": log_format,
            "otlp-endpoint": receiver.endpoint,
            "stats-interval-s": 0.2,
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        command = [sys.executable, "-m", "frontend", "api", "--metrics-by-key", *flags]
        with subprocess.Popen(command, stdout=log, stderr=log, env=os.environ) as process:
            frontend = Frontend(Path(log.name), key_file, receiver, f"http://127.0.0.1:{admin_port}")
            try:
                wait_until(frontend.is_ready, "the frontend is ready")
                yield frontend
            finally:
                process.send_signal(signal.SIGTERM)  # with the last spans
                process.wait(DEADLINE_S)


def ask(frontend: Frontend) -> tuple[list[Answer], list[Answer]]:
    """Send everything; return what was served, and what was refused."""
    headers = frontend.key_file.headers("somebody", Cookie=f"a={SECRET}", Referer=f"http://{SECRET}/")
    strangers = [{"Authorization": f"Bearer sk-{SECRET}"}, {"Authorization": SECRET}, {"x-api-key": SECRET}]
    served = [frontend.api.post(path, body, headers) for path, body in SERVED]
    refused = [frontend.api.post(path, body, headers) for path, body in REFUSED]
    refused += [frontend.api.post(CHAT, TALK, stranger) for stranger in strangers]
    refused.append(frontend.api.post(CHAT, f'{{"model": "demo", "{SECRET}'.encode(), headers))
    return served, refused


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_nothing_that_a_client_says_is_told_to_anybody_else(stack: Stack, tmp_path: Path, log_format: str) -> None:
    with logged(stack) as triton_lines, serving(stack, tmp_path, log_format) as frontend:
        served, refused = ask(frontend)
        metrics = [Api(url).get("/metrics").body for url in (frontend.admin_url, stack.triton_metrics_url)]
    assert [answer.status for answer in served] == [200] * len(SERVED)
    assert all(400 <= answer.status < 500 for answer in refused)
    log, spans = frontend.log.read_text(), frontend.receiver.spans()
    assert (
        log.count('"event":"request"' if log_format == "json" else " key=somebody ") >= len(SERVED) + len(REFUSED) - 1
    )
    assert len(spans) > len(SERVED) + len(REFUSED)
    everything = {
        "the frontend's log": log,
        "triton's log": "\n".join(triton_lines),
        "metrics": "\n".join(metrics),
        "traces": "".join(map(str, spans)),
        **{f"error {number}": json.dumps(answer.body) for number, answer in enumerate(refused)},
        "headers": json.dumps([answer.headers for answer in served + refused]),
    }
    for secret in (SECRET, frontend.key_file.texts["somebody"]):
        assert {where: text for where, text in everything.items() if secret in text} == {}
    assert "somebody" in everything["metrics"]
