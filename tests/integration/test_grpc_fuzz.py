"""The gRPC edge: tensors that are no tensors, and lies to inner stages. Stages and other requests survive them."""

from __future__ import annotations

import asyncio
import random
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from msgspec.structs import replace
from tritonclient.grpc import service_pb2

from model_repository.contract.codec import message_tensor, pack, payload_of, tensor, unpack
from model_repository.contract.output import DeltaDetails, DrawnLogprob, OutputBatch, TokenDelta
from model_repository.contract.request import (
    EngineRequest,
    EngineRequestBatch,
    GenerationRequest,
    OutputFormat,
    Params,
    RequestBatch,
    SamplingParams,
    StructuredOutput,
    TokenizeRequest,
    TokenPrompt,
)
from model_repository.contract.signature import Signature
from model_repository.contract.spec import TensorSpec
from model_repository.contract.tensors import (
    ENGINE_REQUESTS,
    INPUTS,
    KEY_VARIABLE,
    OPEN_STREAM,
    OUTPUT_BATCH,
    PUBLIC_INPUTS,
    REQUEST_BATCH,
    REQUESTS,
    TOKENIZE,
    stage_name,
)
from tests.grpc_messages import infer_request, tensors_from_response
from tests.integration.api import COMPLETIONS, Api
from tests.integration.stack import Stack
from tests.integration.test_output_streams import frontend_of, request, text_of
from tests.launching import KEY_OF_ALL
from tests.waiting import DEADLINE_S

NUM_CASES = 4  # of each input
STAGES = TOKENIZER, ENGINE, DETOKENIZER = ("demo__tokenizer", "demo__engine", "demo__detokenizer")
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


# --- well-formed messages between stages, with lies in them ----------------------------------------------------------

NUM_HONEST = 4  # requests at a time
NUM_ROUNDS = 2  # of all lies
NUM_GUESSED = 16  # numbers of output streams

BOMB = "(a|b)*a(a|b){12}"
# Each could fail the whole batch of the engine, or take its memory.
REQUEST_LIES: dict[str, dict[str, Any]] = {
    "long prompt": {"prompt_token_ids": (65,) * 6000},
    "long completion": {"max_tokens": 5000, "params": Params(max_tokens=5000, ignore_eos=True)},
    "unknown token": {"prompt_token_ids": (65, 1_000_000)},
    "large top_k": {"params": Params(sampling=SamplingParams(temperature=1.0, top_k=2**31))},
    "unknown adapter": {"params": Params(lora_name="stolen")},
    "priority": {"params": Params(priority=-99)},
}
# Only a signature keeps these out: the tokenizer stage has made or measured them.
UNMEASURED_LIES: dict[str, dict[str, Any]] = {
    "unmeasured grammar": {"grammar": f"start: /{BOMB}/"},
    "image without a place": {"images": (b"GIF89a",)},
    "nothing": {},
}
REFUSED_ONES = ("invalid_value", "context_length_exceeded", "adapter_not_found", "unsupported_value")


