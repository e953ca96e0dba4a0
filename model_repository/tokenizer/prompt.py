"""Every kind of prompt to token ids, and to the bytes of an echo."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace
from tokenizers import AddedToken, Tokenizer

from model_repository.contract.request import (
    IMAGE_MARKER,
    IMAGE_PLACE,
    ChatPrompt,
    PairPrompt,
    Prompt,
    TextPrompt,
    Thinking,
    TokenPrompt,
)
from model_repository.contract.spec import specs_of
from model_repository.errors import InvalidRequest
from model_repository.tokenizer import echo
from model_repository.tokenizer.bounded_cache import BoundedCache
from model_repository.tokenizer.chat_prompt import ChatEncoder
from model_repository.tokenizer.fill_in_middle import FillInMiddleEncoder
from model_repository.tokenizer.text_limit import TextLimit
from model_repository.tokenizer.tokenizer_files import TokenizerFiles
from model_repository.tokenizer.turns import Turns
from model_repository.tokenizer.vocabulary import Vocabulary

# A chat template may write the current time.
KEPT_S = 10.0


class EncodedPrompt(Struct, frozen=True, kw_only=True):
    """A prompt's tokens."""

    token_ids: tuple[int, ...]  # IMAGE_PLACE for each image
    echo: tuple[bytes, ...] = ()  # the bytes of each token in the echoed text
    end_token_ids: tuple[int, ...] = ()  # end this completion, besides the model's own end tokens
    thinking: Thinking | None = None  # None: all text behind it is the answer
    pair: tuple[str, str] | None = None  # its texts


def _num_bytes(prompt: EncodedPrompt) -> int:
    return 40 * len(prompt.token_ids) + sum(map(sys.getsizeof, prompt.echo))


