"""The body of an embeddings request, and its common part with requests for scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from frontend.protocol.body import Refused, declared, optional
from frontend.protocol.fields import QueuedBody
from frontend.protocol.prompts import Prompt, prompts_of
from model_repository.contract.spec import MAX_INT32

MAX_INPUTS = 2048  # OpenAI's
MAX_CHARS = 2**22  # of all inputs together: the texts of a million tokens, as many as a body may have token ids


def _not_too_long(inputs: list[Prompt]) -> list[Prompt]:
    num_chars = sum(len(each) for each in inputs if isinstance(each, str))
    if num_chars > MAX_CHARS:
        raise PydanticCustomError("too_long", f"{num_chars} characters together are more than {MAX_CHARS}")
    return inputs


Inputs = Annotated[list[Prompt], prompts_of(MAX_INPUTS), AfterValidator(_not_too_long)]


class EncoderBody(QueuedBody):
    """The fields of requests without a completion."""

    refused: ClassVar[Mapping[str, Refused]] = {
        "truncate": Refused(False, "NONE", instead="truncate_prompt_tokens"),
        "truncation": Refused(False, instead="truncate_prompt_tokens"),
        "truncation_side": Refused("right"),
        "add_special_tokens": Refused(True),
        "padding": Refused("do_not_pad"),
        "mm_processor_kwargs": Refused({}),
    }
    hints: ClassVar[Mapping[str, tuple[Any, ...]]] = {"cache_salt": ()}  # no KV tokens are kept

    # The name of the field with the prompts; with pairs, of the field with the second texts.
    prompts: ClassVar[str] = "input"

    model: Annotated[str, Field(min_length=1, description="a model's id or an alias")]

    @property
    def num_prompts(self) -> int:
        return len(getattr(self, self.prompts))


class EmbeddingRequest(EncoderBody):
    """The body of POST /v1/embeddings."""

    refused: ClassVar[Mapping[str, Refused]] = {
        **EncoderBody.refused,
        "output_dimension": Refused(instead="dimensions"),
        "embedding_type": Refused("float", instead="encoding_format"),
        "output_dtype": Refused("float", instead="encoding_format"),
        "embed_dtype": Refused("float32", instead="encoding_format"),
        "messages": Refused([], instead="input"),
        "images": Refused([], instead="input"),
        "input_type": Refused(instead="input"),
        "prompt_name": Refused(instead="input"),
        "task": Refused("embed", instead="input"),
        "endianness": Refused("native", "little"),
        "normalize": Refused(True),
        "normalized": Refused(True),
        "use_activation": Refused(True),
        "late_chunking": Refused(False),
    }

    input: Annotated[
        Inputs, Field(description="a text, a list of token ids, or a list of one of these; each gets a vector")
    ]
    dimensions: int | None = optional(
        32,
        "the vectors have this number of values: the model's own, or fewer if it was trained for it",
        ge=1,
        le=MAX_INT32,
    )
    encoding_format: Literal["float", "base64"] | None = optional(
        "base64", "base64: the bytes of float32 numbers, little-endian"
    )
    truncate_prompt_tokens: int | None = declared(
        "truncate_prompt_tokens",
        3,
        "each input keeps only this number of its first tokens, and the tokenizer's end tokens; "
        "-1: as many as the context window has",
    )