@pytest.fixture
def sign(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what signs a message as the demo model's tokenizer stage does, and as another model's does."""
    monkeypatch.setenv(KEY_VARIABLE, KEY_OF_ALL)
    return Signature("demo").sign, Signature("another").sign


def codes(stack: Stack, stage: str, spec: TensorSpec, payload: bytes) -> set[str]:
    """Return the codes of the errors that a stage answers a message with."""
    call = stack.stream(stage, message_tensor(spec, payload))
    errors = [response.error_message for response in call if response.error_message]
    assert not [error for error in errors if "[" not in error], errors
    return {error.partition("[")[2].partition("]")[0] for error in errors}


def lying_batch(fields: dict[str, Any], stream: str = "") -> bytes:
    honest = EngineRequest(prompt_token_ids=(65, 66), max_tokens=2)
    return pack(EngineRequestBatch(stream, ((0, replace(honest, **fields)),)))


def lie_to_the_engine(stack: Stack, sign: Any) -> None:
    own, others = sign
    for name, fields in {**REQUEST_LIES, **UNMEASURED_LIES}.items():
        lie = lying_batch(fields)
        forged = [lie, bytes(16) + lie, others(lie), own(lie)[:-1] + b"x", b"", own(lie)[:9]]
        assert [codes(stack, ENGINE, ENGINE_REQUESTS, each) for each in forged] == [{"key_refused"}] * 6, name
    for name, fields in REQUEST_LIES.items():  # whoever has the key: one request never fails another
        [code] = codes(stack, ENGINE, ENGINE_REQUESTS, own(lying_batch(fields)))
        assert code in REFUSED_ONES, name
    elsewhere = own(lying_batch({}, stream=secrets.token_hex(16)))
    assert codes(stack, ENGINE, ENGINE_REQUESTS, elsewhere) == {"output_stream_not_open"}


def lie_to_the_detokenizer(stack: Stack) -> None:
    logprobs = DeltaDetails(logprobs=(DrawnLogprob(-1.0),) * 3)
    for items in (((0, TokenDelta((1,), details=logprobs)),), ((0, TokenDelta((2**40,))),), ((0, TokenDelta((-1,))),)):
        for is_single in (False, True):
            batch = pack(OutputBatch(secrets.randbits(64), 0, is_single, items))
            assert codes(stack, DETOKENIZER, OUTPUT_BATCH, batch) == {"invalid_value"}
    two = pack(OutputBatch(1, 0, True, ((0, TokenDelta((1,))),) * 2))
    assert codes(stack, DETOKENIZER, OUTPUT_BATCH, two) == {"invalid_value"}


def lie_to_the_tokenizer(stack: Stack) -> None:
    requests = [
        GenerationRequest(prompt=TokenPrompt((65, 2**40)), params=Params()),
        GenerationRequest(
            prompt=TokenPrompt((65,)),
            params=Params(structured_output=StructuredOutput(OutputFormat.REGEX, "(a{1000}){1000}")),
        ),
        GenerationRequest(prompt=TokenPrompt((65,)), params=Params(sampling=SamplingParams(top_k=2**31))),
    ]
    stranger = secrets.token_hex(16)
    for asked in requests:
        checked = stack.infer(TOKENIZER, message_tensor(REQUEST_BATCH, pack(RequestBatch("", ((0, asked),)))))
        [(_, refusal)] = unpack(EngineRequestBatch, payload_of(checked[0], ENGINE_REQUESTS)[16:], "").items
        assert isinstance(refusal, str) and refusal.startswith("[") and "internal_error" not in refusal
        elsewhere = pack(RequestBatch(stranger, ((0, asked),)))
        assert codes(stack, stage_name("demo", REQUESTS), REQUEST_BATCH, elsewhere) == {"output_stream_not_open"}
    with pytest.raises(grpc.RpcError, match="invalid_value"):
        message = message_tensor(TOKENIZE, pack(TokenizeRequest(TokenPrompt((2**40,)))))
        stack.grpc_stub.ModelInfer(infer_request(TOKENIZER, message), timeout=DEADLINE_S)


def guess_streams(stack: Stack) -> None:
    """Tell the detokenizer that the clients of all streams near an own one are gone."""
    opened = stack.stream(ENGINE, message_tensor(OPEN_STREAM, secrets.token_hex(16).encode()))
    first = tensors_from_response(next(opened).infer_response)
    number = unpack(OutputBatch, payload_of(first, OUTPUT_BATCH), OUTPUT_BATCH.name).stream
    all_sent = threading.Event()

    def messages() -> Iterator[Any]:
        large = OutputBatch(number, 0, False, ((0, TokenDelta((65,) * 300_000)),))
        guesses = (OutputBatch(number - guess, 0, False) for guess in range(1, NUM_GUESSED))
        for batch in (large, *guesses):
            yield infer_request(DETOKENIZER, message_tensor(OUTPUT_BATCH, pack(batch)))
        all_sent.set()

    call = stack.grpc_stub.ModelStreamInfer(messages(), timeout=DEADLINE_S)
    assert all_sent.wait(DEADLINE_S)
    call.cancel()
    opened.cancel()


async def test_no_stage_believes_a_lie_and_honest_streams_go_on(stack: Stack, sign: Any) -> None:
    """Strangers at the gRPC port could end all streams, fail all requests, and fill the engine's memory."""
    before = [stack.processes(stage) for stage in STAGES]
    asked = request("Count from 1 to 9.", max_tokens=300, ignore_eos=True)
    async with frontend_of(stack) as client:
        expected = await text_of(client, "demo", asked)
        is_over = asyncio.Event()

        async def honest() -> list[str]:
            texts = []
            while not is_over.is_set():
                texts.append(
                    await text_of(client, "demo", request("Count from 1 to 9.", max_tokens=300, ignore_eos=True))
                )
            return texts

        running = [asyncio.create_task(honest()) for _ in range(NUM_HONEST)]
        for _ in range(NUM_ROUNDS):
            await asyncio.to_thread(guess_streams, stack)
            await asyncio.to_thread(lie_to_the_engine, stack, sign)
            await asyncio.to_thread(lie_to_the_detokenizer, stack)
            await asyncio.to_thread(lie_to_the_tokenizer, stack)
        is_over.set()
        texts = [text for each in await asyncio.gather(*running) for text in each]
    assert set(texts) == {expected}
    assert [stack.processes(stage) for stage in STAGES] == before
