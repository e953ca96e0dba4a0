"""Tests of --llm-option: its table equals the records, and wrong keywords are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.engine.runtime import EngineConfig
from model_repository.engine.tensorrt_llm import llm_options
from model_repository.engine.tensorrt_llm.llm import llm_keywords
from model_repository.engine.tensorrt_llm.llm_options import check_llm_options, read_llm_options
from model_repository.engine.tensorrt_llm.options import TensorRtLlmOptions
from model_repository.errors import EngineFailed, Unsupported
from tests.model_repository.engine.tensorrt_llm.test_releases import RECORDS

TABLE = llm_options._table()
ARGUMENTS = {"engine": "TrtLlmArgs", "pytorch": "TorchLlmArgs"}
NGRAM = {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 2}


def check(version: str | None = "1.2.1", backend: str = "pytorch", **options: Any) -> None:
    pp_size, has_adapters = options.pop("pp_size", 1), options.pop("has_adapters", False)
    check_llm_options(options, backend, version, pp_size=pp_size, has_adapters=has_adapters)


@pytest.mark.parametrize(
    ("version", "backend"), [(version, backend) for version, each in TABLE["keywords"].items() for backend in each]
)
def test_each_recorded_keyword_is_passed_on_or_decided(version: str, backend: str) -> None:
    recorded = RECORDS[version]["callables"][f"tensorrt_llm.llmapi.{ARGUMENTS[backend]}.__init__"]["params"]
    certain = {param["name"] for param in recorded if not param.get("uncertain")}
    passed_on = TABLE["keywords"][version][backend]
    assert passed_on == sorted(set(passed_on))
    assert set(passed_on) == certain - TABLE["decided"].keys()


def test_each_decided_keyword_is_one_of_a_release() -> None:
    of_all: set[str] = set()
    for record in RECORDS.values():
        for name, entry in record["callables"].items():
            members = {"KvCacheConfig": "kv_cache_config.", "PerfKnobConfig": "extended_runtime_perf_knob_config."}
            prefix = next((members[each] for each in members if each in name), "")
            if prefix or name.endswith("LlmArgs.__init__"):
                of_all |= {prefix + param["name"] for param in entry["params"]}
    assert TABLE["decided"].keys() <= of_all


def test_each_refused_pair_is_in_the_matrix_of_the_release() -> None:
    for rule in TABLE["refused"]:
        for version, pair in rule["matrix"].items():
            combinations = RECORDS[version]["combinations"]
            assert pair in combinations["no"] + combinations["known_issues"]


@pytest.mark.parametrize(
    ("items", "options"),
    [
        (
            ["enable_attention_dp=true", "moe_expert_parallel_size=8"],
            {"enable_attention_dp": True, "moe_expert_parallel_size": 8},
        ),
        (["attn_backend=FLASHINFER"], {"attn_backend": "FLASHINFER"}),
        (
            ["kv_cache_config.host_cache_size=1000", "kv_cache_config.use_uvm=true"],
            {"kv_cache_config": {"host_cache_size": 1000, "use_uvm": True}},
        ),
        ([f"speculative_config={json.dumps(NGRAM)}"], {"speculative_config": NGRAM}),
    ],
)
def test_values_are_json_or_texts(items: list[str], options: dict[str, Any]) -> None:
    assert read_llm_options(items) == options


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        (["dtype"], "dtype: expected KEY=VALUE"),
        (["=1"], "=1: expected KEY=VALUE"),
        (["a..b=1"], r"a\.\.b=1: expected KEY=VALUE"),
        (["dtype=a", "dtype=b"], "dtype: given twice"),
        (["dtype=a", "dtype.b=1"], r"dtype\.b: dtype has a value already, which is no object"),
    ],
)
def test_malformed_items_are_refused(items: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_llm_options(items)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"enable_atention_dp": True}, "backend=pytorch of TensorRT-LLM 1.2.1 has no such option.*enable_attention_dp"),
        ({"max_batch_size": 8}, "max_batch_size: Conch sets this itself: use --max-batch-size"),
        (
            {"kv_cache_config": {"dtype": "fp8"}},
            r"kv_cache_config\.dtype: Conch sets this itself: use --option kv_cache_dtype",
        ),
        ({"dwdp_config": {}}, "dwdp_config: backend=pytorch of TensorRT-LLM 1.2.1 has no such option"),
        (
            {"moe_config": {}, "backend": "engine"},
            "moe_config: backend=engine of TensorRT-LLM 1.2.1 has no such option",
        ),
        ({"speculative_config": NGRAM, "pp_size": 2}, "not together with pipeline_parallel_size.*MTP and Pipeline Par"),
        ({"speculative_config": NGRAM, "context_parallel_size": 2}, "not together with context_parallel_size"),
        ({"enable_attention_dp": True, "context_parallel_size": 2}, "enable_attention_dp: not together with context"),
        (
            {"torch_compile_config": {"enable_piecewise_cuda_graph": True}, "has_adapters": True},
            "not together with lora_config: TensorRT-LLM 1.2.1 does not support LoRA and CUDA Graph",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check(**options)


def test_what_works_is_accepted() -> None:
    check(speculative_config=NGRAM, context_parallel_size=1, enable_attention_dp=True, has_adapters=True)
    check(enable_attention_dp=False, context_parallel_size=2)
    check(torch_compile_config={"enable_piecewise_cuda_graph": False}, has_adapters=True)
    check("1.3.0rc29", torch_compile_config={"enable_piecewise_cuda_graph": True}, has_adapters=True)
    check(None, dwdp_config={}, disable_flashinfer_sampling=True)  # of one release each


def test_options_are_merged_with_the_start_options(config: EngineConfig) -> None:
    given = {"kv_cache_config": {"host_cache_size": 1000}, "enable_attention_dp": True}
    texts = {"backend": "pytorch", "kv_cache_fraction": "0.5", "llm_options": json.dumps(given)}
    keywords = llm_keywords(config, TensorRtLlmOptions.of(texts))
    cache = keywords["kv_cache_config"]
    assert (cache.host_cache_size, cache.free_gpu_memory_fraction) == (1000, 0.5)
    assert keywords["enable_attention_dp"] is True and keywords["max_seq_len"] == config.context_window


@pytest.mark.parametrize("given", [{"kv_cache_config": {"nope": 1}}, {"speculative_config": {}}, {"dtype": 8}])
def test_a_value_that_tensorrt_llm_refuses_stops_the_start(start: Any, given: dict[str, Any]) -> None:
    with pytest.raises(EngineFailed, match="TensorRT-LLM does not load it"):
        start(backend="pytorch", llm_options=json.dumps(given))


def test_speculation_reaches_the_llm_and_refuses_logits_processors(start: Any) -> None:
    tiny = start(backend="pytorch", llm_options=json.dumps({"speculative_config": NGRAM}))
    assert len(tiny.tokens()) == 8
    for fields in ({"bad_words": ((5,),)}, {"structured_output": StructuredOutput(OutputFormat.REGEX, "a")}):
        with pytest.raises(Unsupported, match="served with the option speculative_config"):
            tiny.submit(**fields)
