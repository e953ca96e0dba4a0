"""The part of a model that fits a card, against the files and the loads of llama.cpp."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import pytest

from build_engines.architecture import Architecture
from build_engines.catalog import Catalog
from build_engines.checkpoint import Checkpoint
from build_engines.checkpoint_entry import entry_of_checkpoint
from build_engines.errors import BuildError
from build_engines.graphics_cards.cards import CARDS, Card
from build_engines.graphics_cards.fit import best_fit, fit_card, quantizations, served_quantizations
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.llama_cpp.quantize import quantize
from build_engines.llama_cpp.trial_load import check_loads
from build_engines.memory_fit import SHARE
from build_engines.model_entry import ModelEntry, Precision
from tests.build_engines.llama_cpp.test_trial_load import ARCHITECTURES
from tests.build_engines.tiny_checkpoint import write_checkpoint
from tests.model_repository.engine.tiny_models import write_model
from tests.raw_model import real_model

CATALOG = Catalog.load()
SIXTEEN = CARDS["rtx4060ti-16gb"]
SMALL = Card(key="small", name="Small", memory_bytes=60 << 20, extra="vulkan")
# Rows of 256 values, the blocks of Q4_K_M, and enough layers that half of some matrices have more bits.
SHAPE: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 16, "head_dim": 64}


def entry_of(architecture: Architecture, window: int = 16384) -> ModelEntry:
    return ModelEntry(
        model_id="me/tiny", architecture=architecture, context_window=window, license="MIT", precisions=(Precision.F16,)
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("wide") / "wide", **SHAPE)


@pytest.mark.parametrize("quantization", ["f16", "q8_0", "q4_k_m"])
def test_weights_have_the_size_of_the_tensors_that_llama_cpp_loads(
    quantization: str, checkpoint: Path, tmp_path: Path
) -> None:
    half, path = tmp_path / "f16.gguf", tmp_path / "model.gguf"
    write_gguf(Checkpoint.load(checkpoint), half, "f16")
    if quantization == "f16":
        path = half
    else:
        quantize(half, path, quantization)
    sizes = {tensor.name: tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors}
    table_bytes = sizes.pop("token_embd.weight")
    fit = fit_card(entry_of_checkpoint("wide", checkpoint), quantization, SIXTEEN)
    assert fit.is_whole and fit.total_layers == 17
    assert fit.weights_bytes == pytest.approx(sum(sizes.values()), rel=0.01)
    assert fit.cpu_weights_bytes == pytest.approx(table_bytes, rel=0.01)


def test_the_layers_of_a_card_are_the_output_and_the_last_blocks(checkpoint: Path, tmp_path: Path) -> None:
    write_gguf(Checkpoint.load(checkpoint), tmp_path / "model.gguf", "f16")
    sizes = {tensor.name: tensor.n_bytes for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    fit = fit_card(entry_of_checkpoint("wide", checkpoint), "f16", SMALL)
    assert 1 < fit.num_layers < fit.total_layers
    first = 16 - (fit.num_layers - 1)
    blocks = {name: int(found[1]) for name in sizes if (found := re.match(r"blk\.(\d+)", name))}
    on_card = [name for name in sizes if name.startswith("output") or blocks.get(name, -1) >= first]
    assert fit.weights_bytes == pytest.approx(sum(sizes[name] for name in on_card), rel=0.01)
    assert fit.weights_bytes + fit.cpu_weights_bytes == pytest.approx(sum(sizes.values()), rel=0.01)
    assert fit.card_bytes <= SHARE * SMALL.memory_bytes


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_caches_have_the_size_that_llama_cpp_allocates(name: str, tmp_path: Path) -> None:
    memory = check_loads(name, write_model(tmp_path / "model.gguf", name), None)
    fit = fit_card(entry_of(ARCHITECTURES[name]), "f16", SIXTEEN)
    assert memory is not None and fit.is_whole
    assert fit.caches_bytes == pytest.approx(fit.num_sequences * memory.num_bytes(fit.window), rel=0.01)


def test_smollm2_takes_the_memory_that_llama_cpp_reports() -> None:
    memory = check_loads("smollm2", real_model(), None)
    entry = CATALOG.find("smollm2:135m")
    fit = fit_card(entry, "q8_0", SIXTEEN, max_window=2048, max_sequences=4)
    assert memory is not None
    assert fit.caches_bytes == 4 * memory.num_bytes(2048)
    logits_bytes = 512 * entry.architecture.vocab_size * 4
    assert fit.buffers_bytes == pytest.approx(memory.buffer_bytes_for(2048) + logits_bytes, rel=0.2)


def test_a_card_that_is_too_small_for_a_layer_computes_nothing(checkpoint: Path) -> None:
    tiny = Card(key="tiny", name="Tiny", memory_bytes=1 << 20, extra="vulkan")
    fit = fit_card(entry_of_checkpoint("wide", checkpoint), "f16", tiny)
    assert (fit.num_layers, fit.card_bytes) == (0, 0) and not fit.is_whole


def test_no_model_of_the_catalog_takes_more_than_the_share_of_a_card() -> None:
    for card in (CARDS["rtx3060-8gb"], SIXTEEN, CARDS["rtx5090"]):
        for entry in CATALOG:
            for name in quantizations(entry):
                fit = fit_card(entry, name, card)
                assert fit.card_bytes <= SHARE * card.memory_bytes
                assert fit.num_layers <= fit.total_layers and fit.num_sequences >= 1


def test_the_largest_precision_that_fits_whole_is_the_best() -> None:
    def best(name: str, card: str) -> tuple[str, bool]:
        fit = best_fit(CATALOG.find(name), CARDS[card])
        return fit.quantization, fit.is_whole

    assert best("llama3.1:8b", "rtx5090") == ("f16", True)
    assert best("llama3.1:8b", "rtx4060ti-16gb") == ("q8_0", True)
    assert best("qwen3:8b", "rtx5090") == ("q4_k_m", True)  # the catalog's file
    assert best("llama3.3:70b", "rtx5090") == ("q4_k_m", False)


@pytest.mark.parametrize(
    ("model", "quantization", "command"),
    [
        ("qwen3:8b", "q4_k_m", "qwen3:8b"),
        ("qwen3:8b", "q8_0", "Qwen/Qwen3-8B-GGUF:Q8_0"),
        ("llama3.1:8b", "f16", "llama3.1:8b"),
        ("llama3.1:8b", "q4_k_m", "llama3.1:8b --precision q4_k_m"),
        ("gemma2:9b", "q4_k_m", "gemma2:9b"),
        ("gemma2:9b", "q8_0", "google/gemma-2-9b-it:Q8_0"),
        ("gpt-oss:20b", "mxfp4", "gpt-oss:20b"),
    ],
)
def test_the_command_serves_the_planned_weights(model: str, quantization: str, command: str) -> None:
    assert fit_card(CATALOG.find(model), quantization, SIXTEEN).command == f"conch serve {command}"


def test_a_file_in_another_quantization_is_planned_with_more_bits() -> None:
    entry = CATALOG.find("qwen3:8b")
    changed = ModelEntry(
        model_id=entry.model_id,
        architecture=entry.architecture,
        context_window=entry.context_window,
        license="MIT",
        gguf="me/Qwen3-8B-GGUF:IQ4_XS",
        precisions=entry.precisions,
    )
    assert served_quantizations(changed) == ("q8_0",)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(BuildError, match="--max-seq-len 0: expected at least 1"):
        fit_card(CATALOG.find("qwen3:8b"), "q8_0", SIXTEEN, max_window=0)
