"""Log probabilities in the two shapes of OpenAI's API, and those of prompts in vLLM's."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterable, Iterator, Sequence

from frontend.json_pieces import lazy_list
from frontend.protocol import answers
from frontend.protocol.answers import CompletionLogprobs, PromptLogprob
from model_repository.contract.codec import unpack_drawn, unpack_logprobs
from model_repository.contract.output import GenerationChunk, TokenLogprob, TopLogprob

_LEAST = -9999.0  # OpenAI's stand-in for minus infinity, and for a token that is not among the likely ones


def chat_logprobs(
    parts: Iterable[bytes], *, has_ids: bool = False, is_whole: bool = False
) -> Iterator[answers.TokenLogprob]:
    """Yield the log probabilities of a chat's content, with the bytes of each token.

    Args:
        parts: of the tokens drawn, packed.
        has_ids: tokens are named by their ids.
        is_whole: tokens without text, such as end tokens, are included, as in the list of token ids.
    """
    for item in unpack_logprobs(parts):
        if is_whole or item.token_bytes:
            yield {
                "token": _chat_token(item, has_ids),
                "logprob": _LEAST if item.logprob is None else _finite(item.logprob),
                "bytes": list(item.token_bytes),
                "top_logprobs": [
                    {
                        "token": _chat_token(each, has_ids),
                        "logprob": _finite(each.logprob),
                        "bytes": list(each.token_bytes),
                    }
                    for each in item.top
                ],
            }


def _chat_token(item: TokenLogprob | TopLogprob, has_ids: bool) -> str:
    return _id_text(item.token_id) if has_ids else item.token_bytes.decode("utf-8", "replace")


def _id_text(token_id: int) -> str:
    """Return a token's id in vLLM's form."""
    return f"token_id:{token_id}"


class CompletionLogprobsWriter:
    """Writes the log probabilities of one completion. Offsets continue from piece to piece.

    Args:
        num_chars: characters of the prompt; 0 if the text begins with the prompt.
        has_ids: tokens are named by their ids.
    """

    def __init__(self, num_chars: int, *, has_ids: bool = False) -> None:
        self._num_chars = num_chars
        self._has_ids = has_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, parts: Sequence[bytes], num_prompt_tokens: int = 0) -> CompletionLogprobs:
        """Return the lists of the next tokens, to be written once.

        Args:
            parts: of the tokens, packed.
            num_prompt_tokens: number of the tokens, from the first one, that belong to an echoed prompt.
        """
        return {
            "text_offset": lazy_list(lambda: self._offsets(parts, num_prompt_tokens)),
            "token_logprobs": lazy_list(
                lambda: (None if each is None else _finite(each) for each in unpack_drawn(parts))
            ),
            "tokens": lazy_list(lambda: map(self._name, unpack_logprobs(parts))),
            "top_logprobs": lazy_list(
                lambda: (self._top(item, self._name(item)) or None for item in unpack_logprobs(parts))
            ),
        }

    def _offsets(self, parts: Iterable[bytes], num_prompt_tokens: int) -> Iterator[int]:
        for index, item in enumerate(unpack_logprobs(parts)):
            if num_prompt_tokens and index == num_prompt_tokens:  # prompt and completion are decoded apart
                self._num_chars += len(self._decoder.decode(b"", final=True))
            yield self._num_chars + self._num_broken_before(item.token_bytes)
            self._num_chars += len(self._decoder.decode(item.token_bytes))

    def _name(self, item: TokenLogprob) -> str:
        return _id_text(item.token_id) if self._has_ids else _name(item)

    def _top(self, item: TokenLogprob, name: str) -> dict[str, float]:
        """Return the likely tokens and the drawn one, which has a name of its own; of equal names the likeliest."""
        top = {
            name if each.token_id == item.token_id else self._text(each): _finite(each.logprob)
            for each in reversed(item.top)
        }
        drawn = {} if item.logprob is None else {name: _finite(item.logprob)}
        return dict(reversed(top.items())) | drawn

    def _text(self, item: TopLogprob) -> str:
        return _id_text(item.token_id) if self._has_ids else _token_text(item.token_bytes)

    def _num_broken_before(self, token_bytes: bytes) -> int:
        """Return 1 if these bytes do not continue the unfinished character before them, else 0."""
        pending = self._decoder.getstate()[0]
        if not pending or not token_bytes:
            return 0
        try:
            codecs.getincrementaldecoder("utf-8")("strict").decode(pending + token_bytes[:1])
        except UnicodeDecodeError:
            return 1
        return 0


def prompt_logprobs(parts: Iterable[bytes]) -> list[dict[str, PromptLogprob] | None]:
    """Return the log probabilities of a prompt's tokens, by token id: each token's own, then the likely ones.

    Source: `prompt_logprobs` in vLLM's answers. Ids are names already, so `return_tokens_as_token_ids` changes nothing.
    """
    return lazy_list(lambda: map(_prompt_token, unpack_logprobs(parts)))


def _prompt_token(item: TokenLogprob) -> dict[str, PromptLogprob] | None:
    if item.logprob is None:
        return None
    likely = {
        str(each.token_id): _ranked(each.logprob, rank, each.token_bytes) for rank, each in enumerate(item.top, 1)
    }
    return {str(item.token_id): _ranked(item.logprob, item.rank, item.token_bytes)} | likely


def _ranked(logprob: float, rank: int | None, token_bytes: bytes) -> PromptLogprob:
    return {"logprob": _finite(logprob), "rank": rank, "decoded_token": token_bytes.decode("utf-8", "replace")}


def mean_logprob(chunk: GenerationChunk) -> float:
    """Return the mean log probability of the completion's own tokens; minus infinity for an empty text."""
    own = itertools.islice(unpack_drawn(chunk.logprobs), chunk.num_prompt_tokens, None)
    values = [logprob for logprob in own if logprob is not None]
    return sum(values) / len(values) if values else float("-inf")


def _name(item: TokenLogprob) -> str:
    """Return the text that a token adds. An end token adds no text: return its name if it is known."""
    if not item.token_bytes:
        item_itself = next((each for each in item.top if each.token_id == item.token_id), None)
        return "" if item_itself is None else _token_text(item_itself.token_bytes)
    return _token_text(item.token_bytes)


def _token_text(token_bytes: bytes) -> str:
    """Return a token as text; a token with partial characters by its bytes, as OpenAI does."""
    try:
        return token_bytes.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
