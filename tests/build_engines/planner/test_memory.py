"""Memory of a GPU: sums by hand, the shown arithmetic, and published logs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_engines.architecture import Architecture
from build_engines.catalog import Catalog
from build_engines.model_entry import Precision
from build_engines.parallelism import Parallelism
from build_engines.planner.memory import (
    GpuMemory,
    Term,
    cache_terms,
    reserve,
    sequence_memory,
    stage_weights,
    workspace,
)
from build_engines.sequence_memory import SequenceMemory

CATALOG = Catalog.load()
TINY = Architecture(
    class_name="LlamaForCausalLM",
    num_layers=4,
    hidden_size=10,
    num_heads=4,
    num_kv_heads=2,
    head_size=5,
    intermediate_size=8,
    vocab_size=100,
)


def architectures() -> st.SearchStrategy[Architecture]:
    def build(num_kv_heads: int, group: int, num_layers: int, hidden: int, head_size: int, vocab: int) -> Architecture:
        return Architecture(
            class_name="LlamaForCausalLM",
            num_layers=2 * num_layers,
            hidden_size=64 * hidden,
            num_heads=num_kv_heads * group,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            intermediate_size=256 * hidden,
            vocab_size=64 * vocab,
        )

    counts = st.integers(1, 64)
    return st.builds(
        build, st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4, 8]), counts, counts, counts, counts
    )


def num_bytes(terms: Iterable[Term]) -> int:
    return sum(term.num_bytes for term in terms)


def value_of(formula: str) -> float:
    """Compute a shown formula."""
    assert set(formula) <= set("0123456789 .x/+()")
    return float(eval(formula.replace("x", "*")))


def test_tensor_parallelism_splits_matrices_and_copies_norms_and_embeddings() -> None:
    (terms,) = stage_weights(TINY, Parallelism(tp_size=4), Precision.BF16)
    assert {term.name: term.num_bytes for term in terms} == {
        "norms": 4 * 20 * 2,
        "q": 4 * 10 * 20 // 4 * 2,
        "k and v": 4 * 2 * 10 * 10 // 2 * 2,  # two heads for four ranks: each is on two
        "attention output": 4 * 20 * 10 // 4 * 2,
        "mlp": 4 * 3 * 10 * 8 // 4 * 2,
        "embedding": 1000 * 2,
        "final norm": 10 * 2,
        "head": 1000 // 4 * 2,
    }


def test_pipeline_parallelism_splits_layers_and_gives_the_ends_to_the_first_and_last_stage() -> None:
    stages = list(stage_weights(TINY, Parallelism(pp_size=4), Precision.BF16))
    assert [{term.name for term in stage} & {"embedding", "head", "final norm"} for stage in stages] == [
        {"embedding"},
        set(),
        set(),
        {"head", "final norm"},
    ]
    assert [next(term.num_bytes for term in stage if term.name == "mlp") for stage in stages] == [3 * 10 * 8 * 2] * 4


@pytest.mark.parametrize(("precision", "bits"), [(Precision.FP8, 8), (Precision.NVFP4, 4.5)])
def test_quantization_shrinks_matrices_but_not_norms_embeddings_and_head(precision: Precision, bits: float) -> None:
    ((wide,), (narrow,)) = (list(stage_weights(TINY, Parallelism(), name)) for name in (Precision.F16, precision))
    shares = {a.name: b.num_bytes / a.num_bytes for a, b in zip(wide, narrow, strict=True)}
    assert {name for name, share in shares.items() if share == 1} == {"norms", "embedding", "final norm", "head"}
    assert {name for name, share in shares.items() if share == bits / 16} == {"q", "k and v", "attention output", "mlp"}


def test_latent_attention_keeps_its_compressions_on_every_rank() -> None:
    architecture = CATALOG.find("DeepSeek-V2.5").architecture
    (terms,) = stage_weights(architecture, Parallelism(tp_size=8), Precision.BF16)
    sizes = {term.name: term.num_bytes for term in terms}
    assert sizes["q and kv down"] == 60 * 5120 * (1536 + 512 + 64) * 2
    assert sizes["absorbed q up"] == 60 * 1536 * 128 * (512 + 64) // 8 * 2
    assert sizes["routed experts"] == 59 * 160 * 3 * 5120 * 1536 // 8 * 2
    assert sizes["mlp"] == 3 * 5120 * 12288 // 8 * 2  # the first layer has no experts


@given(architectures())
def test_one_gpu_holds_each_parameter_once(architecture: Architecture) -> None:
    (terms,) = stage_weights(architecture, Parallelism(), Precision.BF16)
    assert num_bytes(terms) == 2 * architecture.num_parameters


@given(architectures(), st.sampled_from([1, 2]), st.sampled_from(list(Precision)))
def test_no_layout_loses_a_parameter(architecture: Architecture, pp_size: int, precision: Precision) -> None:
    (alone,) = stage_weights(architecture, Parallelism(), precision)
    for tp_size in (size for size in (1, 2, 4, 8) if architecture.num_heads % size == 0):
        stages = stage_weights(architecture, Parallelism(tp_size=tp_size, pp_size=pp_size), precision)
        assert tp_size * sum(map(num_bytes, stages)) >= num_bytes(alone)


# --- the cache --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "layout", "bytes_per_value", "expected"),
    [
        ("llama3.1:70b", Parallelism(), 2, 327680),
        ("llama3.1:70b", Parallelism(tp_size=4), 2, 81920),
        ("llama3.1:70b", Parallelism(tp_size=8), 1, 20480),
        ("llama3.1:405b", Parallelism(tp_size=8, pp_size=2, num_nodes=2), 2, 516096 // 16),
        ("qwen2.5:7b", Parallelism(tp_size=4), 2, 57344 // 4),
        ("deepseek-v2.5:236b", Parallelism(tp_size=8), 2, 69120),  # latent vectors belong to no head
        ("mythomax:13b", Parallelism(), 2, 819200),
    ],
)
def test_the_size_of_a_token_in_the_cache(model: str, layout: Parallelism, bytes_per_value: int, expected: int) -> None:
    memory = sequence_memory_on(model, layout, bytes_per_value)
    assert memory == SequenceMemory(bytes_per_token=expected)


def sequence_memory_on(model: str, layout: Parallelism, bytes_per_value: int) -> SequenceMemory:
    architecture = CATALOG.find(model).architecture
    return sequence_memory(architecture, cache_terms(architecture, layout, bytes_per_value))


@pytest.mark.parametrize(
    ("model", "layout", "sizes"),
    [
        ("qwen3.6:35b", Parallelism(), (10 * 2 * 2 * 256 * 2, 0, 0, 30 * (32 * 128 * 128 + 3 * 8192) * 4)),
        ("qwen3.6:35b", Parallelism(tp_size=4), (10 * 2 * 1 * 256 * 2, 0, 0, 30 * (8 * 128 * 128 + 3 * 2048) * 4)),
        ("gpt-oss:20b", Parallelism(tp_size=2), (12 * 2 * 4 * 64 * 2, 128, 12 * 2 * 4 * 64 * 2, 0)),
        ("gemma4:26b", Parallelism(), (5 * 2 * 2 * 512 * 2, 1024, 25 * 2 * 8 * 256 * 2, 0)),
        # The last 18 layers use keys and values of the first 24.
        ("gemma4:e4b", Parallelism(), (4 * 2 * 2 * 512 * 2, 512, 20 * 2 * 2 * 256 * 2, 0)),
        ("nemotron-3-nano:30b", Parallelism(), (6 * 2 * 2 * 128 * 2, 0, 0, 23 * (64 * 64 * 128 + 3 * 6144) * 4)),
        ("lfm2.5:1.2b", Parallelism(), (6 * 2 * 8 * 64 * 2, 0, 0, 10 * 2 * 2048 * 4)),
        (
            "deepseek-v3.2:671b",
            Parallelism(tp_size=8),
            (61 * (512 + 64 + 128) * 2, 0, 0, 0),
        ),  # latent, and the indexer's
        ("glm-4.7:358b", Parallelism(), (368 * 1024, 0, 0, 0)),  # source: Raschka's gallery of architectures
    ],
)
def test_each_kind_of_layer_keeps_something_else(
    model: str, layout: Parallelism, sizes: tuple[int, int, int, int]
) -> None:
    names = ("bytes_per_token", "window", "bytes_per_window_token", "state_bytes")
    assert sequence_memory_on(model, layout, 2) == SequenceMemory(**dict(zip(names, sizes, strict=True)))


def test_tokens_beyond_the_window_cost_only_the_layers_without_one() -> None:
    memory = SequenceMemory(bytes_per_token=10, window=100, bytes_per_window_token=30, state_bytes=7)
    assert [memory.num_bytes(num_tokens) for num_tokens in (0, 100, 101)] == [7, 4007, 4017]


# Published are 8.2 B, 30.5 B, 20.9 B, 116.8 B, 31.6 B, 1.17 B and 671 B (here with the indexers). GLM-4.7's 358 B have
# a layer for speculation. The last three are this code's own sums.
@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("qwen3:8b", 8.19),
        ("qwen3:30b", 30.53),
        ("gpt-oss:20b", 20.91),
        ("gpt-oss:120b", 116.79),
        ("nemotron-3-nano:30b", 31.58),
        ("lfm2.5:1.2b", 1.17),
        ("deepseek-v3.2:671b", 671.88),
        ("glm-4.7:358b", 352.80),
        ("gemma4:26b", 25.25),
        ("ministral-3:8b", 8.49),
        ("smollm2:135m", 0.13),
    ],
)
def test_the_weights_of_todays_models_are_those_published(model: str, billions: float) -> None:
    assert round(CATALOG.find(model).architecture.num_parameters / 1e9, 2) == billions


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("all-minilm:22m", 22_713_216),
        ("bge-small:33m", 33_400_000),
        ("bge-m3:567m", 568_000_000),
        ("bge-reranker-v2-m3:568m", 568_000_000),
        ("nomic-embed-text:137m", 136_731_648),
        ("snowflake-arctic-embed:110m", 109_482_240),
        ("qwen3-embedding:0.6b", 595_776_512),
        ("embeddinggemma:300m", 307_581_696),
    ],
)
def test_the_weights_of_models_that_embed_are_those_published(model: str, published: int) -> None:
    """But for positions, and for layers behind the pooling."""
    assert 0.98 * published < CATALOG.find(model).architecture.num_parameters <= published


def test_mxfp4_is_of_experts_alone() -> None:
    architecture = CATALOG.find("gpt-oss:20b").architecture
    [terms] = stage_weights(architecture, Parallelism(), Precision.MXFP4)
    experts = 24 * 32 * 3 * 2880 * 2880
    others = architecture.num_parameters - experts
    assert sum(term.num_bytes for term in terms) == experts // 32 * 17 + 2 * others


# --- workspace and runtime --------------------------------------------------------------------------------------------

MIB, GIB = 2**20, 2**30
LLAMA_2_7B = replace(
    TINY,
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=32,
    head_size=128,
    intermediate_size=11008,
    vocab_size=32000,
)


def test_all_but_the_cache_is_near_a_published_log() -> None:
    """The log says 63.62 of 79.10 GiB available for the cache: Llama-2-7b in FP8 on H100, 4096 sequences in a step."""
    (weights,) = stage_weights(LLAMA_2_7B, Parallelism(), Precision.FP8)
    sampled = workspace(LLAMA_2_7B, 1, max_num_tokens=8192, max_batch_size=4096)
    estimated = num_bytes((*weights, *sampled, *reserve(1)))
    assert estimated / ((79.10 - 63.62) * GIB) == pytest.approx(0.95, abs=0.005)


# --- the sum ----------------------------------------------------------------------------------------------------------

sizes = st.integers(0, 10**12)


@given(sizes, sizes, sizes, sizes)
def test_the_parts_add_up_to_the_memory(total: int, weights: int, working: int, reserved: int) -> None:
    memory = GpuMemory(
        total_bytes=total,
        weights=(Term("a", "", weights),),
        workspace=(Term("b", "", working),),
        reserve=(Term("c", "", reserved),),
    )
    parts = (memory.weights_bytes, memory.workspace_bytes, memory.reserve_bytes)
    assert sum(parts) + memory.kv_cache_bytes + memory.free_bytes == total
    assert memory.kv_cache_bytes >= 0
    assert (memory.free_bytes < 0) == (memory.room_bytes < 0)


@pytest.mark.parametrize("entry", list(CATALOG), ids=lambda entry: entry.short_name)
def test_the_shown_formula_gives_the_computed_size(entry) -> None:
    for layout in (Parallelism(), Parallelism(tp_size=2), Parallelism(tp_size=4, pp_size=2)):
        for precision in entry.precisions:
            terms = [term for stage in stage_weights(entry.architecture, layout, precision) for term in stage]
            terms += workspace(entry.architecture, layout.tp_size, max_num_tokens=8192, max_batch_size=128)
            terms += reserve(layout.num_gpus)
            terms += cache_terms(entry.architecture, layout, max(1, int(precision.num_bytes))).values()
            for term in terms:
                assert value_of(term.formula) == term.num_bytes, term.name
