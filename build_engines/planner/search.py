"""The search for a layout that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from build_engines.gpus import Gpu
from build_engines.model_entry import ModelEntry, Precision
from build_engines.parallelism import Parallelism
from build_engines.planner.layout import layouts, node_counts
from build_engines.planner.memory import GpuMemory, Term, kv_cache_term, reserve, stage_weights, workspace
from build_engines.planner.sizing import Plan

DEFAULT_MAX_NUM_TOKENS = 8192  # of a step; a longer prompt is computed in chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a plan; None: the planner's choice."""

    entry: ModelEntry
    gpu: Gpu
    precision: Precision
    max_seq_len: int
    max_batch_size: int
    num_gpus: int | None = None
    num_nodes: int | None = None
    tp_size: int | None = None  # goes with num_gpus


def fitting_plan(request: Request) -> Plan | None:
    """Return the model's preset, or the smallest layout that fits with room for a useful cache; None: nothing fits.

    On so many nodes as are needed, that is the smallest whose weights are comfortable, or else the smallest that fits.
    A preset counts unless a number of GPUs or nodes is given, or what is asked for does not fit it.
    """
    preset = request.entry.presets.get(request.gpu.key, {}).get(request.precision)
    if preset is not None and request.num_gpus is None and request.num_nodes is None:
        planned = _sized(request, preset)
        if planned.num_concurrent_sequences:
            return planned
    fitting: list[Plan] = []
    for candidate in candidates(request):
        if fitting and candidate.parallelism.num_nodes > fitting[0].parallelism.num_nodes:
            break
        if candidate.num_concurrent_sequences and candidate.is_comfortable:
            return candidate
        if candidate.num_concurrent_sequences:
            fitting.append(candidate)
    return fitting[0] if fitting else None


def candidates(request: Request) -> Iterator[Plan]:
    """Yield every legal layout, the smallest first, whether it fits or not."""
    for num_gpus, num_nodes in node_counts(request.num_gpus, request.num_nodes, request.gpu):
        for parallelism in layouts(request.entry, num_gpus, num_nodes):
            if request.tp_size in (None, parallelism.tp_size):
                yield _sized(request, parallelism)


def _sized(request: Request, parallelism: Parallelism) -> Plan:
    architecture = request.entry.architecture
    max_num_tokens = max(DEFAULT_MAX_NUM_TOKENS, request.max_batch_size)
    memory = GpuMemory(
        total_bytes=request.gpu.memory_bytes,
        weights=max(stage_weights(architecture, parallelism, request.precision), key=_num_bytes),
        workspace=workspace(
            architecture,
            parallelism.tp_size,
            max_num_tokens=max_num_tokens,
            max_batch_size=request.max_batch_size,
        ),
        reserve=reserve(parallelism.num_gpus),
    )
    kv_precision = request.entry.kv_precision(request.precision)
    return Plan(
        entry=request.entry,
        gpu=request.gpu,
        precision=request.precision,
        kv_precision=kv_precision,
        parallelism=parallelism,
        max_seq_len=request.max_seq_len,
        max_batch_size=request.max_batch_size,
        max_num_tokens=max_num_tokens,
        memory=memory,
        kv_cache_per_token=kv_cache_term(architecture, parallelism, kv_precision.num_bytes),
    )


def _num_bytes(terms: tuple[Term, ...]) -> int:
    return sum(term.num_bytes for term in terms)
