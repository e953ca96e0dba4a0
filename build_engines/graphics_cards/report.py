"""Models on a graphics card, as a table for a terminal and as objects for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from build_engines.graphics_cards.cards import Card
from build_engines.graphics_cards.fit import CardFit
from build_engines.memory_fit import SHARE
from build_engines.planner.memory import gigabytes
from build_engines.tables import text_table

_HEADER = ("model", "weights", "layers", "weights GB", "buffers GB", "cache GB", "CPU GB", "sequences", "command")


def card_lines(card: Card, fits: Sequence[CardFit]) -> Iterator[str]:
    """Yield the lines about models on a card."""
    yield f"{card.name}: {gigabytes(card.memory_bytes)} as sold, of which llama.cpp gets at most {SHARE:.0%}"
    yield ""
    yield from text_table(_HEADER, map(_row, fits))
    yield ""
    yield "Sizes are estimates from the numbers of the models; `conch serve` measures them before it loads."
    yield "If some layers stay on the CPU, `conch serve` sets sequences and window by the machine's memory."
    yield "CPU GB: input embeddings, and the layers that have no room on the card, with their part of the cache."
    yield "A command with OWNER/NAME:WEIGHTS needs that file on the hub, or a checkpoint that Conch converts."
    yield f"Install: pip install 'conch[{card.extra}]'"


def _row(fit: CardFit) -> tuple[str, ...]:
    sizes = (fit.weights_bytes, fit.buffers_bytes, fit.caches_bytes, fit.cpu_weights_bytes + fit.cpu_caches_bytes)
    return (
        fit.entry.tag,
        fit.quantization,
        layers_text(fit),
        *(f"{size / 1e9:.1f}" for size in sizes),
        f"{fit.num_sequences} x {fit.window}",
        fit.command,
    )


def layers_text(fit: CardFit) -> str:
    """Return the number of layers on the card."""
    return f"{fit.num_layers} of {fit.total_layers}"


def fit_object(fit: CardFit) -> dict[str, Any]:
    """Return a split for JSON."""
    return {
        "model": fit.entry.model_id,
        "gpu": fit.card.key,
        "weights": fit.quantization,
        "num_layers": fit.num_layers,
        "total_layers": fit.total_layers,
        "num_sequences": fit.num_sequences,
        "max_seq_len": fit.window,
        "memory": {
            "total_bytes": fit.card.memory_bytes,
            "weights_bytes": fit.weights_bytes,
            "buffers_bytes": fit.buffers_bytes,
            "kv_cache_bytes": fit.caches_bytes,
        },
        "cpu": {"weights_bytes": fit.cpu_weights_bytes, "kv_cache_bytes": fit.cpu_caches_bytes},
        "command": fit.command,
    }
