"""Where the thinking of a completion ends: its bytes, its tokens, and the rules that begin behind it."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from model_repository.contract.output import FinishReason, TokenDelta, Usage
from model_repository.contract.request import EngineRequest, OutputFormat, StructuredOutput, Thinking, ToolUse
from model_repository.engine.bad_words import TokenIndex
from model_repository.engine.constraint import ConstraintCompiler
from model_repository.engine.output_streams import OutputSender, OutputStream
from model_repository.engine.request_checks import combined_constraint
from model_repository.engine.runtime import StepOutput
from model_repository.engine.sequence import EngineSequence
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.reasoning_formats import REASONING_FORMATS
from model_repository.structured_output.grammar import lark_to_grammar
from model_repository.structured_output.json_schema import JSON_LAYOUT
from model_repository.tokenizer.tool_grammar import grammar_of_messages, tool_grammar
from model_repository.tool_formats import HERMES
from tests.model_repository.engine.engine_requests import changed
from tests.model_repository.engine.fake_engine import FakeResponder

THINK = REASONING_FORMATS["think"]
OPEN, CLOSED = Thinking(THINK, True), Thinking(THINK, False)
OPEN_TOKENS, CLOSED_TOKENS = Thinking(THINK, True, has_tokens=True), Thinking(THINK, False, has_tokens=True)
# What texts near a marker are made of.
FRAGMENTS = st.sampled_from(
    ["<think>", "</think>", "<", "</", "</thi", "think>", "nk>", " ", "\n", "x", "é", "STOP", "ST"]
)
TEXTS = st.lists(FRAGMENTS, max_size=12).map("".join)


def generated(pieces: Sequence[bytes], thinking: Thinking, **fields: Any) -> list[TokenDelta]:
    """Return the deltas of a completion with these tokens, each sent at once."""
    item = EngineSequence(
        0,
        changed(
            EngineRequest(prompt_token_ids=(0,), max_tokens=len(pieces), thinking=thinking), is_stream=True, **fields
        ),
        stream=OutputStream(1, "key", FakeResponder(), 0.0, OutputSender(on_failure=lambda number: None)),
        item=0,
        byte_table=pieces,
        eos_token_ids=frozenset(),
        now_s=0.0,
    )
    deltas = []
    for token_id in range(len(pieces)):
        item.add_output(StepOutput(0, token_id), now_s=0.0)
        if item.pending_output() is not None:
            deltas.append(item.next_delta())
        if item.finish_reason is not None:
            break
    return deltas


def thinking_mask(pieces: Sequence[bytes], thinking: Thinking, *, is_single: bool = False) -> list[bool]:
    """Say of each byte of a completion with these tokens whether it is thinking."""
    text, is_thinking, place, mask = b"".join(pieces), thinking.is_open, 0, list[bool]()
    tokens = dict(zip(itertools.accumulate(map(len, pieces), initial=0), pieces, strict=False))
    marks = [found.span() for found in re.finditer(b"<think>|</think>", text)]
    for start, end in marks:
        is_end = text[start:end] == b"</think>"
        is_before = not is_thinking and not text[:start].strip() and not any(mask)
        is_text = is_thinking and not is_end
        if is_single and not is_thinking:
            is_text = is_end or not is_before
        if is_text or (thinking.has_tokens and tokens.get(start) != text[start:end]):
            continue
        first = place if is_before else start
        mask += [is_thinking] * (first - place) + [True] * (end - first)
        place, is_thinking = end, not is_end
    return mask + [is_thinking] * (len(text) - place)


def spans_of(deltas: Sequence[TokenDelta], pieces: Sequence[bytes]) -> list[bool]:
    """Say of each byte of the deltas whether it is marked as thinking."""
    mask: list[bool] = []
    for delta in deltas:
        num_bytes = sum(len(pieces[token_id]) for token_id in delta.token_ids)
        for index, size in enumerate(delta.spans or (0, num_bytes)):
            mask += [index % 2 == 0] * size
    return mask


def num_thinking_bytes(delta: TokenDelta) -> int:
    return sum(delta.spans[::2])


def cut(text: str, places: set[int]) -> list[bytes]:
    data = text.encode()
    return [
        data[start:end]
        for start, end in itertools.pairwise(sorted({0, len(data)} | {x for x in places if x < len(data)}))
    ]


@given(
    text=TEXTS.filter(bool),
    places=st.sets(st.integers(1, 60)),
    thinking=st.sampled_from([OPEN, CLOSED, OPEN_TOKENS, CLOSED_TOKENS]),
    has_form=st.booleans(),
    whole=st.sets(st.integers(0, 5)),
)
def test_the_borders_are_exact_however_the_text_is_cut_into_tokens(
    text: str, places: set[int], thinking: Thinking, has_form: bool, whole: set[int]
) -> None:
    for number, found in enumerate(re.finditer(b"<think>|</think>", text.encode())):
        if number in whole:  # a token of its own
            places = places - {*range(*found.span())} | {*found.span()}
    pieces = cut(text, places)
    fields = {"structured_output": StructuredOutput(OutputFormat.JSON_OBJECT)} if has_form else {}
    deltas = generated(pieces, thinking, **fields)
    mask = thinking_mask(pieces, thinking, is_single=has_form)
    assert spans_of(deltas, pieces) == mask
    for end, delta in zip(itertools.accumulate(len(each.token_ids) for each in deltas), deltas, strict=True):
        goes_on = len(delta.spans) % 2 == 1
        assert not goes_on or mask[sum(map(len, pieces[:end])) - 1]
    usage = deltas[-1].usage
    assert isinstance(usage, Usage)
    begins = [0, *itertools.accumulate(map(len, pieces))][:-1]
    assert usage.num_reasoning_tokens == sum(mask[begin] for begin in begins)


@given(text=TEXTS.filter(bool), places=st.sets(st.integers(1, 60)), thinking=st.sampled_from([OPEN, CLOSED]))
def test_a_stop_sequence_counts_in_the_answer_only(text: str, places: set[int], thinking: Thinking) -> None:
    pieces = cut(text, places)
    deltas = generated(pieces, thinking, stop=("STOP",))
    texts = [b"".join(pieces[token_id] for token_id in delta.token_ids) for delta in deltas]
    last = texts[-1]
    written = b"".join(texts[:-1]) + last[: len(last) - deltas[-1].num_cut_bytes]
    mask, data = thinking_mask(pieces, thinking), text.encode()
    ends = [found.start() for found in re.finditer(b"STOP", data) if not any(mask[found.start() : found.end()])]
    assert written == data[: ends[0] if ends else None]
    assert deltas[-1].finish_reason is (FinishReason.STOP if ends else FinishReason.LENGTH)


def test_the_markers_of_a_format_begin_with_the_same_character() -> None:
    assert [each.name for each in REASONING_FORMATS.values() if each.begin[0] != each.end[0]] == []


def test_the_token_of_a_begin_marker_is_text_in_the_vocabulary() -> None:
    """The table of bytes left Gemma 4's token out, since the marker has more than the token."""
    assert REASONING_FORMATS["gemma4"].special_tokens == ("<|channel>", "<channel|>")
    assert THINK.special_tokens == ("<think>", "</think>")


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_begin_marker_may_be_a_token_and_text(size: int) -> None:
    thinking = Thinking(REASONING_FORMATS["gemma4"], False, has_tokens=True)
    texts = ["<|channel>", "thought\n", "a", "<channel|>", "b <|channel>thought\n", "<|channel>", "c", "<channel|>"]
    pieces = [
        each for text in texts for each in ([text.encode()] if text[0] == "<" else cut(text, {*range(0, 99, size)}))
    ]
    mask = spans_of(generated(pieces, thinking), pieces)
    text = b"".join(pieces).decode()
    assert "".join(itertools.compress(text, mask)) == "<|channel>thought\na<channel|><channel|>"


