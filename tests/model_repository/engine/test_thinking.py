"""Where the thinking of a completion ends: its bytes, its tokens, and the rules that begin behind it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from model_repository.contract.output import FinishReason, TokenDelta, Usage
from model_repository.contract.request import EngineRequest, Thinking
from model_repository.engine.bad_words import TokenIndex
from model_repository.engine.output_streams import OutputSender, OutputStream
from model_repository.engine.runtime import StepOutput
from model_repository.engine.sequence import EngineSequence
from model_repository.engine.thinking_constraint import ThinkingConstraint
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.reasoning_formats import REASONING_FORMATS
from tests.model_repository.engine.engine_requests import changed
from tests.model_repository.engine.fake_engine import FakeResponder

THINK = REASONING_FORMATS["think"]
OPEN, CLOSED = Thinking(THINK, True), Thinking(THINK, False)
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


def border(text: str, thinking: Thinking) -> int:
    """Return the number of bytes of a whole text that are thinking."""
    if not thinking.is_open and not text.lstrip(" \n").startswith(THINK.begin):
        return 0
    start = 0 if thinking.is_open else text.index(THINK.begin) + len(THINK.begin)
    end = text.find(THINK.end, start)
    return len((text if end < 0 else text[: end + len(THINK.end)]).encode())


def cut(text: str, places: set[int]) -> list[bytes]:
    data = text.encode()
    return [
        data[start:end]
        for start, end in itertools.pairwise(sorted({0, len(data)} | {x for x in places if x < len(data)}))
    ]


@given(text=TEXTS.filter(bool), places=st.sets(st.integers(1, 60)), thinking=st.sampled_from([OPEN, CLOSED]))
def test_the_border_is_exact_however_the_text_is_cut_into_tokens(
    text: str, places: set[int], thinking: Thinking
) -> None:
    pieces = cut(text, places)
    deltas = generated(pieces, thinking)
    texts = [b"".join(pieces[token_id] for token_id in delta.token_ids) for delta in deltas]
    assert b"".join(texts) == text.encode()
    num_thinking = border(text, thinking)
    ends = list(itertools.accumulate(map(len, texts)))
    starts = [0, *ends[:-1]]
    expected = [max(0, min(end, num_thinking) - start) for start, end in zip(starts, ends, strict=True)]
    assert [delta.num_thinking_bytes for delta in deltas] == expected
    usage = deltas[-1].usage
    assert isinstance(usage, Usage)
    begins = [0, *itertools.accumulate(map(len, pieces))][:-1]
    assert usage.num_reasoning_tokens == sum(begin < num_thinking for begin in begins)


@given(text=TEXTS.filter(bool), places=st.sets(st.integers(1, 60)), thinking=st.sampled_from([OPEN, CLOSED]))
def test_a_stop_sequence_counts_in_the_answer_only(text: str, places: set[int], thinking: Thinking) -> None:
    pieces = cut(text, places)
    deltas = generated(pieces, thinking, stop=("STOP",))
    texts = [b"".join(pieces[token_id] for token_id in delta.token_ids) for delta in deltas]
    last = texts[-1]
    written = b"".join(texts[:-1]) + last[: len(last) - deltas[-1].num_cut_bytes]
    num_thinking = border(text, thinking)
    answer, mark, _ = text.encode()[num_thinking:].partition(b"STOP")
    assert written == text.encode()[:num_thinking] + answer
    assert deltas[-1].finish_reason is (FinishReason.STOP if mark else FinishReason.LENGTH)


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


def drawn(rule: ThinkingConstraint, index: TokenIndex, answer: Answer | None, generator: random.Random) -> bytes:
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
    rule = ThinkingConstraint(Thinking(THINK, thinking.is_open, budget), index, answer)
    text = drawn(rule, index, answer, random.Random(seed))
    assert text[border(text.decode(), thinking) :] == b"{}".removesuffix(answer.rest)


@pytest.mark.parametrize("vocabulary", [WHOLE_MARKERS, PIECES], ids=["whole markers", "pieces"])
@given(seed=st.integers(0, 2**32), budget=st.integers(0, 20))
def test_the_thinking_ends_after_its_budget(vocabulary: list[bytes], seed: int, budget: int) -> None:
    vocabulary = [*vocabulary, *(bytes([byte]) for byte in b"think")]
    index = TokenIndex(vocabulary, len(vocabulary))
    rule = ThinkingConstraint(Thinking(THINK, True, budget), index, None)
    generator, tokens = random.Random(seed), []
    for _ in range(budget + len(THINK.end)):
        tokens.append(int(generator.choice(np.flatnonzero(rule.allowed()))))
        assert rule.accept_token(tokens[-1])
    assert THINK.end.encode() in b"".join(index.texts[token_id] for token_id in tokens)
