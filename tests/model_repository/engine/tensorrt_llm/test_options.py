"""The runtime's options: texts in, checked values out."""

from __future__ import annotations

import dataclasses

import pytest

from model_repository.engine.tensorrt_llm.options import (
    Aborts,
    Backend,
    GuidedDecoding,
    KVCacheDtype,
    KVCacheManager,
    SchedulerPolicy,
    TensorRtLlmOptions,
)

# By name: an option's text in a manifest, and its value.
OPTIONS = {
    "backend": ("pytorch", Backend.PYTORCH),
    "tp_size": ("8", 8),
    "pp_size": ("2", 2),
    "max_batch_size": ("32", 32),
    "max_num_tokens": ("4096", 4096),
    "kv_cache_fraction": ("0.8", 0.8),
    "kv_cache_dtype": ("fp8", KVCacheDtype.FP8),
    "kv_cache_manager": ("v1", KVCacheManager.V1),
    "scheduler_policy": ("guaranteed_no_evict", SchedulerPolicy.GUARANTEED_NO_EVICT),
    "overlap_scheduler": ("true", True),
    "stream_interval": ("4", 4),
    "cuda_graph_mode": ("false", False),
    "chunked_prefill": ("false", False),
    "aborts": ("never", Aborts.NEVER),
    "block_reuse": ("false", False),
    "logprobs": ("false", False),
    "iteration_stats": ("false", False),
    "prompt_logprobs": ("false", False),
    "guided_decoding": ("xgrammar", GuidedDecoding.XGRAMMAR),
    "lora_max_rank": ("16", 16),
    "lora_modules": ("attn_q,mlp_gate", ("attn_q", "mlp_gate")),
    "trust_remote_code": ("true", True),
    "llm_options": ('{"enable_attention_dp": true}', {"enable_attention_dp": True}),
}


def test_every_option_is_read() -> None:
    read = TensorRtLlmOptions.of({name: text for name, (text, _) in OPTIONS.items()})
    assert dataclasses.asdict(read) == {name: value for name, (_, value) in OPTIONS.items()}


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("backend", "onnx", "engine or pytorch"),
        ("tp_size", "0", "a whole number above 0"),
        ("kv_cache_fraction", "nan", "a number above 0 and up to 1"),
        ("scheduler_policy", "static_batch", "guaranteed_no_evict or max_utilization"),
        ("chunked_prefill", "yes", "true or false"),
        ("guided_decoding", "outlines", "llguidance or xgrammar or native_llguidance"),
        ("lora_modules", "attn_q, mlp", "TensorRT-LLM's names of modules"),
    ],
)
def test_a_bad_value_is_refused_with_name_value_and_rule(name: str, value: str, rule: str) -> None:
    with pytest.raises(ValueError, match=f"option {name}={value}: must be {rule}"):
        TensorRtLlmOptions.of({name: value})


@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ("kv_cache_dtype=fp8", "option kv_cache_dtype=fp8: only with backend=pytorch"),
        ("iteration_stats=false", "option iteration_stats=false: only with backend=pytorch"),
        ("overlap_scheduler=true", "option overlap_scheduler=true: only with backend=pytorch"),
        ("stream_interval=4", "option stream_interval=4: only with backend=pytorch"),
        ("kv_cache_manager=v2", "option kv_cache_manager=v2: only with backend=pytorch"),
        ("guided_decoding=native_llguidance", "option guided_decoding=native_llguidance: only with backend=pytorch"),
        ("beams=4", "option beams: expected one of backend, "),
    ],
)
def test_an_option_that_engines_or_all_do_not_have_is_refused(option: str, rule: str) -> None:
    name, _, value = option.partition("=")
    with pytest.raises(ValueError, match=rule):
        TensorRtLlmOptions.of({name: value})


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"cuda_graph_mode": "true"}, "option cuda_graph_mode=true: only with backend=engine"),
        (
            {"guided_decoding": "native_llguidance", "scheduler_policy": "max_utilization"},
            "option guided_decoding=native_llguidance: not with scheduler_policy=max_utilization",
        ),
        (
            {"guided_decoding": "xgrammar", "kv_cache_manager": "v2"},
            "option guided_decoding=xgrammar: not with kv_cache_manager=v2",
        ),
        (
            {"pp_size": "2", "scheduler_policy": "max_utilization"},
            "option scheduler_policy=max_utilization: not with pp_size=2",
        ),
        ({"aborts": "never", "kv_cache_manager": "v2"}, "option aborts=never: not with kv_cache_manager=v2"),
    ],
)
def test_an_option_that_the_pytorch_backend_would_follow_wrongly_is_refused(options: dict[str, str], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        TensorRtLlmOptions.of({"backend": "pytorch", **options})


@pytest.mark.parametrize(
    ("texts", "has_statistics"),
    [
        ({"backend": "pytorch"}, True),
        ({"backend": "pytorch", "iteration_stats": "false"}, False),
        ({}, False),
        ({"tp_size": "2"}, True),
        ({"pp_size": "2"}, True),
        ({"logprobs": "false"}, True),
        ({"logprobs": "false", "prompt_logprobs": "true"}, False),
    ],
)
def test_statistics_need_a_worker_process(texts: dict[str, str], has_statistics: bool) -> None:
    assert TensorRtLlmOptions.of(texts).has_statistics is has_statistics
