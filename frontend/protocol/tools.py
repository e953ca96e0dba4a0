"""OpenAI's tools, and the deprecated functions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from frontend.protocol.body import Body, broken_rule
from model_repository.contract.rules import MAX_TOOLS, MAX_TOOLS_CHARS

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionDefinition(Body):
    """A function that the model may call."""

    schema_fields = ("parameters",)

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


class Tool(Body):
    """A tool of the model: always a function."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionChoice(Body):
    """The name of a function."""

    name: FunctionName


class NamedToolChoice(Body):
    """The tool that the model must call."""

    type: Literal["function"]
    function: FunctionChoice


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


class ToolChoice(Body):
    """All of OpenAI's forms of a tool choice as one."""

    type: Literal["none", "auto", "required", "function", "allowed_tools"]
    function: FunctionChoice | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="after")
    def _check_fields_of_type(self) -> Self:
        for name in ("function", "allowed_tools"):
            if (self.type == name) != (getattr(self, name) is not None):
                raise broken_rule(name, f'`{name}` is allowed only with type "{name}"')
        return self

    def names(self) -> list[str]:
        """Return the functions that the choice names."""
        if self.allowed_tools is not None:
            return [tool.function.name for tool in self.allowed_tools.tools]
        return [] if self.function is None else [self.function.name]

    def words(self) -> str:
        """Return the choice in the form of the tensor contract."""
        if self.allowed_tools is not None:
            return self.allowed_tools.mode
        return self.type if self.function is None else f"function:{self.function.name}"


def tool_choice_from(value: Any) -> Any:
    """Return a tool choice as an object."""
    return {"type": value} if isinstance(value, str) else only_functions(value)


def function_call_from(value: Any) -> Any:
    """Return the deprecated function_call as a tool choice."""
    if isinstance(value, dict):
        return {"type": "function", "function": value}
    return {"type": value} if value in ("none", "auto") else value


class PastFunctionCall(Body):
    """A call in an earlier message of the assistant; `arguments` is the model's text."""

    name: FunctionName
    arguments: str


class PastToolCall(Body):
    """A tool call in an earlier message of the assistant."""

    id: str
    type: Literal["function"] | None = None
    function: PastFunctionCall

    def for_template(self) -> dict[str, Any]:
        """Return the call for the chat template."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": "function", "function": function}


def not_too_large[Tools: (list[Tool] | None, list[FunctionDefinition] | None)](tools: Tools) -> Tools:
    """Refuse long schemas."""
    functions = [tool.function if isinstance(tool, Tool) else tool for tool in tools or ()]
    num_chars = sum(len(orjson.dumps(function.parameters)) for function in functions)
    if num_chars > MAX_TOOLS_CHARS:
        raise PydanticCustomError("too_long", f"{num_chars} characters of parameters are more than {MAX_TOOLS_CHARS}")
    return tools


def only_functions(value: Any) -> Any:
    """Refuse OpenAI's other types of tools and choices."""
    for item in value if isinstance(value, list) else (value,):
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "custom":
            raise PydanticCustomError("unsupported_value", 'only type "function" is supported')
    return value
