"""Tensors to the messages of KServe's protocol and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from frontend.triton.messages import elements_from_response, infer_request, tensors_from_response
from model_repository import contract
from model_repository.contract import TensorSpec
from model_repository.tensors import array
from tests.frontend.triton.server import infer_response, tensors_of


@pytest.mark.parametrize(
    ("spec", "elements"),
    [
        (contract.TEXT_INPUT, ("",)),
        (contract.TEXT_INPUT, ("Grüße 🙂",)),
        (contract.STOP_WORDS, ("a", "", "é")),
        (contract.STOP_WORDS, ()),
        (contract.IMAGES, (b"\0\xff" * 1000, b"")),
        (contract.INPUT_IDS, (0, 2**31 - 1)),
        (contract.SEED, (2**64 - 1,)),
        (contract.TEMPERATURE, (0.5,)),
        (contract.STREAM, (True,)),
    ],
)
def test_inputs_arrive_as_they_were_sent(spec: TensorSpec, elements: tuple[Any, ...]) -> None:
    sent = array(spec, *elements)
    request = infer_request("demo", {spec.name: sent})
    assert (request.model_name, request.inputs[0].datatype) == ("demo", spec.datatype)
    np.testing.assert_array_equal(tensors_of(request)[spec.name], sent)


@pytest.mark.parametrize(
    ("spec", "elements"),
    [
        (contract.TEXT_OUTPUT, ("Grüße 🙂",)),
        (contract.TOKEN_BYTES, (b"\xe2\x82", b"", b"\xac")),
        (contract.TOKEN_BYTES, ()),
        (contract.TOKEN_IDS, (1, 2, 3)),
        (contract.OUTPUT_LOG_PROBS, (-1.5, float("-inf"))),
    ],
)
def test_outputs_are_read_as_they_were_sent(spec: TensorSpec, elements: tuple[Any, ...]) -> None:
    sent = array(spec, *elements)
    response = infer_response({spec.name: sent})
    read = tensors_from_response(response)[spec.name]
    assert read.shape == (1, len(elements))
    np.testing.assert_array_equal(read, sent)
    assert elements_from_response(response) == {spec.name: sent.reshape(-1).tolist()}


def test_outputs_that_the_contract_does_not_know_are_left_out() -> None:
    response = infer_response({"text_output": array(contract.TEXT_OUTPUT, "a")})
    response.outputs.add(name="sequence_index", datatype="FP32", shape=[1, 1])
    response.raw_output_contents.append(b"\0\0\0\0")
    assert list(tensors_from_response(response)) == list(elements_from_response(response)) == ["text_output"]
