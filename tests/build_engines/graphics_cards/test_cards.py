"""The table of graphics cards."""

from __future__ import annotations

from build_engines.gpus import GPUS
from build_engines.graphics_cards.cards import CARDS
from model_repository.system.llama_build import PACKAGES

GIB = 1 << 30


def test_a_key_is_the_makers_name_with_the_memory_where_several_sizes_are_sold() -> None:
    sizes = {key: card.memory_bytes // GIB for key, card in CARDS.items()}
    assert (sizes["rtx4060ti-8gb"], sizes["rtx4060ti-16gb"], sizes["rtx3060-12gb"], sizes["rtx5090"]) == (8, 16, 12, 32)
    assert (sizes["rx7900xtx"], sizes["rx9070xt"], sizes["arcb580"], sizes["arca770-16gb"]) == (24, 16, 12, 16)
    assert CARDS["rtx4060ti-16gb"].name == "GeForce RTX 4060 Ti 16GB"
    assert CARDS["rtx4070tisuper"].name == "GeForce RTX 4070 Ti Super"


def test_no_card_is_a_gpu_of_tensorrt_llm() -> None:
    assert not CARDS.keys() & GPUS.keys()


def test_each_card_has_a_build_of_llama_cpp() -> None:
    assert {f"cyllama-{card.extra}" for card in CARDS.values()} <= PACKAGES.keys()
