"""Every kind of prompt to token ids, and to the bytes of an echo."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from model_repository.contract.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from model_repository.contract.spec import specs_of
from model_repository.tokenizer import echo
from model_repository.tokenizer.bounded_cache import BoundedCache
from model_repository.tokenizer.chat_prompt import ChatEncoder
from model_repository.tokenizer.fill_in_middle import FillInMiddleEncoder
from model_repository.tokenizer.text_limit import TextLimit
from model_repository.tokenizer.tokenizer_files import TokenizerFiles
from model_repository.tokenizer.vocabulary import Vocabulary

# A chat template may write the current time.
KEPT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPrompt:
    """A prompt's tokens."""

    token_ids: tuple[int, ...]
    echo: tuple[bytes, ...] = ()  # the bytes of each token in the echoed text
    end_token_ids: tuple[int, ...] = ()  # end this completion, besides the model's own end tokens


def _num_bytes(prompt: EncodedPrompt) -> int:
    return 40 * len(prompt.token_ids) + sum(map(sys.getsizeof, prompt.echo))


class PromptEncoder:
    """Encodes prompts, chats in the tool call format of this name in `tool_formats`."""

    def __init__(self, files: TokenizerFiles, byte_table: Sequence[bytes], tool_call_format: str) -> None:
        self.vocabulary = Vocabulary(files.tokenizer, len(byte_table))
        self._byte_table = byte_table
        self._fill_in_middle = FillInMiddleEncoder(self.vocabulary)
        self._chat = ChatEncoder(files, self.vocabulary, tool_call_format)
        self._cache: BoundedCache[EncodedPrompt] = BoundedCache(_num_bytes, KEPT_S)

    def encode(
        self,
        prompt: Prompt,
        *,
        is_echo: bool = False,
        add_special_tokens: bool = True,
        limit: TextLimit = lambda text, field: None,
    ) -> EncodedPrompt:
        """Return the prompt's tokens.

        Args:
            is_echo: also return the bytes of each token. A text prompt is echoed exactly, without its suffix; any other
                prompt as the bytes of its tokens, without special tokens.
            add_special_tokens: add the tokenizer's own tokens to a text prompt, such as a BOS token.

        Raises:
            InvalidRequest: a token is unknown, or the limit or the chat template refuses the prompt.
            Unsupported: it has a suffix, and the model cannot fill in the middle.
        """
        return self._cache.get(
            (prompt, is_echo, add_special_tokens), lambda: self._encode(prompt, is_echo, add_special_tokens, limit)
        )

    def _encode(self, prompt: Prompt, is_echo: bool, add_special_tokens: bool, limit: TextLimit) -> EncodedPrompt:
        token_ids: Sequence[int]
        echoed: tuple[bytes, ...] = ()
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
                token_ids = self._chat.encode(prompt, limit)
            case TokenPrompt(token_ids):
                pass
        self.vocabulary.check(token_ids, field)
        if is_echo and not isinstance(prompt, TextPrompt):
            echoed = tuple(self._byte_table[token_id] for token_id in token_ids)
        return EncodedPrompt(token_ids=tuple(token_ids), echo=echoed)

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


def prompt_field(prompt: Prompt) -> str:
    """Return the name of the tensor that carries this kind of prompt."""
    return specs_of(type(prompt))[0].name
