"""Completions of models that think, from their tokens to the answers of three APIs: the same whole and streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec.structs
import pytest

from frontend.output_parser.parser import MAX_HELD
from frontend.protocol.responses import ResponsesRequest
from frontend.translate.chat_reply import ChatReply
from frontend.translate.message_reply import MessageReply
from frontend.translate.places import Places
from frontend.translate.responses_chat import responses_to_chat
from frontend.translate.responses_reply import ResponsesReply
from frontend.triton.chunk_queue import joined
from frontend.triton.models import ModelName
from model_repository.contract.output import FinishReason, GenerationChunk
from model_repository.contract.request import Thinking
from model_repository.detokenizer.text import delta_to_chunk
from model_repository.reasoning_formats import REASONING_FORMATS, ReasoningFormat
from model_repository.tool_formats import TOOL_FORMATS
from tests.fakes import served_model
from tests.frontend.answers import written
from tests.frontend.bodies import RESPONSE, TIME, WEATHER, chat, read
from tests.frontend.translate import chat_events, test_message_reply, test_responses_reply
from tests.model_repository.engine.test_thinking import generated

type Answer = tuple[str, str, list[tuple[str, Any]], str]  # thinking, content, calls with their arguments, ending

THINK = REASONING_FORMATS["think"]
FORMATS = [each for each in REASONING_FORMATS.values() if not each.head]
SIZES = [1, 3, 10**6]  # characters of a token
TOOLS = [WEATHER, TIME]
CALLED = ("get_weather", {"city": "Paris"})


def chunks_of(
    text: str, size: int, reason: FinishReason, *, is_open: bool, markers: ReasoningFormat, tokens: Sequence[str]
) -> list[GenerationChunk]:
    """Return a completion as the engine and the detokenizer send it.

    Args:
        text: NUL only ends a token.
        size: characters of a token.
        tokens: further tokens of the vocabulary.
    """
    thinking = Thinking(markers, is_open, has_tokens=bool(tokens))
    special = "|".join(map(re.escape, tokens)) or "(?!)"
    token = re.compile(f"{special}|(?:(?!{special}).){{1,{size}}}", re.DOTALL)
    pieces = [piece.encode() for part in text.split("\0") for piece in token.findall(part)]
    chunks = [delta_to_chunk(delta, pieces) for delta in generated(pieces, thinking)]
    return [*chunks[:-1], msgspec.structs.replace(chunks[-1], finish_reason=reason)]


def of_chat(name: ModelName, chunks: list[GenerationChunk], tools: list[Any]) -> Iterator[Answer]:
    fields = {"tools": tools} if tools else {}
    choice: Any = chat_events.whole(ChatReply(chat(**fields), name, 1), joined(chunks))["choices"][0]
    events = chat_events.events_of(ChatReply(chat(stream=True, **fields), name, 1), [(0, each) for each in chunks])
    streamed = chat_events.put_together(events)
    deltas: list[Any] = [piece["delta"] for event in events for piece in event["choices"]]
    [reason] = streamed["finish_reasons"]
    yield _of_message(choice["message"], choice["message"].get("reasoning", ""), choice["finish_reason"])
    yield _of_message(streamed["message"], "".join(delta.get("reasoning", "") for delta in deltas), reason)


def _of_message(message: Any, thinking: str, reason: str) -> Answer:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = [(each["name"], json.loads(each["arguments"])) for each in functions]
    return thinking, message["content"] or "", calls, reason


def of_messages(name: ModelName, chunks: list[GenerationChunk], tools: list[Any]) -> Iterator[Answer]:
    asked = chat(**({"tools": tools} if tools else {}))
    whole: Any = MessageReply(asked, name, "q").whole([joined(chunks)])
    blocks, end = test_message_reply.put_together(MessageReply(asked, name, "q"), chunks)
    for each in blocks:
        if each["type"] == "tool_use":
            each["input"] = json.loads(each["partial_json"])
    reasons = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}
    for content, reason in ((whole["content"], whole["stop_reason"]), (blocks, end["delta"]["stop_reason"])):
        texts = ["".join(each.get(kind, "") for each in content) for kind in ("thinking", "text")]
        calls = [(each["name"], each["input"]) for each in content if each["type"] == "tool_use"]
        yield texts[0], texts[1], calls, reasons[reason]


def of_responses(name: ModelName, chunks: list[GenerationChunk], tools: list[Any]) -> Iterator[Answer]:
    fields = {"tools": [{"type": "function", **each["function"]} for each in tools]} if tools else {}
    body = read(ResponsesRequest, RESPONSE | fields)[0]

    def reply() -> ResponsesReply:
        return ResponsesReply(body, responses_to_chat(body, name, Places(body)), name, 1)

    whole: Any = written(reply().whole([joined(chunks)]))
    events = test_responses_reply.events_of(reply(), chunks)
    streamed = [*test_responses_reply.put_together(events)]
    for output, status in ((whole["output"], whole["status"]), (streamed, events[-1]["response"]["status"])):
        texts = ["", ""]
        calls = []
        for item in output:
            if item["type"] == "function_call":
                calls.append((item["name"], json.loads(item["arguments"])))
            else:
                texts[item["type"] == "message"] += "".join(part["text"] for part in item["content"])
        reason = "length" if status == "incomplete" else "tool_calls" if calls else "stop"
        yield texts[0], texts[1], calls, reason


ALL = (of_chat, of_messages, of_responses)


def answer_to(
    text: str,
    size: int,
    *,
    tool_format: str = "hermes",
    tools: Sequence[Any] = (),
    reason: FinishReason = FinishReason.STOP,
    is_open: bool = False,
    markers: ReasoningFormat = THINK,
    tokens: Sequence[str] = (),
    apis: Sequence[Callable[..., Iterator[Answer]]] = ALL,
) -> Answer:
    """Return a completion as each API answers with it, which is the same."""
    model = served_model(reasoning_format=markers.name, tool_call_format=tool_format)
    chunks = chunks_of(text, size, reason, is_open=is_open, markers=markers, tokens=tokens)
    answers = [each for api in apis for each in api(ModelName(requested="r", model=model), chunks, [*tools])]
    first = answers[0]
    assert answers == [first] * len(answers)
    return first


def call_in(format_name: str, city: str = "Paris") -> str:
    return TOOL_FORMATS[format_name].calls_text([("get_weather", json.dumps({"city": city}))])


WITH_MARKERS = [name for name, each in TOOL_FORMATS.items() if each.trigger]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("format_name", WITH_MARKERS)
def test_a_call_that_ends_unfinished_thinking_is_a_call(format_name: str, size: int) -> None:
    """The call was thinking, so agents ended without a word."""
    call, other = call_in(format_name), call_in(format_name, "Oslo")
    apis = ALL if format_name == "hermes" else (of_chat,)
    fields: dict[str, Any] = {"tool_format": format_name, "tools": TOOLS, "is_open": True, "apis": apis}
    called = answer_to(f"I call it now.\n{call}", size, **fields)
    assert called == ("I call it now.", "", [CALLED], "tool_calls")
    drafted = answer_to(f"Maybe {other}\nNo.\n</think>\n\n{call}", size, **fields)
    assert drafted == (f"Maybe {other}\nNo.", "", [CALLED], "tool_calls")
    only_last = answer_to(f"Maybe {other} or, better:\n{call}\n", size, **fields)
    assert only_last == (f"Maybe {other} or, better:", "", [CALLED], "tool_calls")


@pytest.mark.parametrize("markers", FORMATS, ids=lambda each: each.name)
@pytest.mark.parametrize("size", SIZES)
def test_the_call_counts_behind_thinking_that_the_model_began(markers: ReasoningFormat, size: int) -> None:
    text = f"{markers.begin}I call it now.\n{call_in('hermes')}\n{call_in('hermes', 'Oslo')}"
    answer = answer_to(text, size, markers=markers, tools=TOOLS, apis=(of_chat,))
    assert answer == ("I call it now.", "", [CALLED, ("get_weather", {"city": "Oslo"})], "tool_calls")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"a {call_in('hermes')}", FinishReason.LENGTH),  # the limit cut it: the thinking may go on
        (f"a {call_in('hermes')[:40]}", FinishReason.LENGTH),
        (f"a {call_in('hermes')[:40]}", FinishReason.STOP),
        (f"a {call_in('hermes')} is how I would call it", FinishReason.STOP),
        ("a <tool_call> b", FinishReason.STOP),
        ("a <tool_", FinishReason.STOP),
    ],
)
def test_other_texts_of_calls_in_unfinished_thinking_are_thinking(text: str, reason: FinishReason, size: int) -> None:
    answer = answer_to(text, size, reason=reason, tools=TOOLS, is_open=True)
    assert answer == (text, "", [], "length" if reason is FinishReason.LENGTH else "stop")


@pytest.mark.parametrize("size", [100, 10**6])
@pytest.mark.parametrize(("num_chars", "is_called"), [(MAX_HELD - 100, True), (MAX_HELD, False)])
def test_a_longer_text_than_the_bound_is_thinking(num_chars: int, is_called: bool, size: int) -> None:
    call = call_in("hermes", "x" * num_chars)
    thinking, content, calls, reason = answer_to(f"a {call}", size, tools=TOOLS, is_open=True, apis=(of_chat,))
    assert (thinking, len(calls), reason) == (("a", 1, "tool_calls") if is_called else (f"a {call}", 0, "stop"))
    assert not content


# --- markers where they do not belong ---------------------------------------------------------------------------------

STRAY = [
    ("Sure.\n{begin}One.{end}Hello", "One.", "Sure.\n\nHello"),
    ("{begin}One.{end}Hello\n{begin}Two.{end}Bye", "One.\n\nTwo.", "Hello\n\nBye"),
    ("{end}Hello", "", "Hello"),
    ("One.{end}\n\nHello", "", "One.\n\nHello"),
    ("{begin}One.{end}Hello{end}", "One.", "Hello"),
    ("{begin}One.{end}{end} Hello {end} Bye", "One.", "Hello\n\nBye"),
    ("{begin}One.{end}Hello {begin}Two.", "One.\n\nTwo.", "Hello"),
    ("{begin}{end}{begin}One.{end}\nHello\n", "One.", "Hello\n"),
    ("{begin}\n{begin}One.{end}Hello", "One.", "Hello"),
]


@pytest.mark.parametrize("tokens", [False, True], ids=["spelled", "tokens"])
@pytest.mark.parametrize("markers", FORMATS, ids=lambda each: each.name)
@pytest.mark.parametrize("size", SIZES)
def test_markers_of_thinking_are_nowhere_in_the_answer(markers: ReasoningFormat, size: int, tokens: bool) -> None:
    special = [markers.begin_token, markers.end] if tokens else []
    for text, thinking, content in STRAY:
        text = text.format(begin=markers.begin, end=markers.end)
        for tools in ((), TOOLS):
            apis = ALL if markers is THINK and not tools else (of_chat,)
            answer = answer_to(text, size, markers=markers, tokens=special, tools=tools, apis=apis)
            assert answer == (thinking, content, [], "stop"), text


@pytest.mark.parametrize("size", SIZES)
def test_a_text_that_quotes_a_marker_is_text_where_the_vocabulary_has_the_marker_as_a_token(size: int) -> None:
    quote = 'It ends at "</\0think>", and `<th\0ink>` begins it.'
    shown = quote.replace("\0", "")
    answer = answer_to(f"<think>{quote}</think>{quote}", size, tokens=THINK.special_tokens)
    assert answer == (shown, shown, [], "stop")


@pytest.mark.parametrize("size", SIZES)
def test_a_marker_in_the_arguments_of_a_call_is_text(size: int) -> None:
    code = "re.sub('<think>.*?</think>', '', text); print('<think>')"
    text = f"<think>Hm.</think>{call_in('hermes', code)}\n{call_in('hermes')}"
    answer = answer_to(text, size, tools=TOOLS)
    assert answer == ("Hm.", "", [("get_weather", {"city": code}), CALLED], "tool_calls")
