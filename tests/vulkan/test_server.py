"""A real Triton and frontend, with a model on the device."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from msgspec.structs import replace

from build_engines.render import read_config
from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.request import EngineRequest, Params, SamplingParams
from model_repository.contract.tensors import stage_name
from model_repository.engine.llama_cpp.runtime import LlamaCppRuntime
from model_repository.model_parameters import ModelParameters
from tests.build_engines.tiny_checkpoint import write_checkpoint
from tests.integration.api import Api
from tests.integration.conftest import build, run_build, running_stack

PROMPT = list(range(40, 60))
NUM_TOKENS = 8


def place(config: Path, placement: Mapping[str, Any]) -> ModelParameters:
    """Put the layers of a rendered model on devices; return the parameters."""
    message = read_config(config)
    texts = {name: value.string_value for name, value in message.parameters.items()}
    parameters = replace(ModelParameters.from_config(texts), **placement)
    for name, text in parameters.to_config().items():
        message.parameters[name].string_value = text
    config.write_text(text_format.MessageToString(message))
    return parameters


def greedy(parameters: ModelParameters) -> list[int | None]:
    """Return the tokens that the cores alone make."""
    config = replace(parameters, gpu_layers=0, devices={})
    request = EngineRequest(
        prompt_token_ids=tuple(PROMPT), max_tokens=NUM_TOKENS, params=Params(sampling=SamplingParams(temperature=0.0))
    )
    with closing(LlamaCppRuntime(config, load_byte_table(config.artifact_dir / FILE_NAME))) as runtime:
        runtime.submit(1, request)
        return [output.token_id for _ in range(NUM_TOKENS) for output in runtime.step()]


def test_a_server_computes_on_the_device_and_gives_the_answer_of_the_cores(
    placement: Mapping[str, Any], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkpoint, repository = write_checkpoint(tmp_path / "checkpoint"), tmp_path / "repository"
    words = ("--precision", "f32", "--context-window", "64")
    artifact = build(tmp_path, "tiny", "--checkpoint", str(checkpoint), *words)
    run_build("render", artifact, "--repository", str(repository), "--max-sequences", "2", "--num-threads", "1")
    parameters = place(repository / stage_name("tiny", "engine") / "config.pbtxt", placement)
    with running_stack(repository, tmp_path_factory) as stack:
        assert any("99 layers are on Vulkan0" in line for line in stack.log)
        [engine] = stack.processes(stage_name("tiny", "engine"))
        assert "libvulkan_lvp" in Path(f"/proc/{engine}/maps").read_text()
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        answer = Api(stack.url).post("/v1/completions", body | {"return_token_ids": True})
    assert answer.choice["token_ids"] == greedy(parameters)
