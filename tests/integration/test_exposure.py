"""The ports and shared memory of a running server, and the URLs that it must not fetch (docs/security.md)."""

from __future__ import annotations

import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api import CHAT, COMPLETIONS, Answer, Api
from tests.integration.operations import Server
from tests.integration.stack import CLIENTS, Stack
from tests.processes import LOOPBACK, listening_addresses, listening_ports


def test_everything_that_serve_starts_listens_on_loopback_only(paced_stack: Stack) -> None:
    """Triton's HTTP port was asked for here. Another one, of an environment for Vertex AI, is not opened."""
    ports = paced_stack.launcher.triton_ports
    assert ports.http is not None
    for port in (ports.grpc, ports.metrics, ports.http, paced_stack.launcher.frontend_settings.port):
        addresses = listening_addresses(port)
        assert addresses and addresses <= LOOPBACK
    assert listening_ports(paced_stack.launcher.triton.pid) == {ports.grpc, ports.http, ports.metrics}


def test_other_users_cannot_open_the_shared_memory_of_a_stage(stack: Stack, api: Api) -> None:
    """Prompts and completions lie there between Triton and the stages. Triton has every user of the machine read it."""
    pids = [pid for stage in ("tokenizer", "engine", "detokenizer") for pid in stack.processes(f"demo__{stage}")]
    segments = {word for pid in pids for word in Path(f"/proc/{pid}/maps").read_text().split() if "/dev/shm/" in word}
    text = " ".join(map(str, range(400_000)))  # does not fit in the memory as it was at the start
    assert api.post("/v1/tokenize", {"model": "demo", "prompt": text[:450_000]}).status == 200
    assert len(segments) == 3
    for segment in map(Path, segments):
        assert stat.S_IMODE(segment.stat().st_mode) == 0o600, segment


def asked_of(url: str, api: Api) -> list[Answer]:
    """Send requests that name a URL wherever something might fetch it."""
    schemas: list[Any] = [{"$ref": url}, {"$ref": f"{url}#/a"}, {"$id": url, "$schema": url, "type": "integer"}]
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    chat: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": url}], "max_tokens": 2}
    forms = [{"type": "json_schema", "json_schema": {"name": "a", "schema": schema}} for schema in schemas]
    function = {"name": "f", "parameters": schemas[0]}
    return [
        api.post(CHAT, chat),
        api.post(CHAT, chat | {"messages": [message]}),
        *(api.post(CHAT, chat | {"response_format": form}) for form in forms),
        api.post(CHAT, chat | {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}),
        api.post(COMPLETIONS, {"model": "demo", "prompt": "<image>", "images": [url], "max_tokens": 2}),
        api.post(COMPLETIONS, {"model": url, "prompt": "a"}),
    ]


def test_nothing_is_fetched_for_a_request(api: Api) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        answers = asked_of(f"http://127.0.0.1:{listener.getsockname()[1]}/x.png", api)
        with pytest.raises(TimeoutError):
            listener.accept()
    assert max(answer.status for answer in answers) < 500


def test_cached_tokens_do_not_show_what_another_key_has_sent(busy_server: Server) -> None:
    """20 of 20 guesses at the prompts of another key were right."""
    prompt, cached = "A beginning of this test only: 7, 1, 8, 2, 8.", []
    for name in (CLIENTS[0], CLIENTS[0], CLIENTS[1]):
        with busy_server.client(name) as client:
            usage = client.completions.create(model="demo", prompt=prompt, max_tokens=1).usage
        assert usage is not None and usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens)
    assert usage is not None and cached == [0, usage.prompt_tokens - 1, 0]
