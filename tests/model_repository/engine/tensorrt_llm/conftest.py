"""Imports the runtime against the double of TensorRT-LLM, which no other test may see, and runs it on a tiny model."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from model_repository.byte_table import FILE_NAME, save_byte_table
from model_repository.contract.request import EngineRequest, SamplingParams
from model_repository.engine.runtime import EngineConfig, StepOutput
from tests.model_repository.engine.engine_requests import changed
from tests.tensorrt_llm_artifact import DOUBLES
from tests.waiting import DEADLINE_S, wait_until

sys.path.insert(0, str(DOUBLES))
try:
    RUNTIME: Any = importlib.import_module("model_repository.engine.tensorrt_llm.runtime")
    with contextlib.suppress(ImportError):
        importlib.import_module("tensorrt_llm._tensorrt_engine")
    for name in ("tensorrt_llm.lora_helper", "tensorrt_llm._torch.peft.lora.config"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
finally:
    sys.path.remove(str(DOUBLES))
    del sys.modules["torch"], sys.modules["torch.cuda"]  # other tests must not import this double

# The first is the default of tests that do not depend on the backend.
BACKENDS = ["engine", "pytorch"] if "tensorrt_llm._tensorrt_engine" in sys.modules else ["pytorch"]
UNUSED, EOS, OTHER_EOS = 0, 1, 2
VOCAB_SIZE = 96
BYTE_TABLE = [b"", b"", b"", *(bytes([byte]) for byte in range(35, 128))]


@dataclass(slots=True)
class Tiny:
    """The runtime on a model without weights: its next token depends on the last two."""

    runtime: Any
    num_submitted: int = 0

    def submit(self, **fields: Any) -> int:
        self.num_submitted += 1
        self.runtime.submit(self.num_submitted, request(**fields))
        return self.num_submitted

    def run(self, **fields: Any) -> list[StepOutput]:
        self.num_submitted += 1
        asked = request(**fields)
        self.runtime.submit(self.num_submitted, asked)
        outputs: list[StepOutput] = []
        deadline_s = time.monotonic() + DEADLINE_S
        while not has_ended(outputs, asked):
            assert time.monotonic() < deadline_s, outputs
            outputs += self.runtime.step() or ()
        self.runtime.free(self.num_submitted)
        return outputs

    def tokens(self, **fields: Any) -> list[int | None]:
        return [output.token_id for output in self.run(**fields)]

    def wait_until_idle(self) -> None:
        """Wait until TensorRT-LLM works on nothing."""
        wait_until(lambda: self.runtime.stats().num_active == 0, "TensorRT-LLM is idle")


def request(**fields: Any) -> EngineRequest:
    """Return a greedy request, unless the fields say otherwise; `sampling` is a dict."""
    greedy: dict[str, Any] = {"temperature": 0.0}
    sampling = SamplingParams(**greedy | fields.pop("sampling", {}))
    base: dict[str, Any] = {"ignore_eos": True, "is_stream": True, "sampling": sampling}
    return changed(EngineRequest(prompt_token_ids=(10, 11, 12), max_tokens=8), **base | fields)


def has_ended(outputs: list[StepOutput], asked: EngineRequest) -> bool:
    """Whether the engine stage would end the sequence."""
    if not outputs:
        return False
    last, params = outputs[-1], asked.params
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS, OTHER_EOS, *asked.end_token_ids})
    is_long = len(outputs) + len(asked.resumed_token_ids) >= asked.max_tokens
    return last.error is not None or last.token_id is None or last.token_id in ends or is_long


def write_model(folder: Path, **built: Any) -> Path:
    """Write an artifact for both backends."""
    folder.mkdir(exist_ok=True)
    save_byte_table(folder / FILE_NAME, BYTE_TABLE)
    model = {"vocab_size": VOCAB_SIZE}
    limits = {"max_batch_size": 4, "max_num_tokens": 256, "max_seq_len": 256, "gather_context_logits": True}
    limits |= {"plugin_config": {"lora_plugin": "auto"}} | built
    for name, config in (("checkpoint", model), ("engine", {"pretrained_config": model, "build_config": limits})):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    """How the tiny model is served, with an adapter."""
    (tmp_path / "adapters" / "polite").mkdir(parents=True)
    return EngineConfig(
        runtime="tensorrt_llm",
        artifact_dir=write_model(tmp_path),
        context_window=256,
        eos_token_ids=frozenset([EOS, OTHER_EOS]),
        max_sequences=2,
        adapters={"polite": "adapters/polite"},
        options={"backend": BACKENDS[0], "prompt_logprobs": "true"},
    )


@pytest.fixture
def start(config: EngineConfig) -> Iterator[Callable[..., Tiny]]:
    """Start the runtime with options; it is closed at the end."""
    started: list[Tiny] = []

    def start(**options: str) -> Tiny:
        given = replace(config, options={**config.options, **options})
        started.append(Tiny(RUNTIME.TensorRtLlmRuntime(given, BYTE_TABLE, environment={})))
        return started[-1]

    yield start
    for tiny in started:
        tiny.runtime.close()


@pytest.fixture(params=BACKENDS)
def tiny(start: Callable[..., Tiny], request: pytest.FixtureRequest) -> Tiny:
    """The runtime on each backend of the release."""
    return start(backend=request.param)
