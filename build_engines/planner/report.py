"""A plan as text for a terminal, with its arithmetic, and as an object for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from build_engines.architecture import LayerKind
from build_engines.model_entry import Fp8Method
from build_engines.planner.memory import KV_CACHE_SHARE, TOKENS_PER_BLOCK, GpuMemory, Term, gigabytes, num_bytes_of
from build_engines.planner.search import replicas
from build_engines.planner.sizing import Plan
from model_repository.engine.tensorrt_llm.options import HOST_CACHE_SHARE, MAX_LOGITS_BYTES

_ESTIMATED = "an estimate, not measured"


def plan_lines(plan: Plan, width: int, num_gpus: int | None = None) -> Iterator[str]:
    """Yield the lines that explain a plan, with a bar of at most `width` columns.

    Args:
        num_gpus: for the replicas of the model; None: those of a node.
    """
    layout, memory = plan.parallelism, plan.memory
    yield (
        f"{plan.entry.model_id} on {layout.num_gpus} x {plan.gpu.name}: {layout}, "
        f"{plan.precision}, KV cache {plan.kv_precision}"
    )
    yield ""
    which = " (the fullest, where stages differ)" if layout.pp_size > 1 else ""
    yield f"Memory of one GPU, {gigabytes(memory.total_bytes)} as sold{which}"
    yield from memory_bar(memory, width)
    yield from _section("Weights (bytes: layers x values x share of this GPU x bytes of a value)", memory.weights)
    yield from _section(
        f"Workspace ({_ESTIMATED}; bytes: tokens x values alive x bytes; sequences x vocabulary x bytes)",
        memory.workspace,
    )
    yield from _section(f"Runtime ({_ESTIMATED})", memory.reserve)
    yield from _section("KV cache, per GPU", _cache_terms(plan), has_sum=False)
    yield f"  {plan.num_cached_tokens:,} tokens, in blocks of {TOKENS_PER_BLOCK}"
    yield f"  {_sequences(plan)}"
    yield ""
    yield (
        f"Limits  max_seq_len {plan.max_seq_len}, max_input_len {plan.max_input_len}, "
        f"max_batch_size {plan.max_batch_size}, max_num_tokens {plan.max_num_tokens}"
    )
    yield f"Build   {_build_sizes(plan)}"
    yield f"Serve   RAM up to {gigabytes(MAX_LOGITS_BYTES)} for requests with log probabilities"
    if plan.max_host_cache_bytes:
        size, share = gigabytes(plan.max_host_cache_bytes), f"{HOST_CACHE_SHARE:.0%} of the container's RAM"
        yield f"        with --option kv_cache_manager=v2 up to {size} more, pinned, within {share}"
    if found := replicas(plan, num_gpus):
        number, each = found
        layout, total = each.parallelism, num_gpus or plan.gpu.num_per_node
        gpus = f"{layout.num_gpus} GPU{'s' * (layout.num_gpus > 1)} ({layout})"
        how = f"`build --gpus {layout.num_gpus}`, then `render ARTIFACT --replicas {number}`"
        yield f"Or      {number} replicas of {gpus} on {total} x {plan.gpu.name}: {how}"
    for note in notes(plan):
        yield f"Note    {note}"


def memory_bar(memory: GpuMemory, width: int) -> Iterator[str]:
    """Yield a bar of a GPU's memory, and its legend."""
    parts = (
        ("#", "weights", memory.weights_bytes),
        ("w", "workspace", memory.workspace_bytes),
        ("r", "runtime", memory.reserve_bytes),
        ("=", "KV cache", memory.kv_cache_bytes),
        (".", "free", memory.free_bytes),
    )
    yield f"  [{bar([(sign, size) for sign, _, size in parts], max(10, min(width, 100) - 4))}]"
    meanings = [f"  {sign} {name} {gigabytes(size)}" for sign, name, size in parts]
    in_one_line = " ".join(meanings)
    yield from [in_one_line] if len(in_one_line) <= width else meanings


def bar(parts: Sequence[tuple[str, int]], width: int) -> str:
    """Return `width` letters, divided by the sizes of the parts. The ends of the parts are rounded."""
    total, end, text = sum(size for _, size in parts), 0, ""
    for sign, size in parts:
        end += size
        text += sign * (round(end * width / total) - len(text))
    return text


