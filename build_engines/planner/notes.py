"""What a plan's reader should know beside its numbers."""

from __future__ import annotations

from collections.abc import Iterator

from build_engines.model_entry import Precision
from build_engines.planner.sizing import Plan


def notes(plan: Plan) -> Iterator[str]:
    """Yield the catalog's notes on the model and those that follow from the layout."""
    yield from plan.entry.notes
    layout, gpu = plan.parallelism, plan.gpu
    if plan.entry.is_gated:
        yield f"Gated: accept its license ({plan.entry.license}) and set a token before it can be downloaded."
    if layout.tp_size > 1 and not gpu.has_nvlink:
        yield f"{gpu.name} has no NVLink: tensor parallelism goes over PCIe, which costs latency on every token."
    if layout.num_nodes > 1:
        yield f"{layout.num_nodes} nodes need MPI, a fast network between them, and the engine's folder on each."
    node_bytes = layout.num_gpus_per_node * gpu.memory_bytes
    if plan.precision is Precision.FP8 and plan.checkpoint_bytes > node_bytes * _CALIBRATION_SHARE:
        num_gpus = -(-plan.checkpoint_bytes // int(gpu.memory_bytes * _CALIBRATION_SHARE))
        yield (
            f"Calibration for FP8 loads the 16-bit model: {plan.checkpoint_bytes / 1e9:.0f} GB, which takes about "
            f"{num_gpus} x {gpu.name}, more than the {layout.num_gpus_per_node} of a node that serve it."
        )
    if not plan.is_comfortable:
        yield "Weights take more than two thirds of each GPU: the cache is small."


_CALIBRATION_SHARE = 0.9  # of a GPU: activations take the rest
