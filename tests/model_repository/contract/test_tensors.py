"""The tensors of the stages, and the names of their models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from model_repository.contract.output import GenerationChunk, Timing, Usage
from model_repository.contract.request import (
    ChatPrompt,
    GenerationRequest,
    Mirostat,
    Params,
    SamplingParams,
    StructuredOutput,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)
from model_repository.contract.spec import TensorSpec, fields_of
from model_repository.contract.tensors import (
    ENSEMBLES,
    OUTPUTS,
    PUBLIC_INPUTS,
    PUBLIC_OUTPUTS,
    REQUESTS,
    STAGES,
    ensemble_of_stage,
    ensemble_to_model_id,
    model_id_to_ensemble,
    stage_name,
)

# The messages that a client sends or receives, with their fields that no tensor carries.
PUBLIC_MESSAGES: dict[type[Struct], set[str]] = {
    TextPrompt: set(),
    ChatPrompt: set(),
    ToolUse: set(),
    TokenPrompt: set(),
    GenerationRequest: {"prompt", "request_id"},  # one of several messages; Triton's own id
    Params: set(),
    SamplingParams: set(),
    Mirostat: set(),
    StructuredOutput: set(),
    GenerationChunk: set(),
    Usage: set(),
    Timing: set(),
}


# --- names of models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_id", ["demo", "org/demo", "meta-llama/Llama-3.1-8B", "a/b/c", "x:1.0_b", "0"])
def test_a_model_id_comes_back_from_its_ensemble(model_id: str) -> None:
    ensemble = model_id_to_ensemble(model_id)
    assert "/" not in ensemble
    assert ensemble_to_model_id(ensemble) == model_id


@pytest.mark.parametrize(
    "model_id",
    [
        *["", "a b", "a\n"],
        *["/", "/a", "a/", "a//b", "a--b", "a__b", "-a", "a-", "a-/b", ".", "..", "../a", "a/..", ".a", "ä"],
    ],
)
def test_a_model_id_that_would_not_come_back_is_refused(model_id: str) -> None:
    with pytest.raises(ValueError, match="model id"):
        model_id_to_ensemble(model_id)


@given(st.text("aB0/-_.:", max_size=8), st.text("aB0/-_.:", max_size=8))
def test_no_two_models_share_a_folder(first: str, second: str) -> None:
    names = []
    for model_id in {first, second}:
        try:
            ensemble = model_id_to_ensemble(model_id)
        except ValueError:
            continue
        stages = [stage_name(ensemble, stage) for stage in {*STAGES, *ENSEMBLES}]
        assert ensemble in stages
        assert {ensemble_to_model_id(ensemble_of_stage(stage)) for stage in stages} == {model_id}
        names += stages
    assert len(set(names)) == len(names)


# --- tensors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", PUBLIC_MESSAGES)
def test_every_field_of_a_public_message_has_a_tensor(message: type[Struct]) -> None:
    declared = {field.attribute for field in fields_of(message)}
    assert set(message.__struct_fields__) - declared == PUBLIC_MESSAGES[message]
    assert {field.kind for field in fields_of(message) if field.is_message} <= PUBLIC_MESSAGES.keys()


@pytest.mark.parametrize("spec", PUBLIC_INPUTS + PUBLIC_OUTPUTS, ids=lambda spec: spec.name)
def test_a_public_tensor_is_one_value_or_a_list_and_is_documented(spec: TensorSpec) -> None:
    assert spec.shape in ((1,), (-1,))
    assert spec.doc or spec.neutral
    assert spec.dtype is not None


# --- ensembles ------------------------------------------------------------------------------------------------------


def test_the_public_ensemble_has_the_public_tensors_only() -> None:
    first, *_, last = ENSEMBLES[""].values()
    assert (first.inputs, last.outputs) == (PUBLIC_INPUTS, PUBLIC_OUTPUTS)


@pytest.mark.parametrize("ensemble", [REQUESTS, OUTPUTS])
def test_an_ensemble_of_frontends_has_one_tensor_in_each_direction(ensemble: str) -> None:
    """Each further tensor of a response costs as much as a token."""
    for step in ENSEMBLES[ensemble].values():
        assert (len(step.inputs), len(step.outputs)) == (1, 1)
