"""Triton's door to the tokenizer stage, with a fake of the Python backend's module."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from model_repository.contract.cancel_channel import key_to_number
from model_repository.contract.codec import message_tensor, pack, unpack
from model_repository.contract.request import (
    MAX_BATCH_REQUESTS,
    ChatPrompt,
    EngineRequestBatch,
    GenerationRequest,
    OutputFormat,
    RequestBatch,
    SamplingParams,
    StructuredOutput,
    TextPrompt,
    TokenizeRequest,
)
from model_repository.contract.tensors import CALL_TIMEOUT_S, REQUEST_BATCH, TOKENIZE
from model_repository.errors import InvalidRequest
from model_repository.fair_pool import MAX_WAITING, FairPool
from model_repository.tokenizer.constraint import Form
from model_repository.tokenizer.stage import TokenizerStage
from model_repository.tool_formats import ToolFormat
from tests.model_repository.python_backend import Request, stage_door
from tests.model_repository.tokenizer.models import DEMO_BYTES, DEMO_FILES
from tests.model_repository.tokenizer.test_stage import MODEL, STAGE, request
from tests.model_repository.tokenizer.unbounded_checker import UnboundedChecker
from tests.public_tensors import request_to_tensors
from tests.waiting import DEADLINE_S, wait_until

MAX_WAITING_BYTES = 1_000_000


@pytest.fixture
def model() -> Iterator[Any]:
    with stage_door("tokenizer") as door:
        door.stage, door.grammar_threads = STAGE, FairPool(2)
        door.text_threads = FairPool(2, "prompts", max_waiting=1000, max_size=MAX_WAITING_BYTES, niceness=0)
        door.cancelled = {}
        door.checker = door.cancel_receiver = SimpleNamespace(close=lambda: None)
        yield door
        door.finalize()


def prompt(text: str) -> dict[str, Any]:
    """Return the inputs of a request with this prompt."""
    return request_to_tensors(request(prompt=TextPrompt(text)))


def test_a_request_is_answered_with_the_engines_request(model: Any) -> None:
    (response,) = model.execute([Request(request_to_tensors(request()))])
    assert response.error is None
    [tensor] = response.tensors
    assert tensor.name() == "engine_requests"
    [(number, encoded)] = unpack(EngineRequestBatch, tensor.value.item(), tensor.name()).items
    assert (number, encoded) == (0, STAGE.encode(replace(request(), request_id="req_abc")))


def test_a_client_may_not_batch_requests_itself_and_another_is_answered(model: Any) -> None:
    batched = Request({"text_input": np.array([[b"a"], [b"b"]], dtype=np.object_)})
    bad, good = model.execute([batched, Request(request_to_tensors(request()))])
    assert "text_input: shape [2, 1]: must be [1, ...]" in bad.error.message
    assert (bad.error.code, good.error) == (3, None)


class SlowTexts:
    """A stage that answers texts once it may go on, except short ones and those that begin with `fast`."""

    def __init__(self) -> None:
        self.begun: list[str] = []  # the first letters of the texts that were begun
        self.may_go_on = threading.Event()

    read = staticmethod(STAGE.read)

    def answer(self, message: Any, *, may_wait: bool) -> dict[str, Any]:
        asked: Any = message.items[0][1] if isinstance(message, RequestBatch) else message
        text: str = asked.prompt.text
        self.begun.append(text[:8].rstrip("_"))
        if len(text) > 3 and not text.startswith("fast"):
            assert self.may_go_on.wait(DEADLINE_S)
        return {}


@pytest.fixture
def texts(model: Any) -> Iterator[SlowTexts]:
    model.stage = SlowTexts()
    yield model.stage
    model.stage.may_go_on.set()


def large(name: str, sender: str, cancel_key: str = "") -> Request:
    """Return a request with 50,000 bytes as a frontend sends it."""
    return batched(request(prompt=TextPrompt(name.ljust(50_000, "_")), sender=sender, cancel_key=cancel_key))


def only_tokenized(name: str, sender: str) -> Request:
    """Return a prompt of 50,000 bytes that is only tokenized, as a frontend sends it."""
    return Request(message_tensor(TOKENIZE, pack(TokenizeRequest(TextPrompt(name.ljust(50_000, "_")), sender=sender))))


def test_a_sender_with_many_large_texts_does_not_delay_anothers(model: Any, texts: SlowTexts) -> None:
    """All texts had one queue: a sender with 40 of them let others wait for 12 s."""
    flood = [only_tokenized(f"a{number}", "a") for number in range(15)]
    other, bare = large("fast b", "b"), only_tokenized("fast c", "c")
    model.execute([*flood, other, bare])
    wait_until(lambda: other.sent and bare.sent, "the other senders are answered")
    assert texts.begun == ["a0", "fast b", "fast c"]


@pytest.mark.parametrize(
    ("number", "num_bytes", "num_at_once"),
    [(1, 4000, 1), (7, 500, 7), (2, 2500, 1), (1, 5000, 0), (8, 10, 0)],
    ids=["one", "few", "much text", "a long text", "as many as Triton passes at a time"],
)
def test_short_requests_are_answered_at_once_if_none_can_wait_behind_them(
    model: Any, texts: SlowTexts, number: int, num_bytes: int, num_at_once: int
) -> None:
    """All below 16 kB were: 60 connections with 15 kB each stopped everybody."""
    asked = [Request(prompt(f"fast{each}".ljust(num_bytes))) for each in range(number)]
    answered = model.execute(asked)
    assert sum(response is not None for response in answered) == num_at_once
    model.finalize()
    assert answers_of(asked) == [""] * (number - num_at_once)


def test_a_message_of_many_short_requests_is_answered_at_once(model: Any) -> None:
    """A request takes some 300 bytes beside its text. With 256 left out, a full message of chats went to a thread."""
    chat = ChatPrompt(({"role": "user", "content": "word " * 24},), template_kwargs={"lora_name": ""})
    flags: dict[str, Any] = {"is_stream": True, "has_timing": True, "ignore_eos": True}
    sampling = SamplingParams(temperature=0.0, seed=2**63)
    each = request(chat, max_tokens=1, sampling=sampling, sender="127.0.0.1", cancel_key="0" * 32, **flags)
    many = batched(*[replace(each, request_id=f"req_{0:032}")] * MAX_BATCH_REQUESTS)
    [answered] = model.execute([many])
    assert answered is not None


def test_a_short_count_does_not_wait_for_a_large_text_of_its_own_sender(model: Any, texts: SlowTexts) -> None:
    """An agent counts before each turn, also while it generates."""
    model.execute([large("a0", "a"), large("a1", "a")])
    [answered] = model.execute([Request(message_tensor(TOKENIZE, pack(TokenizeRequest(TextPrompt("hi"), sender="a"))))])
    assert answered is not None


def test_a_message_of_several_senders_does_not_wait_behind_the_flood_of_one(model: Any, texts: SlowTexts) -> None:
    both = batched(request(TextPrompt("fast a" * 500), sender="a"), request(TextPrompt("fast b" * 500), sender="b"))
    model.execute([*(large(f"a{number}", "a") for number in range(3)), both])
    wait_until(lambda: bool(both.sent), "both are answered")
    assert sorted(texts.begun) == ["a0", "fast afa"]


def test_a_sender_with_too_many_bytes_waiting_is_refused_alone(model: Any, texts: SlowTexts) -> None:
    flood, other = [large(f"a{number}", "a") for number in range(25)], large("fast b", "b")
    model.execute([*flood, other])
    wait_until(lambda: bool(other.sent), "the other sender is answered")
    texts.may_go_on.set()
    model.finalize()
    assert answers_of([other]) == [""]
    refused = [answer for answer in answers_of(flood) if answer]
    assert set(refused) == {
        f"[too_many_waiting] {MAX_WAITING_BYTES} bytes of prompts of this sender are waiting already"
    }
    assert 0 < len(refused) < 10


def test_a_large_text_is_not_tokenized_for_a_caller_that_is_gone(
    model: Any, texts: SlowTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of callers that had given up kept others waiting for 30 s."""
    cancelled, old, kept = large("gone", "a", "key"), only_tokenized("old", "a"), large("kept", "a", "other key")
    check = Request(message_tensor(REQUEST_BATCH, pack(RequestBatch("", ((0, request(TextPrompt("check" * 5000))),)))))
    model.execute([large("first", "a"), cancelled, old, kept, large("first", ""), check])
    wait_until(lambda: len(texts.begun) == 2, "both senders' first texts are begun")
    model._cancel(key_to_number("key"))
    late_s = time.monotonic() + CALL_TIMEOUT_S
    monkeypatch.setattr(time, "monotonic", lambda: late_s)
    texts.may_go_on.set()
    model.finalize()
    assert texts.begun == ["first", "first", "kept"]
    assert answers_of([cancelled, old, kept, check]) == [
        "[invalid_value] cancel_key: the request is cancelled",
        "[overloaded] the request has waited for longer than 4 s",
        "",
        "[overloaded] the request has waited for longer than 4 s",
    ]


