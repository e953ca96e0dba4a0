"""`conch plan` for a graphics card: its estimate beside the memory that llama.cpp reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from build_engines.catalog import Catalog
from build_engines.graphics_cards.cards import Card
from build_engines.graphics_cards.fit import fit_card
from build_engines.llama_cpp.device_trial import layer_memory
from model_repository.engine.runtime import EngineConfig
from tests.raw_model import real_model

CARD = Card(key="software", name="Software", memory_bytes=2 << 30, extra="vulkan")


def test_the_estimate_of_a_card_is_near_what_llama_cpp_reports(placement: Mapping[str, Any], tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(real_model())
    fit = fit_card(Catalog.load().find("smollm2:135m"), "q8_0", CARD, max_window=2048, max_sequences=4)
    config = EngineConfig(
        runtime="llama_cpp",
        artifact_dir=tmp_path,
        context_window=2048,
        eos_token_ids=frozenset(),
        max_sequences=4,
        **placement,
    )
    memory = layer_memory("smollm2", config)
    assert fit.is_whole and memory.num_layers == fit.total_layers
    assert sum(memory.cache_bytes) == pytest.approx(fit.caches_bytes, rel=0.001)
    assert memory.buffer_bytes["Vulkan0"] == pytest.approx(fit.buffers_bytes, rel=0.2)
