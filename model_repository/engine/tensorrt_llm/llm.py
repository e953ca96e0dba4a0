"""How TensorRT-LLM is started and called, for both backends. No other module names its start options.

Only keyword arguments are used, and only those that all recorded releases have.
"""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Mapping
from typing import Any

from tensorrt_llm import LLM, SamplingParams, __version__
from tensorrt_llm.llmapi import CapacitySchedulerPolicy, GuidedDecodingParams, KvCacheConfig, SchedulerConfig

from model_repository.engine.runtime import EngineConfig
from model_repository.engine.tensorrt_llm.image_prompts import reads_images
from model_repository.engine.tensorrt_llm.lora import lora_config, supports_adapters
from model_repository.engine.tensorrt_llm.options import (
    HOST_CACHE_SHARE,
    Backend,
    GuidedDecoding,
    KVCacheManager,
    TensorRtLlmOptions,
)
from model_repository.engine.tensorrt_llm.releases import ENGINE_RELEASE, release_of, why_unsure
from model_repository.engine.tensorrt_llm.role import Role, RoleKind
from model_repository.engine.tensorrt_llm.sampling import SamplingPlan, embedding_bias
from model_repository.engine.tensorrt_llm.tensors import to_tensor
from model_repository.errors import EngineFailed
from model_repository.system.cores import memory_bytes
from model_repository.system.machine import read_machine

logger = logging.getLogger(__name__)

ENGINE_FOLDER = "engine"
CHECKPOINT_FOLDER = "checkpoint"
TOKENIZER_FOLDER = "tokenizer"
_LONGEST_RUN_S = 1e7


def start_llm(config: EngineConfig, options: TensorRtLlmOptions, role: Role) -> Any:
    """Load the model on every rank and return TensorRT-LLM's LLM.

    Raises:
        EngineFailed: TensorRT-LLM has no such backend, or does not load the model.
    """
    _check_release(options)
    llm_class = _engine_class() if options.backend is Backend.ENGINE else LLM
    leader = {"_mpi_session": _mpi_session(role)} if role.kind is RoleKind.LEADER else {}
    try:
        keywords = llm_keywords(config, options)
        if options.kv_cache_manager is KVCacheManager.V2:
            size_gb = keywords["kv_cache_config"].host_cache_size / 1e9  # may be an --llm-option
            logger.info("KV cache manager V2 pins up to %.1f GB of the machine's memory for each GPU", size_gb)
        return llm_class(**keywords, **leader)
    except (OSError, RuntimeError, TypeError, ValueError) as exc:
        raise EngineFailed(f"{config.artifact_dir}: TensorRT-LLM does not load it: {exc}") from exc


def work_for_leader(role: Role) -> None:
    """Do the work that rank 0 orders, until it ends.

    Raises:
        EngineFailed: always: afterwards this process has nothing to serve.
    """
    from mpi4py.futures import MPICommExecutor  # only in images with GPUs
    from mpi4py.MPI import COMM_WORLD

    with MPICommExecutor(COMM_WORLD):
        pass
    raise EngineFailed(f"rank {role.rank} of {role.num_ranks} has worked for rank 0, which serves, and is done")


