"""An ensemble's parameters, written and read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model_repository.capabilities import Capability
from model_repository.contract.request import ContextOverflow
from model_repository.model_parameters import ModelParameters, RequestDefaults, checked_defaults

PARAMETERS = ModelParameters(
    model_id="org/demo",
    context_window=2048,
    max_sequences=8,
    created=1_700_000_000,
    owned_by="conch",
    runtime="llama_cpp",
    fingerprint="fp_0123456789ab",
    aliases=("gpt-4o", "nvidiaLlama-3.1-Nemotron-70B-Instruct", 'a "quoted" name/é:1'),
    adapters=("demo-formal",),
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
    },
)
WRITTEN = PARAMETERS.to_parameters()
FRONTENDS_OWN = RequestDefaults(
    completion_max_tokens=16,
    chat_max_tokens=256,
    context_length_exceeded_behavior=ContextOverflow.TRUNCATE,
    include_stop_str_in_output=False,
)


def test_parameters_survive_the_configuration() -> None:
    read = ModelParameters.from_parameters(WRITTEN)
    assert read == PARAMETERS
    assert isinstance(read.defaults["context_length_exceeded_behavior"], ContextOverflow)


def test_additions_of_a_later_version_are_ignored() -> None:
    later = WRITTEN | {"colour": "blue", "capabilities": '["lora", "seed", "telepathy"]'}
    later["defaults"] = json.dumps(json.loads(WRITTEN["defaults"]) | {"mood": "calm"})
    assert ModelParameters.from_parameters(later) == PARAMETERS


@pytest.mark.parametrize("missing", sorted(WRITTEN))
def test_an_ensemble_that_lacks_a_parameter_is_not_ours(missing: str) -> None:
    assert ModelParameters.from_parameters({name: WRITTEN[name] for name in WRITTEN if name != missing}) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"context_window": "wide"},
        {"created": ""},
        {"aliases": "gpt-4o"},
        {"adapters": "{}"},
        {"aliases": "[1]"},
        {"capabilities": "all"},
        {"capabilities": "[[]]"},
        {"template_fields": "1"},
        {"defaults": "[]"},
        {"defaults": '{"chat_max_tokens": 0}'},
    ],
    ids=str,
)
def test_an_ensemble_with_other_values_is_not_ours(changes: dict[str, str]) -> None:
    assert ModelParameters.from_parameters(WRITTEN | changes) is None


# --- defaults --------------------------------------------------------------------------------------------------------


def test_a_models_defaults_go_before_the_frontends() -> None:
    assert FRONTENDS_OWN.overridden_by({}) == FRONTENDS_OWN
    assert FRONTENDS_OWN.overridden_by({"chat_max_tokens": None}) == RequestDefaults(
        completion_max_tokens=16,
        chat_max_tokens=None,
        context_length_exceeded_behavior=ContextOverflow.TRUNCATE,
        include_stop_str_in_output=False,
    )
    assert set(RequestDefaults.__dataclass_fields__) == set(PARAMETERS.defaults)


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
        ("sampling", "vllm", 'sampling="vllm": must be openai'),
    ],
)
def test_a_default_that_breaks_its_rule_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_defaults({name: value})


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
