"""The layouts of the search."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_engines.catalog import Catalog
from build_engines.gpus import GPUS
from build_engines.model_entry import ModelEntry
from build_engines.planner.plan import plan
from build_engines.planner.search import layouts, node_counts, replicas

CATALOG = Catalog(entry for entry in Catalog.load() if entry.presets)
H100 = GPUS["h100"]


def names(model: str, num_gpus: int, num_nodes: int = 1) -> list[str]:
    return [str(layout) for layout in layouts(CATALOG.find(model), num_gpus, num_nodes)]


@pytest.mark.parametrize(
    ("model", "num_gpus", "num_nodes", "expected"),
    [
        ("llama3.1:8b", 1, 1, ["TP1"]),
        ("llama3.1:8b", 4, 1, ["TP4", "TP2 x PP2", "TP1 x PP4"]),
        ("llama3.1:8b", 3, 1, []),  # 32 heads and 32 layers
        ("llama3.2:3b", 3, 1, []),  # 24 heads, but 8 key-value heads and 28 layers
        ("llama3.1:405b", 3, 1, ["TP1 x PP3"]),
        ("qwen2.5:7b", 8, 1, ["TP4 x PP2", "TP2 x PP4"]),  # 28 heads
        ("qwen2.5:7b", 7, 1, ["TP1 x PP7"]),  # 7 divides the heads, not the 4 key-value heads
        ("gemma2:9b", 4, 1, ["TP4"]),
        ("gemma2:9b", 16, 2, []),
        ("llama3.1:405b", 16, 2, ["TP8 x PP2, 2 nodes"]),  # 126 layers: 2, 3, 6, 7, 9, 14, 18
        ("llama3.1:405b", 16, 1, ["TP16", "TP8 x PP2"]),
        ("llama3.1:405b", 9, 2, []),
    ],
)
def test_layouts_keep_to_the_models_shape(model: str, num_gpus: int, num_nodes: int, expected: list[str]) -> None:
    assert names(model, num_gpus, num_nodes) == expected


def test_more_ranks_than_key_value_heads_are_legal_in_multiples() -> None:
    entry = CATALOG.find("llama3.1:8b")
    narrow = replace(entry, architecture=replace(entry.architecture, num_kv_heads=2), presets={})
    assert [layout.tp_size for layout in layouts(narrow, 8, 1)] == [8, 4, 2, 1]


@given(st.sampled_from(list(CATALOG)), st.integers(1, 64), st.integers(1, 8))
def test_a_layout_uses_the_given_gpus_and_nodes(entry: ModelEntry, num_gpus: int, num_nodes: int) -> None:
    for layout in layouts(entry, num_gpus, num_nodes):
        assert (layout.num_gpus, layout.num_nodes) == (num_gpus, num_nodes)
        assert entry.layout_rule(layout.tp_size, layout.pp_size) is None
        assert layout.num_gpus_per_node % layout.tp_size == 0


@pytest.mark.parametrize(
    ("num_gpus", "num_nodes", "expected"),
    [
        (None, None, [(1, 1), (2, 1), (4, 1), (8, 1), (16, 2), (24, 3), (32, 4), (40, 5), (48, 6), (56, 7), (64, 8)]),
        (4, None, [(4, 1)]),
        (16, None, [(16, 2)]),
        (12, 2, [(12, 2)]),
        (None, 2, [(2, 2), (4, 2), (8, 2), (16, 2)]),
    ],
)
def test_the_fewest_gpus_are_tried_first(
    num_gpus: int | None, num_nodes: int | None, expected: list[tuple[int, int]]
) -> None:
    assert list(node_counts(num_gpus, num_nodes, H100)) == expected


def test_a_replica_has_all_of_the_memory_of_the_plan() -> None:
    # The number of replicas was planned without the CUDA graphs of the PyTorch backend.
    found = plan(Catalog.load().find("gpt-oss:20b"), H100)
    assert replicas(found, 8) == (8, found)
