"""`conch doctor` in an environment with the build for Vulkan."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REASON = "needs the Debian packages libvulkan1 and mesa-vulkan-drivers"


@pytest.mark.skipif(ctypes.util.find_library("vulkan") is None, reason=REASON)
def test_doctor_names_the_build_and_its_device(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "frontend", "doctor", "--json", f"--home={tmp_path}"]
    environment = os.environ | {"GGML_VK_VISIBLE_DEVICES": "0"}  # without a card, Mesa's software
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    found = {finding["subject"]: finding for finding in json.loads(done.stdout)}
    assert found["llama.cpp"]["text"].startswith("cyllama-vulkan ")
    assert found["Vulkan0"]["is_well"] and " GB free" in found["Vulkan0"]["text"]