def llm_keywords(config: EngineConfig, options: TensorRtLlmOptions) -> dict[str, Any]:
    """Return the constructor's arguments."""
    is_engine = options.backend is Backend.ENGINE
    keywords: dict[str, Any] = {
        "model": str(config.artifact_dir / (ENGINE_FOLDER if is_engine else CHECKPOINT_FOLDER)),
        "skip_tokenizer_init": True,  # tokens in, tokens out
        "trust_remote_code": options.trust_remote_code,
        "tensor_parallel_size": options.tp_size,  # an engine has its own sizes, and refuses others
        "pipeline_parallel_size": options.pp_size,
        "kv_cache_config": KvCacheConfig(
            enable_block_reuse=options.block_reuse,
            free_gpu_memory_fraction=options.kv_cache_fraction,
            dtype=str(options.kv_cache_dtype),
            **(kv_cache_manager_keywords(options) if release_of(__version__).has_kv_cache_manager_v2 else {}),
        ),
        "scheduler_config": SchedulerConfig(
            capacity_scheduler_policy=CapacitySchedulerPolicy[options.scheduler_policy.name], **_queue_policy()
        ),
        "enable_chunked_prefill": options.chunked_prefill,
        "max_batch_size": _max_batch_size(config, options),
    }
    if options.max_num_tokens is not None:
        keywords["max_num_tokens"] = options.max_num_tokens
    guides = {GuidedDecoding.XGRAMMAR: "xgrammar", GuidedDecoding.NATIVE_LLGUIDANCE: "llguidance"}
    if options.guided_decoding in guides:
        keywords["guided_decoding_backend"] = guides[options.guided_decoding]
    if options.guided_decoding in guides or reads_images(config.artifact_dir / CHECKPOINT_FOLDER):
        keywords |= {"skip_tokenizer_init": False, "tokenizer": str(config.artifact_dir / TOKENIZER_FOLDER)}
    keywords |= _engine_keywords(config, options) if is_engine else _pytorch_keywords(config, options)
    return _with_llm_options(keywords, options.llm_options) if options.llm_options else keywords


def kv_cache_manager_keywords(options: TensorRtLlmOptions) -> dict[str, Any]:
    """Return arguments of KvCacheConfig that TensorRT-LLM would choose by the model, and by the machine's free memory.

    Source: PR 16106 of TensorRT-LLM: each rank has a host cache of `host_cache_size` bytes.
    """
    if options.kv_cache_manager is KVCacheManager.V1:
        return {"use_kv_cache_manager_v2": False, "host_cache_size": 0}
    machine = read_machine({})  # the GPUs of other models in this container have a part of its memory, too
    num_gpus = machine.num_gpus or options.tp_size * options.pp_size
    size_bytes = int(HOST_CACHE_SHARE * memory_bytes()) // num_gpus
    if machine.num_gpus:  # a larger one would have no use
        size_bytes = min(size_bytes, machine.gpu_memory_bytes)
    return {"use_kv_cache_manager_v2": True, "host_cache_size": size_bytes}


def _queue_policy() -> dict[str, Any]:
    if not release_of(__version__).has_priority:
        return {}
    from tensorrt_llm.llmapi.llm_args import WaitingQueuePolicy  # the other releases lack the member

    return {"waiting_queue_policy": WaitingQueuePolicy.PRIORITY}


def _max_batch_size(config: EngineConfig, options: TensorRtLlmOptions) -> int:
    return options.max_batch_size or config.max_sequences


