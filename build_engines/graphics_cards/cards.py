"""The graphics cards of desktops and laptops on which llama.cpp computes. TensorRT-LLM's GPUs are in gpus.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One kind of card."""

    key: str  # the value of --gpu
    name: str
    memory_bytes: int  # as sold; drivers report up to 1 % less
    extra: str  # of Conch's packages: the build of llama.cpp for it


# By the maker's name of a series, and the extra for it: the memory in GiB with which each card is sold.
_SERIES: Mapping[tuple[str, str], Mapping[str, tuple[int, ...]]] = {
    ("GeForce RTX", "cuda12"): {
        "3060": (8, 12),
        "3060 Ti": (8,),
        "3070": (8,),
        "3070 Ti": (8,),
        "3080": (10, 12),
        "3080 Ti": (12,),
        "3090": (24,),
        "3090 Ti": (24,),
        "4060": (8,),
        "4060 Ti": (8, 16),
        "4070": (12,),
        "4070 Super": (12,),
        "4070 Ti": (12,),
        "4070 Ti Super": (16,),
        "4080": (16,),
        "4080 Super": (16,),
        "4090": (24,),
        "5050": (8,),
        "5060": (8,),
        "5060 Ti": (8, 16),
        "5070": (12,),
        "5070 Ti": (16,),
        "5080": (16,),
        "5090": (32,),
    },
    # Vulkan, whose build has code for every card; that of ROCm is compiled for some.
    ("Radeon RX", "vulkan"): {
        "6700 XT": (12,),
        "6800 XT": (16,),
        "6900 XT": (16,),
        "7600": (8,),
        "7600 XT": (16,),
        "7700 XT": (12,),
        "7800 XT": (16,),
        "7900 GRE": (16,),
        "7900 XT": (20,),
        "7900 XTX": (24,),
        "9060 XT": (8, 16),
        "9070": (16,),
        "9070 XT": (16,),
    },
    ("Arc", "vulkan"): {
        "A580": (8,),
        "A750": (8,),
        "A770": (8, 16),
        "B570": (10,),
        "B580": (12,),
    },
}


def _cards() -> Iterator[Card]:
    for (series, extra), sizes in _SERIES.items():
        for model, sold in sizes.items():
            name, prefix = f"{series} {model}", series.rpartition(" ")[2]
            for size in sold:
                of_size = f" {size}GB" if len(sold) > 1 else ""
                key = f"{prefix}{model}".replace(" ", "").lower() + of_size.replace(" ", "-").lower()
                yield Card(key=key, name=name + of_size, memory_bytes=size << 30, extra=extra)


CARDS: Mapping[str, Card] = {card.key: card for card in _cards()}
