"""How a sequence ends, and its token deltas. A token is its byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from model_repository.contract.output import (
    DeltaDetails,
    DrawnLogprob,
    FinishReason,
    Timing,
    TokenDelta,
    Usage,
)
from model_repository.contract.request import EngineRequest
from model_repository.engine.output_streams import OutputSender, OutputStream
from model_repository.engine.runtime import StepOutput
from model_repository.engine.sequence import EngineSequence
from tests.model_repository.engine.engine_requests import changed
from tests.model_repository.engine.fake_engine import FakeResponder

BYTE_TABLE = [b"", *(bytes([byte]) for byte in range(1, 256))]
EOS = 0
ECHO = (b"", b"p", b"q")
PROMPT = (EOS, ord("p"), ord("q"))
PROMPT_LOGPROBS = (DrawnLogprob(None), DrawnLogprob(-0.25, ((7, -0.25),)), DrawnLogprob(-4.0, ((8, -0.5),)))


def sequence(**fields: Any) -> EngineSequence:
    return EngineSequence(
        5,
        changed(EngineRequest(prompt_token_ids=PROMPT, max_tokens=50), **{"is_stream": True} | fields),
        stream=OutputStream(1, "key", FakeResponder(), 0.0, OutputSender(lambda number: None)),
        item=3,
        byte_table=BYTE_TABLE,
        eos_token_ids=frozenset([EOS]),
        now_s=0.0,
    )


def run(tokens: Sequence[int], **fields: Any) -> list[TokenDelta]:
    """Return the deltas of these tokens, up to the end of the sequence, each sent at once."""
    item, deltas = sequence(**fields), []
    for index, token_id in enumerate(tokens):
        logprob = DrawnLogprob(-index - 1.0) if "num_logprobs" in fields else None
        prompt_logprobs = PROMPT_LOGPROBS if "num_logprobs" in fields and not index else ()
        item.add_output(StepOutput(5, token_id, logprob=logprob, prompt_logprobs=prompt_logprobs), now_s=index)
        if item.pending_output() is not None:
            deltas.append(item.next_delta())
        if item.finish_reason is not None:
            return deltas
    return deltas


def text(deltas: Sequence[TokenDelta]) -> str:
    pieces = []
    for delta in deltas:
        piece = b"".join(BYTE_TABLE[token_id] for token_id in delta.token_ids)
        pieces.append(piece[: len(piece) - delta.num_cut_bytes])
    return b"".join(pieces).decode()


def ending(deltas: Sequence[TokenDelta]) -> tuple[str, FinishReason | None, str | int | None]:
    details = deltas[-1].details or DeltaDetails()
    return text(deltas), deltas[-1].finish_reason, details.stop_reason


def logprobs(deltas: Sequence[TokenDelta]) -> list[float | None]:
    return [item.logprob for delta in deltas if delta.details for item in delta.details.logprobs]


# --- ends ------------------------------------------------------------------------------------------------------------

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("tokens", "fields", "expected"),
    [
        ([*b"hi", EOS, *b"never"], {}, ("hi", STOP, None)),
        (b"hello", {"max_tokens": 3}, ("hel", LENGTH, None)),
        ([*b"hi", EOS], {"max_tokens": 3}, ("hi", STOP, None)),
        ([*b"hi", EOS], {"include_stop": True}, ("hi", STOP, None)),
        (b"one.two", {"stop_token_ids": (46, 33)}, ("one", STOP, 46)),
        (b"one.two", {"stop_token_ids": (46,), "include_stop": True}, ("one.", STOP, 46)),
        (b"one.two", {"end_token_ids": (46,)}, ("one", STOP, None)),
        (b"one.two", {"end_token_ids": (46,), "stop_token_ids": (46,), "include_stop": True}, ("one", STOP, None)),
        (b"a.b", {"end_token_ids": (46,), "ignore_eos": True, "max_tokens": 3}, ("a.b", LENGTH, None)),
        ([*b"hi", EOS], {"end_token_ids": (46,)}, ("hi", STOP, None)),
        ([*b"hi", EOS], {"stop_token_ids": (EOS,)}, ("hi", STOP, None)),
        ([*b"hi", EOS], {"ignore_eos": True, "stop_token_ids": (EOS,)}, ("hi", STOP, EOS)),
        ([*b"hi", EOS, *b"go"], {"ignore_eos": True, "max_tokens": 5}, ("higo", LENGTH, None)),
        ([*b"hi <", EOS], {"stop": ("<end>",)}, ("hi <", STOP, None)),
        (b"hi <.", {"stop": ("<end>",), "stop_token_ids": (46,)}, ("hi <", STOP, 46)),
        (b"one, two", {"stop": ("x", ", ", "o,")}, ("one", STOP, ", ")),
        (b"one, two", {"stop": (", ",), "include_stop": True}, ("one, ", STOP, ", ")),
        (b"ab", {"stop": ("b",), "max_tokens": 2}, ("a", STOP, "b")),
        (b"one, two", {"stop": ("two",), "max_tokens": 7}, ("one, tw", LENGTH, None)),
    ],
    ids=str,
)
def test_a_sequence_ends_with_text_and_reasons(tokens: Sequence[int], fields: dict[str, Any], expected: Any) -> None:
    deltas = run(tokens, **fields)
    assert ending(deltas) == expected
    assert all(delta.finish_reason is None for delta in deltas[:-1])


def test_buffered_tokens_are_final_when_the_runtime_draws_no_more() -> None:
    item = sequence(stop=("two",))
    for index, token_id in enumerate([*b"one, tw", None]):
        item.add_output(StepOutput(5, token_id), now_s=index)
    assert item.finish_reason is FinishReason.LENGTH
    delta = item.next_delta()
    assert bytes(delta.token_ids) == b"one, tw"
    assert delta.usage == Usage(num_input_tokens=3, num_output_tokens=7)


# --- waits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval_ms", "max_wait_s"), [(None, None), (0, 0.0), (1000, 1.0)])
def test_a_sequence_waits_as_long_as_its_request_allows(interval_ms: int | None, max_wait_s: float | None) -> None:
    item = sequence(stream_interval_ms=interval_ms)
    item.add_output(StepOutput(5, ord("a")), now_s=1.0)
    waiting = item.pending_output()
    assert waiting is not None
    assert (waiting.max_wait_s, waiting.since_s, waiting.stream) == (max_wait_s, 1.0, 1)


# --- echo ------------------------------------------------------------------------------------------------------------


def test_an_echo_is_sent_before_the_first_token_which_is_still_urgent() -> None:
    item = sequence(echo=ECHO)
    assert item.pending_output() is not None
    delta = item.next_delta()
    assert delta.details == DeltaDetails(prompt_token_ids=PROMPT, echo=ECHO)
    assert (delta.token_ids, item.pending_output()) == ((), None)
    item.add_output(StepOutput(5, ord("a")), now_s=1.0)
    waiting = item.pending_output()
    assert waiting is not None
    assert waiting.is_urgent
    assert item.next_delta().details is None


def test_an_echo_with_logprobs_waits_for_them() -> None:
    item = sequence(echo=ECHO, num_logprobs=1)
    assert item.pending_output() is None
    item.add_output(
        StepOutput(5, ord("a"), logprob=DrawnLogprob(-0.5), prompt_logprobs=PROMPT_LOGPROBS, num_cached_tokens=0), 1.0
    )
    delta = item.next_delta()
    assert delta.token_ids == tuple(b"a")
    assert delta.details == DeltaDetails(
        prompt_token_ids=PROMPT, echo=ECHO, logprobs=(*PROMPT_LOGPROBS, DrawnLogprob(-0.5))
    )


def test_an_echo_with_logprobs_does_not_wait_for_a_buffered_token() -> None:
    item = sequence(echo=ECHO, num_logprobs=0, stop=("ab",))
    item.add_output(StepOutput(5, ord("a"), logprob=DrawnLogprob(-0.5), prompt_logprobs=PROMPT_LOGPROBS), 1.0)
    delta = item.next_delta()
    assert delta.token_ids == ()
    assert delta.details == DeltaDetails(prompt_token_ids=PROMPT, echo=ECHO, logprobs=PROMPT_LOGPROBS)
    item.add_output(StepOutput(5, ord("c"), logprob=DrawnLogprob(-1.5)), 2.0)
    assert logprobs([item.next_delta()]) == [-0.5, -1.5]


@pytest.mark.parametrize("is_stream", [False, True])
def test_without_tokens_there_is_the_echo_and_the_end(is_stream: bool) -> None:
    item = sequence(echo=ECHO, num_logprobs=1, max_tokens=0, is_stream=is_stream)
    item.add_output(StepOutput(5, prompt_logprobs=PROMPT_LOGPROBS, num_cached_tokens=2), 1.0)
    delta = item.next_delta()
    assert (delta.token_ids, delta.finish_reason) == ((), FinishReason.LENGTH)
    assert delta.usage == Usage(num_input_tokens=3, num_output_tokens=0, num_cached_tokens=2)
    assert delta.details == DeltaDetails(prompt_token_ids=PROMPT, echo=ECHO, logprobs=PROMPT_LOGPROBS, cum_logprob=0.0)


@pytest.mark.parametrize("echo", [(), ECHO])
def test_the_prompts_own_log_probabilities_come_once_apart_from_the_text(echo: tuple[bytes, ...]) -> None:
    item = sequence(echo=echo, num_prompt_logprobs=1, is_stream=False)
    item.add_output(StepOutput(5, ord("a"), prompt_logprobs=PROMPT_LOGPROBS), 1.0)
    item.add_output(StepOutput(5, EOS), 2.0)
    delta = item.next_delta()
    assert delta.token_ids == (ord("a"),)
    assert delta.details == DeltaDetails(prompt_token_ids=PROMPT, echo=echo, prompt_logprobs=PROMPT_LOGPROBS)


def test_an_echo_may_have_another_number_of_likely_tokens_than_the_prompts_own() -> None:
    item = sequence(echo=ECHO, num_logprobs=0, num_prompt_logprobs=1, max_tokens=0, is_stream=False)
    item.add_output(StepOutput(5, prompt_logprobs=PROMPT_LOGPROBS), 1.0)
    details = item.next_delta().details
    assert details is not None
    assert details.prompt_logprobs == PROMPT_LOGPROBS
    assert details.logprobs == tuple(replace(each, top=()) for each in PROMPT_LOGPROBS)


# --- log probabilities and token ids ---------------------------------------------------------------------------------


def test_buffered_tokens_keep_their_logprobs() -> None:
    deltas = run("a€b".encode(), num_logprobs=0, max_tokens=5)
    assert [logprobs([delta]) for delta in deltas] == [[-1.0], [-2.0, -3.0, -4.0], [-5.0]]


def test_tokens_of_a_cut_stop_sequence_have_no_logprobs() -> None:
    deltas = run(b"a<end>", num_logprobs=0, stop=("<end>",))
    assert logprobs(deltas) == [-1.0]
    assert deltas[-1].details == DeltaDetails(cum_logprob=-1.0, stop_reason="<end>")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("asked", [{"num_logprobs": 0}, {"has_token_ids": True}])
@pytest.mark.parametrize(("end", "num_bytes"), [(EOS, 0), (ord("."), 1)])
def test_an_end_token_is_listed_and_adds_no_text(
    is_stream: bool, asked: dict[str, Any], end: int, num_bytes: int
) -> None:
    """It had no entry: clients expect one for every token drawn, and some drop the last one themselves."""
    deltas = run(b"a<\xe2" + bytes([end]), stop=("<b",), stop_token_ids=(ord("."),), is_stream=is_stream, **asked)
    listed = [token_id for delta in deltas for token_id in delta.token_ids]
    assert (listed, deltas[-1].num_cut_bytes) == ([*b"a<\xe2", end], num_bytes)
    assert deltas[-1].usage == Usage(num_input_tokens=3, num_output_tokens=4)
    text_bytes = b"".join(BYTE_TABLE[token_id] for token_id in listed)
    assert text_bytes[: len(text_bytes) - num_bytes] == b"a<\xe2"
    assert logprobs(deltas) == ([-1.0, -2.0, -3.0, -4.0] if "num_logprobs" in asked else [])
    details = deltas[-1].details
    assert details is not None
    assert details.stop_reason == (None if end == EOS else end)


@pytest.mark.parametrize(("scheduled_s", "expected_ns"), [(0.5, 500_000_000), (None, 0)])
def test_a_request_for_timing_gets_its_times(scheduled_s: float | None, expected_ns: int) -> None:
    item = sequence(has_timing=True, is_stream=False)
    for now_s, token_id in ((1.25, ord("a")), (2.0, ord("b")), (3.5, EOS)):
        item.add_output(StepOutput(5, token_id, scheduled_s=scheduled_s), now_s=now_s)
    details = item.next_delta().details
    assert details is not None
    assert details.timing == Timing(
        arrival_time_ns=0,
        first_scheduled_time_ns=expected_ns,
        first_token_time_ns=1_250_000_000,
        last_token_time_ns=3_500_000_000,
    )


def test_an_included_stop_token_has_its_logprob() -> None:
    assert logprobs(run(b"a.", num_logprobs=0, stop_token_ids=(46,), include_stop=True)) == [-1.0, -2.0]


@pytest.mark.parametrize("end", [EOS, ord(".")])
def test_an_end_token_is_listed_only_on_request(end: int) -> None:
    deltas = run([*b"a", end], stop_token_ids=(ord("."),))
    assert [delta.token_ids for delta in deltas] == [tuple(b"a"), ()]
    assert deltas[-1].num_cut_bytes == 0


def test_an_embedding_ends_its_sequence() -> None:
    for fields in ({}, {"has_token_ids": True, "has_timing": True}):
        item = sequence(is_stream=False, max_tokens=0, **fields)
        item.add_output(StepOutput(5, embedding=b"\0\0\0\0"), now_s=1.0)
        vector = item.vector()
        assert vector is not None
        assert (vector.embedding, vector.usage) == (b"\0\0\0\0", Usage(num_input_tokens=3, num_output_tokens=0))
        assert (vector.prompt_token_ids, vector.timing is not None) == (PROMPT if fields else (), bool(fields))


def test_many_log_probabilities_leave_in_parts_without_a_stream() -> None:
    """128 completions of 2,000 tokens with 20 likely ones each left at once, and held up each stream for seconds."""
    letters = b"a" * 1000
    deltas = run(letters, is_stream=False, max_tokens=1000, num_logprobs=0)
    assert [len(each.token_ids) for each in deltas] == [512, 488]
    assert logprobs(deltas) == [-index - 1.0 for index in range(1000)]
    assert len(run(letters, is_stream=False, max_tokens=1000)) == 1
