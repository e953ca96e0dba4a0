"""From rendered parameters to a running engine."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from msgspec.structs import replace

from model_repository.byte_table import FILE_NAME, save_byte_table
from model_repository.engine.emitter import PendingOutput
from model_repository.engine.loader import load_engine, make_emitter
from model_repository.engine.runtime import EngineConfig, load_runtime
from model_repository.errors import EngineFailed
from model_repository.runtimes import RUNTIMES, UnknownRuntime
from model_repository.system.linked_file import LinkedFile
from model_repository.system.machine import Machine

CONFIG = EngineConfig(
    runtime="synthetic", artifact_dir=Path("/artifacts/demo"), context_window=2048, eos_token_ids=frozenset([7, 9])
)


def test_a_model_whose_file_was_changed_is_refused_by_its_name(tmp_path: Path) -> None:
    """The files of an artifact were not compared at load, and the stage loaded whatever its user had put there."""
    (tmp_path / "a.gguf").write_bytes(b"weights")
    linked = {"model.gguf": LinkedFile.of(tmp_path / "a.gguf")}
    (tmp_path / "model.gguf").hardlink_to(tmp_path / "a.gguf")
    (tmp_path / "a.gguf").write_bytes(b"")
    expected = r"a\.gguf: changed since the model was built \(0 bytes, at the build 7\): build the model again"
    with pytest.raises(EngineFailed, match=expected):
        load_engine(replace(CONFIG, artifact_dir=tmp_path, linked_files=linked))


def num_sent(runtime: str, num_cores: int, num_threads: int = 0) -> int:
    """Return the number of batches of one stream within a second in which it has a token every 0.1 ms."""
    config = replace(CONFIG, runtime=runtime, num_threads=num_threads, stream_interval_ms=1000)
    emitter, since_s, count = make_emitter(config, num_cores), 0.0, 0
    for step in range(10_000):
        now_s = step * 1e-4
        if emitter.due([PendingOutput(key=1, since_s=since_s, stream=1)], now_s):
            since_s, count = now_s, count + 1
    return count


def test_sending_leaves_the_cores_to_a_runtime_that_computes_on_them() -> None:
    assert num_sent("llama_cpp", num_cores=2) < num_sent("synthetic", num_cores=2) / 10
    assert num_sent("llama_cpp", num_cores=8) > 3 * num_sent("llama_cpp", num_cores=2)
    assert num_sent("synthetic", num_cores=64) < 3 * num_sent("synthetic", num_cores=2)  # one thread sends, on one core


def test_cores_without_a_computing_thread_send_each_token() -> None:
    """Sending was as rare beside one thread on eight cores as beside eight."""
    assert num_sent("llama_cpp", num_cores=8, num_threads=7) > 4 * num_sent("llama_cpp", num_cores=8)
    assert num_sent("llama_cpp", num_cores=2, num_threads=16) == num_sent("llama_cpp", num_cores=2)


@pytest.mark.parametrize("runtime", ["synthetic", "tensorrt_llm"])
def test_an_artifact_for_another_machine_is_refused_before_its_runtime_is_imported(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tensorrt_llm_version="1.2.1")
    monkeypatch.setattr("model_repository.engine.loader.read_machine", lambda: machine)
    expected = (
        r"^/artifacts/demo: built with TensorRT-LLM 1\.1\.0, this machine has TensorRT-LLM 1\.2\.1: build it again"
    )
    with pytest.raises(EngineFailed, match=expected):
        load_engine(replace(CONFIG, runtime=runtime, requires={"tensorrt_llm": "1.1.0"}))


def test_the_variables_of_tensorrt_llm_are_set_before_its_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It reports no use, and starts its workers also as root. Libraries read the variables while they are imported."""
    environment: dict[str, str] = {}

    def resolve(name: str) -> Any:
        if name == RUNTIMES["tensorrt_llm"].target:
            raise EngineFailed(f"imports with {environment}")
        return resolve_name(name)

    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(socket, "gethostname", lambda: "short")
    monkeypatch.setattr("pkgutil.resolve_name", resolve)
    save_byte_table(tmp_path / FILE_NAME, [b"a"])
    expected = ("TRTLLM_NO_USAGE_STATS", "PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM")
    with pytest.raises(EngineFailed, match=re.escape(f"imports with {dict.fromkeys(expected, '1')}")):
        load_engine(replace(CONFIG, runtime="tensorrt_llm", artifact_dir=tmp_path))


def test_the_gpus_of_a_model_are_chosen_before_the_machine_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    visible: list[str] = []

    def machine() -> Machine:
        visible.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return Machine()

    monkeypatch.setattr("model_repository.engine.loader.read_machine", machine)
    config = replace(CONFIG, requires={"num_gpus": "2"})
    with pytest.raises(EngineFailed, match=r"GPUs \[1, 3\]: CUDA_VISIBLE_DEVICES shows fewer"):
        load_engine(replace(config, gpus=(1, 3)))
    with pytest.raises(EngineFailed, match="GPU"):
        load_engine(replace(config, gpus=(1, 2)))
    assert visible == ["5,6"]


def test_an_unknown_runtime_is_refused_with_the_known_ones() -> None:
    expected = f"runtime 'magic': expected one of {sorted(RUNTIMES)}"
    with pytest.raises(UnknownRuntime, match=re.escape(expected)):
        load_runtime(replace(CONFIG, runtime="magic"), [])
