"""The layout of a model over GPUs, and its rules."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from build_engines.architecture import CHECKED, Architecture, Count


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class Parallelism:
    """A layout over GPUs."""

    tp_size: Count = 1  # ranks that share each matrix
    pp_size: Count = 1  # groups of them, each with a part of the layers
    num_nodes: Count = 1

    def __post_init__(self) -> None:
        if self.num_gpus % self.num_nodes:
            raise ValueError(f"num_nodes: {self.num_nodes}: must divide the number of GPUs ({self.num_gpus})")
        if self.num_gpus_per_node % self.tp_size:
            raise ValueError(f"tp_size: {self.tp_size}: must divide the GPUs of a node ({self.num_gpus_per_node})")

    @property
    def num_gpus(self) -> int:
        """Of all nodes."""
        return self.tp_size * self.pp_size

    @property
    def num_gpus_per_node(self) -> int:
        """Of each node."""
        return self.num_gpus // self.num_nodes

    def __str__(self) -> str:
        text = f"TP{self.tp_size}" if self.pp_size == 1 else f"TP{self.tp_size} x PP{self.pp_size}"
        return text if self.num_nodes == 1 else f"{text}, {self.num_nodes} nodes"


def broken_rule(architecture: Architecture, tp_size: int, pp_size: int) -> str | None:
    """Return the rule of a model's shape that a layout breaks; None: it is legal."""
    experts = architecture.mixture_of_experts
    for count, name in (
        (architecture.num_heads, "heads"),
        (architecture.intermediate_size, "columns of the MLP"),
        (experts.intermediate_size if experts else 0, "columns of an expert"),
    ):
        if count % tp_size:
            return f"tp_size {tp_size} must divide the {count} {name}"
    num_kv_heads = architecture.num_kv_heads
    if num_kv_heads % tp_size and tp_size % num_kv_heads:
        return f"tp_size {tp_size} must divide the {num_kv_heads} key-value heads, or be a multiple of them"
    if architecture.num_layers % pp_size:
        return f"pp_size {pp_size} must divide the {architecture.num_layers} layers"
    return None
