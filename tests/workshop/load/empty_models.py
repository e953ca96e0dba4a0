"""The time that Triton takes to load and unload three Python models that do nothing."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import psutil
from tritonclient.grpc import service_pb2, service_pb2_grpc

from frontend.launcher.triton_server import find_triton
from tests.launching import free_port
from tests.waiting import wait_until
from tests.workshop.load import peers

_NAMES = ("tokenizer", "engine", "detokenizer")
_CONFIG = """backend: "python"
input [{ name: "x" data_type: TYPE_STRING dims: [1] }]
output [{ name: "y" data_type: TYPE_STRING dims: [1] }]
"""
_CODE = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


def load_and_unload_s(folder: Path, num_turns: int = 3) -> list[tuple[float, float]]:
    """Return both times of each turn: until all three are ready, and until the last of their processes has ended."""
    for name in _NAMES:
        (folder / "repository" / name / "1").mkdir(parents=True)
        (folder / "repository" / name / "config.pbtxt").write_text(_CONFIG)
        (folder / "repository" / name / "1" / "model.py").write_text(_CODE)
    triton, port = find_triton(None, folder, os.environ), free_port()
    words = [str(triton.binary), "--model-repository=repository", "--model-control-mode=explicit", "--allow-http=false"]
    words += ["--allow-metrics=false", f"--grpc-port={port}", "--disable-auto-complete-config"]
    words += [f"--backend-config=python,shm-region-prefix-name=empty_{port}_"]
    words += [f"--backend-directory={triton.backend_dir}"] if triton.backend_dir else []
    with (folder / "triton.log").open("w") as log, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        process = subprocess.Popen(words, cwd=folder, env=dict(triton.environment), stdout=log, stderr=log)
        try:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            stub.ServerReady(service_pb2.ServerReadyRequest(), wait_for_ready=True, timeout=60)
            return [_turn(stub, psutil.Process(process.pid)) for _ in range(num_turns)]
        finally:
            peers.end(process)


def _turn(stub: service_pb2_grpc.GRPCInferenceServiceStub, triton: psutil.Process) -> tuple[float, float]:
    begin_s = time.monotonic()
    _call_all(stub.RepositoryModelLoad, service_pb2.RepositoryModelLoadRequest)  # answers once the model is ready
    loaded_s = time.monotonic()
    _call_all(stub.RepositoryModelUnload, service_pb2.RepositoryModelUnloadRequest)
    wait_until(lambda: not triton.children(recursive=True), "the ends of the models' processes")
    return loaded_s - begin_s, time.monotonic() - loaded_s


def _call_all(call: grpc.UnaryUnaryMultiCallable, request: Callable[..., object]) -> None:
    """Call for all models at the same time, as Triton loads the stages of an ensemble."""
    for future in [call.future(request(model_name=name)) for name in _NAMES]:
        future.result()