def test_a_panic_on_a_large_text_is_answered_too(model: Any) -> None:
    """It is no Exception: its caller and all later texts of the sender waited for ever."""

    def answer(message: Any, *, may_wait: bool) -> None:
        raise BaseException("as Rust code raises it")

    model.stage = SimpleNamespace(read=STAGE.read, answer=answer)
    both = [large("a", "a"), large("b", "a")]
    model.execute(both)
    model.finalize()
    assert answers_of(both) == ["[internal_error] internal error, see the server's log"] * 2


class SlowGrammars(UnboundedChecker):
    """Compiles slow grammars once it may go on; `begun` has the texts of those that were begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_go_on = threading.Event()

    def form(self, request: GenerationRequest, tool_format: ToolFormat) -> Form:
        assert request.params.structured_output is not None
        content = request.params.structured_output.content
        self.begun.append(content)
        if "slow" in content:
            assert self.may_go_on.wait(DEADLINE_S)
        if "refused" in content:
            raise InvalidRequest("it is refused", "guided_decoding_guide")
        return super().form(request, tool_format)


@pytest.fixture
def grammars(model: Any) -> Iterator[SlowGrammars]:
    slow = SlowGrammars()
    model.stage = TokenizerStage(DEMO_FILES, DEMO_BYTES, MODEL, slow)
    yield slow
    slow.may_go_on.set()


def with_regex(regex: str, sender: str = "a", cancel_key: str = "") -> GenerationRequest:
    """Return a request whose grammar must be compiled."""
    output = StructuredOutput(OutputFormat.REGEX, regex)
    return request(structured_output=output, sender=sender, cancel_key=cancel_key)


def guided(*args: Any, **others: Any) -> Request:
    """Return it as a client of the public ensemble sends it."""
    return Request(request_to_tensors(with_regex(*args, **others)))


def batched(*requests: GenerationRequest) -> Request:
    """Return requests as a frontend sends them."""
    batch = RequestBatch("key", tuple(enumerate(requests)))
    return Request(message_tensor(REQUEST_BATCH, pack(batch)))


def answers_of(requests: list[Request]) -> list[str]:
    """Return the answer to each request: an error's message, or an empty text."""
    return [response.error.message if response.error else "" for item in requests for response, _ in item.sent]


