"""The tensors of the stages, and the names of their models."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from model_repository.contract.output import GenerationChunk, Timing, Usage, VectorChunk
from model_repository.contract.spec import TensorSpec, fields_of
from model_repository.contract.tensors import (
    ENCODER,
    GENERATOR,
    Layout,
    ensemble_of_stage,
    ensemble_to_model_id,
    model_id_to_ensemble,
    replica_suffix,
    stage_name,
)

# --- names of models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model_id",
    [
        *["", "a b", "a\n"],
        *["/", "/a", "a/", "a//b", "a--b", "a__b", "-a", "a-", "a-/b", ".", "..", "../a", "a/..", ".a", "ä", "a@2"],
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
        ensembles = [ensemble, model_id_to_ensemble(model_id, 2), model_id_to_ensemble(model_id, 12)]
        assert [replica_suffix(each) for each in ensembles] == ["", "@2", "@12"]
        stages = [stage_name(each, stage) for each in ensembles for stage in {*GENERATOR.stages, *GENERATOR.ensembles}]
        assert {*ensembles} <= {*stages}
        assert {ensemble_to_model_id(ensemble_of_stage(stage)) for stage in stages} == {model_id}
        names += stages
    assert len(set(names)) == len(names)


# --- ensembles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [GENERATOR, ENCODER])
def test_an_ensemble_of_frontends_has_one_tensor_in_each_direction(layout: Layout) -> None:
    """Each further tensor of a response costs as much as a token."""
    steps = [step for name, ensemble in layout.ensembles.items() if name for step in ensemble.values()]
    assert {(len(step.inputs), len(step.outputs)) for step in steps} == {(1, 1)}


@pytest.mark.parametrize("message", [GenerationChunk, VectorChunk, Usage, Timing])
def test_every_field_of_an_output_has_a_tensor(message: type[Struct]) -> None:
    """The round trip of requests shows it for the inputs. gRPC clients score a prompt by an echo."""
    assert {field.attribute for field in fields_of(message)} == {*message.__struct_fields__} - {
        "prompt_logprobs",
        "vector",
        "num_tokens",
        "packed_token_ids",
    }


@pytest.mark.parametrize(
    ("rule", "is_one"),
    [
        ({}, False),
        *(({name: 0}, True) for name in ("low", "high", "max_items", "max_chars")),
        ({"words": ("a",)}, True),
    ],
    ids=str,
)
def test_a_tensor_with_any_rule_is_checked(rule: dict[str, Any], is_one: bool) -> None:
    """Values of all others are let through unseen."""
    assert TensorSpec("a", "INT32", **rule).has_rules is is_one
