"""A build as a shell script: the plan in comments, then the commands."""

from __future__ import annotations

from collections.abc import Iterator

from build_engines.planner.sizing import Plan
from build_engines.tensorrt_llm.recipe import Folders, Recipe, checkpoint_step, engine_step
from model_repository.engine.tensorrt_llm.options import Backend


def script(recipe: Recipe, backend: Backend, folders: Folders) -> Iterator[str]:
    """Yield the lines."""
    plan = recipe.plan
    yield from (f"# {line}" for line in _plan_lines(recipe))
    if backend is Backend.PYTORCH:
        yield "# no commands: the PyTorch backend loads the checkpoint"
        return
    if plan.parallelism.num_nodes > 1:
        yield from (f"# {line}" for line in _node_lines(plan))
    for number, step in enumerate((checkpoint_step(recipe, folders), engine_step(recipe, folders)), start=1):
        yield f"# {number}. {step.name}: about {_gb(step.num_bytes)} in {len(step.files) - 1} ranks"
        yield step.text


def _plan_lines(recipe: Recipe) -> Iterator[str]:
    plan = recipe.plan
    yield f"{plan.entry.model_id} on {plan.parallelism.num_gpus} x {plan.gpu.name}: {plan.parallelism}"
    yield f"matrices {plan.precision}, KV cache {recipe.kv_precision}"
    yield (
        f"max_seq_len {plan.max_seq_len}, max_input_len {plan.max_input_len}, "
        f"max_batch_size {plan.max_batch_size}, max_num_tokens {plan.max_num_tokens}"
    )
    yield (
        f"each GPU: {_gb(plan.memory.weights_bytes)} of weights, {_gb(plan.memory.kv_cache_bytes)} of KV cache: "
        f"{plan.num_concurrent_sequences} sequences of {plan.max_seq_len} tokens at once"
    )
    yield (
        f"the build: {_gb(plan.build_disk_bytes)} of disk with the checkpoint, {_gb(recipe.ram_bytes)} of RAM, "
        f"{plan.build_time_class}"
    )
    yield from (f"note: {note}" for note in plan.entry.notes)


def _node_lines(plan: Plan) -> Iterator[str]:
    parallelism = plan.parallelism
    yield (
        f"on one node: this command line; step 2 compiles the {parallelism.num_gpus} ranks on its "
        f"{parallelism.num_gpus_per_node} GPUs, one after the other on each"
    )
    yield (
        f"sooner, over {parallelism.num_nodes} nodes with one file system: "
        f"mpirun -n {parallelism.num_gpus} --map-by ppr:{parallelism.num_gpus_per_node}:node "
        "python -m build_engines build ... (this command line)"
    )
    yield "process 0 runs step 1; every process runs step 2 with --workers 1, and compiles the rank of its number"


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"
