"""The known GPUs, and the number that the replicas of a model need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from build_engines.errors import BuildError
from model_repository.system.machine import Machine


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


def check_replicas(model_id: str, num_replicas: int, num_gpus: int, num_nodes: int, machine: Machine) -> None:
    """Check that a machine has the GPUs of all replicas. Without a driver, the start of the server checks that.

    Args:
        num_gpus: of one replica, on each of its nodes.

    Raises:
        BuildError: it has too few, or the model needs several machines.
    """
    if num_nodes > 1:
        rule = f"{model_id} takes {num_nodes} nodes, and replicas share one"
        raise BuildError(f"--replicas {num_replicas}: {rule}")
    needed, most = num_replicas * num_gpus, machine.num_gpus // num_gpus
    if machine.gpu_error is None and needed > machine.num_gpus:
        rule = f"each takes {num_gpus} GPUs, so {needed} in all, and this machine has {machine.num_gpus}"
        raise BuildError(f"{model_id}: --replicas {num_replicas}: {rule}: at most {most}")
