"""A stranger calls each API of each port of Triton. docs/security.md says which callers may use it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from frontend.triton.restricted import HEADER, METADATA
from model_repository.contract.codec import tensor
from model_repository.contract.tensors import CONTROL
from tests.integration.stack import PACED_MODEL, Stack
from tests.launching import KEY_OF_ALL
from tests.security_page import EVERYBODY, offered_to
from tests.waiting import DEADLINE_S

GRPC = offered_to("Triton's gRPC")
HTTP = offered_to("Triton's HTTP")
RPCS = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
ENGINE = "demo__engine"


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that a stranger's code makes, if it runs."""
    return tmp_path / "executed"


@pytest.fixture
def requests(marker: Path) -> Iterator[dict[str, Any]]:
    """A stranger's message to each RPC; RPCs without one get an empty message."""
    an_input = {"name": "a", "data_type": "TYPE_INT32", "dims": [1]}
    config = {"name": "evil", "backend": "python", "input": [an_input], "output": [an_input | {"name": "b"}]}
    code = f"class TritonPythonModel:\n    def initialize(self, args):\n        open({str(marker)!r}, 'w').close()\n"
    load = service_pb2.RepositoryModelLoadRequest(model_name="evil")
    load.parameters["config"].string_param = json.dumps(config)
    load.parameters["file:1/model.py"].bytes_param = code.encode()
    unload = service_pb2.RepositoryModelUnloadRequest(model_name=ENGINE)
    unload.parameters["unload_dependents"].bool_param = True
    trace = service_pb2.TraceSettingRequest()
    trace.settings["trace_file"].value.append(str(marker))
    log = service_pb2.LogSettingsRequest()
    log.settings["log_file"].string_param = str(marker)
    segment = shared_memory.SharedMemory(create=True, size=64)
    try:
        yield {
            "RepositoryModelLoad": load,
            "RepositoryModelUnload": unload,
            "TraceSetting": trace,
            "LogSettings": log,
            "ModelReady": service_pb2.ModelReadyRequest(name=ENGINE),
            "ModelMetadata": service_pb2.ModelMetadataRequest(name=ENGINE),
            "ModelConfig": service_pb2.ModelConfigRequest(name=ENGINE),
            "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest(
                name="stolen", key=f"/{segment.name}", byte_size=64
            ),
        }
    finally:
        segment.close()
        segment.unlink()


def why_refused(stack: Stack, rpc: str, request: Any = None, key: str = "") -> str:
    """Return why a restricted API refuses a request; empty: it does not."""
    message = request or getattr(service_pb2, RPCS[rpc].input_type.name)()
    metadata = ((METADATA, key),) if key else ()
    ask = getattr(stack.grpc_stub, rpc)
    try:
        if RPCS[rpc].client_streaming:
            list(ask(iter((message,)), timeout=DEADLINE_S, metadata=metadata))
        else:
            ask(message, timeout=DEADLINE_S, metadata=metadata)
    except grpc.RpcError as exc:
        return str(exc.details()) if exc.code() is grpc.StatusCode.UNAVAILABLE else ""
    return ""


@pytest.mark.parametrize("rpc", RPCS)
def test_a_stranger_may_use_the_apis_of_the_grpc_port_that_the_page_lists(
    stack: Stack, requests: dict[str, Any], marker: Path, rpc: str
) -> None:
    """The key of the launcher opens the others, so the refusals are about the key; an empty message changes nothing."""
    expected = "" if GRPC[rpc] == EVERYBODY else f"This protocol is restricted, expecting header '{METADATA}'"
    for key in ("", "wrong" * 10):
        reason = why_refused(stack, rpc, requests.get(rpc), key)
        assert not marker.exists(), "code of a stranger ran, or a file of its choice was written"
        assert reason == expected
    assert not expected or not why_refused(stack, rpc, key=KEY_OF_ALL)


@pytest.mark.parametrize("message", [{"drain": True}, {"fail": "streams"}, {"load_adapter": "a", "source": "b"}])
def test_a_stranger_does_not_control_an_engine(stack: Stack, message: dict[str, Any]) -> None:
    """Else any client could drain an engine, or end the requests of all others."""
    for keys in ({}, {"key": "wrong" * 10}):
        control = {CONTROL.name: tensor(CONTROL, json.dumps(message | keys))}
        [answer] = stack.stream(ENGINE, control)
        assert "[key_refused]" in answer.error_message
    assert not stack.stats("demo").is_draining


@pytest.fixture(scope="module")
def http_url(paced_stack: Stack) -> str:
    """The URL of a Triton whose HTTP port was asked for."""
    return f"http://127.0.0.1:{paced_stack.launcher.triton_ports.http}"


def answer(url: str, route: str, body: bytes = b"{}") -> tuple[int, str]:
    """Return status and body for a web page of another origin, whose request needs no preflight."""
    method, path = route.split()
    headers = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
    path = path.format(id=PACED_MODEL.replace("/", "--"))
    request = urllib.request.Request(f"{url}{path}", body if method == "POST" else None, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


@pytest.mark.parametrize("route", HTTP)
def test_a_web_page_may_use_the_apis_of_the_http_port_that_the_page_lists(http_url: str, route: str) -> None:
    refused = (
        403,
        json.dumps({"error": f"This API is restricted, expecting header '{HEADER}'"}, separators=(",", ":")),
    )
    assert (answer(http_url, route) == refused) is (HTTP[route] != EVERYBODY)


def test_a_web_page_can_generate_over_the_http_port(http_url: str) -> None:
    """This is why the port is closed by default: Triton reads a body of any media type, and checks no origin."""
    body = json.dumps({"text_input": "a", "max_tokens": 1}).encode()
    status, text = answer(http_url, "POST /v2/models/{id}/generate", body)
    assert (status, "text_output" in text) == (200, True)


def test_the_metrics_port_offers_metrics_and_nothing_else(stack: Stack) -> None:
    [metrics] = offered_to("Triton's metrics")
    status, text = answer(stack.triton_metrics_url, metrics)
    assert (status, text.startswith("# HELP nv_")) == (200, True)
    for route in HTTP:
        assert answer(stack.triton_metrics_url, route)[1] in ("", '{"error":"Method Not Allowed"}'), route
