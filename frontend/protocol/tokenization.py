"""The bodies of /tokenize and /detokenize, in vLLM's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, FailFast, Field, model_validator

from frontend.protocol.body import ModelBody, Refused, broken_rule
from frontend.protocol.chat import (
    MESSAGES_LENGTH,
    ChatMessage,
    MessagesInput,
    check_last_message,
    messages_from,
    past_thinking,
)
from frontend.protocol.fields import TokenId
from frontend.protocol.tools import Tool
from model_repository.contract.rules import MAX_TOOLS


class TokenizeRequest(ModelBody):
    """The body of POST /tokenize: a prompt or messages."""

    refused: ClassVar[Mapping[str, Refused]] = {"chat_template": Refused(), "mm_processor_kwargs": Refused({})}

    prompt: str | None = None
    messages: Annotated[
        list[ChatMessage] | None,
        FailFast(),
        MESSAGES_LENGTH,
        BeforeValidator(messages_from, json_schema_input_type=MessagesInput | None),
    ] = None
    tools: Annotated[list[Tool] | None, Field(max_length=MAX_TOOLS)] = None
    add_special_tokens: bool | None = None  # default true; messages need false
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    def past_thinking(self) -> Iterator[str]:
        return past_thinking(self.messages or ())

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise broken_rule("prompt", "expected either prompt or messages")
        check_last_message(self.continue_final_message, self.add_generation_prompt)
        of_messages = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
        for name in of_messages if self.messages is None else ():
            if getattr(self, name) is not None:
                raise broken_rule(name, "does not go with prompt")
        if self.messages is not None and self.add_special_tokens:
            raise broken_rule("add_special_tokens", "must be false with messages: the chat template adds these tokens")
        return self


class DetokenizeRequest(ModelBody):
    """The body of POST /detokenize."""

    tokens: Annotated[list[TokenId], FailFast()]
