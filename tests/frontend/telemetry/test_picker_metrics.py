"""The metrics of endpoint pickers, read as llm-d's picker reads them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from frontend.settings import Settings, SettingsError
from frontend.telemetry.picker_metrics import PickerMetrics
from model_repository.contract.output import EngineStats
from tests.fakes import FakeTriton, stats
from tests.frontend.conftest import Serve

# Of llm-d-router ebab6879, pkg/epp/framework/plugins/datalayer/extractor/metrics/factories.go.
VLLM = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc")
TENSORRT_LLM = (
    "nv_trt_llm_request_metrics{request_type=waiting}",
    "nv_trt_llm_request_metrics{request_type=scheduled}",
    "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
    "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
    "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
)
BUSY = replace(stats(1), num_active=3, num_waiting=2, num_kv_tokens_used=512, max_kv_tokens=2048)


def page(*engines: EngineStats | None) -> dict[str, list[Any]]:
    """Return the samples of a page about engines, by name."""
    registry = CollectorRegistry()
    registry.register(PickerMetrics({("demo", f"fake:{number}"): each for number, each in enumerate(engines)}))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {family.name: family.samples for family in families}


def read(samples: dict[str, list[Any]], spec: str) -> float:
    """Return the value of a specification such as `name{label=value}`."""
    name, label, wanted = re.fullmatch(r"([^{]+)(?:\{(\w+)=(\w+)\})?", spec).groups()  # type: ignore[union-attr]
    [value] = [each.value for each in samples[name] if label is None or each.labels[label] == wanted]
    return float(value)


def test_a_picker_reads_queue_and_cache_under_the_names_of_both_engine_types() -> None:
    samples = page(BUSY)
    assert [read(samples, spec) for spec in VLLM] == [2, 3, 0.25]
    assert [read(samples, spec) for spec in TENSORRT_LLM] == [2, 3, 0.25, 16, 128]
    [cache] = samples["vllm:cache_config_info"]
    assert (cache.labels["block_size"], cache.labels["num_gpu_blocks"]) == ("16", "128")


def test_a_picker_reads_the_loaded_adapters() -> None:
    assert page(BUSY)["vllm:lora_requests_info"] == []
    [loras] = page(replace(BUSY, adapters={"polite": "", "loud": "loud"}))["vllm:lora_requests_info"]
    assert loras.labels == {"max_lora": "2", "running_lora_adapters": "loud,polite", "waiting_lora_adapters": ""}
    assert loras.value > 0


@pytest.mark.parametrize(
    "engine", [None, replace(BUSY, num_active=0, num_waiting=0, num_kv_tokens_used=None, max_kv_tokens=None)]
)
def test_what_nobody_knows_is_a_number(engine: EngineStats | None) -> None:
    samples = page(engine)
    assert [read(samples, spec) for spec in (*VLLM, *TENSORRT_LLM)] == [0, 0, 0, 0, 0, 0, 16, 0]


async def test_the_page_is_on_the_port_of_the_api_without_a_key_and_only_on_request(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.triton.health_monitor.STATS_INTERVAL_S", 0.01)
    http = await serve(FakeTriton(), admin_port=1)
    assert (await http.get("/metrics")).status == 404
    http = await serve(FakeTriton(), admin_port=1, picker_metrics=True)
    text = ""
    while 'model_name="org/demo"' not in text:
        text = await (await http.get("/metrics")).text()
    assert "conch" not in text  # nothing about clients


def test_without_an_operations_port_the_page_would_hide_the_other_metrics() -> None:
    with pytest.raises(SettingsError, match="picker-metrics"):
        Settings(picker_metrics=True)
