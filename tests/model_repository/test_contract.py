"""The tensors of the stages, and the names of their models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_repository import contract
from model_repository.contract import StageSpec, TensorSpec, model_id_to_slug, slug_to_model_id, stage_name

SPECS = {name: item for name, item in vars(contract).items() if isinstance(item, TensorSpec)}


@pytest.mark.parametrize("model_id", ["demo", "org/demo", "meta-llama/Llama-3.1-8B", "a/b/c", "x:1.0_b", "0"])
def test_a_model_id_comes_back_from_its_slug(model_id: str) -> None:
    slug = model_id_to_slug(model_id)
    assert "/" not in slug
    assert slug_to_model_id(slug) == model_id


@pytest.mark.parametrize(
    "model_id",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        "a--b",
        "a__b",
        "-a",
        "a-",
        "a-/b",
        ".",
        "..",
        "../a",
        "a/..",
        ".a",
        "a b",
        "ä",
        "a\n",
    ],
)
def test_a_model_id_that_would_not_come_back_is_refused(model_id: str) -> None:
    with pytest.raises(ValueError, match="model id"):
        model_id_to_slug(model_id)


@given(st.text("aB0/-_.:", max_size=8), st.text("aB0/-_.:", max_size=8))
def test_no_two_models_share_a_folder(first: str, second: str) -> None:
    names = []
    for model_id in {first, second}:
        try:
            slug = model_id_to_slug(model_id)
        except ValueError:
            continue
        assert slug_to_model_id(slug) == model_id
        names += [slug, *(stage_name(slug, stage) for stage in (*contract.STAGES, contract.DELIVERIES))]
    assert len(set(names)) == len(names)


def test_every_spec_is_used_by_a_stage() -> None:
    used = {spec.name for stage in contract.STAGES.values() for spec in stage.inputs + stage.outputs}
    assert {spec.name for spec in SPECS.values()} == used


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_spec_is_called_like_its_tensor(name: str) -> None:
    assert SPECS[name].name.upper() == name


@pytest.mark.parametrize("stage", contract.STAGES.values(), ids=contract.STAGES)
def test_no_tensor_is_there_twice(stage: StageSpec) -> None:
    for specs in (stage.inputs, stage.outputs):
        assert len({spec.name for spec in specs}) == len(specs)


def test_a_name_means_the_same_tensor_wherever_it_is() -> None:
    """An ensemble's tensors share one namespace."""
    assert len({spec.name for spec in SPECS.values()}) == len(SPECS)


def test_the_steps_connect() -> None:
    tokenizer, engine, detokenizer = (contract.STEPS[stage] for stage in ("tokenizer", "engine", "detokenizer"))
    assert tokenizer.inputs == contract.PUBLIC_INPUTS
    assert engine.inputs == tokenizer.outputs
    # A step behind a decoupled one may take nothing but that one's outputs.
    assert detokenizer.inputs == engine.outputs
    assert detokenizer.outputs == contract.PUBLIC_OUTPUTS


def test_the_steps_of_deliveries_connect() -> None:
    engine, detokenizer = contract.DELIVERY_STEPS.values()
    assert detokenizer.inputs == engine.outputs


def test_the_ensembles_share_no_tensor() -> None:
    """A step of the one must not wait for a tensor of the other."""
    for name, step in contract.DELIVERY_STEPS.items():
        other = contract.STEPS[name]
        assert not {*step.inputs, *step.outputs} & {*other.inputs, *other.outputs}


def test_every_step_is_a_part_of_its_stage() -> None:
    assert contract.STEPS.keys() == contract.STAGES.keys()
    for name, step in (*contract.STEPS.items(), *contract.DELIVERY_STEPS.items()):
        assert set(step.inputs) <= set(contract.STAGES[name].inputs)
        assert set(step.outputs) <= set(contract.STAGES[name].outputs)


def test_what_is_public_stays_out_of_the_names_between_stages() -> None:
    between = {spec.name for name in ("tokenizer", "engine") for spec in contract.STEPS[name].outputs}
    assert not between & {spec.name for spec in contract.PUBLIC_INPUTS + contract.PUBLIC_OUTPUTS}


@pytest.mark.parametrize("spec", contract.PUBLIC_INPUTS, ids=lambda spec: spec.name)
def test_every_public_input_may_be_left_out(spec: TensorSpec) -> None:
    assert spec.is_optional


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_dtype_is_numpys(spec: TensorSpec) -> None:
    assert np.zeros((1,), dtype=spec.dtype).dtype == np.dtype(spec.dtype)


def test_every_input_is_either_honoured_or_has_neutral_values() -> None:
    assert all(spec.neutral is None for spec in contract.HONOURED_INPUTS)
    assert all(spec.neutral for spec in contract.NEUTRAL_INPUTS)
