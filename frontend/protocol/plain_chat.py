"""Plain chats, as most are, from bytes: texts as messages, and fields of one number, switch or text.

One typed decoder reads them, several times as fast as the models of bodies. It reads by the types and bounds that the
models declare. Every other body goes to its model, which knows all fields, and all errors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, defstruct

from frontend.protocol.chat import MAX_MESSAGES, ChatCompletionRequest, ChatMessage, ContentPart
from frontend.protocol.fields import StreamOptions

# Without rules about other fields.
_FIELDS = (
    "model",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "ignore_eos",
    "stream",
    "user",
)
_TYPES = {"integer": int, "number": float, "boolean": bool, "string": str}
_BOUNDS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "minLength": "min_length",
    "maxLength": "max_length",
}
_SCHEMAS = ChatCompletionRequest.model_json_schema()["properties"]


def _declared(name: str) -> Any:
    """Return the type of a field with its bounds, from the model's JSON schema."""
    kind, *others = _SCHEMAS[name].get("anyOf", [_SCHEMAS[name]])
    assert others in ([], [{"type": "null"}]), name
    bounds = {ours: kind[theirs] for theirs, ours in _BOUNDS.items() if theirs in kind}
    declared = _TYPES[kind["type"]]
    return Annotated[declared, Meta(**bounds)] if bounds else declared


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str


_StreamOptions = defstruct(
    "_StreamOptions", [(name, bool | None, None) for name in StreamOptions.model_fields], forbid_unknown_fields=True
)
_Chat = defstruct(
    "_Chat",
    [
        ("model", _declared("model")),
        ("messages", Annotated[list[_Message], Meta(min_length=1, max_length=MAX_MESSAGES)]),
        *[(name, _declared(name) | None, None) for name in _FIELDS if name != "model"],
        ("stream_options", _StreamOptions | None, None),
    ],
    forbid_unknown_fields=True,
)
_DECODER = msgspec.json.Decoder(_Chat)


def plain_chat(body: bytes | bytearray) -> ChatCompletionRequest | None:
    """Return the chat in a body; None: it is not plain, or breaks a rule."""
    try:
        chat: Any = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if chat.stream_options is not None and not chat.stream:
        return None
    values = {name: value for name in _FIELDS if (value := getattr(chat, name)) is not None}
    values["messages"] = [
        ChatMessage.made(
            {"role": message.role, "content": [ContentPart.made({"type": "text", "text": message.content})]}
        )
        for message in chat.messages
    ]
    if chat.stream_options is not None:
        values["stream_options"] = StreamOptions.made(msgspec.structs.asdict(chat.stream_options))
    return ChatCompletionRequest.made(values)
