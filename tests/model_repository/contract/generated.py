"""Generated messages: every field has any value that its type and its tensor allow. Generated requests of clients."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAliasType, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from hypothesis import strategies as st
from msgspec import Struct

from model_repository.contract.request import (
    ChatPrompt,
    GenerationRequest,
    OutputFormat,
    StructuredOutput,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)
from model_repository.contract.rules import ROLES
from model_repository.contract.spec import TensorSpec

TEXT = st.text(max_size=5)
JSON = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT | st.lists(TEXT, max_size=2)
JSON_OBJECT = st.dictionaries(TEXT, JSON, max_size=2)

_INTEGERS = {"INT64": (-(2**63), 2**63 - 1), "UINT64": (0, 2**64 - 1)}
_INT32 = (-(2**31), 2**31 - 1)


def messages(message: type[Struct], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw messages of a type; `fields` replace what is drawn for single fields."""
    hints = get_type_hints(message, include_extras=True)
    own = {name: _values(hints[name]) for name in message.__struct_fields__}
    return st.builds(message, **own | fields)


def _values(hint: Any, *specs: TensorSpec) -> st.SearchStrategy[Any]:
    """Draw values of a type hint, within the ranges of the tensors that carry it."""
    if isinstance(hint, TypeAliasType):
        return _values(hint.__value__)
    if isinstance(hint, UnionType):
        return st.one_of(*(_values(kind, *specs) for kind in get_args(hint)))
    arguments = get_args(hint)
    match get_origin(hint):
        case None:
            return _single_values(hint, *specs)
        case origin if origin is Annotated:
            return _values(arguments[0], *(item for item in arguments[1:] if isinstance(item, TensorSpec)))
        case origin if origin is tuple and arguments[-1] is Ellipsis:
            elements = _values(arguments[0], *specs).filter(lambda value: value != "")
            return st.lists(elements, max_size=3).map(tuple)
        case origin if origin is tuple:
            return st.tuples(*map(_values, arguments))
        case origin if origin in (Mapping, dict):
            return st.dictionaries(_values(arguments[0], *specs[:1]), _values(arguments[1], *specs[1:]), max_size=3)
    raise TypeError(f"no values of {hint}")


def _single_values(kind: Any, *specs: TensorSpec) -> st.SearchStrategy[Any]:
    spec = specs[0] if specs else TensorSpec()
    if kind is Any:
        return JSON
    if is_typeddict(kind):
        return st.fixed_dictionaries({name: _values(hint) for name, hint in get_type_hints(kind).items()})
    if issubclass(kind, Struct):
        return messages(kind)
    if issubclass(kind, StrEnum):
        return st.sampled_from([kind(word) for word in spec.words or kind])
    if kind is int:
        low, high = _INTEGERS.get(spec.datatype, _INT32)
        return st.integers(low if spec.low is None else int(spec.low), high if spec.high is None else int(spec.high))
    if kind is float:  # those that an FP32 tensor holds exactly
        return st.floats(spec.low, spec.high, exclude_min=spec.is_low_open, allow_nan=False, width=32)
    if kind is bytes and spec.datatype == "FP32":
        return st.binary(max_size=3).map(lambda value: 4 * value)
    return {bool: st.booleans(), str: TEXT, bytes: st.binary(max_size=3), NoneType: st.none()}[kind]


@st.composite
def _tool_uses(draw: st.DrawFn) -> ToolUse:
    names = draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3, unique=True))
    function = st.fixed_dictionaries({}, optional={"description": TEXT, "parameters": JSON_OBJECT | st.none()})
    tools = tuple({"type": "function", "function": {"name": name, **draw(function)}} for name in names)
    choice = draw(st.sampled_from(["none", "auto", "required", *(f"function:{name}" for name in names)]))
    return ToolUse(tools=tools, choice=choice, is_parallel=draw(st.booleans()))


_MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(ROLES), "content": TEXT}, optional={"name": TEXT}),
    st.fixed_dictionaries(
        {"role": st.sampled_from(ROLES), "content": st.none(), "tool_calls": st.lists(JSON_OBJECT, min_size=1)}
    ),
)
_PROMPT = st.one_of(
    messages(TextPrompt),
    messages(TokenPrompt).filter(lambda prompt: prompt.token_ids),
    messages(
        ChatPrompt,
        messages=st.lists(_MESSAGE, min_size=1, max_size=3).map(tuple),
        tool_use=st.none() | _tool_uses(),
        max_prompt_tokens=st.none(),  # no gRPC client's
    ).filter(lambda prompt: not (prompt.continue_final_message and prompt.add_generation_prompt)),
)


@st.composite
def requests(draw: st.DrawFn) -> GenerationRequest:
    """Draw requests that break no rule of a client's requests."""
    request = draw(messages(GenerationRequest, prompt=_PROMPT, request_id=st.just(""), group=st.just("")))
    params, output = request.params, request.params.structured_output
    if output is not None:
        output = StructuredOutput(
            output.format,
            "" if output.format is OutputFormat.JSON_OBJECT else output.content,
            output.is_strict or output.format is not OutputFormat.JSON_SCHEMA,
        )
    max_tokens = max(params.max_tokens, 0 if params.is_echo else 1)
    params = msgspec.structs.replace(
        params,
        max_tokens=max_tokens,
        min_tokens=min(params.min_tokens, max_tokens),
        num_prompt_logprobs=None,  # no gRPC client's
        marks=b"",  # the same
        keep_s=0.0,  # the same
        truncate_prompt_tokens=params.truncate_prompt_tokens or None,
        num_top_logprobs=params.num_top_logprobs if params.has_logprobs else 0,
        stream_interval_ms=params.stream_interval_ms if params.is_stream else None,
        structured_output=output,
        sampling=msgspec.structs.replace(params.sampling, top_k=max(params.sampling.top_k, 0)),
    )
    return msgspec.structs.replace(request, params=params)
