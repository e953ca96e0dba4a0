"""The text of token ids that are no completion: a client has sent them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import Tokenizer

from model_repository.contract.request import DetokenizeRequest
from model_repository.contract.tensors import DETOKENIZE
from model_repository.errors import InvalidRequest


class TokenText:
    """Returns the text of token ids by the byte table, with or without the strings of special tokens."""

    def __init__(self, tokenizer: Tokenizer, byte_table: Sequence[bytes]) -> None:
        self._byte_table = byte_table
        self._special = {
            token_id: token.content.encode()
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token_id >= len(byte_table) or not byte_table[token_id]
        }
        self._num_stripped_spaces = 0  # the largest number of spaces removed from the start of a text
        match json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else None:
            case {"decoders": [*_, {"type": "Strip", "content": " ", "start": start}]}:
                self._num_stripped_spaces = start
            case {"type": "Metaspace", **options} if options.get("prepend_scheme") != "never":
                self._num_stripped_spaces = 1

    def of(self, request: DetokenizeRequest) -> str:
        """Return a text. U+FFFD replaces bytes that are not UTF-8.

        A text without special tokens keeps its leading spaces: it may continue another one.

        Raises:
            InvalidRequest: an id is outside the vocabulary.
        """
        table, token_ids = self._byte_table, request.token_ids
        special = self._special if request.has_special_tokens else {}
        for token_id in token_ids:
            if not 0 <= token_id < len(table) and token_id not in special:
                raise InvalidRequest(f"{token_id} is not a token: they are 0 to {len(table) - 1}", DETOKENIZE.name)
        text = b"".join([special.get(token_id) or table[token_id] for token_id in token_ids]).decode("utf-8", "replace")
        num_spaces = self._num_stripped_spaces if request.has_special_tokens else 0
        return text[:num_spaces].lstrip(" ") + text[num_spaces:]
