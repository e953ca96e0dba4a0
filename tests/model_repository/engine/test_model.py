"""Triton's door to the engine stage: its readiness, and the messages that it refuses."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from model_repository.contract import engine_file
from model_repository.contract.cancel_channel import END_REQUESTS, LEAVE
from model_repository.contract.codec import Tensors, message_tensor, pack
from model_repository.contract.engine_file import LEFT
from model_repository.contract.output import (
    ChunkBatch,
    EngineStats,
    GenerationChunk,
    OutputBatch,
    TokenDelta,
    Usage,
    VectorChunk,
)
from model_repository.contract.request import EngineRequest, EngineRequestBatch
from model_repository.contract.signature import Signature
from model_repository.contract.tensors import ENGINE_REQUESTS, KEY_VARIABLE, OPEN_STREAM
from model_repository.engine.inbox import FailRunning, FailStreams
from model_repository.errors import EngineFailed, InvalidRequest, KeyRefused
from tests.fakes import stats
from tests.model_repository.python_backend import Request, stage_door


class Engine:
    """An engine that works while it has no error."""

    error: Exception | None = None
    is_draining = False
    post: Any = None  # nothing may reach it
    inbox: Any = None

    def stats(self, *, has_marks: bool = False) -> EngineStats:
        if self.error is not None:
            raise self.error
        return replace(stats(7), kept_marks=b"marks" if has_marks else b"")


class Responder:
    """Records the answers."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def close_with(self, tensors: Any) -> None:
        self.answers.append(tensors)


VECTOR = VectorChunk(embedding=b"\0\0\x80?", usage=Usage(num_input_tokens=3, num_output_tokens=0))
COUNTS = {
    "num_input_tokens": [[3]],
    "num_output_tokens": [[0]],
    "num_cached_tokens": [[0]],
    "num_reasoning_tokens": [[0]],
}
SIGNATURE = functools.partial(Signature, "demo")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with stage_door("engine") as door:
        monkeypatch.setenv(KEY_VARIABLE, "k" * 32)
        door.engine, door.key, door.signature, door.is_last = Engine(), "", SIGNATURE(), False
        yield door


