"""What every runtime with a vocabulary of its own refuses."""

from __future__ import annotations

from collections.abc import Collection

from model_repository.contract import BAD_WORDS, GUIDED_DECODING_GUIDE
from model_repository.errors import InvalidRequest, UnknownAdapter
from model_repository.stage_messages import EngineRequest


def check_request(request: EngineRequest, vocab_size: int, adapters: Collection[str]) -> None:
    """Refuse tokens that are not there, for which a runtime may fail a whole batch, and unknown adapters.

    Raises:
        InvalidRequest: names the input, the value and what there is.
        UnknownAdapter: likewise.
    """
    if not request.prompt_token_ids:
        raise InvalidRequest("the prompt must not be empty", "prompt_token_ids")
    for name, token_ids in (
        ("prompt_token_ids", request.prompt_token_ids),
        ("stop_token_ids", request.stop_token_ids),
        ("end_token_ids", request.end_token_ids),
        ("logit_bias_token_ids", request.sampling.logit_bias),
    ):
        unknown = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
        if unknown is not None:
            raise InvalidRequest(f"{unknown}: token ids are from 0 to {vocab_size - 1}", name)
    if request.lora_name and request.lora_name not in adapters:
        raise UnknownAdapter(f"{request.lora_name!r}: expected one of {sorted(adapters)}", "lora_name")


def constraint_field(request: EngineRequest) -> str:
    """Return the input to name where nothing can follow: the guide, else the bad words; empty without both."""
    if request.guide is not None:
        return GUIDED_DECODING_GUIDE.name
    return BAD_WORDS.name if request.bad_words else ""
