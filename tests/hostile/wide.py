"""Bodies that push a field to its limits: it gets as many values as fit into a number of bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from model_repository.contract.rules import MAX_TOOLS
from tests.hostile.requests import CHAT, COMPLETIONS, MESSAGES, RESPONSES

type Fill = Callable[[int], Any]  # a number of bytes to a value of about this size in JSON

_USER = {"role": "user", "content": "hi"}
_TEXT, _PART = {"type": "text", "text": "a"}, {"type": "input_text", "text": "a"}
_PICTURE = "data:image/png;base64,iVBORw0KGgo="
_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_TOOL = {"type": "function", "function": {"name": "f", "description": "a", "parameters": _SCHEMA}}
_NAMED = {"type": "function", "function": {"name": "f"}}
_TEXTS = ("a", "a b ", "\0", '"', "\\", "\n", "\u2028", "\u0301", "\u00e9", "\U0001f600", "<image>", "<tool_call>\n")


def size_of(value: Any) -> int:
    """Return the number of bytes of a value in JSON."""
    return len(json.dumps(value, ensure_ascii=False).encode())


def many(*units: Any, limit: int = 1 << 20) -> Fill:
    """Return a filler with a list of these values, again and again."""
    return lambda size: list(units) * max(1, min(limit, size // (size_of(units) - 1)))


def names(value: Any, prefix: str = "a") -> Fill:
    """Return a filler with an object of many names."""
    return lambda size: {f"{prefix}{number}": value for number in range(size // (size_of(value) + len(prefix) + 10))}


def text(unit: str) -> Fill:
    """Return a filler with a long text."""
    return lambda size: unit * (size // (size_of(unit) - 2))


def inside(fill: Fill, wrap: Callable[[Any], Any]) -> Fill:
    """Return a filler with the value of another one inside another value."""
    return lambda size: wrap(fill(size))


def deep(depth: int) -> Fill:
    """Return a filler with many lists and objects, each this deep."""
    inner: Any = 1
    for level in range(depth):
        inner = [inner] if level % 2 else {"a": inner}
    return many(inner)


def texts() -> Iterator[Fill]:
    """Yield fillers with long texts."""
    yield from map(text, _TEXTS)


def values() -> Iterator[Fill]:
    """Yield fillers with values that are wrong in most fields."""
    units: tuple[Any, ...] = (1, -1.5e300, True, None, "", "a", [], {}, [[]], {"a": 1}, 10**17)
    yield from map(many, units)
    yield from (names(1), names({}), names("a" * 60), deep(2), deep(60), text("a"))


def messages() -> Iterator[Fill]:
    """Yield fillers with messages of chats."""
    assistant: dict[str, Any] = {"role": "assistant", "content": None}
    units: tuple[Any, ...] = (
        "a",
        _USER,
        _USER | {"name": "a"},
        _USER | {"a": 1},
        _USER | {"content": [_TEXT]},
        {"role": "system", "content": "a"},
        {"role": "tool", "tool_call_id": "c", "content": "a"},
        assistant | {"tool_calls": [_CALL]},
        assistant | {"reasoning_content": "a", "content": "a"},
        assistant | {"refusal": "a"},
        assistant | {"function_call": _CALL["function"]},
        {"role": "nobody", "content": "a"},
        {"role": "user"},
    )
    yield from map(many, units)
    for part in (_TEXT, _TEXT | {"a": 1}, {"type": "image_url", "image_url": _PICTURE}, {"type": "nothing"}, 1):
        yield inside(many(part), lambda parts: [{"role": "user", "content": parts}])
    for call in (_CALL, {"id": "c", "type": "custom", "custom": {"name": "f", "input": "a"}}, _CALL | {"a": 1}, {}):
        yield inside(many(call), lambda calls: [assistant | {"tool_calls": calls}, _USER])
    yield inside(names(1), lambda unknown: [_USER | unknown])
    for each in texts():
        yield inside(each, lambda content: [_USER | {"content": content}])
        yield inside(each, lambda content: [{"role": "tool", "tool_call_id": "c", "content": content}, _USER])
    picture = base64.b64encode(bytes(3000)).decode()
    yield inside(many({"type": "image_url", "image_url": f"data:image/png;base64,{picture}"}, limit=16), _of_user)
    yield inside(text("AAAA"), lambda data: _of_user([{"type": "image_url", "image_url": f"data:image/png,{data}"}]))
    yield inside(text("A \n "), lambda data: _of_user([{"type": "image_url", "image_url": f"data:image/png,{data}"}]))


def _of_user(parts: Any) -> Any:
    return [{"role": "user", "content": parts}]


def tools() -> Iterator[Fill]:
    """Yield fillers with tools."""
    yield from (many(unit, limit=limit) for unit in (_TOOL, _TOOL | {"a": 1}, {}, 1) for limit in (128, 1 << 20))
    yield from (inside(text(unit), lambda words: [_function(description=words)]) for unit in ("a", "\n"))


def _function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f"} | fields}


def _shared() -> dict[str, list[Fill]]:
    """Return the fields of chats and completions."""
    return {
        "stop": [many("a", limit=16), inside(text("a"), lambda stop: [stop]), *texts()],
        "bad_words": [many("word", limit=256), many("a" * 60), many("")],
        "allowed_token_ids": [many(1, limit=1024), many(1)],
        "stop_token_ids": [many(1), many(-1)],
        "logit_bias": [names(1, ""), names(-100.5, "1"), names(1000, ""), names("a", "")],
        "metadata": [names("a"), names([]), names({"a": 1}), deep(60)],
        "user": list(texts()),
        "safety_identifier": list(texts()),
        "prompt_cache_key": list(texts()),
        "model": [text("a"), text("\n"), text("/")],
        "response_format": [inside(many("a"), lambda choice: {"type": "choice", "choice": choice})],
        "structured_outputs": [inside(many("a"), lambda choice: {"choice": choice})],
        "regex": list(texts()),
        "ebnf": [text('root ::= "a"\n')],
        "stream_options": [names(1)],
        "prediction": [deep(60), names(1)],
        "audio": [deep(60), names(1)],
        "guided_json": [deep(60), names(1)],
        "service_tier": list(texts()),
    }


def _fields() -> dict[str, dict[str, list[Fill]]]:
    shared = _shared()

    def allowed(some: Any) -> Any:
        return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": some}}

    prompts = [many("a"), many("a", limit=MAX_TOOLS), many(1), many([1]), many([1, 2, 3], limit=128), *texts()]
    document = {"text": "a"}
    return {
        CHAT: shared
        | {
            "messages": list(messages()),
            "tools": list(tools()),
            "tool_choice": [inside(many(_NAMED), allowed)],
            "chat_template_kwargs": [names(1), names("a"), deep(60)],
            "reasoning_effort": list(texts()),
        },
        COMPLETIONS: shared
        | {
            "prompt": prompts,
            "suffix": list(texts()),
            "images": [many(_PICTURE), inside(text("AAAA"), lambda data: ["data:image/png;base64," + data])],
        },
        MESSAGES: _of_messages(),
        f"{MESSAGES}/count_tokens": _of_messages(),
        RESPONSES: _of_responses(),
        f"{RESPONSES}/input_tokens": _of_responses(),
        "/v1/embeddings": {"input": prompts, "user": list(texts())},
        "/v1/classify": {"input": prompts},
        "/v1/rerank": {
            "documents": [
                many("a", limit=2048),
                many(document, limit=2048),
                many(document | {"b": 1}),
                many({}),
                many(1),
            ],
            "query": list(texts()),
        },
        "/v1/score": {"text_1": list(texts()), "text_2": [many("a", limit=2048), *texts()]},
        "/tokenize": {"prompt": list(texts()), "messages": list(messages()), "tools": list(tools())},
        "/detokenize": {"tokens": [many(1), many(-1), many("a"), many(1.5)]},
    }


def _of_messages() -> dict[str, list[Fill]]:
    def by_user(content: Any) -> Any:
        return [{"role": "user", "content": content}]

    def by_document(content: Any) -> Any:
        return by_user([{"type": "document", "source": {"type": "content", "content": content}}])

    def by_model(content: Any) -> Any:
        return [{"role": "assistant", "content": content}, _USER]

    result = {"type": "tool_result", "tool_use_id": "a", "content": "a"}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    cached = _TEXT | {"cache_control": {"type": "ephemeral"}}
    blocks: tuple[Any, ...] = (_TEXT, cached, result, image, document, {"type": "new", "a": 1}, {}, 1)
    tool = {"name": "f", "input_schema": _SCHEMA}
    return {
        "messages": [
            many(_USER, limit=4096),
            many(_USER | {"a": 1}),
            many({}),
            many(1),
            many({"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}),
            *(inside(many(block), by_user) for block in blocks),
            *(inside(each, by_user) for each in texts()),
            *(inside(many(block), by_model) for block in (use, {"type": "thinking", "thinking": "a"}, _TEXT)),
            inside(names(1), lambda value: by_model([use | {"input": value}])),
            inside(deep(60), lambda value: by_model([use | {"input": {"a": value}}])),
            inside(many(_TEXT), lambda content: by_user([result | {"content": content}])),
            *(inside(each, by_document) for each in (many(_TEXT), many(image), *texts())),
        ],
        "system": [many(_TEXT), many(_TEXT | {"a": 1}), many({}), *texts()],
        "tools": [many(tool), many(tool, limit=MAX_TOOLS), many({"type": "web_search", "name": "a"})],
        "stop_sequences": [many("a"), many("a", limit=16), inside(text("a"), lambda stop: [stop])],
        "metadata": [inside(text("a"), lambda user: {"user_id": user}), names(1)],
    }


def _of_responses() -> dict[str, list[Fill]]:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "a"}
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "a"}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}
    sealed = {"type": "reasoning", "encrypted_content": "conch:YWJj"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    other = {"type": "web_search_call", "id": "a"}
    tool = {"type": "function", "name": "f", "parameters": _SCHEMA}
    items: tuple[Any, ...] = (_USER, _USER | {"a": 1}, call, custom, output, thought, sealed, said, other, {}, 1)
    parts: tuple[Any, ...] = (_PART, {"type": "input_image", "image_url": _PICTURE}, {})
    return {
        "input": [
            *(many(item) for item in items),
            *(many(item, limit=4095) for item in (call, thought, custom)),
            many(call, output),
            many(thought, call),
            many(said, thought),
            many({"type": "item_reference", "id": "rs_1"}, _USER),
            *(inside(many(part), lambda content: [_USER | {"content": content}]) for part in parts),
            inside(many(_PART), lambda content: [_USER, output | {"output": content}]),
            inside(text("YWJj"), lambda seal: [{"type": "reasoning", "encrypted_content": f"conch:{seal}"}, _USER]),
            *(inside(each, lambda content: [_USER | {"content": content}]) for each in texts()),
            *texts(),
        ],
        "instructions": list(texts()),
        "tools": [
            many(tool),
            many(tool, limit=MAX_TOOLS),
            many({"type": "web_search", "a": 1}, limit=MAX_TOOLS),
            inside(many(tool, limit=MAX_TOOLS), lambda some: [{"type": "namespace", "name": "n", "tools": some}]),
        ],
        "tool_choice": [inside(many(_TOOL), lambda some: {"type": "allowed_tools", "mode": "auto", "tools": some})],
        "include": [many("a"), many([]), many({"a": 1}), many("reasoning.encrypted_content")],
        "metadata": [names("a"), names(1)],
        "user": list(texts()),
        "reasoning": [names(1), inside(text("a"), lambda effort: {"effort": effort})],
    }


def schemas() -> Iterator[Fill]:
    """Yield fillers with JSON schemas."""
    yield inside(names({"type": "string"}), lambda properties: {"type": "object", "properties": properties})
    yield inside(names({"$ref": "#"}), lambda properties: {"properties": properties})
    for keyword, unit in (("enum", "a"), ("anyOf", {"type": "string"}), ("oneOf", {"const": 1}), ("allOf", {})):
        yield inside(many(unit), lambda forms, keyword=keyword: {keyword: forms})  # type: ignore[misc]
    yield inside(many({}), lambda items: {"prefixItems": items})
    yield inside(names(1), lambda unknown: {"type": "object"} | unknown)
    yield inside(deep(50), lambda default: {"default": default})
    for unit in ("a", "(a|b)*"):
        yield inside(text(unit), lambda pattern: {"type": "string", "pattern": pattern})
    yield inside(text("a"), lambda description: {"description": description})


def rewritten(depth: int, width: int, num_refs: int) -> dict[str, Any]:
    """Return a schema with references. Each one names a part that contains many others."""
    schema: dict[str, Any] = {"prefixItems": [{}] * width}
    for _ in range(depth):
        schema = {"items": schema}
    refs = [{"$ref": "#" + "/items" * number} for number in range(1, num_refs + 1)]
    return schema | {"prefixItems": refs, "allOf": refs}


def _schema_fields() -> dict[str, dict[str, list[Fill]]]:
    functions = [
        *(inside(schema, lambda parameters: [_function(parameters=parameters)]) for schema in schemas()),
        *(
            inside(_of_size(schema, 100), lambda parameters: [_function(parameters=parameters)] * 100)
            for schema in schemas()
        ),
        *map(grammars, ('start: "a"', 'start: ("a"|"b")~1..9')),
    ]
    generated = {
        "response_format": [
            inside(schema, lambda schema: {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
            for schema in schemas()
        ],
        "structured_outputs": [
            *(inside(schema, lambda schema: {"json": schema}) for schema in schemas()),
            *(inside(schema, lambda schema: {"json": json.dumps(schema)}) for schema in schemas()),
        ],
    }
    of_messages = {
        "tools": [inside(schema, lambda schema: [{"name": "f", "input_schema": schema}]) for schema in schemas()],
        "output_config": [
            inside(schema, lambda schema: {"format": {"type": "json_schema", "schema": schema}}) for schema in schemas()
        ],
    }
    of_responses = {
        "tools": [
            inside(schema, lambda schema: [{"type": "function", "name": "f", "parameters": schema}])
            for schema in schemas()
        ],
        "text": [
            inside(schema, lambda schema: {"format": {"type": "json_schema", "name": "a", "schema": schema}})
            for schema in schemas()
        ],
    }
    return {
        CHAT: generated | {"tools": functions},
        COMPLETIONS: generated,
        MESSAGES: of_messages,
        f"{MESSAGES}/count_tokens": of_messages,
        RESPONSES: of_responses,
        f"{RESPONSES}/input_tokens": of_responses,
    }


def _of_size(fill: Fill, divisor: int) -> Fill:
    return lambda size: fill(size // divisor)


def grammars(definition: str) -> Fill:
    """Return a filler with custom tools, each with another grammar."""
    return lambda size: [
        {"type": "custom", "custom": {"name": f"f{number}", "format": _lark(f"{definition}\n// {number}\n")}}
        for number in range(min(128, max(1, size // (len(definition) + 150))))
    ]


def _lark(definition: str) -> dict[str, Any]:
    return {"type": "grammar", "grammar": {"syntax": "lark", "definition": definition}}


FIELDS: Mapping[str, Mapping[str, Sequence[Fill]]] = _fields()
SCHEMAS: Mapping[str, Mapping[str, Sequence[Fill]]] = _schema_fields()
# The other fields that each body needs.
BODIES: Mapping[str, Mapping[str, Any]] = {
    CHAT: {"model": "chat", "messages": [_USER]},
    COMPLETIONS: {"model": "chat", "prompt": "hi"},
    MESSAGES: {"model": "chat", "max_tokens": 9, "messages": [_USER]},
    f"{MESSAGES}/count_tokens": {"model": "chat", "messages": [_USER]},
    RESPONSES: {"model": "chat", "input": "hi"},
    f"{RESPONSES}/input_tokens": {"model": "chat", "input": "hi"},
    "/v1/embeddings": {"model": "embedder", "input": "hi"},
    "/v1/classify": {"model": "classifier", "input": "hi"},
    "/v1/rerank": {"model": "reranker", "query": "hi", "documents": ["a"]},
    "/v1/score": {"model": "reranker", "text_1": "hi", "text_2": "a"},
    "/tokenize": {"model": "chat", "prompt": "hi"},
    "/detokenize": {"model": "chat", "tokens": [1]},
}
