"""The bodies of requests for scores: Cohere's and Jina's /v1/rerank, vLLM's /v1/score and /v1/classify."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from frontend.protocol.body import Body, Refused, broken_rule, declared, optional
from frontend.protocol.embeddings import MAX_CHARS, MAX_INPUTS, EncoderBody, Inputs
from frontend.protocol.fields import as_list
from model_repository.contract.spec import MAX_INT32

_Text = Annotated[str, Field(min_length=1)]


class ScoringBody(EncoderBody):
    """The fields of all requests for scores."""

    refused: ClassVar[Mapping[str, Refused]] = {
        **EncoderBody.refused,
        "activation": Refused(instead="use_activation"),
        "softmax": Refused(instead="use_activation"),
        "chat_template": Refused(),
        "return_embeddings": Refused(False),
    }

    use_activation: bool | None = optional(
        False, "false: the model's own numbers, without sigmoid or softmax (default: true)"
    )
    truncate_prompt_tokens: int | None = declared(
        "truncate_prompt_tokens",
        5,
        "each text keeps only this number of its first tokens, and the tokenizer's end tokens; a pair "
        "loses the end of its second text; -1: as many as the context window has",
    )

    @property
    def has_activation(self) -> bool:
        return self.use_activation is not False


class Document(Body):
    """A document in Jina's form."""

    text: _Text


def _as_document(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise PydanticCustomError("document_type", 'Input should be a text or {"text": ...}')
    return {"text": value} if isinstance(value, str) else value


_Document = Annotated[Document, BeforeValidator(_as_document, json_schema_input_type=_Text | Document)]


class RerankRequest(ScoringBody):
    """The body of POST /v1/rerank."""

    refused: ClassVar[Mapping[str, Refused]] = {
        **ScoringBody.refused,
        "max_tokens_per_doc": Refused(instead="truncate_prompt_tokens"),
        "max_chunks_per_doc": Refused(instead="truncate_prompt_tokens"),
        "rank_fields": Refused(["text"], instead="documents"),
        "texts": Refused(instead="documents"),
    }
    prompts = "documents"

    query: Annotated[_Text, Field(description="a text")]
    documents: Annotated[
        list[_Document],
        Field(min_length=1, max_length=MAX_INPUTS, description='texts, or objects `{"text": ...}`'),
    ]
    top_n: int | None = optional(1, "the answer has only this number of best documents", ge=1, le=MAX_INT32)
    return_documents: bool | None = optional(True, "true: the answer has the documents' texts")

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        _check_num_chars("documents", self.pairs())
        return self

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs to score."""
        return [(self.query, document.text) for document in self.documents]


_Texts = Annotated[
    list[_Text],
    Field(min_length=1, max_length=MAX_INPUTS),
    BeforeValidator(as_list, json_schema_input_type=_Text | list[_Text]),
]


class ScoreRequest(ScoringBody):
    """The body of POST /v1/score."""

    refused: ClassVar[Mapping[str, Refused]] = {
        **ScoringBody.refused,
        "queries": Refused(instead="text_1"),
        "data_1": Refused(instead="text_1"),
        "documents": Refused(instead="text_2"),
        "items": Refused(instead="text_2"),
        "data_2": Refused(instead="text_2"),
    }
    prompts = "text_2"

    text_1: Annotated[_Texts, Field(description="a text, which goes with each of text_2, or as many texts")]
    text_2: Annotated[_Texts, Field(description="a text, or a list of texts")]

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if len(self.text_1) not in (1, len(self.text_2)):
            raise broken_rule(
                "text_1", f"{len(self.text_1)} texts for {len(self.text_2)} of text_2: expected 1 or as many"
            )
        _check_num_chars("text_2", self.pairs())
        return self

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs to score."""
        first = self.text_1 * (len(self.text_2) if len(self.text_1) == 1 else 1)
        return list(zip(first, self.text_2, strict=True))


class ClassifyRequest(ScoringBody):
    """The body of POST /v1/classify."""

    refused: ClassVar[Mapping[str, Refused]] = {**ScoringBody.refused, "messages": Refused([], instead="input")}

    input: Annotated[
        Inputs, Field(description="a text, a list of token ids, or a list of one of these; each gets a label")
    ]


def _check_num_chars(param: str, pairs: list[tuple[str, str]]) -> None:
    num_chars = sum(len(text) for pair in pairs for text in pair)
    if num_chars > MAX_CHARS:
        raise broken_rule(param, f"{num_chars} characters of all pairs together are more than {MAX_CHARS}")
