"""A plan as text and as an object."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_engines.catalog import Catalog
from build_engines.gpus import GPUS
from build_engines.planner.plan import plan
from build_engines.planner.report import bar, memory_bar, plan_lines, plan_object
from build_engines.planner.sizing import Plan

CATALOG = Catalog.load()


def planned(model: str, gpu_key: str, **settings) -> Plan:
    return plan(CATALOG.find(model), GPUS[gpu_key], **settings)


def text(found: Plan, width: int = 80) -> str:
    return "\n".join(plan_lines(found, width))


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=6).filter(any), st.integers(1, 200))
def test_a_bar_is_as_wide_as_it_should_be_and_true_to_a_letter(sizes: list[int], width: int) -> None:
    letters = "abcdef"
    text = bar(list(zip(letters, sizes, strict=False)), width)
    assert len(text) == width
    assert list(text) == sorted(text)
    for letter, size in zip(letters, sizes, strict=False):
        assert abs(text.count(letter) - size * width / sum(sizes)) <= 1


@pytest.mark.parametrize(("width", "expected"), [(40, 40), (80, 80), (100, 100), (300, 100), (5, 14)])
def test_the_bar_is_as_wide_as_the_terminal_within_reason(width: int, expected: int) -> None:
    line, *legend = memory_bar(planned("llama3.1:8b", "h100").memory, width)
    assert len(line) == expected
    assert legend[0].split("   ")[0].strip() == "# weights 16.1 GB"
    assert len(legend) == (1 if width > 80 else 5)


def test_the_text_shows_layout_arithmetic_limits_and_notes() -> None:
    lines = text(planned("llama3.1:70b", "h100")).splitlines()
    assert lines[0] == "meta-llama/Meta-Llama-3.1-70B-Instruct on 4 x H100: TP4, bf16, KV cache bf16"
    for expected in (
        "  q                 80 x 67108864 x 1 / 4 x 2       2,684,354,560",
        "  k and v           80 x 16777216 x 2 / 8 x 2         671,088,640",
        "  activations  8192 x (2 x 8192 + 22528) x 3        956,301,312",
        "  per token     2 x 80 x 2 x 128 x 2             81,920",
        "  per sequence  131072 x 81920           10,737,418,240",
        "  3 sequences of 131072 tokens at the same time; more of shorter ones",
        "Limits  max_seq_len 131072, max_input_len 131071, max_batch_size 128, max_num_tokens 8192",
        "Build   disk 435.9 GB (checkpoint 141.1 GB, converted checkpoint and engines 147.4 GB each), "
        "RAM up to 169.3 GB, tens of minutes",
        "Serve   RAM up to 8.6 GB for requests with log probabilities",
        "with --option kv_cache_manager=v2 up to 320.0 GB more, pinned, within 50% of the container's RAM",
        "Note    Gated: accept its license (Llama 3.1 community) and set a token before it can be downloaded.",
    ):
        assert any(line.split() == expected.split() for line in lines), expected
    (total,) = (line for line in lines if line.split()[:1] == ["sum"] and "36," in line)
    assert total.split() == ["sum", f"{planned('llama3.1:70b', 'h100').memory.weights_bytes:,}"]


@pytest.mark.parametrize(
    ("model", "gpu_key", "settings", "note"),
    [
        ("llama3.1:70b", "l40s", {}, "L40S has no NVLink: tensor parallelism goes over PCIe"),
        ("llama3.1:405b", "h100", {}, "2 nodes need MPI"),
        ("llama3.1:405b", "h100", {"precision": "fp8"}, "do not hold the 16-bit model of 812 GB"),
        ("deepseek-v2.5:236b", "h100", {}, "Weights take more than two thirds of each GPU: the cache is small."),
        ("gemma2:9b", "h100", {}, "The chat template takes no system role"),
    ],
)
def test_notes_explain_the_layout(model: str, gpu_key: str, settings: dict, note: str) -> None:
    assert note in text(planned(model, gpu_key, **settings))


def test_the_object_has_everything() -> None:
    found = planned("deepseek-v2.5:236b", "h100")
    written = json.loads(json.dumps(plan_object(found)))
    assert written["model"] == "deepseek-ai/DeepSeek-V2.5"
    assert (written["tp_size"], written["pp_size"], written["num_nodes"], written["num_gpus"]) == (8, 1, 1, 8)
    memory = written["memory_per_gpu"]
    for part in ("weights", "workspace", "reserve"):
        assert sum(term["bytes"] for term in memory[part]) == memory[f"{part}_bytes"]
    parts = ("weights_bytes", "workspace_bytes", "reserve_bytes", "kv_cache_bytes", "free_bytes")
    assert sum(memory[part] for part in parts) == memory["total_bytes"] == 80 * 10**9
    assert written["kv_cache"]["bytes_per_token"] == 69120
    assert written["kv_cache"]["num_concurrent_sequences"] == 4
    assert written["build"]["disk_bytes"] == found.build_disk_bytes
    assert written["notes"]
