"""Over which GPUs a model can be laid out at all."""

from __future__ import annotations

from collections.abc import Iterator

from build_engines.gpus import Gpu
from build_engines.model_entry import ModelEntry
from build_engines.parallelism import Parallelism

MAX_NODES = 8  # more are not searched


def node_counts(num_gpus: int | None, num_nodes: int | None, gpu: Gpu) -> Iterator[tuple[int, int]]:
    """Yield numbers of GPUs and of nodes to try, the fewest first; what is given stays as it is.

    Beyond one node, whole nodes are tried unless their number is given.
    """
    in_node = [count for count in (1, 2, 4, 8) if count <= gpu.num_per_node]
    if num_gpus is not None:
        yield num_gpus, num_nodes or -(-num_gpus // gpu.num_per_node)
    elif num_nodes is not None:
        yield from ((count * num_nodes, num_nodes) for count in in_node)
    else:
        yield from ((count, 1) for count in in_node)
        yield from ((count * gpu.num_per_node, count) for count in range(2, MAX_NODES + 1))


def layouts(entry: ModelEntry, num_gpus: int, num_nodes: int) -> Iterator[Parallelism]:
    """Yield the legal layouts over so many GPUs, those with the largest tensor parallelism first.

    Tensor parallelism stays within a node, where GPUs are fast to reach; nodes hold different layers.
    """
    if num_gpus % num_nodes:
        return
    for tp_size in range(num_gpus // num_nodes, 0, -1):
        if (num_gpus // num_nodes) % tp_size == 0 and not entry.layout_rule(tp_size, num_gpus // tp_size):
            yield Parallelism(tp_size=tp_size, pp_size=num_gpus // tp_size, num_nodes=num_nodes)
