"""The body of a completion request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticKnownError

from frontend.protocol.body import Refused, broken_rule, declared, limits_of, optional
from frontend.protocol.fields import HINTS, REFUSED, GenerationBody
from frontend.protocol.prompts import Prompt, prompts_of
from model_repository.contract.request import MAX_IMAGES
from model_repository.contract.spec import MAX_INT32

MAX_LOGPROBS = 5  # OpenAI's
MAX_CHOICES = 128  # completions of one request, prompts times n or best_of; OpenAI's bound of n


def _check_server_limit(value: int | None, info: ValidationInfo) -> int | None:
    limit = limits_of(info).max_logprobs
    if value is not None and value > limit:
        raise PydanticKnownError("less_than_equal", {"le": limit})
    return value


class CompletionRequest(GenerationBody):
    """The body of POST /v1/completions."""

    refused: ClassVar[Mapping[str, Refused]] = REFUSED | {
        "store": Refused(False),
        "messages": Refused([]),
        "top_logprobs": Refused(0),
        "tools": Refused([]),
        "tool_choice": Refused("none", "auto"),
        "functions": Refused([]),
        "function_call": Refused("none", "auto"),
        "parallel_tool_calls": Refused(False, True),
        "chat_template_kwargs": Refused({}),
        "add_generation_prompt": Refused(),
        "continue_final_message": Refused(False),
    }

    hints: ClassVar[Mapping[str, tuple[Any, ...]]] = HINTS | {
        "reasoning_effort": ("none",),
        "enable_thinking": (False,),
        "thinking_budget_tokens": (),
        "thinking_token_budget": (),
        "include_reasoning": (True,),
    }

    prompt: Annotated[
        list[Prompt],
        prompts_of(MAX_CHOICES),
        Field(description="a text, a list of token ids, or a list of one of these"),
    ]
    max_tokens: int | None = optional(
        3, "maximum number of completion tokens; 0 only with echo, to score the prompt", ge=0, le=MAX_INT32
    )
    best_of: int | None = optional(
        2, "number of candidates; the answer has the n with the likeliest tokens", ge=1, le=128
    )
    echo: bool | None = optional(True, "the text begins with the prompt")
    suffix: str | None = optional("\n", "text after the completion, for models that fill in the middle")
    logprobs: Annotated[
        int | None,
        declared(
            "top_logprobs",
            2,
            "log probabilities of the tokens, and of this number of likeliest tokens; above "
            f"{MAX_LOGPROBS} if the server's max_logprobs allows it",
        ),
        AfterValidator(_check_server_limit),
    ] = None
    images: list[str] | None = optional(
        ["data:image/png;base64,iVBORw0KGgo="],
        "data URIs, one for each `<image>` in the prompt, for models that read images",
        max_length=MAX_IMAGES,
        needs={"prompt": "<image>"},
    )

    @model_validator(mode="after")
    def _check_completion_fields(self) -> Self:
        n = self.n or 1
        if self.best_of is not None and self.best_of < n:
            raise broken_rule("best_of", f"best_of must be at least n, which is {n}")
        if self.best_of is not None and self.best_of > n and self.stream:
            raise broken_rule("best_of", "best_of above n cannot be streamed: the best is known at the end")
        if self.max_tokens == 0 and self.max_completion_tokens is None and not self.echo:
            raise broken_rule("max_tokens", "must be at least 1, unless echo is true")
        if self.suffix and not isinstance(self.prompt[0], str):
            raise broken_rule("suffix", "needs the prompt as text")
        return self
