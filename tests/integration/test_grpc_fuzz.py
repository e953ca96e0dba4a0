"""The gRPC edge: tensors that are no tensors. Triton, the stages and the other requests survive them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from model_repository.contract.codec import tensor
from model_repository.contract.spec import TensorSpec
from model_repository.contract.tensors import INPUTS, PUBLIC_INPUTS
from tests.grpc_messages import infer_request
from tests.integration.api import COMPLETIONS, Api
from tests.integration.stack import Stack
from tests.waiting import DEADLINE_S

NUM_CASES = 8  # of each input
STAGES = ("demo__tokenizer", "demo__engine", "demo__detokenizer")
TYPES = {"BYTES": 0, "BOOL": 1, "INT32": 4, "INT64": 8, "UINT64": 8, "FP32": 4, "FP64": 8, "UINT8": 1}
SHAPES: tuple[tuple[int, ...], ...] = ((1, 1), (1,), (), (1, 3), (3, 1), (1, 0), (1, 1, 1), (-1, 1), (1, 2**40))


def hostile_input(spec: TensorSpec, chance: random.Random) -> tuple[Any, bytes]:
    """Return an input and its bytes, which seldom go together."""
    datatype = spec.datatype if chance.random() < 0.6 else chance.choice(list(TYPES))
    shape = chance.choice(SHAPES) if chance.random() < 0.6 else (1, chance.randint(1, 4))
    num_elements = 1
    for size in shape:
        num_elements *= max(0, min(size, 16))
    if datatype == "BYTES":
        items = [chance.randbytes(chance.randint(0, 30)) for _ in range(num_elements)]
        raw = b"".join(len(item).to_bytes(4, "little") + item for item in items)
    else:
        raw = chance.randbytes(TYPES[datatype] * num_elements)
    if chance.random() < 0.2:
        raw = chance.choice([b"", raw[:-1], raw + b"x", b"\xff\xff\xff\xff" + raw])
    return service_pb2.ModelInferRequest.InferInputTensor(name=spec.name, datatype=datatype, shape=shape), raw


def hostile_message(spec: TensorSpec, chance: random.Random) -> Any:
    """Return a request that would be served, with one input replaced or added; some have the prompt twice or not."""
    served = {"text_input": tensor(INPUTS["text_input"], "hi"), "max_tokens": tensor(INPUTS["max_tokens"], 2)}
    message = infer_request("demo", {name: value for name, value in served.items() if name != spec.name})
    hostile, raw = hostile_input(spec, chance)
    message.inputs.append(hostile)
    message.raw_input_contents.append(raw)
    if chance.random() < 0.1:
        del message.inputs[0]
    return message


@pytest.mark.parametrize("spec", PUBLIC_INPUTS, ids=lambda spec: spec.name)
def test_no_tensor_harms_the_server(stack: Stack, api: Api, spec: TensorSpec) -> None:
    before = [stack.processes(stage) for stage in STAGES]
    chance = random.Random(spec.name)
    outcomes: Counter[bool] = Counter()
    for _ in range(NUM_CASES):
        call = stack.grpc_stub.ModelStreamInfer(iter((hostile_message(spec, chance),)), timeout=DEADLINE_S)
        outcomes.update(bool(response.error_message) for response in call)
    assert outcomes.total() >= NUM_CASES  # each was answered, with an error or not
    assert [stack.processes(stage) for stage in STAGES] == before
    assert api.ask(COMPLETIONS, max_tokens=3).status == 200
