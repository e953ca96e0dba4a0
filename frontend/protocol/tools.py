"""OpenAI's tools, functions and custom ones, and the deprecated functions."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import Field
from pydantic_core import PydanticCustomError

from frontend.protocol.body import Body, Forms, TypedBody
from model_repository.contract.rules import MAX_DEFINITION_CHARS, MAX_TOOLS, MAX_TOOLS_CHARS

# The fields of a tool, and of what names one, by its type.
_TOOLS: Forms = {"function": (("function",), ()), "custom": (("custom",), ())}

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]  # 64 for OpenAI, 128 for Anthropic
Definition = Annotated[str, Field(min_length=1, max_length=MAX_DEFINITION_CHARS)]  # of the input of a custom tool


class FunctionDefinition(Body):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; None: no parameters
    strict: bool | None = None  # true: a keyword that cannot be enforced is refused, not ignored

    def as_tool(self) -> dict[str, Any]:
        """Return OpenAI's tool object for the chat template."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        if self.strict:
            function["strict"] = True
        return {"type": "function", "function": function}


class InputGrammar(Body):
    """The grammar of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: Definition


class InputFormat(TypedBody):
    """The form of a custom tool's input."""

    forms: ClassVar[Forms] = {"grammar": (("grammar",), ())}

    type: Literal["text", "grammar"]
    grammar: InputGrammar | None = None


class CustomDefinition(Body):
    """A tool whose input is a text, not JSON. The model calls it as a function with this text as the only argument."""

    name: FunctionName
    description: str | None = None
    format: InputFormat | None = None

    parameters: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"input": {"type": "string"}}}

    def as_tool(self) -> dict[str, Any]:
        """Return OpenAI's tool object. The tokenizer stage makes a function of it."""
        custom: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            custom["description"] = self.description
        if self.format is not None and (grammar := self.format.grammar) is not None:
            named = {"syntax": grammar.syntax, "definition": grammar.definition}
            custom["format"] = {"type": "grammar", "grammar": named}
        return {"type": "custom", "custom": custom}


type ToolDefinition = FunctionDefinition | CustomDefinition


class Tool(TypedBody):
    """A tool of the model."""

    forms = _TOOLS

    type: Literal["function", "custom"]
    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None

    @property
    def definition(self) -> ToolDefinition:
        """The tool, of either type."""
        definition = self.function or self.custom
        assert definition is not None, "the fields are checked"
        return definition


class FunctionChoice(Body):
    """The name of a tool."""

    name: FunctionName


class NamedToolChoice(TypedBody):
    """The tool that the model must call."""

    forms = _TOOLS

    type: Literal["function", "custom"]
    function: FunctionChoice | None = None
    custom: FunctionChoice | None = None


class AllowedTools(Body):
    """A part of the tools, and whether the model must call one of them."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(Body):
    """The tools that the model may call; with mode `required` it must call one. The prompt names no other tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


type ToolChoiceInput = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolsChoice
type FunctionCallChoice = Literal["none", "auto"] | FunctionChoice


class ToolChoice(TypedBody):
    """All of OpenAI's forms of a tool choice as one."""

    forms: ClassVar[Forms] = {**_TOOLS, "allowed_tools": (("allowed_tools",), ())}

    type: Literal["none", "auto", "required", "function", "custom", "allowed_tools"]
    function: FunctionChoice | None = None
    custom: FunctionChoice | None = None
    allowed_tools: AllowedTools | None = None

    def types(self) -> dict[str, str]:
        """Return the types of the tools that the choice names, by name."""
        tools = [self] if self.allowed_tools is None else self.allowed_tools.tools
        return {named.name: tool.type for tool in tools if (named := tool.function or tool.custom) is not None}

    def words(self) -> str:
        """Return the choice in the form of the tensor contract."""
        if self.allowed_tools is not None:
            return self.allowed_tools.mode
        named = self.function or self.custom
        return self.type if named is None else f"function:{named.name}"


def tool_choice_from(value: Any) -> Any:
    """Return a tool choice as an object."""
    return {"type": value} if isinstance(value, str) else value


def function_call_from(value: Any) -> Any:
    """Return the deprecated function_call as a tool choice."""
    if isinstance(value, dict):
        return {"type": "function", "function": value}
    return {"type": value} if value in ("none", "auto") else value


class PastFunctionCall(Body):
    """A call in an earlier message of the assistant; `arguments` is the model's text."""

    name: FunctionName
    arguments: str


class PastCustomCall(Body):
    """A call of a custom tool in an earlier message of the assistant."""

    name: FunctionName
    input: str


class PastToolCall(TypedBody):
    """A tool call in an earlier message of the assistant."""

    forms: ClassVar[Forms] = {**_TOOLS, None: _TOOLS["function"]}
    shared = ("type", "id")

    id: str
    type: Literal["function", "custom"] | None = None
    function: PastFunctionCall | None = None
    custom: PastCustomCall | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the call for the chat template."""
        if self.custom is not None:
            arguments = json.dumps({"input": self.custom.input}, ensure_ascii=False)
            function = {"name": self.custom.name, "arguments": arguments}
        else:
            assert self.function is not None, "the fields are checked"
            function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": "function", "function": function}


def not_too_large[Tools: (list[Tool] | None, list[FunctionDefinition] | None)](tools: Tools) -> Tools:
    """Refuse long schemas."""
    functions = [tool.definition if isinstance(tool, Tool) else tool for tool in tools or ()]
    num_chars = sum(len(orjson.dumps(function.parameters)) for function in functions)
    if num_chars > MAX_TOOLS_CHARS:
        raise PydanticCustomError("too_long", f"{num_chars} characters of parameters are more than {MAX_TOOLS_CHARS}")
    return tools
