"""Log probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.translate.logprobs import CompletionLogprobsWriter, chat_logprobs, mean_logprob, prompt_logprobs
from model_repository.contract.codec import pack_logprobs
from model_repository.contract.output import GenerationChunk, TokenLogprob, TopLogprob
from tests.frontend.answers import written

NO_CHANCE = float("-inf")


def token(text: str | bytes, logprob: float | None = -1.0, *top: TopLogprob) -> TokenLogprob:
    return TokenLogprob(1, text if isinstance(text, bytes) else text.encode(), logprob, top)


def told(*items: TokenLogprob, **options: bool) -> list[Any]:
    """Return the tokens of a chat."""
    return [*chat_logprobs(pack_logprobs(items), **options)]


def lists_of(*items: TokenLogprob, writer: CompletionLogprobsWriter | None = None, num_prompt_tokens: int = 0) -> Any:
    """Return the lists of a completion."""
    return written((writer or CompletionLogprobsWriter(0)).write(pack_logprobs(items), num_prompt_tokens))


def other(text: str | bytes, logprob: float) -> TopLogprob:
    return TopLogprob(2, text if isinstance(text, bytes) else text.encode(), logprob)


EURO = [token(b"\xe2\x82"), token(b"\xac")]


def test_a_chats_token_has_its_text_bytes_and_rivals() -> None:
    assert told(token("é", -0.5, other("é", -0.5), other(b"\xe2\x82", -2.0))) == [
        {
            "token": "é",
            "logprob": -0.5,
            "bytes": [0xC3, 0xA9],
            "top_logprobs": [
                {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
                {"token": "\ufffd", "logprob": -2.0, "bytes": [0xE2, 0x82]},
            ],
        }
    ]
    assert told() == []


def test_a_token_without_text_is_not_among_a_chats_tokens() -> None:
    """The end token was there as an empty text, beside its own name among the likeliest ones. OpenAI leaves it out."""
    end = token("", -1.0, other("<|end|>", -1.0))
    assert told(token("a"), end) == told(token("a"))
    assert len(told(token("a"), end, is_whole=True)) == 2  # as in the list of token ids


def test_tokens_are_named_by_their_ids_as_vllm_does() -> None:
    items = [token("a", -0.5, other("b", -0.25)), token("", -1.0, TopLogprob(1, b"<|end|>", -1.0))]
    content = told(*items, has_ids=True, is_whole=True)
    assert [(item["token"], [each["token"] for each in item["top_logprobs"]]) for item in content] == [
        ("token_id:1", ["token_id:2"]),
        ("token_id:1", ["token_id:1"]),
    ]
    lists = lists_of(*items, writer=CompletionLogprobsWriter(0, has_ids=True))
    assert lists["tokens"] == ["token_id:1", "token_id:1"]
    assert lists["top_logprobs"] == [{"token_id:2": -0.25, "token_id:1": -0.5}, {"token_id:1": -1.0}]
    assert lists["text_offset"] == [0, 1]


def test_a_prompts_tokens_have_vllms_form() -> None:
    top = TopLogprob(7, b"x", -0.5), TopLogprob(1, b"\xe2", -2.0)
    items = [
        TokenLogprob(5, b"a", None),
        TokenLogprob(9, b"b", NO_CHANCE, top, 30),
        TokenLogprob(1, b"\xe2", -2.0, top, 2),
    ]
    first, second, third = written(prompt_logprobs(pack_logprobs(items)))
    likely = {
        "7": {"logprob": -0.5, "rank": 1, "decoded_token": "x"},
        "1": {"logprob": -2.0, "rank": 2, "decoded_token": "\ufffd"},
    }
    assert first is None
    assert second == {"9": {"logprob": -9999.0, "rank": 30, "decoded_token": "b"}} | likely
    assert third == likely
    assert (list(second or ()), list(third or ())) == (["9", "7", "1"], ["1", "7"])  # a token's own comes first


def test_json_has_no_infinity() -> None:
    item = token("a", NO_CHANCE, other("b", NO_CHANCE))
    (found,) = told(item)
    assert (found["logprob"], found["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    lists = lists_of(item)
    assert (lists["token_logprobs"], lists["top_logprobs"]) == ([-9999.0], [{"b": -9999.0, "a": -9999.0}])


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_offsets_go_on_from_piece_to_piece_and_count_a_split_character_once(cut: int) -> None:
    items = [token("🙂é"), *EURO, token("!")]
    writer = CompletionLogprobsWriter(0)
    pieces = [lists_of(*each, writer=writer) for each in (items[:cut], [], items[cut:])]
    assert [each for piece in pieces for each in piece["tokens"]] == ["🙂é", "bytes:\\xe2\\x82", "bytes:\\xac", "!"]
    assert [each for piece in pieces for each in piece["text_offset"]] == [0, 2, 2, 3]


def test_the_first_token_of_an_echoed_prompt_has_no_probability() -> None:
    lists = lists_of(token("a", None), token("b", -1.0))
    assert lists["token_logprobs"] == [None, -1.0]
    assert lists["top_logprobs"] == [None, {"b": -1.0}]


def test_a_probability_that_was_not_reported_is_not_certainty() -> None:
    item = token("a", None, other("b", -0.25))
    assert told(item)[0]["logprob"] == -9999.0
    lists = lists_of(item)
    assert (lists["token_logprobs"], lists["top_logprobs"]) == ([None], [{"b": -0.25}])


def test_the_drawn_token_is_always_among_the_likely_ones() -> None:
    top = (other("x", -0.1), other("y", -0.2))
    (rivals,) = lists_of(token("z", -5.0, *top))["top_logprobs"]
    assert rivals == {"x": -0.1, "y": -0.2, "z": -5.0}
    (rivals,) = lists_of(token("y", -0.2, *top))["top_logprobs"]
    assert rivals == {"x": -0.1, "y": -0.2}
    same_text = (other("x", -0.1), other("x", -0.2), other("y", -0.3))
    (rivals,) = lists_of(token("z", -5.0, *same_text))["top_logprobs"]
    assert rivals == {"x": -0.1, "y": -0.3, "z": -5.0}, "the likelier one of two with one text"


def test_the_mean_is_over_the_completions_own_tokens() -> None:
    echoed = (token("p", None), token("q", -100.0))
    own = (token("a", -1.0), token("b", -2.0))
    assert mean_logprob(GenerationChunk(text="ab", logprobs=pack_logprobs(own))) == -1.5
    assert mean_logprob(GenerationChunk(text="pqab", logprobs=pack_logprobs(echoed + own), num_prompt_tokens=2)) == -1.5
    assert mean_logprob(GenerationChunk(text="pq", logprobs=pack_logprobs(echoed), num_prompt_tokens=2)) == NO_CHANCE


@pytest.mark.parametrize(
    ("tokens", "offsets"),
    [
        ([b"\xa3", b"a", b"b"], [0, 1, 2]),  # never a character
        ([b"\xe2", b"a", b"b"], [0, 1, 2]),  # the beginning of one, not finished
        ([b"\xe2\x82", b"\xac", b"b"], [0, 0, 1]),
        ([b"\xe2\x82", b"\xe2\x82\xac", b"b"], [0, 1, 2]),
    ],
)
def test_offsets_count_the_replacements_of_broken_characters(tokens: list[bytes], offsets: list[int]) -> None:
    assert lists_of(*map(token, tokens))["text_offset"] == offsets
    one_by_one = CompletionLogprobsWriter(0)
    assert [lists_of(token(each), writer=one_by_one)["text_offset"][0] for each in tokens] == offsets


def test_an_echoed_prompt_that_ends_inside_a_character_is_decoded_apart() -> None:
    logprobs = lists_of(token(b"\xe7"), token(b"\x8c"), token("b"), num_prompt_tokens=1)
    assert logprobs["text_offset"] == [0, 1, 2]


def test_an_end_token_has_its_own_name_where_that_is_known_and_is_named_once() -> None:
    ended = TokenLogprob(1, b"", -0.1, (TopLogprob(1, b"<|end|>", -0.1), TopLogprob(2, b"a", -3.0)))
    logprobs = lists_of(ended)
    assert logprobs["tokens"] == ["<|end|>"]
    assert logprobs["top_logprobs"] == [{"<|end|>": -0.1, "a": -3.0}]
    assert lists_of(TokenLogprob(1, b"", -0.1))["tokens"] == [""]


def test_a_token_that_was_cut_is_named_as_it_stands_in_the_text() -> None:
    cut = TokenLogprob(1, b" ", -0.1, (TopLogprob(1, b" Paris", -0.1), TopLogprob(2, b" Rome", -3.0)))
    assert lists_of(cut)["top_logprobs"] == [{" ": -0.1, " Rome": -3.0}]
