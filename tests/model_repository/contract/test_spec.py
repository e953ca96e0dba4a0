"""A message's annotations as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import pytest
from msgspec import Struct

from model_repository.contract.spec import TensorSpec, fields_of, specs_of, token_ids_of


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(Struct):
    count: Annotated[int, TensorSpec("inner_count", low=0)]


class Tokens(Struct):
    ids: Annotated[tuple[int, ...], TensorSpec("stop_ids", has_token_ids=True)] = ()
    bias: Annotated[Mapping[int, float], TensorSpec("bias_ids", has_token_ids=True), TensorSpec("bias_values")] = {}
    others: Annotated[tuple[int, ...], TensorSpec()] = ()
    inner: Tokens | None = None


class Outer(Struct, kw_only=True):
    flag: Annotated[bool, TensorSpec()] = False
    number: Annotated[int | None, TensorSpec(datatype="UINT64")] = None
    share: Annotated[float, TensorSpec("part")] = 0.0
    texts: Annotated[tuple[str, ...], TensorSpec(max_items=2)] = ()
    files: Annotated[tuple[bytes, ...], TensorSpec(shape=(1,))] = ()
    colour: Annotated[Colour, TensorSpec()] = Colour.RED
    dark_colour: Annotated[Colour, TensorSpec(words=(Colour.BLUE,))] = Colour.BLUE
    objects: Annotated[tuple[Mapping[str, Any], ...], TensorSpec(is_json=True)] = ()
    bias: Annotated[Mapping[int, float], TensorSpec("keys"), TensorSpec("values")]
    pairs: Annotated[tuple[Inner, ...], TensorSpec("left"), TensorSpec("right", "FP32"), TensorSpec("top", "INT32")]
    inner: Inner | None = None
    no_tensor: str = ""


# The tensors of each field: names, datatypes, shapes.
TENSORS: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {
    "flag": [("flag", "BOOL", (1,))],
    "number": [("number", "UINT64", (1,))],
    "share": [("part", "FP32", (1,))],
    "texts": [("texts", "BYTES", (-1,))],
    "files": [("files", "BYTES", (1,))],
    "colour": [("colour", "BYTES", (1,))],
    "dark_colour": [("dark_colour", "BYTES", (1,))],
    "objects": [("objects", "BYTES", (1,))],
    "bias": [("keys", "INT32", (-1,)), ("values", "FP32", (-1,))],
    "pairs": [("left", "BYTES", (-1,)), ("right", "FP32", (-1,)), ("top", "INT32", (-1,))],
    "inner": [],
}
FIELDS = {field.attribute: field for field in fields_of(Outer)}


def test_fields_come_in_their_order_and_without_those_that_no_tensor_carries() -> None:
    assert list(FIELDS) == list(TENSORS)


@pytest.mark.parametrize("attribute", TENSORS)
def test_name_and_type_of_a_field_determine_its_tensor(attribute: str) -> None:
    specs = FIELDS[attribute].specs
    assert [(spec.name, spec.datatype, spec.shape) for spec in specs] == TENSORS[attribute]


def test_a_message_inside_a_message_declares_its_own_tensors() -> None:
    assert [attribute for attribute, field in FIELDS.items() if field.is_message] == ["inner"]
    assert FIELDS["inner"].kind is Inner
    names = [name for tensors in TENSORS.values() for name, _, _ in tensors]
    assert [spec.name for spec in specs_of(Outer)] == [*names, "inner_count"]


def test_lists_and_mappings_have_the_type_of_their_elements_or_keys() -> None:
    kinds = {attribute: field.kind for attribute, field in FIELDS.items() if field.is_list}
    assert kinds.pop("objects") == Mapping[str, Any]
    assert kinds == {"texts": str, "files": bytes, "bias": int, "pairs": Inner}


def test_the_words_of_an_enumeration_are_its_members_unless_the_tensor_names_some() -> None:
    assert FIELDS["colour"].specs[0].words == ("red", "blue")
    assert FIELDS["dark_colour"].specs[0].words == ("blue",)
    assert FIELDS["texts"].specs[0].words == ()


def test_other_parts_of_a_declaration_stay() -> None:
    assert FIELDS["texts"].specs[0].max_items == 2
    assert specs_of(Inner)[0].low == 0


def test_token_ids_come_with_the_names_of_their_tensors() -> None:
    message = Tokens(ids=(1, 2), others=(3,), inner=Tokens(bias={4: 0.5}))
    assert [(name, list(token_ids)) for name, token_ids in token_ids_of(message)] == [
        ("stop_ids", [1, 2]),
        ("bias_ids", [4]),
    ]
