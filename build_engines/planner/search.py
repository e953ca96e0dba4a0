"""The search for a layout that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from build_engines.gpus import Gpu
from build_engines.model_entry import Fp8Method, ModelEntry, Precision
from build_engines.parallelism import Parallelism
from build_engines.planner.memory import (
    GpuMemory,
    cache_terms,
    num_bytes_of,
    num_cuda_graphs,
    reserve,
    stage_weights,
    workspace,
)
from build_engines.planner.sizing import Plan, Workload, fp8_method
from model_repository.engine.tensorrt_llm.options import Backend

MAX_NODES = 8  # largest layout that is searched
DEFAULT_MAX_NUM_TOKENS = 8192  # one step; longer prompts are computed in chunks
# A step of an engine that keeps the logits of prompts has fewer tokens: each needs half a megabyte or more for them.
MAX_NUM_TOKENS_WITH_CONTEXT_LOGITS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Workload):
    """The arguments of a plan; None: the planner's choice."""

    num_gpus: int | None = None
    num_nodes: int | None = None
    tp_size: int | None = None  # goes with num_gpus


def fitting_plan(request: Request) -> Plan | None:
    """Return the model's preset, or the smallest layout with room for a useful cache; None: nothing fits.

    On the fewest possible nodes, the first choice is the smallest layout with comfortable weights, then the smallest
    that fits. A preset is used if it fits and neither GPUs nor nodes are given.
    """
    preset = request.entry.presets.get(request.gpu.key, {}).get(request.precision)
    if preset is not None and request.num_gpus is None and request.num_nodes is None:
        planned = _sized(request, preset)
        if planned.fits:
            return planned
    fitting: list[Plan] = []
    for candidate in candidates(request):
        if fitting and candidate.parallelism.num_nodes > fitting[0].parallelism.num_nodes:
            break
        if candidate.fits and candidate.is_comfortable:
            return candidate
        if candidate.fits:
            fitting.append(candidate)
    return fitting[0] if fitting else None


def replicas(found: Plan, num_gpus: int | None) -> tuple[int, Plan] | None:
    """Return how many replicas of a model one node holds, and the smallest plan of each; None: not more than one.

    Args:
        found: a plan of the model, over any number of GPUs.
        num_gpus: of the node; None: as many as there are in one.
    """
    each = fitting_plan(Request(**found.facts(), num_nodes=1))
    if each is None or found.parallelism.num_nodes > 1:
        return None
    number = (num_gpus or found.gpu.num_per_node) // each.parallelism.num_gpus
    return (number, each) if number > 1 else None


def candidates(request: Request) -> Iterator[Plan]:
    """Yield every legal layout, fitting or not, the smallest first."""
    for num_gpus, num_nodes in node_counts(request.num_gpus, request.num_nodes, request.gpu):
        for parallelism in layouts(request.entry, num_gpus, num_nodes):
            if request.tp_size in (None, parallelism.tp_size):
                yield _sized(request, parallelism)


def node_counts(num_gpus: int | None, num_nodes: int | None, gpu: Gpu) -> Iterator[tuple[int, int]]:
    """Yield numbers of GPUs and of nodes to try, the fewest first. Given numbers are fixed.

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
    """Yield the legal layouts, those with the largest tensor parallelism first.

    Tensor parallelism stays within a node, where communication is fast; nodes have different layers.
    """
    if num_gpus % num_nodes:
        return
    for tp_size in range(num_gpus // num_nodes, 0, -1):
        if (num_gpus // num_nodes) % tp_size == 0 and not entry.layout_rule(tp_size, num_gpus // tp_size):
            yield Parallelism(tp_size=tp_size, pp_size=num_gpus // tp_size, num_nodes=num_nodes)


def _sized(request: Request, parallelism: Parallelism) -> Plan:
    architecture = request.entry.architecture
    num_tokens = MAX_NUM_TOKENS_WITH_CONTEXT_LOGITS if request.has_context_logits else DEFAULT_MAX_NUM_TOKENS
    max_num_tokens = max(num_tokens, request.max_batch_size)
    memory = GpuMemory(
        total_bytes=request.gpu.memory_bytes,
        weights=max(stage_weights(architecture, parallelism, request.precision), key=num_bytes_of),
        workspace=workspace(
            architecture,
            parallelism.tp_size,
            max_num_tokens=max_num_tokens,
            max_batch_size=request.max_batch_size,
            has_context_logits=request.has_context_logits,
        ),
        reserve=reserve(
            parallelism.num_gpus, num_cuda_graphs(request.max_batch_size) if request.has_cuda_graphs else 0
        ),
    )
    method = None
    if request.precision is Precision.FP8:
        is_ready = request.has_fp8_checkpoint or Backend.ENGINE not in request.entry.backends
        method = Fp8Method.READY if is_ready else fp8_method(request.entry, request.gpu, parallelism)
    kv_precision = request.entry.kv_precision(request.precision, method)
    return Plan(
        **request.facts(),
        kv_precision=kv_precision,
        parallelism=parallelism,
        max_num_tokens=max_num_tokens,
        fp8_method=method,
        memory=memory,
        cache_terms=cache_terms(architecture, parallelism, int(kv_precision.num_bytes)),
    )
