"""Compares answers in a mix on a device with those of the cores alone: `python -m tests.vulkan.mixed_answers MODEL`."""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from model_repository.engine.llama_cpp import context
from model_repository.engine.llama_cpp.runtime import LlamaCppRuntime
from model_repository.runtimes import NGRAM
from model_repository.system.devices import DeviceUse
from tests.model_repository.engine.llama_cpp.test_kv_caches import (
    CONTEXT_WINDOW,
    VOCAB_SIZE,
    check,
    complete_mix,
    config_of,
)
from tests.model_repository.engine.tiny_models import FULL_ATTENTION, write_model

MAX_ERROR = 0.02  # of a log probability in f32


def main() -> None:
    context._TILED_PROMPTS = (9,)  # type: ignore[assignment]  # a device that computes on the cores is slow
    # A tiny indexer gives many keys the score 0. Of equal scores, a device keeps other ones than the cores: keep all.
    cast(dict[str, object], FULL_ATTENTION["deepseek32"])["attention.indexer.top_k"] = CONTEXT_WINDOW
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_model(folder / "model.gguf", sys.argv[1])
        devices = {"Vulkan0": DeviceUse(description="", used_bytes=1, total_bytes=1)}
        config = replace(config_of(folder, NGRAM), gpu_layers=99, devices=devices)
        with closing(LlamaCppRuntime(config, [b"a"] * VOCAB_SIZE)) as runtime:
            finished = complete_mix(runtime, 12)
        check(model, finished, MAX_ERROR)


if __name__ == "__main__":
    main()