class PromptEncoder:
    """Encodes prompts.

    Args:
        tool_call_format: of chats: a name in `tool_formats`.
        reasoning_format: of chats: a name in `reasoning_formats`; empty: the model does not think.
        has_images: the model reads images.
        has_token_types: see ModelParameters.
    """

    def __init__(
        self,
        files: TokenizerFiles,
        byte_table: Sequence[bytes],
        tool_call_format: str,
        reasoning_format: str = "",
        *,
        has_images: bool = False,
        has_token_types: bool = False,
    ) -> None:
        self.vocabulary = Vocabulary(files.tokenizer, len(byte_table))
        formats = tool_call_format, reasoning_format
        self._image_prompts = _ImagePromptEncoder(files, len(byte_table), *formats) if has_images else None
        self._byte_table = byte_table
        self._second_offset = len(byte_table) // 2 if has_token_types else 0  # of a pair's second text
        self._fill_in_middle = FillInMiddleEncoder(self.vocabulary)
        self._chat = ChatEncoder(files, self.vocabulary, *formats)
        self._cache: BoundedCache[EncodedPrompt] = BoundedCache(_num_bytes, KEPT_S)

    def encode(
        self,
        prompt: Prompt,
        *,
        num_images: int = 0,
        is_echo: bool = False,
        add_special_tokens: bool = True,
        limit: TextLimit = lambda text, field: None,
        owner: str = "",
    ) -> EncodedPrompt:
        """Return the prompt's tokens.

        Args:
            num_images: as many places for images the prompt must have. Without images `<image>` is plain text.
            is_echo: also return the bytes of each token. A text prompt is echoed exactly, without its suffix; any other
                prompt as the bytes of its tokens, without special tokens.
            add_special_tokens: add the tokenizer's own tokens to a text prompt, such as a BOS token.
            owner: work is kept for its next prompts. Others must not learn from the time which ones it had.

        Raises:
            InvalidRequest: a token is unknown, or the limit or the chat template refuses the prompt.
            Unsupported: it has a suffix, and the model cannot fill in the middle.
        """
        if num_images:
            assert self._image_prompts is not None, "the request's capabilities are checked before"
            return self._image_prompts.encode(prompt, num_images, limit, owner)
        return self._cache.get(
            (owner, prompt, is_echo, add_special_tokens),
            lambda: self._encode(prompt, is_echo, add_special_tokens, limit, owner),
        )

    def fitting(
        self, prompt: ChatPrompt, images: tuple[bytes, ...], max_tokens: int, max_bytes: int, owner: str
    ) -> tuple[ChatPrompt, tuple[bytes, ...]]:
        """Return a conversation without as few of its oldest turns as make it fit, and its images.

        Args:
            max_bytes: of so many tokens.
            owner: see `encode`.

        Raises:
            InvalidRequest: as for `encode`.
        """
        chat = self._image_prompts.chat if images and self._image_prompts is not None else self._chat
        turns = Turns(prompt, images)
        first = turns.first_that_fits(
            max_tokens,
            max_bytes,
            lambda part: chat.turn_lengths(part, owner),
            lambda part, kept: len(self.encode(part, num_images=len(kept), owner=owner).token_ids),
        )
        return turns.from_turn(first)

    def truncated(
        self, prompt: EncodedPrompt, num_tokens: int, *, keeps_beginning: bool = False, owner: str = ""
    ) -> EncodedPrompt:
        """Return the prompt's last tokens. It still ends as the template wrote it, so the thinking stays as it is.

        Args:
            keeps_beginning: return the first tokens, and behind them those at the end of every text. A pair loses the
                end of its second text.
            owner: see `encode`.

        Raises:
            InvalidRequest: a pair would keep no token of its second text.
        """
        if num_tokens >= len(prompt.token_ids):
            return prompt
        if prompt.pair is not None:
            return self._truncated_pair(prompt, *prompt.pair, num_tokens, owner)
        if keeps_beginning:
            last_ids = self.vocabulary.last_ids
            num_text = len(prompt.token_ids) - len(last_ids)
            ends = last_ids if prompt.token_ids[num_text:] == last_ids else ()
            kept = prompt.token_ids[: max(0, num_tokens - len(ends))]
            return replace(prompt, token_ids=(kept + ends)[:num_tokens])
        token_ids, echoed = prompt.token_ids[-num_tokens:], prompt.echo[-num_tokens:]
        if echoed and not any(echoed):  # the first token of all may stand for the whole text
            echoed = tuple(self._byte_table[token_id] for token_id in token_ids)
        return replace(prompt, token_ids=token_ids, echo=echoed)

    def _encode(
        self, prompt: Prompt, is_echo: bool, add_special_tokens: bool, limit: TextLimit, owner: str
    ) -> EncodedPrompt:
        token_ids: Sequence[int]
        echoed: tuple[bytes, ...] = ()
        thinking: Thinking | None = None
        field = prompt_field(prompt)
        match prompt:
            case TextPrompt(text, ""):
                limit(text, field)
                if is_echo:
                    encoding = self.vocabulary.encode_with_offsets(text, add_special_tokens=add_special_tokens)
                    token_ids = encoding.ids
                    echoed = echo.aligned(echo.spelled(text, encoding, self.vocabulary, self._byte_table), text)
                else:
                    token_ids = self.vocabulary.encode(text, add_special_tokens=add_special_tokens)
            case TextPrompt(text, suffix):
                limit(text + suffix, field)
                return self._encode_with_suffix(text, suffix, is_echo=is_echo)
            case ChatPrompt():
                token_ids, thinking = self._chat.encode(prompt, limit, owner)
            case TokenPrompt(token_ids):
                self.vocabulary.check(token_ids, field)
            case PairPrompt((first, second)):
                return EncodedPrompt(token_ids=self._encode_pair(first, second, limit, owner), pair=(first, second))
        self.vocabulary.check_encoded(token_ids, field)
        if is_echo and not isinstance(prompt, TextPrompt):
            echoed = tuple(self._byte_table[token_id] for token_id in token_ids)
        return EncodedPrompt(token_ids=tuple(token_ids), echo=echoed, thinking=thinking)

    def _encode_pair(self, first: str, second: str, limit: TextLimit, owner: str = "") -> tuple[int, ...]:
        """Return a pair's tokens, by the template of a reranker or else by the tokenizer's own tokens."""
        limit(first + second, "text_pair")
        token_ids = self._chat.encode_pair(first, second, limit, owner)
        types: Sequence[int] = ()
        if token_ids is None:
            pair = self.vocabulary.encode_pair(first, second)
            token_ids, types = pair.ids, pair.type_ids
        self.vocabulary.check(token_ids, "text_pair")
        if not self._second_offset:
            return tuple(token_ids)
        return tuple(each + self._second_offset * type_id for each, type_id in zip(token_ids, types, strict=True))

    def _truncated_pair(
        self, prompt: EncodedPrompt, first: str, second: str, num_tokens: int, owner: str
    ) -> EncodedPrompt:
        # Around the second text are the tokens that the pair shares with one of another second text.
        other = next(char for char in "abc" if char not in (second[0].lower(), second[-1].lower()))
        token_ids, other_ids = prompt.token_ids, self._encode_pair(first, other, lambda text, field: None, owner)
        num_before = _num_same(token_ids, other_ids)
        num_behind = _num_same(token_ids[:num_before:-1], other_ids[:num_before:-1])
        smallest = num_before + 1 + num_behind
        if num_tokens < smallest:
            rule = f"{num_tokens} leaves no token of the second text: at least {smallest} does"
            raise InvalidRequest(rule, "truncate_prompt_tokens")
        num_text = num_tokens - num_behind
        return replace(prompt, token_ids=token_ids[:num_text] + token_ids[len(token_ids) - num_behind :])

    def _encode_with_suffix(self, text: str, suffix: str, *, is_echo: bool) -> EncodedPrompt:
        tokens = self._fill_in_middle.encode(text, suffix)
        token_ids = [token_id for token_id, _ in tokens]
        self.vocabulary.check(token_ids, "text_input")
        pieces = [self._byte_table[token_id] if is_text else b"" for token_id, is_text in tokens]
        return EncodedPrompt(
            token_ids=tuple(token_ids),
            echo=echo.aligned(pieces, text) if is_echo else (),
            end_token_ids=self._fill_in_middle.end_token_ids,
        )


