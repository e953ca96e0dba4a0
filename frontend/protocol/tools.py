"""Tools as OpenAI types them, and the deprecated functions, which are tools by another name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from frontend.protocol.body import Body, broken_rule
from model_repository.contract.request import MAX_TOOLS_CHARS

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionDefinition(Body):
    """A function that the model may call."""

    schema_fields = ("parameters",)

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; none: no parameters
    strict: bool | None = None  # true: what cannot be enforced of the schema is refused, not ignored

    def as_tool(self) -> dict[str, Any]:
        """Return OpenAI's tool object, as chat templates expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        if self.strict:
            function["strict"] = True
        return {"type": "function", "function": function}


class Tool(Body):
    """Something that the model may use; only functions are served."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionChoice(Body):
    """The name of a function."""

    name: FunctionName


class NamedToolChoice(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: FunctionChoice


type ToolChoiceInput = Literal["none", "auto", "required"] | NamedToolChoice
type FunctionCallChoice = Literal["none", "auto"] | FunctionChoice


class ToolChoice(Body):
    """Whether a tool must be called, and which: each of OpenAI's forms as one."""

    type: Literal["none", "auto", "required", "function"]
    function: FunctionChoice | None = None

    @model_validator(mode="after")
    def _names_its_function(self) -> Self:
        if (self.type == "function") != (self.function is not None):
            raise broken_rule("function", 'it goes with type "function"')
        return self

    def words(self) -> str:
        """Return the choice as the tensor contract has it."""
        return self.type if self.function is None else f"function:{self.function.name}"


def tool_choice_from(value: Any) -> Any:
    """Return a tool choice as an object: OpenAI's words stand for one."""
    return {"type": value} if isinstance(value, str) else only_functions(value)


def function_call_from(value: Any) -> Any:
    """Return the deprecated function_call as a tool choice."""
    if isinstance(value, dict):
        return {"type": "function", "function": value}
    return {"type": value} if value in ("none", "auto") else value


class PastFunctionCall(Body):
    """What an earlier turn of the assistant called; `arguments` is JSON as the model wrote it."""

    name: FunctionName
    arguments: str


class PastToolCall(Body):
    """A call in an earlier turn of the assistant."""

    id: str
    type: Literal["function"] | None = None
    function: PastFunctionCall

    def for_template(self) -> dict[str, Any]:
        """Return the call as a message for the chat template has it."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": "function", "function": function}


def not_too_large[Tools: (list[Tool] | None, list[FunctionDefinition] | None)](tools: Tools) -> Tools:
    """Refuse schemas that take long to read."""
    functions = [tool.function if isinstance(tool, Tool) else tool for tool in tools or ()]
    num_chars = sum(len(orjson.dumps(function.parameters)) for function in functions)
    if num_chars > MAX_TOOLS_CHARS:
        raise PydanticCustomError("too_long", f"{num_chars} characters of parameters are more than {MAX_TOOLS_CHARS}")
    return tools


def only_functions(value: Any) -> Any:
    """Refuse kinds of tools and choices that OpenAI has and we do not serve, by name."""
    for item in value if isinstance(value, list) else (value,):
        kind = item.get("type") if isinstance(item, dict) else None
        if kind in ("custom", "allowed_tools"):
            raise PydanticCustomError("unsupported_value", 'only type "function" is supported')
    return value
