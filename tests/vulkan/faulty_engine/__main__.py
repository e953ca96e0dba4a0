"""An engine with a device that fails in a step: `python -m tests.vulkan.faulty_engine FAULT`, one of FAULTS.

It prints what its steps return, and then what `step`, `stats` and `submit` raise, unless the process ends before.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from model_repository.contract.request import EngineRequest, Params, SamplingParams
from model_repository.engine.llama_cpp import context
from model_repository.engine.llama_cpp.library import load_backends
from model_repository.engine.llama_cpp.runtime import LlamaCppRuntime
from model_repository.engine.runtime import EngineConfig
from model_repository.errors import EngineFailed
from model_repository.system.devices import DeviceUse
from tests.build_engines.tiny_checkpoint import CONFIG
from tests.model_repository.engine.tiny_models import write_model
from tests.vulkan.driver import DEVICE_LOST, OUT_OF_DEVICE_MEMORY, replaced
from tests.waiting import DEADLINE_S

NUM_STEPS = 3  # before the fault
_is_stuck = threading.Event()


def _hang(*_: int) -> int:
    _is_stuck.set()
    time.sleep(DEADLINE_S)
    return 0


# Function of the driver, and its replacement.
FAULTS: dict[str, tuple[str, Callable[..., int]]] = {
    "lost at the start": ("vkQueueSubmit", lambda *_: DEVICE_LOST),
    "lost at the end": ("vkWaitForFences", lambda *_: DEVICE_LOST),
    "out of memory": ("vkQueueSubmit", lambda *_: OUT_OF_DEVICE_MEMORY),
    "hangs": ("vkWaitForFences", _hang),
}


def main() -> None:
    """Take some steps, and one more with the fault."""
    context._TILED_PROMPTS = (9,)  # type: ignore[assignment]  # a device that computes on the cores is slow
    load_backends()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "model.gguf", "mamba")
        config = EngineConfig(
            runtime="llama_cpp",
            artifact_dir=Path(folder),
            context_window=64,
            eos_token_ids=frozenset(),
            max_sequences=1,
            num_threads=1,
            gpu_layers=99,
            devices={"Vulkan0": DeviceUse(description="", used_bytes=1, total_bytes=1)},
        )
        runtime = LlamaCppRuntime(config, [b"a"] * CONFIG["vocab_size"])
    params = Params(sampling=SamplingParams(temperature=0.0))
    request = EngineRequest(prompt_token_ids=(1, 2, 3), max_tokens=20, params=params)
    runtime.submit(1, request)
    for _ in range(NUM_STEPS):
        print(runtime.step(), flush=True)
    name, function = FAULTS[sys.argv[1]]
    with replaced(name, lambda _: function):
        stepping = threading.Thread(target=_print_calls, args=(runtime, request), daemon=True)
        stepping.start()
        if function is _hang:
            assert _is_stuck.wait(DEADLINE_S)
            print("hangs with", runtime.stats().num_active, flush=True)  # `stats` answers, as the monitor needs it
        else:
            stepping.join(DEADLINE_S)
        os._exit(0)


def _print_calls(runtime: LlamaCppRuntime, request: EngineRequest) -> None:
    for call in (runtime.step, runtime.stats, lambda: runtime.submit(2, request)):
        try:
            print(call(), flush=True)
        except EngineFailed as error:
            print(error, flush=True)


if __name__ == "__main__":
    main()