def _with_llm_options(keywords: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Add the options as TensorRT-LLM adds those of a file: it merges objects, and makes its classes of them."""
    from tensorrt_llm.llmapi.llm_args import update_llm_args_with_extra_dict  # a later release may move it

    merged: dict[str, Any] = update_llm_args_with_extra_dict(keywords, dict(options))
    return merged


def _engine_keywords(config: EngineConfig, options: TensorRtLlmOptions) -> dict[str, Any]:
    """Return the arguments of the engine backend; limits of lengths are part of the engine."""
    keywords: dict[str, Any] = {"gather_generation_logits": options.logprobs}
    has_adapters = supports_adapters(config, options)
    if options.cuda_graph_mode and has_adapters:  # nothing says that graphs would take the right one
        raise EngineFailed("option cuda_graph_mode=true: not with adapters")
    if options.cuda_graph_mode:
        from tensorrt_llm.llmapi import ExtendedRuntimePerfKnobConfig  # ended with engines

        # By default it keeps one graph. It keeps at most one for each size of a batch.
        keywords["extended_runtime_perf_knob_config"] = ExtendedRuntimePerfKnobConfig(
            cuda_graph_mode=True, cuda_graph_cache_size=_max_batch_size(config, options)
        )
    return keywords | ({"enable_lora": True} if has_adapters else {})


def _pytorch_keywords(config: EngineConfig, options: TensorRtLlmOptions) -> dict[str, Any]:
    keywords: dict[str, Any] = {
        "max_seq_len": config.context_window,
        "max_input_len": config.context_window,  # the default of 1.3 is 1024
        # With that scheduler logits processors run before the last token is known.
        "disable_overlap_scheduler": not options.overlap_scheduler,
        "enable_iter_perf_stats": options.iteration_stats,
        "stream_interval": options.stream_interval,
    }
    release, has_adapters = release_of(__version__), supports_adapters(config, options)
    if has_adapters:
        keywords["lora_config"] = lora_config(config, options)
    if has_adapters and not release.has_adapter_graphs:
        logger.warning("TensorRT-LLM %s decodes without CUDA graphs if it has adapters, which is slower", __version__)
        keywords["cuda_graph_config"] = None
    else:  # without padding, most sizes of a batch have no graph
        keywords["cuda_graph_config"] = pkgutil.resolve_name(release.cuda_graph_config)(
            enable_padding=True, max_batch_size=_max_batch_size(config, options)
        )
    return keywords


def _check_release(options: TensorRtLlmOptions) -> None:
    """Check that the installed release has the backend and the KV cache manager; log if it is not a recorded one.

    Raises:
        EngineFailed: it has no such backend or KV cache manager.
    """
    if options.backend is Backend.ENGINE and not release_of(__version__).has_engines:
        raise EngineFailed(
            f"backend=engine: TensorRT-LLM {__version__} cannot run engines: "
            f"use an image with {ENGINE_RELEASE.version}, or build the model with backend=pytorch"
        )
    is_v2 = options.kv_cache_manager is KVCacheManager.V2
    if is_v2 and not release_of(__version__).has_kv_cache_manager_v2:
        raise EngineFailed(f"option kv_cache_manager=v2: TensorRT-LLM {__version__} has no such KV cache manager")
    if (reason := why_unsure(__version__)) is not None:
        logger.warning("%s", reason)


def _engine_class() -> Any:
    from tensorrt_llm._tensorrt_engine import LLM as EngineLLM  # releases after 1.2 have no such module

    return EngineLLM


def _mpi_session(role: Role) -> Any:
    from mpi4py.MPI import COMM_WORLD
    from tensorrt_llm.llmapi import MpiCommSession

    return MpiCommSession(comm=COMM_WORLD, n_workers=role.num_ranks)


def queue_priority(order_s: float) -> dict[str, float]:
    """Return an argument of `generate_async` that keeps the order of our queue in TensorRT-LLM's.

    TensorRT-LLM serves the highest priority first, however long others wait. It takes values from 0 to 1, as 32-bit
    floats: those of requests within half a second may be equal, and are then served by arrival.

    Args:
        order_s: see `queue_order_s`, counted from the start of the engine. After 115 days all requests are equal.

    Source: TensorRT-LLM's pull request 12362.
    """
    if not release_of(__version__).has_priority:
        return {}
    return {"priority": max(0.0, min(1.0, 1.0 - order_s / _LONGEST_RUN_S))}


def sampling_params(plan: SamplingPlan, vocab_size: int) -> Any:
    """Return a plan as TensorRT-LLM's SamplingParams. With biases it takes half a megabyte or more.

    Raises:
        ValueError: TensorRT-LLM refuses a value.
    """
    keywords: dict[str, Any] = dict(plan.keywords)
    if plan.biases:
        keywords["embedding_bias"] = to_tensor(embedding_bias(plan.biases, vocab_size))
    if plan.native_grammar is not None:
        keywords["guided_decoding"] = GuidedDecodingParams(**plan.native_grammar)
    return SamplingParams(**keywords)
