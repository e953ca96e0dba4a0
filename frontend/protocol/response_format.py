"""Structured output in requests: OpenAI's response_format and vLLM's structured_outputs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

import orjson
from pydantic import FailFast, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from frontend.protocol.body import Body, Forms, TypedBody, broken_rule
from model_repository.contract.request import OutputFormat, StructuredOutput

type Schema = dict[str, Any]


def _schema_or_text(value: Any) -> Any:
    if value is not None and not isinstance(value, dict | str):
        raise PydanticCustomError("json_type", "Input should be a JSON schema, as an object or a text")
    return value


type Choices = Annotated[list[Annotated[str, Field(min_length=1)]], FailFast(), Field(min_length=1)]


class JsonSchemaFormat(Body):
    """A named JSON schema, as OpenAI's SDK sends it for a class."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None  # true: a keyword that cannot be enforced is refused, not ignored


class ResponseFormat(TypedBody):
    """The form of the whole answer. The answer always conforms, unless it was cut by length."""

    forms: ClassVar[Forms] = {
        "json_object": ((), ("schema_",)),
        **{name: ((name,), ()) for name in ("json_schema", "regex", "choice", "grammar", "ebnf")},
    }

    type: Literal["text", "json_object", "json_schema", "regex", "choice", "grammar", "ebnf"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None  # GBNF
    ebnf: str | None = None  # another name of grammar

    def structured_output(self) -> StructuredOutput | None:
        """Return the constraint on the completion."""
        match self.type:
            case "text":
                return None
            case "json_object":
                return json_output(self.schema_)
            case "json_schema":
                assert self.json_schema is not None
                return json_output(self.json_schema.schema_, is_strict=bool(self.json_schema.strict))
            case "regex":
                return StructuredOutput(OutputFormat.REGEX, self.regex or "")
            case "choice":
                return choice_output(self.choice or [])
            case _:
                return StructuredOutput(OutputFormat.GRAMMAR, self.grammar or self.ebnf or "")


class StructuredOutputs(Body):
    """Structured output in vLLM's form: exactly one field."""

    json_: Annotated[
        Schema | str | None,
        PlainValidator(_schema_or_text, json_schema_input_type=Schema | str | None),
        Field(alias="json"),
    ] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None

    @model_validator(mode="after")
    def _check_exactly_one(self) -> Self:
        forms = (self.json_, self.json_object or None, self.regex, self.choice, self.grammar)
        if sum(form is not None for form in forms) != 1:
            raise broken_rule("", "expected exactly one of json, json_object, regex, choice, grammar")
        return self

    def structured_output(self) -> StructuredOutput:
        """Return the constraint on the completion."""
        if isinstance(self.json_, str):
            return StructuredOutput(OutputFormat.JSON_SCHEMA, self.json_, is_strict=False)
        if self.regex is not None:
            return StructuredOutput(OutputFormat.REGEX, self.regex)
        if self.choice is not None:
            return choice_output(self.choice)
        if self.grammar is not None:
            return StructuredOutput(OutputFormat.GRAMMAR, self.grammar)
        return json_output(self.json_)


def json_output(schema: Schema | None, *, is_strict: bool = False) -> StructuredOutput:
    """Return the constraint to a schema, or without a schema to any JSON object."""
    if schema is None:
        return StructuredOutput(OutputFormat.JSON_OBJECT)
    return StructuredOutput(OutputFormat.JSON_SCHEMA, orjson.dumps(schema).decode(), is_strict=is_strict)


def choice_output(choices: list[str]) -> StructuredOutput:
    """Return the constraint to one of these texts."""
    return StructuredOutput(OutputFormat.CHOICE, orjson.dumps(choices).decode())
