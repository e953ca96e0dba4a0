"""The devices of the installed build. tests/vulkan lists real ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from model_repository.system.devices import NoDevices, read_devices
from tests.llama_packages import install_build

NVIDIA_SMI = Path(__file__).parents[2] / "doubles" / "bin"
NEW, OLD = "NVIDIA GeForce RTX 4090, 24564, 8.9", "NVIDIA GeForce GTX 1080, 8192, 6.1"


def test_a_card_for_which_the_build_for_cuda_has_no_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA lists such a card, and the first kernel ended the engine."""
    monkeypatch.setenv("PATH", f"{NVIDIA_SMI}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install_build(tmp_path, "cyllama-cuda12", monkeypatch, "75")
    monkeypatch.setenv("CONCH_DOUBLE_GPUS", f"{NEW}\n{OLD}")
    with pytest.raises(
        NoDevices, match=r"^cyllama-cuda12 has no code for sm_61, .*, or write the UUIDs of the other cards "
    ):
        read_devices()
