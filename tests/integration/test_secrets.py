"""A client's texts and key are in no log, metric, trace, header, or error about something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.gateway.key_files import KeyFile
from tests.integration.api import CHAT, COMPLETIONS, Answer, Api
from tests.integration.replicas import frontend_of
from tests.integration.stack import Stack
from tests.launching import free_port
from tests.otlp_receiver import receiving
from tests.waiting import DEADLINE_S

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
REFUSED = [  # each for a value that is not secret: an error names the value that breaks a rule
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


def answers(api: Api, key_file: KeyFile) -> tuple[list[Answer], list[Answer]]:
    """Send everything; return the served answers and the refused ones."""
    headers = key_file.headers("somebody", Cookie=f"a={SECRET}", Referer=f"http://{SECRET}/")
    strangers = [{"Authorization": f"Bearer sk-{SECRET}"}, {"Authorization": SECRET}, {"x-api-key": SECRET}]
    served = [api.post(path, body, headers) for path, body in SERVED]
    refused = [api.post(path, body, headers) for path, body in REFUSED]
    refused += [api.post(CHAT, TALK, stranger) for stranger in strangers]
    refused.append(api.post(CHAT, f'{{"model": "demo", "{SECRET}'.encode(), headers))
    return served, refused


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_clients_texts_and_key_appear_nowhere_else(stack: Stack, tmp_path: Path, log_format: str) -> None:
    key_file = KeyFile(tmp_path / "keys.json")
    key_file.add("somebody")
    admin_port = free_port()
    options = ["--metrics-by-key", f"--log-format={log_format}", f"--admin-port={admin_port}"]
    options.append(f"--key-file={key_file.path}")
    num_before = len(stack.log)
    with (
        receiving() as receiver,
        frontend_of([stack], tmp_path, *options, f"--otlp-endpoint={receiver.endpoint}") as frontend,
    ):
        served, refused = answers(Api(frontend.url), key_file)
        urls = (f"http://127.0.0.1:{admin_port}", stack.triton_metrics_url)
        metrics = [Api(url).get("/metrics").body for url in urls]
        frontend.process.terminate()  # it sends its last spans
        frontend.process.wait(DEADLINE_S)
    assert [answer.status for answer in served] == [200] * len(SERVED)
    assert all(400 <= answer.status < 500 for answer in refused)
    log, spans = frontend.log, receiver.spans()
    assert (
        log.count('"event":"request"' if log_format == "json" else " key=somebody ") >= len(SERVED) + len(REFUSED) - 1
    )
    assert len(spans) > len(SERVED) + len(REFUSED)
    everything = {
        "the frontend's log": log,
        "triton's log": "\n".join(stack.log[num_before:]),
        "metrics": "\n".join(metrics),
        "traces": "".join(map(str, spans)),
        **{f"error {number}": json.dumps(answer.body) for number, answer in enumerate(refused)},
        "headers": json.dumps([answer.headers for answer in served + refused]),
    }
    for secret in (SECRET, key_file.texts["somebody"]):
        assert {where: text for where, text in everything.items() if secret in text} == {}
    assert "somebody" in everything["metrics"]