# --- messages with heads ---------------------------------------------------------------------------------------------

HARMONY = Thinking(REASONING_FORMATS["harmony"], False)
ANALYSIS, FINAL, CALL = (
    *("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    "<|channel|>commentary to=functions.STOP <|constrain|>json<|message|>",
)
NEXT = "<|end|><|start|>assistant"
BODIES = st.lists(st.sampled_from(["<", "<|", "|>", "<|e", " ", "x", "é", "STOP", "ST"]), max_size=6).map("".join)


@given(
    thoughts=st.lists(BODIES, max_size=2),
    head=st.sampled_from([FINAL, "<|channel|>commentary<|message|>", CALL]),
    answer=BODIES,
    has_stop=st.booleans(),
    places=st.sets(st.integers(1, 200)),
)
def test_the_thinking_of_messages_ends_behind_or_before_the_head_of_another_kind(
    thoughts: list[str], head: str, answer: str, has_stop: bool, places: set[int]
) -> None:
    thinking = "".join(ANALYSIS + thought + NEXT for thought in thoughts)
    if head == CALL and thoughts:
        thinking, head = thinking.removesuffix("<|start|>assistant"), "<|start|>assistant" + head
    num_thinking = len((thinking if CALL in head else thinking + head).encode())
    pieces = cut(thinking + head + answer, places)
    deltas = generated(pieces, HARMONY, stop=("STOP",) if has_stop else ())
    texts = [b"".join(pieces[token_id] for token_id in delta.token_ids) for delta in deltas]
    ends = list(itertools.accumulate(map(len, texts)))
    expected = [max(0, min(end, num_thinking) - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    assert [num_thinking_bytes(delta) for delta in deltas] == expected
    written = b"".join(texts)[: ends[-1] - deltas[-1].num_cut_bytes]
    kept, mark, _ = answer.partition("STOP") if has_stop else (answer, "", "")
    assert written == (thinking + head + kept).encode()
    assert deltas[-1].finish_reason is (FinishReason.STOP if mark else FinishReason.LENGTH)
    usage = deltas[-1].usage
    assert isinstance(usage, Usage)
    begins = [0, *itertools.accumulate(map(len, pieces))][: usage.num_output_tokens]
    assert usage.num_reasoning_tokens == sum(begin < num_thinking for begin in begins)


@pytest.mark.parametrize(
    ("text", "num_thinking"),
    [
        ("Hello <b>", 0),  # without a head
        ("<b>", 0),
        (f"{ANALYSIS}a<|end|>b", len(ANALYSIS) + 8),
        (f"{ANALYSIS}a<|end|><|start|>assist", len(ANALYSIS) + 23),  # cut
        ("<|channel|>ana", 14),
        (" to=functions.f<|channel|>commentary json<|message|>{}", 0),
        ("<|channel|>analysis to=python code<|message|>1", 46),
    ],
)
def test_completions_that_are_cut_or_malformed_have_a_border(text: str, num_thinking: int) -> None:
    for pieces in ([text.encode()], [bytes([byte]) for byte in text.encode()]):
        assert sum(num_thinking_bytes(delta) for delta in generated(pieces, HARMONY)) == num_thinking


CHANNELS = [b"<|channel|>", b"analysis", b"final", b"<|message|>", b"<|end|>", b"<|start|>", b"assistant", b"x"]
PIECES_OF_CHANNELS = [*(bytes([byte]) for byte in set(b"".join(CHANNELS))), b"<|e", b"<|channel|>ana", b"|>"]


@pytest.mark.parametrize("vocabulary", [CHANNELS, PIECES_OF_CHANNELS], ids=["whole markers", "pieces"])
@given(seed=st.integers(0, 2**32), budget=st.integers(0, 4))
def test_no_thinking_begins_after_the_budget_of_messages(vocabulary: list[bytes], seed: int, budget: int) -> None:
    index = TokenIndex(vocabulary, len(vocabulary))
    rule = rule_of(Thinking(HARMONY.format, False, budget), index, None)
    compiler = ConstraintCompiler(vocabulary, frozenset(), len(vocabulary))
    inner = compiler.start(lark_to_grammar(grammar_of_messages('"x"')))
    both = rule_of(Thinking(HARMONY.format, False, budget), index, inner)
    generator = random.Random(seed)
    for each in (rule, both):
        text, num_thinking = b"", 0
        for _ in range(200):
            choices = np.flatnonzero(each.allowed()).tolist()
            if not choices:
                break
            token_id = generator.choice(choices)
            assert each.accept_token(token_id)
            num_thinking += text.startswith(ANALYSIS.encode()) and b"<|end|>" not in text
            text += index.texts[token_id]
        assert num_thinking <= budget + len(b"<|end|>")
        if each is both:
            assert text.endswith(b"<|channel|>final<|message|>x")
            assert text.count(ANALYSIS.encode()) <= budget


# --- a structured output behind the thinking --------------------------------------------------------------------------


class Answer(TokenConstraint):
    """A rule that allows one text, by any tokens."""

    def __init__(self, text: bytes, index: TokenIndex) -> None:
        self.rest, self._index = text, index

    def accept_token(self, token_id: int) -> bool:
        text = self._index.texts[token_id]
        is_allowed = bool(text) and self.rest.startswith(text)
        self.rest = self.rest[len(text) :] if is_allowed else self.rest
        return is_allowed

    def allowed(self) -> NDArray[np.bool_]:
        return np.array([bool(text) and self.rest.startswith(text) for text in self._index.texts])


WHOLE_MARKERS = [
    b"",
    b"<think>",
    b"</think>",
    b"</",
    b"think>",
    b"k>{",
    b">",
    b"a",
    b"b",
    b"{",
    b"}",
    b"{}",
    b"<",
    b"/",
    b"t",
]
PIECES = [
    b"",
    b"<th",
    b"</thi",
    b"nk>",
    b"ink>",
    b"nk>{",
    b"a",
    b"{",
    b"}",
    b"{}",
    b"<",
    b"/",
    b"</think>}",
    b"nk></think>",
]


def rule_of(thinking: Thinking, index: TokenIndex, answer: TokenConstraint | None) -> TokenConstraint:
    """Return the rule of a request that thinks so."""
    request = EngineRequest(prompt_token_ids=(0,), max_tokens=1, thinking=thinking)
    rule = combined_constraint(request, answer, lambda: index, index.vocab_size)
    assert rule is not None
    return rule


def drawn(rule: TokenConstraint, index: TokenIndex, answer: Answer | None, generator: random.Random) -> bytes:
    """Return a completion of random tokens that the rule allows; both its methods must agree on every token."""
    text = b""
    for _ in range(60):
        allowed = rule.allowed()
        token_id = generator.randrange(index.vocab_size)
        if not rule.accept_token(token_id):
            assert not allowed[token_id]
            choices = np.flatnonzero(allowed).tolist()
            if not choices:
                break
            token_id = generator.choice(choices)
            assert rule.accept_token(token_id)
        else:
            assert allowed[token_id]
        text += index.texts[token_id]
        if answer is not None and not answer.rest:
            break
    return text


@pytest.mark.parametrize("vocabulary", [WHOLE_MARKERS, PIECES], ids=["whole markers", "pieces"])
@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), thinking=st.sampled_from([OPEN, CLOSED]), budget=st.sampled_from([None, 0, 5]))
def test_a_structured_output_is_the_whole_answer(
    vocabulary: list[bytes], seed: int, thinking: Thinking, budget: int | None
) -> None:
    index = TokenIndex(vocabulary, len(vocabulary))
    answer = Answer(b"{}", index)
    rule = rule_of(Thinking(THINK, thinking.is_open, budget), index, answer)
    text = drawn(rule, index, answer, random.Random(seed))
    num_thinking = sum(thinking_mask([text], thinking, is_single=True))
    assert text[num_thinking:] == b"{}".removesuffix(answer.rest)


@pytest.mark.parametrize("vocabulary", [WHOLE_MARKERS, PIECES], ids=["whole markers", "pieces"])
@given(seed=st.integers(0, 2**32), budget=st.integers(0, 20))
def test_the_thinking_ends_after_its_budget(vocabulary: list[bytes], seed: int, budget: int) -> None:
    vocabulary = [*vocabulary, *(bytes([byte]) for byte in b"think")]
    index = TokenIndex(vocabulary, len(vocabulary))
    rule = rule_of(Thinking(THINK, True, budget), index, None)
    generator, tokens = random.Random(seed), []
    for _ in range(budget + len(THINK.end)):
        tokens.append(int(generator.choice(np.flatnonzero(rule.allowed()))))
        assert rule.accept_token(tokens[-1])
    assert THINK.end.encode() in b"".join(index.texts[token_id] for token_id in tokens)


def test_a_structured_output_allows_no_thinking_that_the_prompt_has_closed() -> None:
    index = TokenIndex(WHOLE_MARKERS, len(WHOLE_MARKERS))
    for is_off in (False, True):
        rule = rule_of(Thinking(THINK, False, is_off=is_off), index, Answer(b"{}", index))
        assert rule.accept_token(WHOLE_MARKERS.index(b"<think>")) is not is_off


# --- calls in the thinking --------------------------------------------------------------------------------------------

BYTES_AND_MARKERS = [*(bytes([byte]) for byte in range(256)), b"<think>", b"</think>", b"<tool_call>", b"\n<tool", b""]
END = len(BYTES_AND_MARKERS) - 1
INDEX = TokenIndex(BYTES_AND_MARKERS, len(BYTES_AND_MARKERS))
COMPILER = ConstraintCompiler(BYTES_AND_MARKERS, frozenset([END]), len(BYTES_AND_MARKERS))
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
CALLED = HERMES.calls_text([("get", '{"city": "Oslo"}')])


def rule_of_tools(choice: str = "auto", budget: int | None = None) -> TokenConstraint:
    """Return the rule of an answer with tools that may begin in open thinking."""
    tool_use = ToolUse(tools=({"type": "function", "function": {"name": "get", "parameters": CITY}},), choice=choice)
    rules = tool_grammar(tool_use, HERMES, lambda schema, *_: {**CITY, "x-guidance": JSON_LAYOUT})
    assert rules is not None
    thinking = Thinking(THINK, True, budget, has_tokens=True, call=HERMES.trigger)
    return rule_of(thinking, INDEX, COMPILER.start(lark_to_grammar(rules)))


def may_end(rule: TokenConstraint, text: str, tokens: Sequence[bytes] = (b"</think>", b"<tool_call>")) -> bool:
    """Continue with a text, each token of which must be allowed, and say whether the completion may end then."""
    pattern = b"|".join(map(re.escape, tokens)) + b"|(?s:.)"
    for piece in re.findall(pattern, text.encode()):
        token_id = BYTES_AND_MARKERS.index(piece)
        assert rule.allowed()[token_id]
        assert rule.accept_token(token_id)
    return bool(rule.allowed()[END])


@pytest.mark.parametrize("choice", ["auto", "required", "function:get"])
def test_thinking_may_end_a_completion_behind_a_valid_call_only(choice: str) -> None:
    rule = rule_of_tools(choice)
    assert not may_end(rule, "I call <tool_call> now:\n")
    assert not may_end(rule, CALLED.replace("Oslo", "Rome"))
    assert not may_end(rule, CALLED[:-1])
    assert may_end(rule, CALLED[-1:])
    assert not may_end(rule, ", or not?")
    assert may_end(rule, CALLED)
    assert rule.accept_token(END)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_draft_of_a_call_is_thinking_and_the_answer_keeps_its_rule(choice: str) -> None:
    rule = rule_of_tools(choice)
    assert not may_end(rule, f"Maybe {CALLED}? No.</think>") or choice == "auto"
    assert may_end(rule, CALLED)
    assert not rule.accept_token(BYTES_AND_MARKERS.index(b"x"))


def test_a_marker_of_calls_across_tokens_is_followed_in_free_text() -> None:
    tokens = (b"\n<tool", b"</think>")
    assert not may_end(rule_of_tools(), "Now:\n<tool", tokens)
    assert may_end(rule_of_tools(), f"Now:\n{CALLED}", tokens)
    assert not may_end(rule_of_tools(), f"Now:\n{CALLED}".replace("city", "town"), tokens)


def test_a_budget_ends_the_thinking_behind_a_call_or_where_it_breaks() -> None:
    forced = [BYTES_AND_MARKERS.index(b"</think>")]
    rule = rule_of_tools(budget=3)
    assert may_end(rule, f"ab{CALLED}")
    assert rule.accept_token(BYTES_AND_MARKERS.index(b"x"))
    assert np.flatnonzero(rule.allowed()).tolist() == forced
    rule = rule_of_tools(budget=3)
    assert not may_end(rule, "abc")
    assert np.flatnonzero(rule.allowed()).tolist() == forced
