"""The memory on devices, by a log of llama.cpp; tests/vulkan compares it with real loads."""

from __future__ import annotations

from pathlib import Path

from build_engines.llama_cpp.device_trial import memory_of
from tests.model_repository.engine.tiny_models import write_model

_LOG = """\
load_tensors: layer   0 assigned to device CPU, is_swa = 0
load_tensors: layer   1 assigned to device {0}, is_swa = 0
load_tensors: layer   2 assigned to device {0}, is_swa = 0
llama_context:      {0} compute buffer size =    10.00 MiB
"""


def test_a_process_on_a_card_of_cuda_takes_memory_that_no_log_has(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", "gpt-oss")
    cuda, vulkan = (memory_of(_LOG.format(name), path) for name in ("CUDA0", "Vulkan0"))
    assert (vulkan.buffer_bytes, cuda.buffer_bytes) == ({"Vulkan0": 10 << 20}, {"CUDA0": 410 << 20})
