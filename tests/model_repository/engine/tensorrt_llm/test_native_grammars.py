"""Structured outputs that TensorRT-LLM follows itself, which needs a real tokenizer: on the demo model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.engine.runtime import EngineConfig
from model_repository.errors import Unsupported
from tests.model_repository.engine.tensorrt_llm.conftest import BACKENDS, RUNTIME, Tiny
from tests.tensorrt_llm_artifact import write_artifact

EOS = 3056
PROPERTIES = {"a": {"enum": [1, 2]}}
SCHEMA = json.dumps({"type": "object", "properties": PROPERTIES, "required": ["a"], "additionalProperties": False})


type Start = Callable[..., Tiny]


@pytest.fixture
def start_demo(tmp_path: Path, config: EngineConfig) -> Iterator[Start]:
    """Starts the demo model with options; it is closed at the end."""
    started: list[Tiny] = []

    def start(**options: str) -> Tiny:
        folder = write_artifact(tmp_path / f"demo{len(started)}", "demo", options["backend"])
        given = replace(config, artifact_dir=folder, eos_token_ids=frozenset([EOS]), adapters={}, options=options)
        started.append(Tiny(RUNTIME.TensorRtLlmRuntime(given, load_byte_table(folder / FILE_NAME), environment={})))
        return started[-1]

    yield start
    for tiny in started:
        tiny.runtime.close()


@pytest.fixture(params=[*((backend, "false") for backend in BACKENDS), ("pytorch", "true")])
def demo(start_demo: Start, request: pytest.FixtureRequest) -> Tiny:
    """The demo model with xgrammar, on the PyTorch backend also with its overlap scheduler."""
    backend, has_overlap = request.param
    return start_demo(backend=backend, guided_decoding="xgrammar", overlap_scheduler=has_overlap)


def text(demo: Tiny, structured_output: StructuredOutput, **fields: Any) -> str:
    """Return a completion up to its end."""
    tokens: list[int] = []
    number = demo.submit(
        prompt_token_ids=(100, 200),
        ignore_eos=False,
        max_tokens=60,
        structured_output=structured_output,
        **fields,
    )
    while EOS not in tokens and len(tokens) < 60:
        for output in demo.runtime.step() or ():
            assert output.error is None and output.token_id is not None
            tokens.append(output.token_id)
    demo.runtime.free(number)
    table = load_byte_table(demo.runtime._config.artifact_dir / FILE_NAME)
    return b"".join(table[token_id] for token_id in tokens if token_id != EOS).decode()


def test_each_format_is_followed(demo: Tiny) -> None:
    assert isinstance(json.loads(text(demo, StructuredOutput(OutputFormat.JSON_SCHEMA, SCHEMA))), dict)
    assert text(demo, StructuredOutput(OutputFormat.REGEX, "[ab]{3}x")).endswith("x")
    assert text(demo, StructuredOutput(OutputFormat.GRAMMAR, 'root ::= "x" [0-9] "y"'))[0::2] == "xy"


def test_our_own_masks_make_choices_which_tensorrt_llm_lacks(demo: Tiny) -> None:
    choice = StructuredOutput(OutputFormat.CHOICE, '["yes", "no"]')
    if demo.runtime._options.overlap_scheduler:  # they are logits processors
        with pytest.raises(Unsupported, match="served with the option overlap_scheduler=true") as caught:
            text(demo, choice)
        assert caught.value.field == "guided_decoding_guide"
    else:
        assert text(demo, choice) in ("yes", "no")


@pytest.mark.parametrize(
    ("output_format", "content"),
    [
        (OutputFormat.JSON_OBJECT, ""),
        (OutputFormat.JSON_SCHEMA, SCHEMA),
        (OutputFormat.REGEX, "[ab]{3}x"),
        (OutputFormat.CHOICE, '["yes", "no"]'),
        (OutputFormat.GRAMMAR, 'root ::= "x" [0-9] "y"'),
    ],
)
def test_native_llguidance_follows_our_own_grammars_also_with_the_overlap_scheduler(
    start_demo: Start, output_format: OutputFormat, content: str
) -> None:
    native = start_demo(backend="pytorch", guided_decoding="native_llguidance", overlap_scheduler="true")
    structured_output = StructuredOutput(output_format, content)
    assert text(native, structured_output) == text(start_demo(backend="pytorch"), structured_output)


def test_native_llguidance_does_not_know_our_names_of_special_tokens(start_demo: Start) -> None:
    native = start_demo(backend="pytorch", guided_decoding="native_llguidance", overlap_scheduler="true")
    with pytest.raises(Unsupported, match="served with the option overlap_scheduler=true"):
        text(native, StructuredOutput(OutputFormat.REGEX, "a"), is_combined=True)
