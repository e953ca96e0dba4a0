"""Plans a model: its layout over GPUs and its limits."""

from __future__ import annotations

from build_engines.errors import BuildError, DoesNotFit
from build_engines.gpus import GPUS, Gpu
from build_engines.model_entry import ModelEntry, Precision
from build_engines.planner.advice import advice
from build_engines.planner.search import Request, fitting_plan, node_counts
from build_engines.planner.sizing import Plan

__all__ = ["Plan", "plan"]

DEFAULT_MAX_BATCH_SIZE = 128  # sequences in one step; their part of the cache depends on their lengths


def plan(
    entry: ModelEntry,
    gpu: Gpu,
    *,
    num_gpus: int | None = None,
    num_nodes: int | None = None,
    tp_size: int | None = None,
    precision: str | None = None,
    max_seq_len: int | None = None,
    max_batch_size: int | None = None,
    has_context_logits: bool = False,
    has_fp8_checkpoint: bool = False,
) -> Plan:
    """Return the smallest layout of a model with room for a useful cache. Given arguments are fixed.

    Args:
        has_context_logits: plan an engine for the log probabilities of prompts.
        has_fp8_checkpoint: the checkpoint has FP8 matrices if they are planned, so the build does not make them.

    Raises:
        DoesNotFit: there is no such layout; the message names changes with which the model fits.
        BuildError: an argument breaks a rule.
    """
    request = Request(
        entry=entry,
        gpu=gpu,
        precision=_checked_precision(entry, gpu, precision),
        max_seq_len=_checked_seq_len(entry, max_seq_len),
        max_batch_size=_default(max_batch_size, entry.default_max_batch_size or DEFAULT_MAX_BATCH_SIZE),
        has_context_logits=has_context_logits,
        has_fp8_checkpoint=has_fp8_checkpoint,
        num_gpus=num_gpus,
        num_nodes=num_nodes,
        tp_size=tp_size,
    )
    _check_counts(request)
    _check_tp_size(request)
    found = fitting_plan(request)
    if found is None:
        raise DoesNotFit(advice(request))
    return found


def _checked_precision(entry: ModelEntry, gpu: Gpu, name: str | None) -> Precision:
    if name is not None and name not in entry.precisions:
        raise BuildError(f"--precision {name}: {entry.model_id} is built in {' or '.join(entry.precisions)}")
    precision = entry.precisions[0] if name is None else Precision(name)
    if not precision.runs_on(gpu):
        others = " or ".join(other.key for other in GPUS.values() if precision.runs_on(other))
        rule = f"{gpu.name} ({gpu.architecture}) has no {precision.name}; plan for {others}"
        raise DoesNotFit(f"--precision {precision}: {rule}")
    if entry.gpu_architectures and gpu.architecture not in entry.gpu_architectures:
        others = " or ".join(other.key for other in GPUS.values() if other.architecture in entry.gpu_architectures)
        raise DoesNotFit(
            f"{entry.model_id} does not run on {gpu.name} ({gpu.architecture}): it has kernels for "
            f"{', '.join(entry.gpu_architectures)} only; plan for {others}"
        )
    return precision


def _checked_seq_len(entry: ModelEntry, given: int | None) -> int:
    max_seq_len = _default(given, entry.default_max_seq_len or entry.seq_len_limit)
    if not 2 <= max_seq_len <= entry.seq_len_limit:
        raise BuildError(f"--max-seq-len {max_seq_len}: {entry.model_id} takes 2 to {entry.seq_len_limit} tokens")
    return max_seq_len


def _check_counts(request: Request) -> None:
    num_gpus, num_nodes, gpu = request.num_gpus, request.num_nodes, request.gpu
    for flag, value in (
        ("--max-batch-size", request.max_batch_size),
        ("--gpus", _default(num_gpus, 1)),
        ("--nodes", _default(num_nodes, 1)),
    ):
        if value < 1:
            raise BuildError(f"{flag} {value}: expected at least 1")
    if num_gpus is None or num_nodes is None:
        return
    if num_gpus % num_nodes:
        raise BuildError(f"--gpus {num_gpus}: must be a multiple of --nodes {num_nodes}")
    if num_gpus > num_nodes * gpu.num_per_node:
        raise BuildError(f"--gpus {num_gpus} --nodes {num_nodes}: a node holds {gpu.num_per_node} GPUs")


def _check_tp_size(request: Request) -> None:
    num_gpus, tp_size = request.num_gpus, request.tp_size
    if tp_size is None:
        return
    if num_gpus is None:
        raise BuildError(f"--tensor {tp_size}: goes with --gpus")
    [(_, num_nodes)] = node_counts(num_gpus, request.num_nodes, request.gpu)
    if tp_size < 1 or num_gpus // num_nodes % tp_size:
        raise BuildError(f"--tensor {tp_size}: must divide the {num_gpus // num_nodes} GPUs of a node")
    rule = request.entry.layout_rule(tp_size, num_gpus // tp_size)
    if rule is not None:
        raise DoesNotFit(f"--tensor {tp_size} --gpus {num_gpus}: {request.entry.model_id}: {rule}")


def _default(value: int | None, default: int) -> int:
    return default if value is None else value
