"""Content and tool calls in an answer's text, however it is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.output_parser.deltas import ArgumentsDelta, CallBegin, CallEnd, OutputDelta, ReasoningDelta, TextDelta
from frontend.output_parser.messages import output_parser
from model_repository.contract.output import GenerationChunk
from model_repository.reasoning_formats import REASONING_FORMATS, head_at, may_become_head
from model_repository.tool_formats import HARMONY, TOOL_FORMATS
from tests.parsed_calls import ToolCall, parse_tool_calls

REPEATABLE = settings(max_examples=100)
FORMATS = st.sampled_from(sorted(TOOL_FORMATS))
# What calls and broken calls are made of.
FRAGMENTS = st.sampled_from(
    [
        *(token for tool_format in TOOL_FORMATS.values() for token in tool_format.special_tokens),
        *(tool_format.before_name for tool_format in TOOL_FORMATS.values()),
        *(f"f{tool_format.before_arguments}" for tool_format in TOOL_FORMATS.values()),
        *(tool_format.after_arguments for tool_format in TOOL_FORMATS.values()),
        *('f", "arguments": ', 'f", "parameters": ', "f\n```json\n", '{"a": 1}', '{"a": "<', '"{\\"a\\": \\"'),
        *(
            "\\u00e9",
            "\\ud83d",
            "\\ude00",
            "\\",
            '"',
            "{",
            "}",
            '"}',
            ", ",
            "; ",
            ": ",
            "[",
            "]",
            " ",
            "\n",
            "<",
            "t",
            "x",
            "é",
        ),
    ]
)
# Formats with raw values read them by these.
SCHEMAS = {"f": {"type": "object", "properties": {"a": {"type": "object"}}}}
TEXTS = st.lists(FRAGMENTS, max_size=20).map("".join)


def events(format_name: str, chunks: Iterable[str], schemas: Any = SCHEMAS) -> list[OutputDelta]:
    """Return a parser's events for chunks; consecutive deltas are joined."""
    parser = output_parser(format_name, schemas=schemas)
    return joined([*(event for chunk in chunks for event in parser.push(chunk)), *parser.finish()])


def joined(deltas: Iterable[OutputDelta]) -> list[OutputDelta]:
    """Join consecutive deltas of a kind."""
    result: list[OutputDelta] = []
    for delta in deltas:
        match (result[-1] if result else None), delta:
            case ReasoningDelta(before), ReasoningDelta(after):
                result[-1] = ReasoningDelta(before + after)
            case TextDelta(before), TextDelta(after):
                result[-1] = TextDelta(before + after)
            case ArgumentsDelta(index, before), ArgumentsDelta(_, after):
                result[-1] = ArgumentsDelta(index, before + after)
            case _:
                result.append(delta)
    return result


def pushed(format_name: str, *chunks: str) -> list[list[OutputDelta]]:
    """Return the events of each push."""
    parser = output_parser(format_name, schemas=SCHEMAS)
    return [parser.push(chunk) for chunk in chunks]


@pytest.mark.parametrize("format_name", TOOL_FORMATS)
def test_calls_as_the_models_write_them_are_found(format_name: str) -> None:
    text = TOOL_FORMATS[format_name].calls_text([("f", '{"a": {"b": "}\\""}}'), ("g", "{}")])
    assert events(format_name, text) == events(format_name, [text])
    assert events(format_name, [text]) == [
        CallBegin(0, "f"),
        ArgumentsDelta(0, '{"a": {"b": "}\\""}}'),
        CallEnd(0),
        CallBegin(1, "g"),
        ArgumentsDelta(1, "{}"),
        CallEnd(1),
    ]


