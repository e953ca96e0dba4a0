"""The start options of TensorRT-LLM, on both backends and in each role."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorrt_llm
from msgspec.structs import replace

from model_repository.engine.runtime import EngineConfig
from model_repository.engine.tensorrt_llm.llm import kv_cache_manager_keywords, llm_keywords
from model_repository.engine.tensorrt_llm.options import TensorRtLlmOptions
from model_repository.engine.tensorrt_llm.releases import release_of
from model_repository.errors import EngineFailed
from model_repository.system.machine import Machine
from tests.model_repository.engine.tensorrt_llm.conftest import BYTE_TABLE, RUNTIME, write_model
from tests.tensorrt_llm_artifact import DOUBLES


def keywords(config: EngineConfig, **options: str) -> dict[str, Any]:
    return llm_keywords(config, TensorRtLlmOptions.of(options))


def test_an_engine_brings_its_own_limits_of_lengths(config: EngineConfig) -> None:
    asked = keywords(replace(config, adapters={}), max_batch_size="32", max_num_tokens="4096")
    cache, scheduler = asked.pop("kv_cache_config"), asked.pop("scheduler_config")
    assert asked == {
        "model": str(config.artifact_dir / "engine"),
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "enable_chunked_prefill": True,
        "max_batch_size": 32,
        "max_num_tokens": 4096,
        "gather_generation_logits": True,
    }
    assert (cache.enable_block_reuse, cache.free_gpu_memory_fraction, cache.dtype) == (True, 0.9, "auto")
    assert scheduler.capacity_scheduler_policy.name == "GUARANTEED_NO_EVICT"


def test_the_pytorch_backend_gets_parallelism_and_limits(config: EngineConfig) -> None:
    asked = keywords(
        replace(config, adapters={}),
        backend="pytorch",
        tp_size="4",
        pp_size="2",
        kv_cache_fraction="0.5",
        kv_cache_dtype="fp8",
        block_reuse="false",
        chunked_prefill="false",
        stream_interval="4",
        trust_remote_code="true",
    )
    cache, scheduler = asked.pop("kv_cache_config"), asked.pop("scheduler_config")
    graphs = asked.pop("cuda_graph_config")
    assert asked == {
        "model": str(config.artifact_dir / "checkpoint"),
        "skip_tokenizer_init": True,
        "trust_remote_code": True,
        "enable_chunked_prefill": False,
        "max_batch_size": config.max_sequences,
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "max_seq_len": config.context_window,
        "max_input_len": config.context_window,
        "disable_overlap_scheduler": True,
        "enable_iter_perf_stats": True,
        "stream_interval": 4,
    }
    assert (graphs.enable_padding, graphs.max_batch_size) == (True, config.max_sequences)
    assert (cache.enable_block_reuse, cache.free_gpu_memory_fraction, cache.dtype) == (False, 0.5, "fp8")
    assert scheduler.capacity_scheduler_policy.name == "GUARANTEED_NO_EVICT"
    scheduler = keywords(config, backend="pytorch", scheduler_policy="max_utilization")["scheduler_config"]
    assert scheduler.capacity_scheduler_policy.name == "MAX_UTILIZATION"


HAS_V2 = release_of(tensorrt_llm.__version__).has_kv_cache_manager_v2
GIB = 1 << 30
GPUS = Machine(gpu_names=("NVIDIA H100",) * 4, gpu_memory_bytes=80 * GIB)


@pytest.mark.parametrize(
    ("machine", "ram_gib", "host_cache_gib"),
    [
        (GPUS, 200, 25),  # half of the container's memory for its four GPUs; two may serve another model
        (GPUS, 2000, 80),  # as much as a GPU has
        (Machine(), 200, 50),  # without nvidia-smi: for the GPUs of this model
    ],
)
def test_v2_of_the_kv_cache_manager_gets_a_share_of_the_containers_memory(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, ram_gib: int, host_cache_gib: int
) -> None:
    monkeypatch.setattr("model_repository.engine.tensorrt_llm.llm.read_machine", lambda environment: machine)
    monkeypatch.setattr("model_repository.engine.tensorrt_llm.llm.memory_bytes", lambda: ram_gib * GIB)
    options = TensorRtLlmOptions.of({"backend": "pytorch", "kv_cache_manager": "v2", "tp_size": "2"})
    expected = {"use_kv_cache_manager_v2": True, "host_cache_size": host_cache_gib * GIB}
    assert kv_cache_manager_keywords(options) == expected


def test_the_kv_cache_manager_is_named_where_tensorrt_llm_would_choose_one(config: EngineConfig) -> None:
    cache = keywords(config, backend="pytorch")["kv_cache_config"]
    if HAS_V2:
        assert (cache.use_kv_cache_manager_v2, cache.host_cache_size) == (False, 0)
        v2 = {"backend": "pytorch", "kv_cache_manager": "v2"}
        assert keywords(config, **v2)["kv_cache_config"].use_kv_cache_manager_v2 is True
        given = json.dumps({"kv_cache_config": {"host_cache_size": 5}})
        assert keywords(config, **v2, llm_options=given)["kv_cache_config"].host_cache_size == 5
    else:
        assert (hasattr(cache, "use_kv_cache_manager_v2"), cache.host_cache_size) == (False, None)
        with pytest.raises(EngineFailed, match=r"option kv_cache_manager=v2: TensorRT-LLM 1\.2\.1 has no such"):
            start(replace(config, options={"backend": "pytorch", "kv_cache_manager": "v2"}))


@pytest.mark.engine_backend
def test_an_engine_keeps_a_cuda_graph_for_each_size_of_a_batch(config: EngineConfig) -> None:
    asked = keywords(replace(config, adapters={}), cuda_graph_mode="true", max_batch_size="32")
    knobs = asked["extended_runtime_perf_knob_config"]
    assert (knobs.cuda_graph_mode, knobs.cuda_graph_cache_size) == (True, 32)
    with pytest.raises(EngineFailed, match="option cuda_graph_mode=true: not with adapters"):
        keywords(config, cuda_graph_mode="true")


def start(config: EngineConfig, environment: dict[str, str] | None = None) -> Any:
    return RUNTIME.TensorRtLlmRuntime(config, BYTE_TABLE, environment=environment or {})


def test_a_model_that_does_not_load_is_one_line(config: EngineConfig, tmp_path: Path) -> None:
    empty = replace(config, artifact_dir=tmp_path / "nothing", adapters={})
    with pytest.raises(EngineFailed, match=r"TensorRT-LLM does not load it: .*neither an engine nor a checkpoint"):
        start(empty)


@pytest.mark.engine_backend
def test_an_engine_of_other_sizes_is_refused(config: EngineConfig) -> None:
    with pytest.raises(EngineFailed, match="tensor_parallel_size=8: the engine has 1"):
        start(replace(config, options={"tp_size": "8"}))


def test_the_error_of_a_release_without_engines_names_the_remedy(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_repository.engine.tensorrt_llm.llm.__version__", "1.3.0rc29")
    with pytest.raises(EngineFailed, match=r"TensorRT-LLM 1\.3\.0rc29 cannot run engines: use an image with 1\.2\.1"):
        start(replace(config, options={"backend": "engine"}))


def test_a_release_that_was_not_tested_is_named_at_the_start(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    version = f"{tensorrt_llm.__version__}.dev1"
    monkeypatch.setattr("model_repository.engine.tensorrt_llm.llm.__version__", version)
    start(replace(config, options={"backend": "pytorch"})).close()
    assert f"TensorRT-LLM {version}: not tested" in caplog.text


@pytest.fixture
def mpi(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The double of mpi4py."""
    monkeypatch.syspath_prepend(str(DOUBLES))
    yield importlib.import_module("mpi4py.futures")
    for name in ("mpi4py", "mpi4py.futures", "mpi4py.MPI"):
        monkeypatch.delitem(sys.modules, name)


