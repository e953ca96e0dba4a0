"""A gRPC client's tensors as a generation request."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from model_repository.contract.codec import Tensors, read_message
from model_repository.contract.request import (
    ChatPrompt,
    GenerationRequest,
    Mirostat,
    OutputFormat,
    PairPrompt,
    Params,
    Prompt,
    SamplingParams,
    StructuredOutput,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)
from model_repository.contract.spec import TensorSpec, specs_of
from model_repository.contract.tensors import NEUTRAL_INPUTS
from model_repository.errors import InvalidRequest, Unsupported

# Any of them means that the next token is sampled; without them decoding is greedy.
_DRAWING = {"temperature", "top_p", "top_k", "min_p", "mirostat"}
_PROMPT_INPUTS: dict[str, type[TextPrompt] | type[ChatPrompt] | type[TokenPrompt] | type[PairPrompt]] = {
    "text_input": TextPrompt,
    "messages": ChatPrompt,
    "input_ids": TokenPrompt,
    "text_pair": PairPrompt,
}


def tensors_to_request(tensors: Tensors, request_id: str = "") -> GenerationRequest:
    """Return the complete request that a client's tensors describe. `check_request` checks its rules.

    Raises:
        InvalidRequest: a tensor is malformed, or needs another one that is missing.
        Unsupported: an input of NVIDIA's ensemble has a value that would change the result and cannot be honoured.
    """
    for spec in NEUTRAL_INPUTS:
        _refuse_unless_neutral(spec, tensors)
    values = read_message(GenerationRequest, tensors)
    params = _params(values.get("params", {}))
    return GenerationRequest(
        prompt=read_prompt(tensors), params=params, images=values.get("images", ()), request_id=request_id
    )


def _params(values: dict[str, Any]) -> Params:
    sampling = values.pop("sampling", {})
    if not _DRAWING & set(sampling):
        sampling["temperature"] = 0.0
    if "mirostat" in sampling:
        sampling["mirostat"] = Mirostat(**sampling["mirostat"])
    sampling.setdefault("seed", secrets.randbits(64))
    if "structured_output" in values:
        values["structured_output"] = _structured_output(values["structured_output"])
    return Params(**values, sampling=SamplingParams(**sampling))


def _structured_output(values: dict[str, Any]) -> StructuredOutput | None:
    if "format" not in values:
        if values.get("content"):
            raise InvalidRequest("needs guided_decoding_guide_type", "guided_decoding_guide")
        return None
    if values["format"] is not OutputFormat.JSON_SCHEMA and "is_strict" in values:
        raise InvalidRequest(f"goes with {OutputFormat.JSON_SCHEMA} only", "guided_decoding_strict")
    return StructuredOutput(**values)


def _refuse_unless_neutral(spec: TensorSpec, tensors: Tensors) -> None:
    for value in tensors[spec.name].reshape(-1).tolist() if spec.name in tensors else ():
        if value not in (spec.neutral or ()):
            accepted = " or ".join(
                repr(item.decode()) if isinstance(item, bytes) else str(item) for item in spec.neutral or ()
            )
            shown = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            raise Unsupported(f"{shown!r} is not supported, only {accepted} is", spec.name)


def read_prompt(tensors: Tensors) -> Prompt:
    """Return the prompt.

    Raises:
        InvalidRequest: the tensors carry no prompt or several, or it is malformed.
    """
    sent = [name for name in _PROMPT_INPUTS if name in tensors]
    # NVIDIA's clients always send text_input. An empty one beside another form of prompt does not count.
    if len(sent) > 1 and not read_message(TextPrompt, tensors).get("text"):
        sent = [name for name in sent if name != "text_input"]
    if len(sent) != 1:
        raise InvalidRequest(f"expected exactly one of {', '.join(_PROMPT_INPUTS)}", "text_input")
    form = sent[0]
    for name, message in _PROMPT_INPUTS.items():
        if name != form:
            _refuse_beside(specs_of(message), name, tensors)
    values = read_message(_PROMPT_INPUTS[form], tensors)
    return _chat_prompt(values) if form == "messages" else _PROMPT_INPUTS[form](**values)


def _refuse_beside(specs: Iterable[TensorSpec], name: str, tensors: Tensors) -> None:
    for spec in specs:
        if spec.name != name and spec.name in tensors:
            raise InvalidRequest(f"goes with {name} only", spec.name)


def _chat_prompt(values: dict[str, Any]) -> ChatPrompt:
    tools = values.pop("tool_use", {})
    for name, part, kind in (
        ("messages", values.get("messages"), list),
        ("chat_template_kwargs", values.get("template_kwargs"), dict),
        ("tools", tools.get("tools"), list),
    ):
        if part is not None and not isinstance(part, kind):
            raise InvalidRequest(f"expected a JSON {'list' if kind is list else 'object'}", name)
    messages = tuple(_joined(message) for message in values.get("messages", ()))
    return ChatPrompt(**{**values, "messages": messages}, tool_use=_tool_use(tools))


def _joined(message: Any) -> Any:
    """Return a message with its text parts as one text, as the frontend joins them."""
    match message:
        case {"content": [*parts]} if all(isinstance(_text_of(part), str) for part in parts):
            return {**message, "content": "\n".join(map(_text_of, parts))}
        case _:
            return message


def _text_of(part: Any) -> Any:
    return part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None


def _tool_use(values: dict[str, Any]) -> ToolUse | None:
    tools, choice = tuple(values.get("tools") or ()), values.get("choice") or "auto"
    if not tools and choice in ("none", "auto"):
        return None
    return ToolUse(**{**values, "tools": tools, "choice": choice})