@REPEATABLE
@given(format_name=FORMATS, text=TEXTS, data=st.data())
def test_chunks_change_nothing(format_name: str, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = events(format_name, [text])
    assert events(format_name, chunks) == whole
    assert events(format_name, text) == whole


@REPEATABLE
@given(format_name=FORMATS.filter(lambda name: name != HARMONY.name), text=TEXTS)
def test_text_without_a_call_comes_out_as_it_is(format_name: str, text: str) -> None:
    content, calls = parse_tool_calls(format_name, text)
    assert calls or content == text


@pytest.mark.parametrize(
    ("format_name", "text"),
    [
        (
            "minimax_m2",
            '<minimax:tool_call><invoke name="f"><parameter name="a">{}</parameter>,</invoke><invoke name="f"></invoke>'
            "</minimax:tool_call>",
        ),
        ("lfm2", "<|tool_call_start|>[f(a={} , ), f()]<|tool_call_end|>"),
        ("gemma4", "<|tool_call>call:f{a:{},}<tool_call|><|tool_call>call:f{}<tool_call|>"),
    ],
)
@pytest.mark.parametrize("piece_size", [0, 1])
def test_a_comma_behind_the_last_argument_changes_no_call(format_name: str, text: str, piece_size: int) -> None:
    calls = [ToolCall("f", '{"a": {}}', True), ToolCall("f", "{}", True)]
    assert parse_tool_calls(format_name, text, piece_size=piece_size, schemas=SCHEMAS) == ("", calls)


@REPEATABLE
@given(
    format_name=st.sampled_from([name for name, tool_format in TOOL_FORMATS.items() if tool_format.trigger]),
    lead=st.text(),
    calls=st.lists(
        st.tuples(
            st.from_regex(r"[a-zA-Z0-9_-]{1,128}", fullmatch=True),
            st.dictionaries(
                st.from_regex(r"[a-zA-Z0-9_.$@/-]{1,9}", fullmatch=True),
                st.none() | st.integers() | st.text() | st.lists(st.text(), max_size=2),
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda call: call[0],
    ),
)
def test_text_and_calls_are_separated(format_name: str, lead: str, calls: list[tuple[str, dict[str, object]]]) -> None:
    written = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    text = lead + "\n\n" + TOOL_FORMATS[format_name].calls_text(written)
    kinds = {str: "string", int: "integer", list: "array", type(None): "null"}
    schemas = {
        name: {"properties": {key: {"type": kinds[type(value)]} for key, value in arguments.items()}}
        for name, arguments in calls
    }
    assert parse_tool_calls(format_name, text, schemas=schemas) == (
        lead.rstrip(" \t\r\n"),
        [ToolCall(name, arguments, True) for name, arguments in written],
    )


def test_text_that_cannot_be_a_call_does_not_wait() -> None:
    assert pushed("hermes", "Hel", "lo <", "b>", " \n", "<tool", "_tip>") == [
        [TextDelta("Hel")],
        [TextDelta("lo")],
        [TextDelta(" <b>")],
        [],
        [],
        [TextDelta(" \n<tool_tip>")],
    ]


def test_text_in_brackets_does_not_wait_for_a_call() -> None:
    assert pushed("mistral_v13", "See [", "1] [TO", "DO] [TOOL_", "CALL]") == [
        [TextDelta("See")],
        [TextDelta(" [1]")],
        [TextDelta(" [TODO]")],
        [TextDelta(" [TOOL_CALL]")],
    ]


def test_an_answer_that_does_not_begin_with_a_call_is_text_to_its_end() -> None:
    call = TOOL_FORMATS["llama3_json"].calls_text([("f", "{}")])
    assert pushed("llama3_json", "A ", call) == [[TextDelta("A ")], [TextDelta(call)]]


def test_arguments_stream_as_they_are_generated() -> None:
    assert pushed(
        "hermes", '<tool_call>\n{"name": "f", "arguments": ', "{", '"ci', 'ty": "O', "slo\\", 'n"', "}", "}"
    ) == [
        [],
        [CallBegin(0, "f"), ArgumentsDelta(0, "{")],
        [ArgumentsDelta(0, '"ci')],
        [ArgumentsDelta(0, 'ty": "O')],
        [ArgumentsDelta(0, "slo")],
        [ArgumentsDelta(0, '\\n"')],
        [ArgumentsDelta(0, "}")],
        [CallEnd(0)],
    ]


@pytest.mark.parametrize("format_name", [name for name, each in TOOL_FORMATS.items() if each.notation is None])
def test_arguments_stream_in_every_format(format_name: str) -> None:
    begun, rest = TOOL_FORMATS[format_name].calls_text([("f", '{"a": "b"}'), ("g", "{}")]).split(' "b"')
    assert pushed(format_name, begun, ' "b', '"', rest)[:3] == [
        [CallBegin(0, "f"), ArgumentsDelta(0, '{"a":')],
        [ArgumentsDelta(0, ' "b')],
        [ArgumentsDelta(0, '"')],
    ]


@pytest.mark.parametrize("format_name", [name for name, each in TOOL_FORMATS.items() if each.notation is not None])
def test_texts_stream_in_every_notation(format_name: str) -> None:
    begun, rest = TOOL_FORMATS[format_name].calls_text([("f", '{"t": "\\"a#é\\n", "n": 1}')]).split("#")
    parser = output_parser(format_name, schemas={"f": {"properties": {"t": {"type": "string"}}}})
    assert parser.push(begun) == [CallBegin(0, "f"), ArgumentsDelta(0, '{"t": "\\"a')]
    assert parser.push(rest) == [ArgumentsDelta(0, 'é\\n", "n": 1}'), CallEnd(0)]


def test_a_text_between_markers_streams_until_it_may_end_and_a_list_like_json() -> None:
    head = "<tool_call>\n<function=f>\n<parameter=t>\n"
    parser = output_parser("qwen_xml", schemas={"f": {"properties": {"t": {"type": "string"}, "n": {"type": "array"}}}})
    pieces = (head, "a\n</para", "graph>\n</", "parameter>\n<parameter=n>\n", "[1,", "2]\n</parameter>\n</function>")
    assert [parser.push(piece) for piece in pieces] == [
        [CallBegin(0, "f"), ArgumentsDelta(0, '{"t": "')],
        [ArgumentsDelta(0, "a")],
        [ArgumentsDelta(0, "\\n</paragraph>")],
        [ArgumentsDelta(0, '", "n": ')],
        [ArgumentsDelta(0, "[1,")],
        [ArgumentsDelta(0, "2]}"), CallEnd(0)],
    ]
    assert parser.push("\n</tool_call>") == []


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        *[("boolean", "True", "true"), ("null", "None", "null"), ("integer", "5", "5"), ("integer", "five", '"five"')],
        *[("string", "5", '"5"'), (["string", "null"], "null", "null"), (["string", "null"], "nullify", '"nullify"')],
        *[(["string", "integer"], "5", "5"), (["string", "integer"], "5 apples", '"5 apples"')],
        *[
            (["string", "number"], "NaN", '"NaN"'),
            (["string", "object"], "{1}", '"{1}"'),
            ("object", '{"b": 1}', '{"b": 1}'),
        ],
        *[(["string", "array"], "[]", "[]"), (["string", "boolean"], "true", "true"), ("string", "a\n", '"a\\n"')],
    ],
)
def test_a_value_between_markers_is_read_by_its_schema(kind: str | list[str], raw: str, value: str) -> None:
    text = f"<tool_call>\n<function=f>\n<parameter=a>\n{raw}\n</parameter>\n</function>\n</tool_call>"
    schemas = {"f": {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": kind}}}}
    expected = [CallBegin(0, "f"), ArgumentsDelta(0, f'{{"a": {value}}}'), CallEnd(0)]
    assert events("qwen_xml", [text], schemas) == events("qwen_xml", text, schemas) == expected


@pytest.mark.parametrize("lead", ["", "\n", "<|python_tag|>", " <|python_tag|>\n"])
@pytest.mark.parametrize("separator", ["; ", ";", "\n", "; <|python_tag|>"])
@pytest.mark.parametrize("key", ["parameters", "arguments"])
def test_llamas_ways_to_write_calls(lead: str, separator: str, key: str) -> None:
    text = f'{lead}{{"name": "f", "{key}": {{"a": 1}}}}{separator}{{"name": "g", "{key}": {{}}}}'
    calls = [ToolCall("f", '{"a": 1}', True), ToolCall("g", "{}", True)]
    assert parse_tool_calls("llama3_json", text, schemas={"f": {}, "g": {}}) == ("", calls)


@pytest.mark.parametrize(
    ("string", "decoded"),
    [
        ('"{\\"a\\": \\"b\\\\n\\"}"', '{"a": "b\\n"}'),
        ('"\\u00e9\\ud83d\\ude00\\/"', "é\N{GRINNING FACE}/"),
        ('"\\ud83d x \\ude00 \\q"', "\\ud83d x \\ude00 \\q"),  # no characters: left as they are
        ('""', ""),
    ],
)
def test_arguments_in_a_string_are_decoded(string: str, decoded: str) -> None:
    text = f'<tool_call>\n{{"name": "f", "arguments": {string}}}\n</tool_call>'
    assert parse_tool_calls("hermes", text) == ("", [ToolCall("f", decoded, True)])
    assert events("hermes", text) == events("hermes", [text])


@pytest.mark.parametrize("end", range(1, 25))
def test_a_call_that_is_cut_has_no_end(end: int) -> None:
    begun = '<tool_call>\n{"name": "f", "arguments": '
    rest = '{"a": "b\\u00e9", "c": 1}'
    assert events("hermes", begun + rest[:end]) == [CallBegin(0, "f"), ArgumentsDelta(0, rest[:end])]


# --- Harmony's messages ----------------------------------------------------------------------------------------------

ANALYSIS, FINAL, NEXT = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


def separated(
    text: str, cuts: Iterable[int] = (), *, is_cut: bool = False, has_tools: bool = True
) -> list[OutputDelta]:
    """Return the deltas of a completion of messages, those of a kind joined."""
    parser = output_parser(HARMONY.name if has_tools else "", REASONING_FORMATS["harmony"])
    places = sorted({0, len(text), *(place for place in cuts if place < len(text))})
    deltas = [delta for start, end in itertools.pairwise(places) for delta in parser.push(text[start:end])]
    return joined([*deltas, *parser.finish(is_cut=is_cut)])


CALLED: list[OutputDelta] = [CallBegin(0, "f"), ArgumentsDelta(0, '{"a": "<|end|>"}'), CallEnd(0)]
ARGUMENTS = '{"a": "<|end|>"}'


@pytest.mark.parametrize(
    ("text", "deltas"),
    [
        (f"{ANALYSIS}T{NEXT}{FINAL}A", [ReasoningDelta("T"), TextDelta("A")]),
        (f"{ANALYSIS} T\n{NEXT}{ANALYSIS}U{NEXT}{FINAL}\nA\n", [ReasoningDelta("T\n\nU"), TextDelta("A\n")]),
        (f"{FINAL}A <|endoftext|> <|end|>", [TextDelta("A <|endoftext|>")]),
        (f"{FINAL}A<|end|> is a marker <|", [TextDelta("A<|end|> is a marker <|")]),
        (f"{ANALYSIS}T{NEXT}{CALL}{ARGUMENTS}", [ReasoningDelta("T"), *CALLED]),
        (
            f"{ANALYSIS}T{NEXT}<|channel|>commentary<|message|>P{NEXT}{ANALYSIS}U{NEXT}{FINAL}A",
            [ReasoningDelta("T"), TextDelta("P"), ReasoningDelta("\n\nU"), TextDelta("\n\nA")],
        ),
        (f"<|channel|>commentary<|message|>P\n{NEXT}{CALL}{ARGUMENTS}", [TextDelta("P"), *CALLED]),
        (f"{NEXT} to=functions.f<|channel|>commentary json<|message|>{ARGUMENTS}", CALLED),
        (f" to=functions.f<|channel|>commentary<|message|>{ARGUMENTS}<|end|>", CALLED),
        (f"<|channel|>analysis to=functions.f code<|message|>{ARGUMENTS}", CALLED),
        ("Hello <b>", [TextDelta("Hello <b>")]),  # as it goes on with a message
        (f"{ANALYSIS}T<|end|>A", [ReasoningDelta("T"), TextDelta("A")]),
        # heads off the norm
        (f"{ANALYSIS}T{NEXT}<|message|>A", [ReasoningDelta("T"), TextDelta("A")]),
        ("<|message|>A", [TextDelta("A")]),
        (f"<|channel|>commentary to=functions.f<|constrain|>json<|message|>{ARGUMENTS}", CALLED),
        (f"{ANALYSIS}T{NEXT}<|channel|>final<|channel|>final<|message|>A", [ReasoningDelta("T"), TextDelta("A")]),
        # heads that cannot be read
        (f"{ANALYSIS}T{NEXT}<|channel|>final<|end|>A", [ReasoningDelta("T"), TextDelta("final\n\nA")]),
        ("<|channel|>final Hello <b> <|message|>A", [TextDelta("final Hello <b> A")]),
        (f"{FINAL}A<|end|><|start|>user<|message|>B<|end|>", [TextDelta("A\n\nuserB")]),
        (f"{NEXT} to f<|message|>A{NEXT}{FINAL}B", [TextDelta("to fA\n\nB")]),
    ],
)
@REPEATABLE
@given(cuts=st.sets(st.integers(1, 120)))
def test_messages_are_thinking_text_and_calls(text: str, deltas: list[OutputDelta], cuts: set[int]) -> None:
    assert separated(text, cuts) == deltas


@given(cuts=st.sets(st.integers(1, 120)))
def test_messages_that_are_cut_show_no_markup(cuts: set[int]) -> None:
    whole = f"{ANALYSIS}T{NEXT}{FINAL}A"
    for end in range(2, len(whole)):
        shown = "".join(delta.text for delta in separated(whole[:end], cuts, is_cut=True))  # type: ignore[union-attr]
        assert shown in ("", "T", "T<", "TA")


def test_a_call_in_a_chat_without_tools_is_content() -> None:
    assert separated(f"{CALL}{{}}", has_tools=False) == [TextDelta("{}")]


@pytest.mark.parametrize(
    "head",
    [
        ANALYSIS,
        "<|start|>assistant<|message|>",
        f"<|start|>assistant{FINAL}",
        CALL,
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>",
        " to=functions.f<|channel|>analysis<|constrain|>json<|message|>",
    ],
)
def test_each_beginning_of_a_head_may_become_one(head: str) -> None:
    assert all(may_become_head(head[:end]) and head_at(head[:end]) is None for end in range(len(head)))
    assert head_at(f"{head}<")


def test_text_in_messages_does_not_wait() -> None:
    parser = output_parser("", REASONING_FORMATS["harmony"])
    pieces = [ANALYSIS, "Th", "ink <", "b>", NEXT, FINAL, "An", "swer"]
    expected = [[], ["Th"], ["ink"], [" <b>"], [], [], ["An"], ["swer"]]
    chunks = [GenerationChunk(text=piece, spans=(len(piece),) if i < 6 else ()) for i, piece in enumerate(pieces)]
    plain = []
    for chunk, texts in zip(chunks, expected, strict=True):
        plain.append(parser.plain_part(chunk))
        assert [delta.text for delta in parser.read(chunk)] == texts  # type: ignore[union-attr]
    assert plain == [None, None, None, None, None, None, None, "content"]


def test_a_long_rest_is_not_read_again_with_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of 500,000 characters that could still be an argument's name took minutes of the event loop."""
    parser = output_parser("glm")
    parser.push("<tool_call>f\n<arg_key>")
    sizes: list[int] = []
    read = parser._arguments.read

    def noted(text: str) -> Any:
        sizes.append(len(text))
        return read(text)

    monkeypatch.setattr(parser._arguments, "read", noted)
    for _ in range(20_000):
        parser.push("a")
    assert 0 < sum(size > 4096 for size in sizes) < 20


def test_white_space_in_arguments_does_not_wait() -> None:
    parser = output_parser("llama4", schemas={"f": {}})
    parser.push("[f(a=" + "\n" * 9)
    assert not parser._buffer
