"""The facts in which the recorded releases of TensorRT-LLM differ, as far as code or documents depend on them.

Source: `facts` in tests/data/tensorrt_llm_contract*.json, which say where each was read.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release. A fact that no source shows has the value that promises less."""

    version: str
    has_engines: bool
    honours_seed: bool  # of each request, on the PyTorch backend
    has_raw_logprobs: bool  # the PyTorch backend gives those of the model, not those after edits of the logits
    aborts_in_prefill: bool  # an abort there leaves no blocks that were never computed
    has_adapter_graphs: bool  # CUDA graphs and LoRA adapters work together
    has_kv_cache_manager_v2: bool
    keeps_adapters: bool  # a loaded adapter's memory on the GPU is never freed
    has_priority: bool  # of requests in its queue, on the PyTorch backend
    latent_chunk_gpus: tuple[int, ...]  # compute capabilities, times ten, with chunked prefill for latent attention
    lora_config: str  # the class, by module and name
    cuda_graph_config: str


RELEASES = (
    Release(
        version="1.2.1",
        has_engines=True,
        honours_seed=False,
        has_raw_logprobs=False,
        aborts_in_prefill=False,
        has_adapter_graphs=False,
        has_kv_cache_manager_v2=False,
        keeps_adapters=True,
        has_priority=False,
        latent_chunk_gpus=(90, 100, 103, 120),
        lora_config="tensorrt_llm.lora_helper:LoraConfig",
        cuda_graph_config="tensorrt_llm.llmapi:CudaGraphConfig",
    ),
    Release(
        version="1.3.0rc29",
        has_engines=False,
        honours_seed=False,
        has_raw_logprobs=True,
        aborts_in_prefill=True,
        has_adapter_graphs=True,
        has_kv_cache_manager_v2=True,
        keeps_adapters=False,
        has_priority=True,
        latent_chunk_gpus=(90, 100, 103, 107, 120),
        lora_config="tensorrt_llm._torch.peft.lora.config:LoraConfig",
        cuda_graph_config="tensorrt_llm.llmapi:DecodeCudaGraphConfig",
    ),
)
ENGINE_RELEASE = RELEASES[0]  # the newest with engines


@functools.cache  # each request asks
def release_of(version: str | None) -> Release:
    """Return the facts of a release: of an unrecorded one, those of the nearest recorded line (1.2, 1.3) before it.

    Args:
        version: of the installed package; None, not installed: the release of the engines.
    """
    if version is None:
        return ENGINE_RELEASE
    known = [release for release in RELEASES if _line(release.version) <= _line(version)]
    return known[-1] if known else RELEASES[0]


def why_unsure(version: str) -> str | None:
    """Return in one line why the facts of a release may be wrong; None: it is a recorded one."""
    release = release_of(version)
    if version.split("+")[0] == release.version:
        return None
    names = " and ".join(each.version for each in RELEASES)
    treated = f"not tested with Conch, which treats this release as {release.version} (tested: {names})"
    return f"TensorRT-LLM {version}: {treated}"


def _line(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