def test_it_is_ready_while_its_engine_works(model: Any) -> None:
    assert model.is_ready() is True
    model.engine.error = EngineFailed("the runtime is broken")
    assert model.is_ready() is False


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (message_tensor(OPEN_STREAM, b""), "^the key is empty"),
        ({}, "^expected `control`, `open_stream` or `engine_requests`"),
    ],
)
def test_a_request_without_a_proper_message_is_refused(model: Any, tensors: Tensors, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        model._serve(tensors, Responder())


def test_requests_for_the_engine_are_only_taken_with_the_tokenizers_signature(model: Any) -> None:
    """Any caller of Triton could send them: a prompt beyond the context window failed all running requests."""
    taken: list[EngineRequestBatch] = []
    model.engine.post = lambda message: taken.append(message.batch)
    batch = EngineRequestBatch("", ((0, EngineRequest(prompt_token_ids=(1,), max_tokens=1)),))
    message, signature = pack(batch), SIGNATURE()
    for forged in (message, bytes(16) + message, Signature("other").sign(message)):
        with pytest.raises(KeyRefused):
            model._serve(message_tensor(ENGINE_REQUESTS, forged), Responder())
    assert not taken
    model._serve(message_tensor(ENGINE_REQUESTS, signature.sign(message)), Responder())
    assert taken == [batch]
    with pytest.raises(InvalidRequest, match=r"^not a EngineRequestBatch"):
        model._serve(message_tensor(ENGINE_REQUESTS, signature.sign(b"{}")), Responder())


def hear_until_free(model: Any, number: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have an idle engine hear a message of the arbiter; return what it did."""
    posted: list[Any] = []
    model.freeing, model.is_leaving, model.engine.post = threading.Lock(), False, posted.append
    model.metrics = SimpleNamespace(close=lambda: posted.append("metrics"))
    model.engine.close = lambda: posted.append("engine")
    monkeypatch.setattr(engine_file, "note_state", posted.append)
    model._hear(number)
    if number == LEAVE:
        model._hear(number)  # it is sent until the engine has left
    for thread in threading.enumerate():
        if thread.name == "leave":
            thread.join(20)
    return posted


def test_an_engine_that_is_to_leave_is_free_before_it_says_so(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    active = [3, 1, 0]
    model.engine.stats = lambda: msgspec.structs.replace(stats(7), num_active=active.pop(0))
    assert hear_until_free(model, LEAVE, monkeypatch) == [FailStreams(), "metrics", "engine", LEFT]
    assert active == []


def test_an_engine_that_hangs_while_it_is_to_leave_ends(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model was unloading for ever, and kept its memory."""
    active, ends = [1, 0], list[int]()
    model.engine.stats = lambda: msgspec.structs.replace(stats(7), num_active=active.pop(0), step_age_ms=1e6)
    monkeypatch.setattr(os, "_exit", ends.append)
    hear_until_free(model, LEAVE, monkeypatch)
    assert ends == [1]


def test_a_broken_engine_leaves_too(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model.engine.error = EngineFailed("the runtime is broken")
    assert hear_until_free(model, LEAVE, monkeypatch) == ["metrics", "engine", LEFT]


def test_the_arbiter_can_end_requests_and_any_other_number_is_a_stream(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hear_until_free(model, END_REQUESTS, monkeypatch) == [FailRunning()]
    ended: list[Any] = []
    model.engine.inbox = SimpleNamespace(put=ended.append)
    model._hear(7)
    assert [message.number for message in ended] == [7]


def test_an_end_of_requests_that_comes_after_the_engine_keeps_the_receiver(model: Any) -> None:
    def post(_: object) -> None:
        raise EngineFailed("the engine has ended")

    model.engine.post = post
    model._hear(END_REQUESTS)


def control(model: Any, message: Any) -> EngineStats:
    responder = Responder()
    model._control(json.dumps(message).encode(), responder)
    [answer] = responder.answers
    return msgspec.json.decode(answer["stats"].item(), type=EngineStats)


def test_only_the_holder_of_the_key_controls_an_engine_that_has_one(model: Any) -> None:
    model.key = "k" * 32
    for message in ({"drain": True}, {"drain": True, "key": "x"}, {"fail": "running", "cancel_key": "a"}):
        with pytest.raises(KeyRefused):
            control(model, message)
    assert model.engine.is_draining is False
    assert control(model, {}) == stats(7)
    control(model, {"drain": True, "key": model.key})
    assert model.engine.is_draining is True


def test_what_an_engine_keeps_is_told_to_the_holder_of_its_key_alone(model: Any) -> None:
    assert control(model, {}).kept_marks == control(model, {"key": ""}).kept_marks == b""  # it has no key
    model.key = "k" * 32
    messages: tuple[dict[str, str], ...] = ({}, {"key": "x"}, {"key": model.key})
    assert [control(model, message).kept_marks for message in messages] == [b"", b"", b"marks"]


def test_a_malformed_order_is_refused(model: Any) -> None:
    for message in ({"drain": 1}, {"load_adapter": "x"}, {"unload_adapter": "x", "source": "y"}):
        with pytest.raises(InvalidRequest, match="expected"):
            control(model, message)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (
            OutputBatch(9, 4, False, ((8, TokenDelta()),), ((7, VECTOR),)),
            {"chunk_batch": [[pack(ChunkBatch(4, ((8, GenerationChunk(text="")),), ((7, VECTOR),)))]]},
        ),
        (OutputBatch(9, 4, True, (), ((0, VECTOR),)), {"embedding": [[1.0]]} | COUNTS),
        (OutputBatch(9, 1, False), {"chunk_batch": [[pack(ChunkBatch(1))]]}),
        (OutputBatch(9, 1, True), None),  # a client would see even an empty response
    ],
)
def test_an_engine_without_a_detokenizer_answers_with_its_vectors(
    model: Any, batch: OutputBatch, expected: dict[str, Any] | None
) -> None:
    model.is_last, model.engine.post = True, lambda message: message.responder.send(batch)
    request = Request(message_tensor(OPEN_STREAM, b"key"))
    model.execute([request])
    found = [{tensor.name(): tensor.value.tolist() for tensor in response.tensors} for response, _ in request.sent]
    assert found == ([] if expected is None else [expected])


def test_an_engine_without_a_detokenizer_ends_the_stream_of_a_client_that_is_gone(model: Any) -> None:
    ended: list[Any] = []
    model.is_last, model.engine.inbox = True, SimpleNamespace(put=ended.append)
    model.engine.post = lambda message: message.responder.send(OutputBatch(9, 1, False))
    request = Request(message_tensor(OPEN_STREAM, b"key"), is_cancelled=True)
    model.execute([request])
    assert ([each.number for each in ended], request.sent) == ([9], [])
