"""Answers a prompt with an image on a device, and prints the tokens: `python -m tests.vulkan.image_answer`."""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path

from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from model_repository.engine.llama_cpp import context
from model_repository.system.devices import DeviceUse
from tests.build_engines.tiny_smolvlm import write_smolvlm
from tests.model_repository.engine.llama_cpp.test_image_prompts import answer, request, started


def main() -> None:
    context._TILED_PROMPTS = (9,)  # type: ignore[assignment]  # a device that computes on the cores is slow
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = CpuSpec(model_id="tiny", checkpoint=write_smolvlm(folder / "checkpoint"), precision="f32")
        devices = {"Vulkan0": DeviceUse(description="", used_bytes=1, total_bytes=1)}
        with closing(started(build(spec, folder), adapters={}, gpu_layers=99, devices=devices)) as runtime:
            print(json.dumps(answer(runtime, request())[0]))


if __name__ == "__main__":
    main()
