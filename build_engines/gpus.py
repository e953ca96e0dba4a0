"""The known GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU, and its nodes."""

    key: str  # the value of --gpu
    name: str  # a part of nvidia-smi's name
    memory_bytes: int  # nominal size; drivers report a little more, never less
    architecture: str
    num_per_node: int = 8
    has_nvlink: bool = True  # NVLink joins the GPUs of a node

    @property
    def compute_capability(self) -> int:
        """Ten times CUDA's number: 90 for Hopper."""
        return int(self.architecture.removeprefix("sm"))


GPUS: Mapping[str, Gpu] = {
    gpu.key: gpu
    for gpu in (
        Gpu(key="h100", name="H100", memory_bytes=80 * 10**9, architecture="sm90"),
        Gpu(key="h200", name="H200", memory_bytes=141 * 10**9, architecture="sm90"),
        Gpu(key="b200", name="B200", memory_bytes=180 * 10**9, architecture="sm100"),
        Gpu(key="a100", name="A100", memory_bytes=80 * 10**9, architecture="sm80"),
        Gpu(key="l40s", name="L40S", memory_bytes=48 * 10**9, architecture="sm89", has_nvlink=False),
    )
}
