"""Single tensors to values and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_repository.contract import TensorSpec
from model_repository.errors import InvalidRequest
from model_repository.tensors import Tensors, array, json_value, number, numbers, scalar, text, texts

TEXT = TensorSpec("words", "BYTES", (-1,))
COUNT = TensorSpec("count", "INT32", low=0)
SHARE = TensorSpec("share", "FP32", low=0, high=1, is_low_open=True)
CAPPED = TensorSpec("capped", "FP32", high=5)
ANY = TensorSpec("any", "FP32")


def sent(spec: TensorSpec, *elements: Any) -> Tensors:
    return {spec.name: array(spec, *elements)}


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        call()
    return caught.value.message().removeprefix("[invalid_value] ")


@pytest.mark.parametrize(
    "spec", [TensorSpec("x", datatype, (-1,)) for datatype in ("BOOL", "INT32", "INT64", "UINT64", "FP32")]
)
@pytest.mark.parametrize("num_elements", [0, 1, 3])
def test_a_tensor_has_the_datatype_of_the_contract_and_a_batch_of_one(spec: TensorSpec, num_elements: int) -> None:
    tensor = array(spec, *[1] * num_elements)
    assert (tensor.shape, tensor.dtype) == ((1, num_elements), spec.dtype)


def test_text_becomes_bytes() -> None:
    assert array(TEXT, "日", b"\xff", "").tolist() == [["日".encode(), b"\xff", b""]]


@given(st.lists(st.text(), max_size=4))
def test_texts_survive_a_tensor(items: list[str]) -> None:
    assert texts(sent(TEXT, *items), TEXT) == items


def test_what_was_not_sent_has_its_default() -> None:
    assert scalar({}, COUNT, 7) == 7
    assert number({}, COUNT, 7) == 7
    assert numbers({}, COUNT) == []
    assert text({}, TEXT) == ""
    assert texts({}, TEXT) == []
    assert json_value({}, TEXT, 7) == 7


@pytest.mark.parametrize("elements", [(), (1, 2)])
def test_one_element_is_expected(elements: tuple[int, ...]) -> None:
    message = f"count: expected one element, got {len(elements)}"
    assert refusal(lambda: scalar(sent(COUNT, *elements), COUNT, 0)) == message


@pytest.mark.parametrize(
    ("spec", "value"),
    [(COUNT, 0), (COUNT, 2**31 - 1), (SHARE, 2**-149), (SHARE, 1), (CAPPED, -1e30), (CAPPED, 5), (ANY, np.inf)],
)
def test_the_ends_of_a_range_are_in_it(spec: TensorSpec, value: float) -> None:
    assert number(sent(spec, value), spec, 0) == pytest.approx(value)


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (COUNT, -1, "count: -1 must be at least 0"),
        (SHARE, 0, "share: 0.0 must be above 0 and at most 1"),
        (SHARE, 1.5, "share: 1.5 must be above 0 and at most 1"),
        (CAPPED, 5.5, "capped: 5.5 must be at most 5"),
        (CAPPED, np.nan, "capped: nan must be at most 5"),
    ],
)
def test_what_is_outside_a_range_is_refused(spec: TensorSpec, value: float, message: str) -> None:
    assert refusal(lambda: number(sent(spec, value), spec, 0)) == message
    assert refusal(lambda: numbers(sent(spec, value), spec)) == message


def test_bytes_that_are_no_text_are_refused() -> None:
    assert refusal(lambda: text(sent(TEXT, b"ab\xff"), TEXT)) == "words: not UTF-8 at byte 2"
    assert refusal(lambda: texts(sent(TEXT, "a", b"\xff"), TEXT)) == "words: not UTF-8 at byte 0"
    assert refusal(lambda: text(sent(TEXT, "a\ud800"), TEXT)) == "words: not UTF-8 at byte 1"


def test_json_is_parsed() -> None:
    assert json_value(sent(TEXT, '{"a": [1, null]}'), TEXT, None) == {"a": [1, None]}


@pytest.mark.parametrize("payload", ["", "{", "[" * 100_000])
def test_what_is_not_json_is_refused(payload: str) -> None:
    assert refusal(lambda: json_value(sent(TEXT, payload), TEXT, None)).startswith("words: not JSON (")
