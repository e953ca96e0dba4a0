"""Plans a model: its layout over GPUs and its limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from build_engines.errors import BuildError, DoesNotFit
from build_engines.gpus import GPUS, Gpu
from build_engines.model_entry import ModelEntry, Precision
from build_engines.parallelism import Parallelism
from build_engines.planner.memory import gigabytes
from build_engines.planner.search import Request, candidates, fitting_plan, node_counts
from build_engines.planner.sizing import Plan
from model_repository.engine.tensorrt_llm.options import Backend

MIN_USEFUL_SEQ_LEN = 1024  # a shorter context is not proposed
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
    has_cuda_graphs: bool = False,
) -> Plan:
    """Return the smallest layout of a model with room for a useful cache. Given arguments are fixed.

    Args:
        has_context_logits: plan an engine for the log probabilities of prompts.
        has_fp8_checkpoint: the checkpoint has FP8 matrices if they are planned, so the build does not make them.
        has_cuda_graphs: plan those of the PyTorch backend, as always where there is no engine.

    Raises:
        DoesNotFit: there is no such layout; the message names changes with which the model fits.
        BuildError: an argument breaks a rule.
    """
    checked_precision = _checked_precision(entry, gpu, precision)
    default_batch_size = entry.default_max_batch_size or DEFAULT_MAX_BATCH_SIZE
    has_engine = Backend.ENGINE in entry.backends and checked_precision is not Precision.NVFP4
    request = Request(
        entry=entry,
        gpu=gpu,
        precision=checked_precision,
        max_seq_len=_checked_seq_len(entry, max_seq_len),
        max_batch_size=default_batch_size if max_batch_size is None else max_batch_size,
        has_context_logits=has_context_logits,
        has_fp8_checkpoint=has_fp8_checkpoint,
        has_cuda_graphs=has_cuda_graphs or not has_engine,
        num_gpus=num_gpus,
        num_nodes=num_nodes,
        tp_size=tp_size,
    )
    _check_counts(request)
    _check_tp_size(request)
    found = fitting_plan(request)
    if found is None:
        raise DoesNotFit(_advice(request))
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
            f"{entry.model_id} does not run on {gpu.name} ({gpu.architecture}): its kernels are for "
            f"{', '.join(entry.gpu_architectures)} only; plan for {others}"
        )
    return precision


def _checked_seq_len(entry: ModelEntry, given: int | None) -> int:
    max_seq_len = (entry.default_max_seq_len or entry.seq_len_limit) if given is None else given
    if not 2 <= max_seq_len <= entry.seq_len_limit:
        raise BuildError(f"--max-seq-len {max_seq_len}: {entry.model_id} takes 2 to {entry.seq_len_limit} tokens")
    return max_seq_len


def _check_counts(request: Request) -> None:
    num_gpus, num_nodes, gpu = request.num_gpus, request.num_nodes, request.gpu
    for flag, value in (("--max-batch-size", request.max_batch_size), ("--gpus", num_gpus), ("--nodes", num_nodes)):
        if value is not None and value < 1:
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


def _advice(request: Request) -> str:
    """Return one line with the reason why a model does not fit, and changes with which it fits."""
    remedies = list(_remedies(request))
    ending = f"what would fit: {', or '.join(remedies)}" if remedies else "no GPU that is known here would do"
    return f"{request.entry.model_id} does not fit: {_reason(request)}; {ending}"


def _reason(request: Request) -> str:
    closest = _closest(request)
    if closest is None:
        return _rule_broken(request)
    gpu, memory, layout = request.gpu, closest.memory, closest.parallelism
    taken = memory.total_bytes - memory.room_bytes
    on = f"on {layout.num_gpus} x {gpu.name} ({layout}) in {request.precision}"
    if closest.lacks_calibration_memory:
        size, node = (
            gigabytes(closest.checkpoint_bytes),
            f"{layout.num_gpus_per_node} x {gigabytes(memory.total_bytes)}",
        )
        return f"{on} its scales are measured with the 16-bit model of {size} on the GPUs of a node, {node}"
    if memory.room_bytes <= 0:
        return f"{on} the engine takes {gigabytes(taken)} of each GPU's {gigabytes(memory.total_bytes)}"
    return (
        f"{on} the engine takes {gigabytes(taken)} of each GPU's {gigabytes(memory.total_bytes)}, "
        f"the cache gets {gigabytes(memory.kv_cache_bytes)}, "
        f"and one sequence of {request.max_seq_len} tokens needs {gigabytes(closest.kv_bytes_per_sequence)}"
    )


def _closest(request: Request) -> Plan | None:
    """Return the plan over the most GPUs, with the largest tensor parallelism; None: no legal layout."""
    return max(candidates(request), key=lambda plan: plan.parallelism.num_gpus, default=None)


def _rule_broken(request: Request) -> str:
    """Return the rule that excludes every layout over the given GPUs."""
    num_gpus, num_nodes = next(node_counts(request.num_gpus, request.num_nodes, request.gpu))
    if num_gpus % num_nodes:
        return f"{num_gpus} GPUs do not divide evenly over {num_nodes} nodes"
    layouts = ((num_gpus // num_nodes, num_nodes), (1, num_gpus))
    rules = dict.fromkeys(filter(None, (request.entry.layout_rule(*sizes) for sizes in layouts)))
    nodes = f" on {num_nodes} nodes" if num_nodes > 1 else ""
    return f"{num_gpus} GPUs{nodes} cannot share it ({'; '.join(rules)})"


def _remedies(request: Request) -> Iterator[str]:
    """Yield single changes with which the model fits, the smallest first."""
    entry, closest = request.entry, _closest(request)
    is_built = closest is not None and not closest.lacks_calibration_memory
    if closest is not None and is_built and closest.num_cached_tokens >= MIN_USEFUL_SEQ_LEN:
        yield f"--max-seq-len {closest.num_cached_tokens}"
    for max_batch_size in _smaller_batches(request.max_batch_size):
        if found := fitting_plan(replace(request, max_batch_size=max_batch_size)):
            yield f"--max-batch-size {max_batch_size} ({_layout(found)})"
            break
    may_be_fp8 = Precision.FP8 in entry.precisions and Precision.FP8.runs_on(request.gpu)
    in_fp8 = replace(request, precision=Precision.FP8)
    if may_be_fp8 and not request.precision.is_quantized and (found := fitting_plan(in_fp8)):
        yield f"--precision fp8 ({_layout(found)})"
    on_any_number = replace(request, num_gpus=None, num_nodes=None, tp_size=None)
    if on_any_number != request and (found := fitting_plan(on_any_number)):
        yield f"{_flags(found.parallelism)} ({_layout(found)})"
    for gpu in GPUS.values():
        is_other = gpu != request.gpu and (not entry.gpu_architectures or gpu.architecture in entry.gpu_architectures)
        if is_other and request.precision.runs_on(gpu) and (found := fitting_plan(replace(request, gpu=gpu))):
            yield f"--gpu {gpu.key} ({_layout(found)})"


def _smaller_batches(max_batch_size: int) -> Iterator[int]:
    """Yield powers of two below a batch size, the largest first. A smaller batch needs less workspace."""
    yield from (2**exponent for exponent in range((max_batch_size - 1).bit_length() - 1, -1, -1))


def _layout(found: Plan) -> str:
    return f"{found.parallelism.num_gpus} x {found.gpu.name}, {found.parallelism}"


def _flags(parallelism: Parallelism) -> str:
    nodes = f" --nodes {parallelism.num_nodes}" if parallelism.num_nodes > 1 else ""
    return f"--gpus {parallelism.num_gpus}{nodes}"