class _ImagePromptEncoder:
    """Encodes prompts with images: `<image>` in any text is a place for one."""

    def __init__(self, files: TokenizerFiles, num_tokens: int, tool_call_format: str, reasoning_format: str) -> None:
        tokenizer = Tokenizer.from_str(files.tokenizer.to_str())
        tokenizer.add_special_tokens([AddedToken(IMAGE_MARKER, normalized=False)])  # unless it has it
        self._vocabulary = Vocabulary(tokenizer, num_tokens, frozenset({IMAGE_MARKER}))
        self.chat = ChatEncoder(files, self._vocabulary, tool_call_format, reasoning_format)
        self._marker_id = self._vocabulary.added_id(IMAGE_MARKER)

    def encode(self, prompt: Prompt, num_images: int, limit: TextLimit, owner: str) -> EncodedPrompt:
        """Return the tokens, with IMAGE_PLACE for each image.

        Raises:
            InvalidRequest: the prompt has another number of places, its form takes none, or it is refused without
                images too.
        """
        thinking: Thinking | None = None
        match prompt:
            case TextPrompt(text, ""):
                limit(text, prompt_field(prompt))
                token_ids: Sequence[int] = self._vocabulary.encode(text)
            case ChatPrompt():
                token_ids, thinking = self.chat.encode(prompt, limit, owner)
            case _:
                raise InvalidRequest("they go with messages, or with a text prompt without suffix", "images")
        num_places = sum(token_id == self._marker_id for token_id in token_ids)
        if num_places != num_images:
            rule = f"{num_images} images for {num_places} `{IMAGE_MARKER}` in the prompt: each needs one"
            raise InvalidRequest(rule, "images")
        if token_ids[-1] == self._marker_id:  # its tokens have no logits of their own
            raise InvalidRequest("text must follow the last image", prompt_field(prompt))
        self._vocabulary.check(set(token_ids) - {self._marker_id}, prompt_field(prompt))
        placed = tuple(IMAGE_PLACE if token_id == self._marker_id else token_id for token_id in token_ids)
        return EncodedPrompt(token_ids=placed, thinking=thinking)


def _num_same(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of tokens at the beginning of both."""
    pairs = itertools.takewhile(lambda each: each[0] == each[1], zip(first, second, strict=False))
    return sum(1 for _ in pairs)


def prompt_field(prompt: Prompt) -> str:
    """Return the name of the tensor that carries this kind of prompt."""
    return specs_of(type(prompt))[0].name