def plan_object(plan: Plan, num_gpus: int | None = None) -> dict[str, Any]:
    """Return the whole plan for JSON; see `plan_lines`."""
    layout, memory, found = plan.parallelism, plan.memory, replicas(plan, num_gpus)
    return {
        "model": plan.entry.model_id,
        "gpu": plan.gpu.key,
        "precision": plan.precision.value,
        "kv_precision": plan.kv_precision.value,
        "fp8_method": plan.fp8_method,
        "num_gpus": layout.num_gpus,
        "tp_size": layout.tp_size,
        "pp_size": layout.pp_size,
        "num_nodes": layout.num_nodes,
        "max_seq_len": plan.max_seq_len,
        "max_input_len": plan.max_input_len,
        "max_batch_size": plan.max_batch_size,
        "max_num_tokens": plan.max_num_tokens,
        "memory_per_gpu": {
            "total_bytes": memory.total_bytes,
            "weights_bytes": memory.weights_bytes,
            "workspace_bytes": memory.workspace_bytes,
            "reserve_bytes": memory.reserve_bytes,
            "kv_cache_bytes": memory.kv_cache_bytes,
            "free_bytes": memory.free_bytes,
            "weights": _term_objects(memory.weights),
            "workspace": _term_objects(memory.workspace),
            "reserve": _term_objects(memory.reserve),
        },
        "kv_cache": {
            "bytes_per_token": plan.sequence_memory.bytes_per_token,
            "bytes_per_sequence": plan.kv_bytes_per_sequence,
            "num_tokens": plan.num_cached_tokens,
            "num_concurrent_sequences": plan.num_concurrent_sequences,
            "arithmetic": _term_objects(_cache_terms(plan)),
        },
        "build": {
            "checkpoint_bytes": plan.checkpoint_bytes,
            "engine_bytes": plan.engine_bytes,
            "disk_bytes": plan.build_disk_bytes,
            "ram_bytes": plan.build_ram_bytes,
            "time_class": plan.build_time_class.value,
        },
        "serve": {"max_logits_bytes": MAX_LOGITS_BYTES, "max_host_cache_bytes": plan.max_host_cache_bytes},
        "replicas": found and {"num_replicas": found[0], "num_gpus": found[1].parallelism.num_gpus},
        "notes": list(notes(plan)),
    }


def notes(plan: Plan) -> Iterator[str]:
    """Yield the catalog's notes on the model, and notes on the layout."""
    yield from plan.entry.notes
    if not plan.entry.backends:
        yield f"`build` does not make it for GPUs: TensorRT-LLM lists no {plan.entry.architecture.class_name}."
    layout, gpu = plan.parallelism, plan.gpu
    if plan.entry.is_gated:
        yield f"Gated: accept its license ({plan.entry.license}) and set a token before it can be downloaded."
    if layout.tp_size > 1 and not gpu.has_nvlink:
        yield f"{gpu.name} has no NVLink: tensor parallelism goes over PCIe, which costs latency on every token."
    if layout.num_nodes > 1:
        yield f"{layout.num_nodes} nodes need MPI, a fast network between them, and the engine's folder on each."
    if plan.fp8_method is Fp8Method.ROWWISE:
        yield (
            f"The GPUs of a node do not hold the 16-bit model of {plan.checkpoint_bytes / 1e9:.0f} GB, so the scales "
            "of FP8 are not measured: the converter computes one for each row of a matrix. The KV cache has 16 bits."
        )
    if not plan.is_comfortable:
        yield "Weights take more than two thirds of each GPU: the cache is small."


def _cache_terms(plan: Plan) -> tuple[Term, ...]:
    tokens, terms, sequence = plan.num_tokens_per_sequence, plan.cache_terms, plan.sequence_memory
    numbers = {LayerKind.FULL: f"{tokens} x ", LayerKind.SLIDING: f"{min(tokens, sequence.window)} x "}
    parts = " + ".join(f"{numbers.get(kind, '')}{term.num_bytes}" for kind, term in terms.items())
    return (
        *terms.values(),
        Term("per sequence", parts, plan.kv_bytes_per_sequence),
        Term("in all", f"{plan.memory.room_bytes} x {KV_CACHE_SHARE}", plan.memory.kv_cache_bytes),
    )


def _section(title: str, terms: Sequence[Term], *, has_sum: bool = True) -> Iterator[str]:
    yield ""
    yield title
    if has_sum and len(terms) > 1:
        terms = (*terms, Term("sum", "", num_bytes_of(terms)))
    name_width = max(len(term.name) for term in terms)
    formula_width = max(len(term.formula) for term in terms)
    for term in terms:
        yield f"  {term.name:<{name_width}}  {term.formula:<{formula_width}}  {term.num_bytes:>17,}"


def _build_sizes(plan: Plan) -> str:
    if not plan.is_converted:
        return f"nothing; the checkpoint has {gigabytes(plan.checkpoint_bytes)}"
    return (
        f"disk {gigabytes(plan.build_disk_bytes)} (checkpoint {gigabytes(plan.checkpoint_bytes)}, "
        f"converted checkpoint and engines {gigabytes(plan.engine_bytes)} each), "
        f"RAM up to {gigabytes(plan.build_ram_bytes)}, {plan.build_time_class}"
    )


def _sequences(plan: Plan) -> str:
    number = plan.num_concurrent_sequences
    limit = ", the limit of a step" if number == plan.max_batch_size else ""
    return f"{number:,} sequences of {plan.max_seq_len} tokens at the same time{limit}; more of shorter ones"


def _term_objects(terms: Sequence[Term]) -> list[dict[str, Any]]:
    return [{"name": term.name, "formula": term.formula, "bytes": term.num_bytes} for term in terms]
