"""Edits of logits in a worker, on the double's tensors."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_repository.byte_table import FILE_NAME, save_byte_table
from model_repository.contract.request import Mirostat, OutputFormat, SamplingParams, StructuredOutput
from model_repository.engine.grammar_budget import MAX_SENDER_BYTES
from model_repository.engine.tensorrt_llm import tensors
from model_repository.engine.tensorrt_llm.processors import (
    AllowedTokens,
    LogitsChain,
    MirostatDraw,
    Shaping,
    VocabularyFile,
)
from tests.model_repository.engine.tensorrt_llm.conftest import BYTE_TABLE, EOS, UNUSED, VOCAB_SIZE, request

PROMPT = [10, 11]
NUM_PADDED = VOCAB_SIZE + 4  # as a matrix that is split over GPUs has it


@pytest.fixture
def vocabulary(tmp_path: Path) -> VocabularyFile:
    save_byte_table(tmp_path / FILE_NAME, BYTE_TABLE)
    return VocabularyFile(tmp_path / FILE_NAME, VOCAB_SIZE, frozenset([EOS]))


def token(character: str) -> int:
    return BYTE_TABLE.index(character.encode())


def apply(chain: LogitsChain, drawn: Sequence[int], logits: Any = None, stream_ptr: int | None = None) -> Any:
    """Return the logits [num_logits] after one call; zeros before it, unless given."""
    row = np.zeros(NUM_PADDED, dtype=np.float32) if logits is None else np.array(logits, dtype=np.float32)
    chain(1, tensors.to_tensor(row).reshape(1, 1, -1), [[*PROMPT, *drawn]], stream_ptr, None)
    return row


def possible(row: Any) -> list[int]:
    return [int(index) for index in np.flatnonzero(np.isfinite(row))]


def chain_of(*edits: Any) -> LogitsChain:
    return LogitsChain(edits, VOCAB_SIZE, UNUSED)


def allowed(
    vocabulary: VocabularyFile,
    regex: str = "",
    *,
    banned: frozenset[int] = frozenset(),
    ends: frozenset[int] = frozenset(),
    **fields: Any,
) -> AllowedTokens:
    form = {"structured_output": StructuredOutput(OutputFormat.REGEX, regex)} if regex else {}
    return AllowedTokens(vocabulary, request(**form, **fields), bool(regex), banned=banned, ends=ends)


def shaping(bias: dict[int, float] | None = None, **fields: Any) -> LogitsChain:
    return chain_of(Shaping(SamplingParams(**fields), bias or {}, PROMPT))


def test_logits_that_only_pad_the_matrix_and_the_dead_end_are_impossible() -> None:
    assert possible(apply(chain_of(), [])) == list(range(1, VOCAB_SIZE))


def test_edits_run_on_the_stream_that_is_given() -> None:
    entered: list[int] = vars(tensors)["torch"].cuda.entered
    before = len(entered)
    apply(chain_of(), [], stream_ptr=42)
    apply(chain_of(), [], stream_ptr=None)
    assert entered[before:] == [42]


def test_every_copy_of_a_chain_does_the_same(vocabulary: VocabularyFile) -> None:
    regex = allowed(vocabulary, "[a-d]{12}")
    mirostat = Shaping(SamplingParams(mirostat=Mirostat(), seed=7), {}, PROMPT)
    one, other = (pickle.loads(pickle.dumps(chain_of(regex, mirostat))) for _ in range(2))
    drawn: list[int] = []
    for _ in range(12):
        [chosen] = possible(apply(one, drawn))
        assert possible(apply(other, drawn)) == [chosen]
        drawn.append(chosen)
    assert len(set(drawn)) > 1
    assert set(drawn) <= {token(character) for character in "abcd"}


def test_ranks_decide_alike_though_their_garbage_goes_at_different_times(tmp_path: Path) -> None:
    """Each worker limited the grammars that its own garbage collector had not freed yet."""
    found: list[list[int]] = []
    for name, keeps_garbage in (("tidy", False), ("late", True)):
        path = tmp_path / f"{name}.npz"
        save_byte_table(path, BYTE_TABLE)
        rank, garbage = VocabularyFile(path, VOCAB_SIZE, frozenset([EOS])), []
        for number in range(4):
            form = StructuredOutput(OutputFormat.REGEX, f"a{number}")
            large = request(structured_output=form, grammar_bytes=MAX_SENDER_BYTES)
            chain = pickle.loads(pickle.dumps(chain_of(AllowedTokens(rank, large, True))))
            found.append(possible(apply(chain, [])))
            garbage += [chain] * keeps_garbage
    assert found == [[token("a")]] * 8


def test_the_dead_end_is_drawn_if_a_regex_allows_no_token(vocabulary: VocabularyFile) -> None:
    banned = chain_of(allowed(vocabulary, "ab", banned=frozenset([token("a")])))
    assert possible(apply(banned, [])) == [UNUSED]
    strayed = chain_of(allowed(vocabulary, "ab"))
    apply(strayed, [])
    assert possible(apply(strayed, [token("z")])) == [UNUSED]


def test_only_allowed_token_ids_are_possible_beside_all_else(vocabulary: VocabularyFile) -> None:
    a, b, c = map(token, "abc")
    assert possible(apply(chain_of(allowed(vocabulary, allowed_token_ids=(c, a))), [])) == [a, c]
    chain = chain_of(allowed(vocabulary, "a[bcd]", bad_words=("ab",), allowed_token_ids=(a, b, c)))
    assert possible(apply(chain, [])) == [a]
    assert possible(apply(chain, [a])) == [c]


def test_ends_are_impossible_before_min_tokens(vocabulary: VocabularyFile) -> None:
    chain = chain_of(allowed(vocabulary, ends=frozenset([EOS, 20]), min_tokens=2))
    assert not {EOS, 20} & set(possible(apply(chain, [])))
    assert not {EOS, 20} & set(possible(apply(chain, [30])))
    assert {EOS, 20} <= set(possible(apply(chain, [30, 31])))
    complete = chain_of(allowed(vocabulary, "ab?", ends=frozenset([EOS]), min_tokens=3))
    a, b = map(token, "ab")
    assert possible(apply(complete, [])) == [a]
    assert possible(apply(complete, [a])) == [b]
    assert possible(apply(complete, [a, b])) == [EOS]


def test_a_token_that_the_gpu_has_not_returned_yet_is_a_dead_end() -> None:
    chain = chain_of()
    apply(chain, [])
    assert possible(apply(chain, [])) == [UNUSED]


def test_calls_for_the_chunks_of_a_prompt_change_nothing(vocabulary: VocabularyFile) -> None:
    def chain() -> LogitsChain:
        regex = allowed(vocabulary, "[a-d]{12}")
        mirostat = Shaping(SamplingParams(mirostat=Mirostat(), seed=7), {}, PROMPT)
        return LogitsChain((regex, mirostat), VOCAB_SIZE, UNUSED, is_called_per_chunk=True)

    whole, chunked = chain(), chain()
    for _ in range(3):
        apply(chunked, [])
    drawn: list[int] = []
    for _ in range(12):
        [chosen] = possible(apply(whole, drawn))
        assert possible(apply(chunked, drawn)) == [chosen]
        drawn.append(chosen)
    assert possible(apply(chunked, drawn[:-1])) == [UNUSED]  # it knows no more than before


def test_the_repetition_penalty_is_of_prompt_and_completion() -> None:
    logits = np.ones(VOCAB_SIZE)
    logits[11] = -1.0
    chain = shaping(repetition_penalty=2.0)
    apply(chain, [])
    row = apply(chain, [20], logits)
    assert [row[index] for index in (10, 11, 20, 21)] == [0.5, -2.0, 0.5, 1.0]


def test_a_token_that_was_drawn_without_a_call_is_reported_where_sequences_are_paused() -> None:
    chain = LogitsChain([], VOCAB_SIZE, UNUSED, num_given=1, hidden_ends=frozenset([EOS]))
    assert possible(apply(chain, [20])) == possible(apply(chain, [20, 21])) == list(range(1, VOCAB_SIZE))
    assert possible(apply(chain, [20, 21, 22, 23])) == [UNUSED]


def test_presence_and_frequency_penalties_are_of_the_completion_only_and_biases_are_added() -> None:
    chain = shaping({7: 2.5, 9: -3.0}, presence_penalty=0.5, frequency_penalty=0.25)
    apply(chain, [])
    row = apply(chain, [20, 20, 21])
    assert [row[index] for index in (7, 9, 10, 20, 21, 22)] == [2.5, -3.0, 0.0, -1.0, -0.75, 0.0]
    assert apply(chain, [20, 20, 21, 20])[20] == -1.25


def test_min_p_applies_to_the_distribution_after_temperature() -> None:
    logits = np.log(np.array([1e-9, 0.5, 0.3, 0.06, 0.04, *[1e-9] * (VOCAB_SIZE - 5)]))
    assert possible(apply(shaping(min_p=0.1), [], logits)) == [1, 2, 3]
    # Temperature 2 turns each share into its square root.
    assert possible(apply(shaping(min_p=0.1, temperature=2.0), [], logits)) == [1, 2, 3, 4]


def test_mirostat_leaves_one_token_and_keeps_surprise_near_its_target() -> None:
    random = np.random.default_rng(1)
    logits = random.normal(scale=1.5, size=2000).astype(np.float32)
    shares = np.exp(logits) / np.exp(logits).sum()
    means = []
    for target in (2.0, 5.0):
        mirostat = MirostatDraw(Mirostat(target=target), seed=3)
        drawn = [mirostat.draw(logits, position) for position in range(400)]
        means.append(float(np.mean([-np.log2(shares[token_id]) for token_id in drawn[50:] if token_id is not None])))
    assert 2.0 <= means[0] < means[1]
    assert means[1] < -float((shares * np.log2(shares)).sum())
    assert mirostat.draw(np.full(5, -np.inf, dtype=np.float32), 0) is None  # nothing is left


def test_mirostat_does_not_change_a_greedy_draw() -> None:
    row = apply(shaping(mirostat=Mirostat(), temperature=0.0, repetition_penalty=1.5), [], np.ones(NUM_PADDED))
    assert possible(row) == list(range(1, VOCAB_SIZE))
