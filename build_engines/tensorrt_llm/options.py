"""The runtime's options from the build and from the user, and the record of a build."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from build_engines.errors import BuildError
from build_engines.planner.sizing import Plan
from build_engines.tensorrt_llm.recipe import PLACEHOLDERS, Recipe, checkpoint_step, engine_step
from model_repository.engine.tensorrt_llm.options import OPTIONS, Backend, TensorRtLlmOptions
from model_repository.engine.tensorrt_llm.releases import release_of

RUNTIME = "tensorrt_llm"
CONTEXT_LOGITS = "prompt_logprobs"  # the only option that changes the engine


def runtime_options(recipe: Recipe, backend: Backend) -> dict[str, str]:
    """Return the runtime's options that follow from the build."""
    plan, lora = recipe.plan, recipe.lora
    options = {
        "backend": str(backend),
        "tp_size": str(plan.parallelism.tp_size),
        "pp_size": str(plan.parallelism.pp_size),
        "max_batch_size": str(plan.max_batch_size),
        "max_num_tokens": str(plan.max_num_tokens),
        "trust_remote_code": json.dumps(plan.entry.needs_trust_remote_code),
    }
    if backend is Backend.ENGINE:
        options[CONTEXT_LOGITS] = json.dumps(recipe.has_context_logits)
    if lora is not None:
        options |= {"lora_max_rank": str(lora.max_rank), "lora_modules": ",".join(lora.modules)}
    return options


def build_record(recipe: Recipe, backend: Backend, revision: str | None) -> dict[str, Any]:
    """Return a record of the build for its key and for people; its commands have placeholders for folders."""
    plan = recipe.plan
    steps = (checkpoint_step, engine_step) if backend is Backend.ENGINE else ()
    recipe = dataclasses.replace(recipe, num_workers=1)
    return {
        "backend": str(backend),
        "revision": revision,
        "source_format": str(recipe.source_format),
        "gpu": plan.gpu.name,
        "num_nodes": plan.parallelism.num_nodes,
        "tp_size": plan.parallelism.tp_size,
        "pp_size": plan.parallelism.pp_size,
        "precision": str(plan.precision),
        "kv_precision": str(recipe.kv_precision),
        "max_seq_len": plan.max_seq_len,
        "max_input_len": plan.max_input_len,
        "max_batch_size": plan.max_batch_size,
        "max_num_tokens": plan.max_num_tokens,
        "lora": None if recipe.lora is None else dataclasses.asdict(recipe.lora),
        "commands": [step(recipe, PLACEHOLDERS).text for step in steps],
    }


def checked_options(options: Mapping[str, str], backend: Backend) -> dict[str, str]:
    """Check the user's options of the runtime.

    Raises:
        BuildError: an option is unknown, or follows from the build.
    """
    for name in options:
        if name not in OPTIONS:
            raise BuildError(f"--option {name}: the runtime {RUNTIME} takes {', '.join(sorted(OPTIONS))}")
        if name in _DECIDED:
            raise BuildError(f"--option {name}: follows from the build: use {_DECIDED[name]}")
    try:
        TensorRtLlmOptions.of({"backend": backend, **options})
    except ValueError as exc:
        raise BuildError(str(exc)) from exc
    return dict(options)


def without_latent_chunks(
    options: Mapping[str, str], plan: Plan, backend: Backend, version: str | None
) -> dict[str, str]:
    """Return options with chunked prefill off where the PyTorch backend has none for latent attention.

    TensorRT-LLM turns it off by itself there, and each prompt must then fit one step.

    Args:
        version: of TensorRT-LLM.

    Raises:
        BuildError: the options turn it on.
    """
    release, gpu = release_of(version), plan.gpu
    is_latent = plan.entry.architecture.latent_attention is not None
    if backend is Backend.ENGINE or not is_latent or gpu.compute_capability in release.latent_chunk_gpus:
        return dict(options)
    if options.get("chunked_prefill") == "true":
        where = f"TensorRT-LLM {version or release.version} on {gpu.name} ({gpu.architecture})"
        raise BuildError(f"--option chunked_prefill=true: {where} has no chunks for latent attention")
    return {**options, "chunked_prefill": "false"}


_DECIDED = {
    "backend": "--backend",
    "tp_size": "--tensor",
    "pp_size": "--gpus and --tensor",
    "max_batch_size": "--max-batch-size",
    "max_num_tokens": "--max-num-tokens",
    "lora_max_rank": "--adapter",
    "lora_modules": "--adapter",
    "llm_options": "--llm-option",
}