def test_a_rank_above_0_works_for_rank_0_and_serves_nothing(config: EngineConfig, mpi: Any) -> None:
    mpi.entered.clear()
    with pytest.raises(EngineFailed, match="rank 3 of 16 has worked for rank 0"):
        start(config, {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_RANK": "3"})
    assert len(mpi.entered) == 1


def test_rank_0_hands_the_other_ranks_to_tensorrt_llm(config: EngineConfig, mpi: Any) -> None:
    runtime = start(config, {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_RANK": "0"})
    session = runtime._llm._args["_mpi_session"]
    assert (session.n_workers, session.comm) == (16, sys.modules["mpi4py.MPI"].COMM_WORLD)
    runtime.close()


def test_a_vocabulary_without_special_tokens_is_refused(tmp_path: Path, config: EngineConfig) -> None:
    folder = write_model(tmp_path / "other")
    other = replace(config, artifact_dir=folder, adapters={})
    with pytest.raises(EngineFailed, match="no token without text"):
        RUNTIME.TensorRtLlmRuntime(other, [b"a", b"b", b"c"], environment={})


def test_a_bad_option_stops_the_start(config: EngineConfig) -> None:
    with pytest.raises(EngineFailed, match="option tp_size=none: must be a whole number above 0"):
        start(replace(config, options={"tp_size": "none"}))
