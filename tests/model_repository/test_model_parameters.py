"""A model's parameters in config.pbtxt, written and read."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from model_repository.capabilities import Capability
from model_repository.contract.request import ContextOverflow
from model_repository.engine.adapters.root import AdapterRoot
from model_repository.model_parameters import Load, ModelParameters, Preset, RequestDefaults, checked_defaults
from model_repository.system.linked_file import LinkedFile

PARAMETERS = ModelParameters(
    model_id="org/demo",
    artifact_dir=Path("/artifacts/demo"),
    context_window=2048,
    eos_token_ids=frozenset([7, 9]),
    max_sequences=8,
    max_waiting=5,
    num_threads=6,
    stream_interval_ms=25,
    options={"contexts": "2"},
    requires={"num_gpus": "2"},
    gpus=(0, 1),
    linked_files={"model.gguf": LinkedFile(source="/home/a.gguf", inode=1, size_bytes=2, mtime_ns=3)},
    adapter_root=AdapterRoot(
        folder=Path("/adapters"), ensemble="org--demo", runtime="llama_cpp", base="", max_adapters=2, max_rank=8
    ),
    created=1_700_000_000,
    runtime="llama_cpp",
    fingerprint="fp_0123456789ab",
    aliases=("gpt-4o", "nvidiaLlama-3.1-Nemotron-70B-Instruct", 'a "quoted" name/é:1'),
    adapters={"demo-formal": "adapters/demo-formal.gguf"},
    capabilities=frozenset({Capability.SEED, Capability.LORA}),
    tool_call_format="hermes",
    reasoning_format="",
    template_fields=("reasoning_effort",),
    defaults={
        "completion_max_tokens": 16,
        "chat_max_tokens": None,
        "context_length_exceeded_behavior": ContextOverflow.ERROR,
        "include_stop_str_in_output": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.5,
        "seed": 7,
        "stop": ("\n", "END"),
    },
)
[(NAME, TEXT)] = PARAMETERS.to_config().items()
WRITTEN = json.loads(TEXT)
FRONTENDS_OWN = RequestDefaults(
    completion_max_tokens=16,
    chat_max_tokens=256,
    context_length_exceeded_behavior=ContextOverflow.TRUNCATE,
    include_stop_str_in_output=False,
)


def read(written: dict[str, Any]) -> ModelParameters:
    return ModelParameters.from_config({NAME: json.dumps(written)})


def test_parameters_survive_the_configuration() -> None:
    assert read(WRITTEN) == PARAMETERS
    assert isinstance(read(WRITTEN).defaults["context_length_exceeded_behavior"], ContextOverflow)


def test_presets_survive_the_configuration() -> None:
    brief = Preset(system='Be "brief": é', defaults={"temperature": 0.5, "stop": ("a",)})
    parameters = replace(PARAMETERS, presets={"brief": brief, "plain": Preset()})
    assert ModelParameters.from_config(parameters.to_config()) == parameters


def test_additions_of_a_later_version_are_ignored() -> None:
    later = WRITTEN | {"colour": "blue", "capabilities": ["lora", "seed", "telepathy"]}
    later["defaults"] = WRITTEN["defaults"] | {"mood": "calm"}
    assert read(later) == replace(PARAMETERS, capabilities=PARAMETERS.capabilities | {"telepathy"})


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"model_id": "org/demo", "context_window": "2048"},  # of a version with several
        {NAME: "[]"},
        {NAME: json.dumps({name: WRITTEN[name] for name in WRITTEN if name != "fingerprint"})},
        {NAME: json.dumps(WRITTEN | {"context_window": "wide"})},
        {NAME: json.dumps(WRITTEN | {"aliases": [1]})},
        {NAME: json.dumps(WRITTEN | {"defaults": {"chat_max_tokens": 0}})},
        {NAME: json.dumps(WRITTEN | {"presets": {"brief": {"defaults": {"seed": -1}}}})},
    ],
    ids=lambda parameters: str(parameters)[-60:],
)
def test_parameters_of_another_version_are_to_be_rendered_again(parameters: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"^another version has rendered this config\.pbtxt .*: render the repository"):
        ModelParameters.from_config(parameters)


# --- defaults --------------------------------------------------------------------------------------------------------


def test_a_models_defaults_go_before_the_frontends() -> None:
    model = replace(PARAMETERS, defaults={"completion_max_tokens": 9})
    assert model.request_defaults(FRONTENDS_OWN) == dataclasses.replace(FRONTENDS_OWN, completion_max_tokens=9)
    assert set(RequestDefaults.__dataclass_fields__) == set(PARAMETERS.defaults)


def test_a_presets_defaults_go_before_the_models() -> None:
    model = replace(PARAMETERS, defaults={"completion_max_tokens": 9, "top_k": 3}, reasoning_format="think")
    preset = Preset(defaults={"top_k": 4, "stop": ("a",)})
    expected: dict[str, Any] = {"completion_max_tokens": 9, "chat_max_tokens": None, "top_k": 4, "stop": ("a",)}
    assert model.request_defaults(FRONTENDS_OWN, preset) == dataclasses.replace(FRONTENDS_OWN, **expected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_tokens", 5, "max_tokens: expected one of completion_max_tokens, chat_max_tokens, context_length"),
        ("completion_max_tokens", 0, "completion_max_tokens=0: must be a whole number from 1 to 2147483647, or null"),
        ("chat_max_tokens", True, "chat_max_tokens=true: must be a whole number"),
        ("context_length_exceeded_behavior", "ignore", '="ignore": must be truncate or error'),
        ("include_stop_str_in_output", 1, "include_stop_str_in_output=1: must be true or false"),
        ("temperature", 2.5, r"temperature=2\.5: must be a number, at least 0, at most 2"),
        ("top_p", float("nan"), "top_p=NaN: must be a number"),
        ("top_k", 1.0, r"top_k=1\.0: must be a whole number, at least -1"),
        ("repetition_penalty", 0, "repetition_penalty=0: must be a number, above 0, at most 2"),
        ("seed", -1, r"seed=-1: must be a whole number from 0 to 2\^63 - 1"),
        ("stop", ["a", ""], r'stop=\["a", ""\]: must be a text, or a list of at most 16 texts, none of them empty'),
        ("stop", ["a"] * 17, "must be a text, or a list of at most 16 texts"),
        ("stop", 5, "stop=5: must be a text"),
        ("sampling", "vllm", 'sampling="vllm": must be openai'),
    ],
)
def test_a_default_that_breaks_its_rule_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_defaults({name: value})


@pytest.mark.parametrize("given", ["END", ["END"], ("END",)])
def test_one_stop_is_a_list_of_one(given: object) -> None:
    assert checked_defaults({"stop": given}) == {"stop": ("END",)}


def test_openai_sampling_is_every_default_of_the_api_document_except_those_that_are_given() -> None:
    assert checked_defaults({"temperature": 0.7, "sampling": "openai"}) == {
        "temperature": 0.7,
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    }


@pytest.mark.parametrize(
    ("load", "keep_alive_s", "expected"),
    [
        (Load.START, None, math.inf),
        (Load.DEMAND, None, 300),
        (Load.START, 60, 60),
        (Load.DEMAND, 0, 0),
        (Load.DEMAND, -1, math.inf),
    ],
)
def test_a_model_without_a_time_of_its_own_stays_unless_it_is_loaded_on_demand(
    load: Load, keep_alive_s: float | None, expected: float
) -> None:
    assert replace(PARAMETERS, load=load, keep_alive_s=keep_alive_s).max_idle_s == expected