def test_a_request_without_a_grammar_never_waits_for_one(model: Any, grammars: SlowGrammars) -> None:
    bombs = [guided(f"slow{number}") for number in range(60)]
    assert model.execute(bombs) == [None] * 60
    (response,) = model.execute([Request(prompt("a"))])
    assert response.error is None
    grammars.may_go_on.set()
    model.finalize()
    assert answers_of(bombs) == [""] * 60


def test_a_sender_with_too_many_grammars_waiting_is_refused_alone(model: Any, grammars: SlowGrammars) -> None:
    bombs, healthy = [guided(f"slow{number}") for number in range(MAX_WAITING + 2)], guided("healthy", sender="b")
    model.execute([*bombs, healthy])
    wait_until(lambda: any(bomb.sent for bomb in bombs), "one is refused")
    grammars.may_go_on.set()
    model.finalize()
    assert answers_of([healthy]) == [""]
    refused = [answer for answer in answers_of(bombs) if answer]
    assert refused == [f"[too_many_waiting] {MAX_WAITING} grammars of this sender are waiting already"]


@pytest.mark.parametrize("regex", ["refused", "fine"])
def test_the_second_request_with_a_grammar_is_answered_at_once(model: Any, grammars: SlowGrammars, regex: str) -> None:
    first = guided(regex)
    assert model.execute([first]) == [None]
    wait_until(lambda: len(first.sent) == 1, "the grammar is compiled")
    (response,) = model.execute([guided(regex)])
    assert [response.error.message if response.error else ""] == answers_of([first])
    assert grammars.begun == [regex]


# --- batches of frontends -------------------------------------------------------------------------------------------


def test_the_grammar_of_a_cancelled_batch_is_not_compiled(model: Any, grammars: SlowGrammars) -> None:
    first, gone = batched(with_regex("slow")), batched(with_regex("gone", cancel_key="key"))
    model.execute([first, gone])
    model._cancel(key_to_number("key"))
    grammars.may_go_on.set()
    model.finalize()
    assert grammars.begun == ["slow"]
    assert answers_of([gone]) == ["[invalid_value] cancel_key: the request is cancelled"]
