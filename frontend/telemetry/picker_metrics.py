"""The metrics by which an endpoint picker of an InferencePool chooses a pod.

They have the names that llm-d's picker reads by the engine type of the pod's label: those of vLLM, and those of
TensorRT-LLM's Triton backend.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from prometheus_client import Metric as Family
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from model_repository.contract.output import EngineStats

_BLOCK_TOKENS = 16  # vLLM's; the size of the pieces in which a picker compares prompts. The engine keeps single tokens.


class PickerMetrics(Collector):
    """The metrics of engines, made for each scrape.

    Args:
        engines: the latest statistics by model and engine; None: the model is not loaded.
    """

    def __init__(self, engines: Mapping[tuple[str, str], EngineStats | None]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Family]:
        """Yield the metrics of both kinds of engine."""
        waiting = _gauge("vllm:num_requests_waiting", "Completions in the engine's queue.")
        running = _gauge("vllm:num_requests_running", "Completions in the running batch.")
        usage = _gauge("vllm:kv_cache_usage_perc", "Share of the KV cache that running completions use.")
        cache = _gauge("vllm:cache_config_info", "Size of the KV cache.", "block_size", "num_gpu_blocks")
        requests = _gauge("nv_trt_llm_request_metrics", "Completions by state.", "request_type")
        blocks = _gauge("nv_trt_llm_kv_cache_block_metrics", "The KV cache.", "kv_cache_block_type")
        for (model, triton), stats in self._engines.items():
            num_waiting, num_running = (stats.num_waiting, stats.num_active) if stats else (0, 0)
            num_tokens, num_used = (stats.max_kv_tokens or 0, stats.num_kv_tokens_used or 0) if stats else (0, 0)
            num_blocks, share = num_tokens // _BLOCK_TOKENS, num_used / max(1, num_tokens)
            for family, value in ((waiting, num_waiting), (running, num_running), (usage, share)):
                family.add_metric([model, triton], value)
            cache.add_metric([model, triton, str(_BLOCK_TOKENS), str(num_blocks)], 1)
            for name, value in (("waiting", num_waiting), ("scheduled", num_running)):
                requests.add_metric([model, triton, name], value)
            for name, value in (("fraction", share), ("tokens_per", _BLOCK_TOKENS), ("max", num_blocks)):
                blocks.add_metric([model, triton, name], value)
        yield from (waiting, running, usage, cache, self._loras(), requests, blocks)

    def _loras(self) -> Family:
        """Return the adapters that are loaded. A request for one never waits for a load."""
        labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
        family = GaugeMetricFamily("vllm:lora_requests_info", "Loaded adapters; the value is the time.", labels=labels)
        names = sorted({name for stats in self._engines.values() if stats for name in stats.adapters})
        if names:
            family.add_metric([str(len(names)), ",".join(names), ""], time.time())
        return family


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=("model_name", "triton", *labels))
