"""Plans: fitting layouts, refusals with their remedies, and the presets of the catalog."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build_engines.catalog import Catalog
from build_engines.errors import BuildError, DoesNotFit
from build_engines.gpus import GPUS
from build_engines.model_entry import Fp8Method, ModelEntry, Precision
from build_engines.parallelism import Parallelism
from build_engines.planner.plan import plan
from build_engines.planner.sizing import Plan

CATALOG = Catalog(entry for entry in Catalog.load() if entry.presets)
CONTRACT = json.loads((Path(__file__).parents[2] / "data" / "tensorrt_llm_contract.json").read_text(encoding="utf-8"))
# One GPU serves them, and only two hold the 16-bit model while its scales are measured.
LARGER_THAN_ADVISED = {("Qwen/Qwen2-72B-Instruct", "h200", "fp8"), ("Qwen/Qwen2.5-72B-Instruct", "h200", "fp8")}
CASES = [
    (entry, gpu_key, precision)
    for entry in CATALOG
    for gpu_key in GPUS
    for precision in entry.precisions
    if precision.runs_on(GPUS[gpu_key])
]


def planned(model: str, gpu_key: str, **settings) -> Plan:
    return plan(CATALOG.find(model), GPUS[gpu_key], **settings)


def refusal(model: str, gpu_key: str, **settings) -> str:
    with pytest.raises(BuildError) as caught:
        planned(model, gpu_key, **settings)
    return str(caught.value)


def without_presets(entry: ModelEntry) -> ModelEntry:
    return replace(entry, presets={})


# --- presets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("entry", "gpu_key", "precision"), CASES)
def test_the_planner_finds_the_preset_without_it(entry: ModelEntry, gpu_key: str, precision: Precision) -> None:
    preset = entry.presets.get(gpu_key, {}).get(precision)
    try:
        found = plan(without_presets(entry), GPUS[gpu_key], precision=precision)
    except DoesNotFit:
        assert preset is None
    else:
        assert preset == found.parallelism


@pytest.mark.parametrize("model", CONTRACT["models"], ids=lambda model: model["hf_id"])
@pytest.mark.parametrize(("gpu_key", "recorded_key"), [("h100", "h100_80g"), ("h200", "h200_141g")])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_preset_is_the_recorded_advice(model, gpu_key: str, recorded_key: str, precision: str) -> None:
    advice = model["parallelism"][recorded_key][precision]
    if (model["hf_id"], gpu_key, precision) in LARGER_THAN_ADVISED:
        advice = "TP2"
    presets = CATALOG.find(model["hf_id"]).presets[gpu_key]
    preset = presets.get(Precision(precision)) or (presets.get(Precision.F16) if precision == "bf16" else None)
    if advice.startswith("not supported"):
        assert preset is None
        return
    match = re.match(r"(?:16 GPUs, )?TP(\d)(?: x PP(\d), (two) nodes)?", advice)
    assert match is not None
    tp_size, pp_size, two = match.groups()
    assert preset == Parallelism(tp_size=int(tp_size), pp_size=int(pp_size or 1), num_nodes=2 if two else 1)


def test_a_preset_replaces_the_search() -> None:
    entry = replace(CATALOG.find("llama3.1:8b"), presets={"h100": {Precision.BF16: Parallelism(tp_size=4)}})
    assert plan(entry, GPUS["h100"]).parallelism == Parallelism(tp_size=4)
    assert plan(entry, GPUS["h100"], num_gpus=2).parallelism == Parallelism(tp_size=2)
    assert plan(entry, GPUS["h200"]).parallelism == Parallelism()


def test_a_preset_that_is_too_small_is_not_used() -> None:
    entry = replace(CATALOG.find("llama3.1:70b"), presets={"h100": {Precision.BF16: Parallelism(tp_size=2)}})
    assert plan(entry, GPUS["h100"], max_seq_len=8192).parallelism.tp_size == 2
    assert plan(entry, GPUS["h100"], max_seq_len=131072).parallelism.tp_size == 4


# --- fitting layouts --------------------------------------------------------------------------------------------------


def test_shorter_sequences_are_more_until_the_step_is_full() -> None:
    counts = [planned("qwen2.5:7b", "h100", max_seq_len=n).num_concurrent_sequences for n in (32768, 16384, 8192, 4096)]
    assert counts == [29, 58, 116, 128]
    assert planned("qwen2.5:7b", "h100", max_seq_len=4096, max_batch_size=256).num_concurrent_sequences > 200


@pytest.mark.parametrize(
    ("model", "gpu_key", "method", "layout"),
    [
        ("llama3.1:405b", "h100", Fp8Method.ROWWISE, "TP8"),
        ("llama3.1:70b", "h200", Fp8Method.ROWWISE, "TP1"),
        ("qwen2.5:72b", "h100", Fp8Method.CALIBRATED, "TP2"),
        ("qwen2.5:72b", "h200", Fp8Method.CALIBRATED, "TP2"),  # one GPU could serve it, and cannot measure its scales
        ("gemma2:27b", "l40s", Fp8Method.CALIBRATED, "TP2"),
    ],
)
def test_fp8_is_measured_where_the_16_bit_model_fits(model: str, gpu_key: str, method: Fp8Method, layout: str) -> None:
    found = planned(model, gpu_key, precision="fp8")
    assert (found.fp8_method, str(found.parallelism)) == (method, layout)
    has_fp8_cache = method is Fp8Method.CALIBRATED and found.entry.has_fp8_kv_cache
    assert found.kv_precision == ("fp8" if has_fp8_cache else "bf16")


def test_gpus_that_cannot_measure_fp8_are_refused_with_those_that_can() -> None:
    message = refusal("qwen2.5:72b", "h200", precision="fp8", num_gpus=1)
    assert "measured with the 16-bit model of 145.4 GB on the GPUs of a node, 1 x 141.0 GB" in message
    assert "--gpus 2 (2 x H200, TP2)" in message
    assert "--max-seq-len" not in message
    ready = planned("qwen2.5:72b", "h200", precision="fp8", num_gpus=1, has_fp8_checkpoint=True)
    assert (ready.fp8_method, ready.kv_precision) == (Fp8Method.READY, "bf16")


def test_an_engine_with_the_logits_of_prompts_has_shorter_steps() -> None:
    found = planned("llama3.1:8b", "h100", has_context_logits=True)
    assert found.max_num_tokens == 2048
    [logits] = [term for term in found.memory.workspace if term.name == "logits of prompts"]
    assert logits.num_bytes == 2048 * 128256 * 4


@pytest.mark.parametrize(("max_batch_size", "num_graphs"), [(1, 1), (4, 3), (30, 7), (128, 19), (200, 21), (256, 21)])
def test_the_pytorch_backend_has_memory_for_a_cuda_graph_of_each_padded_size(
    max_batch_size: int, num_graphs: int
) -> None:
    found = planned("llama3.1:8b", "h100", max_batch_size=max_batch_size, has_cuda_graphs=True)
    [graphs] = [term for term in found.memory.reserve if term.name == "CUDA graphs"]
    assert graphs.num_bytes == num_graphs * 200_000_000
    assert "CUDA graphs" not in {term.name for term in planned("llama3.1:8b", "h100").memory.reserve}
    without_engine = plan(Catalog.load().find("qwen3:8b"), GPUS["h100"])
    for found in (without_engine, planned("llama3.1:8b", "b200", precision="nvfp4")):
        assert "CUDA graphs" in {term.name for term in found.memory.reserve}


def test_deepseek_is_planned_for_its_documented_build() -> None:
    found = planned("deepseek-v2.5:236b", "h100")
    assert (found.max_seq_len, found.max_batch_size) == (4096, 4)
    memory = found.memory
    assert memory.weights_bytes + memory.workspace_bytes + memory.reserve_bytes < 70e9
    longer = planned("deepseek-v2.5:236b", "h200", max_seq_len=163840, max_batch_size=16)
    assert longer.num_concurrent_sequences == 5
    assert found.build_ram_bytes == pytest.approx(1.2 * 471.5e9, rel=0.001)


def test_given_gpus_and_nodes_are_kept() -> None:
    assert str(planned("llama3.1:8b", "h100", num_gpus=8).parallelism) == "TP8"
    assert str(planned("llama3.1:405b", "h100", num_gpus=16).parallelism) == "TP8 x PP2, 2 nodes"
    assert str(planned("llama3.1:8b", "h100", num_nodes=2).parallelism) == "TP1 x PP2, 2 nodes"
    assert str(planned("llama3.1:8b", "h100", num_gpus=8, tp_size=4).parallelism) == "TP4 x PP2"


def test_a_large_model_has_its_known_sizes() -> None:
    found = planned("llama3.1:405b", "h200")
    assert found.memory.weights_bytes / 1e9 == pytest.approx(105.1, abs=0.1)  # 811.7 / 8, and the embeddings whole
    assert found.checkpoint_bytes == 811706777600
    assert found.build_disk_bytes == found.checkpoint_bytes + 2 * found.engine_bytes
    assert found.engine_bytes == 8 * found.memory.weights_bytes


grouped = [entry for entry in CATALOG if entry.architecture.num_kv_heads % 8 == 0 and not entry.gpu_architectures]


@settings(max_examples=30)
@given(st.sampled_from(grouped), st.sampled_from(list(GPUS)), st.sampled_from([2**n for n in range(5, 13)]))
def test_more_gpus_never_cache_fewer_tokens(entry: ModelEntry, gpu_key: str, max_seq_len: int) -> None:
    num_tokens = [0]
    for num_gpus in (1, 2, 4, 8):
        try:
            num_tokens.append(plan(entry, GPUS[gpu_key], num_gpus=num_gpus, max_seq_len=max_seq_len).num_cached_tokens)
        except DoesNotFit:
            num_tokens.append(0)
    assert num_tokens == sorted(num_tokens)
    assert num_tokens[-1] > 0 or entry.architecture.num_parameters > 150e9


@given(st.sampled_from(list(CATALOG)), st.integers(2, 163840), st.integers(1, 512))
def test_a_found_plan_has_the_requested_limits(entry: ModelEntry, max_seq_len: int, max_batch_size: int) -> None:
    max_seq_len = min(max_seq_len, entry.seq_len_limit)
    found = plan(entry, GPUS["h200"], max_seq_len=max_seq_len, max_batch_size=max_batch_size)
    assert (found.max_seq_len, found.max_batch_size) == (max_seq_len, max_batch_size)
    assert 1 <= found.num_concurrent_sequences <= max_batch_size
    used = found.num_concurrent_sequences * found.kv_bytes_per_sequence
    assert used <= found.num_cached_tokens * found.sequence_memory.bytes_per_token <= found.memory.kv_cache_bytes
    assert found.memory.free_bytes > 0
    assert found.num_cached_tokens >= max_seq_len


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_too_few_gpus_name_fitting_layouts() -> None:
    assert refusal("llama3.1:70b", "h100", num_gpus=2) == (
        "meta-llama/Meta-Llama-3.1-70B-Instruct does not fit: on 2 x H100 (TP2) in bf16 the engine takes 76.7 GB of "
        "each GPU's 80.0 GB, the cache gets 3.0 GB, and one sequence of 131072 tokens needs 21.5 GB; what would fit: "
        "--max-seq-len 18368, or --precision fp8 (2 x H100, TP2), or --gpus 4 (4 x H100, TP4), "
        "or --gpu h200 (2 x H200, TP2), or --gpu b200 (2 x B200, TP2)"
    )


def test_weights_that_exceed_a_gpu_say_so() -> None:
    assert refusal("llama3.1:70b", "a100", num_gpus=1) == (
        "meta-llama/Meta-Llama-3.1-70B-Instruct does not fit: on 1 x A100 (TP1) in bf16 the engine takes 145.9 GB of "
        "each GPU's 80.0 GB; what would fit: --gpus 4 (4 x A100, TP4)"
    )


def test_an_impossible_number_of_gpus_names_the_rule() -> None:
    assert refusal("llama3.1:70b", "h100", num_gpus=3) == (
        "meta-llama/Meta-Llama-3.1-70B-Instruct does not fit: 3 GPUs cannot share it (tp_size 3 must divide the 64 "
        "heads; pp_size 3 must divide the 80 layers); what would fit: --gpus 4 (4 x H100, TP4)"
    )
    assert "9 GPUs do not divide evenly over 2 nodes" in refusal("llama3.1:70b", "h100", num_gpus=9)
    assert refusal("gemma2:9b", "l40s", num_nodes=2) == (
        "google/gemma-2-9b-it does not fit: 2 GPUs on 2 nodes cannot share it (the model is built without pipeline "
        "parallelism); what would fit: --gpus 1 (1 x L40S, TP1)"
    )


def test_a_step_that_is_too_large_names_a_smaller_one() -> None:
    message = refusal("llama3.1:8b", "h100", num_gpus=1, max_batch_size=100_000, max_seq_len=4096)
    assert "what would fit: --max-batch-size 8192 (1 x H100, TP1)" in message
    assert planned("llama3.1:8b", "h100", num_gpus=1, max_batch_size=8192, max_seq_len=4096)


def test_a_model_without_a_fitting_gpu_is_refused() -> None:
    entry = CATALOG.find("llama3.1:405b")
    huge = replace(entry, architecture=replace(entry.architecture, intermediate_size=8 * 53248 * 64), presets={})
    with pytest.raises(DoesNotFit, match="no GPU that is known here would do"):
        plan(huge, GPUS["h200"])


def remedies(message: str) -> Iterator[dict[str, Any]]:
    """Yield the settings that each remedy of a refusal changes."""
    for remedy in message.partition("what would fit: ")[2].split(", or "):
        words = remedy.partition(" (")[0].split()
        yield dict(zip(words[::2], words[1::2], strict=True))


def test_the_named_layouts_fit() -> None:
    num_checked = 0
    for entry, gpu_key, precision in CASES[::6]:
        for num_gpus in (1, 2, 3, 8, 9):
            try:
                plan(entry, GPUS[gpu_key], precision=precision, num_gpus=num_gpus)
            except DoesNotFit as exc:
                if entry.gpu_architectures and GPUS[gpu_key].architecture not in entry.gpu_architectures:
                    continue  # no size of it fits there
                for changes in remedies(str(exc)):
                    plan(
                        entry,
                        GPUS[changes.get("--gpu", gpu_key)],
                        precision=changes.get("--precision", precision.value),
                        num_gpus=int(changes.get("--gpus", num_gpus)),
                        num_nodes=int(changes["--nodes"]) if "--nodes" in changes else None,
                        max_seq_len=int(changes["--max-seq-len"]) if "--max-seq-len" in changes else None,
                    )
                    num_checked += 1
    assert num_checked > 20


@pytest.mark.parametrize(
    ("model", "gpu_key", "settings", "message"),
    [
        (
            "deepseek-v2.5:236b",
            "h100",
            {"precision": "fp8"},
            "--precision fp8: deepseek-ai/DeepSeek-V2.5 is built in bf16",
        ),
        ("llama3.1:8b", "h100", {"precision": "f16"}, "--precision f16: .* is built in bf16 or fp8 or nvfp4"),
        ("llama3.1:8b", "a100", {"precision": "fp8"}, r"--precision fp8: A100 \(sm80\) has no FP8; plan for h100 or"),
        ("llama3.1:8b", "h200", {"precision": "nvfp4"}, r"--precision nvfp4: H200 .* no NVFP4; plan for b200$"),
        (
            "deepseek-v2.5:236b",
            "a100",
            {},
            r"DeepSeek-V2.5 does not run on A100 \(sm80\): its kernels are for sm90 only; plan for h100 or h200$",
        ),
        ("gemma2:9b", "h100", {"max_seq_len": 4097}, "--max-seq-len 4097: google/gemma-2-9b-it takes 2 to 4096 tokens"),
        ("gemma2:9b", "h100", {"max_batch_size": 0}, "--max-batch-size 0: expected at least 1"),
        ("gemma2:9b", "h100", {"num_gpus": 0}, "--gpus 0: expected at least 1"),
        ("gemma2:9b", "h100", {"num_gpus": 3, "num_nodes": 2}, "--gpus 3: must be a multiple of --nodes 2"),
        ("gemma2:9b", "h100", {"num_gpus": 16, "num_nodes": 1}, "--gpus 16 --nodes 1: a node holds 8 GPUs"),
        ("llama3.1:8b", "h100", {"tp_size": 4}, "--tensor 4: goes with --gpus"),
        ("llama3.1:8b", "h100", {"num_gpus": 16, "tp_size": 16}, "--tensor 16: must divide the 8 GPUs of a node"),
        (
            "gemma2:9b",
            "h100",
            {"num_gpus": 8, "tp_size": 4},
            "--tensor 4 --gpus 8: google/gemma-2-9b-it: the model is built wi",
        ),
    ],
)
def test_a_wrong_argument_names_the_rule(model: str, gpu_key: str, settings: dict, message: str) -> None:
    assert re.search(message, refusal(model, gpu_key, **settings))
