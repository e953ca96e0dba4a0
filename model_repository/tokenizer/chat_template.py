"""The model's own chat template, in Jinja's sandbox, which keeps it from files, processes and Python's internals."""

from __future__ import annotations

import datetime
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

from model_repository.contract.request import IMAGE_MARKER
from model_repository.errors import InvalidRequest
from model_repository.tokenizer.tool_messages import RawArguments

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")

# All except the noncharacters that mark user text: as escapes they could not be removed again.
_NOT_ASCII = re.compile("[^\x00-\x7e\ufdd0-\ufdef]")
_MAX_REASON = 1000  # characters of the template's own words
_RENDERING_ERRORS = (
    *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
    jinja2.TemplateError,
)


class ChatTemplate:
    """A template with the names that Hugging Face templates expect.

    Args:
        source: the Jinja source from tokenizer_config.json or chat_template.jinja.
        special_tokens: `bos_token`, `eos_token` and others, by the names in templates.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = _Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        own_values = {**environment.globals, **special_tokens}
        self.fault = ""  # why it does not compile; then it refuses all conversations
        self.variables: frozenset[str] = frozenset()
        try:
            # Each rendering copies these values. `from_string` would chain two dictionaries: a copy of them is slower.
            self._template = jinja2.Template.from_code(environment, environment.compile(source), own_values)
            self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        except jinja2.TemplateSyntaxError as exc:
            self.fault = f"line {exc.lineno}: {exc.message}"
        except (SyntaxError, RecursionError, ValueError) as exc:  # the Python code that Jinja makes of it has a fault
            self.fault = str(exc.args[0])
        self._content_of: Callable[[str], Any] | None = None  # None: the text itself
        self._content_of = self._form_of_contents()
        # Names that a request may not set: the rest of the prompt depends on them.
        self.own_names = frozenset({"messages", "tools", "add_generation_prompt", *SPECIAL_TOKEN_NAMES, *own_values})

    def render(self, variables: Mapping[str, Any], *, add_generation_prompt: bool = True) -> str:
        """Return the prompt's text.

        Args:
            variables: `messages`, `tools` (None: no tools), and the request's own variables.

        Raises:
            InvalidRequest: the template does not compile, or refuses these messages in its own words.
        """
        if self.fault:
            raise InvalidRequest(f"this model's chat template is broken ({self.fault}): use a text prompt", "messages")
        messages, content_of = [*variables["messages"]], self._content_of
        if content_of is not None:
            messages = [
                {**message, "content": content_of(message["content"])}
                if isinstance(message["content"], str)
                else message
                for message in messages
            ]
        try:
            return self._template.render(variables, messages=messages, add_generation_prompt=add_generation_prompt)
        except MemoryError as exc:
            raise InvalidRequest("the model's chat template takes too much memory for it", "messages") from exc
        except RecursionError as exc:
            raise InvalidRequest("nested too deeply for the model's chat template", "messages") from exc
        except _RENDERING_ERRORS as exc:
            raise InvalidRequest(f"the model's chat template refuses it: {str(exc)[:_MAX_REASON]}", "messages") from exc

    def writes(
        self, text: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
    ) -> bool | None:
        """Return whether a text of the messages or tools gets into the prompt; None if the template refuses them."""
        try:
            return text in self.render({"messages": messages, "tools": tools})
        except InvalidRequest:
            return None

    def _form_of_contents(self) -> Callable[[str], Any] | None:
        """Return what makes a message's content of its text: some templates for images read only lists of parts."""
        text = secrets.token_hex()

        def writes(content: Any, expected: str) -> bool:
            return self.writes(expected, [{"role": "user", "content": content}]) is True

        if writes(text, text) or not writes(_text_part(text), text):
            return None
        return _parts if writes([{"type": "image"}], IMAGE_MARKER) else _text_part


def _text_part(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _parts(text: str) -> list[dict[str, str]]:
    """Return texts and images, in their order."""
    parts: list[dict[str, str]] = []
    for piece in re.split(f"({re.escape(IMAGE_MARKER)})", text):
        parts += [{"type": "image"}] if piece == IMAGE_MARKER else _text_part(piece) if piece else []
    return parts


class _Environment(SandboxedEnvironment):
    """Jinja's sandbox, which finds the names of JSON's objects without an exception for each."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is not dict or hasattr(obj, attribute):
            return super().getattr(obj, attribute)
        return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's text for training: here only its content counts.

    Source: AssistantTracker in transformers, which has a scope of its own, too.
    """

    tags = {"generation"}  # noqa: RUF012 (a plain set in the base class)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, RawArguments):
        return str(value)
    # Jinja's own filter escapes for HTML; models were trained on plain JSON. The parameters are those of transformers.
    written = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _NOT_ASCII.sub(lambda match: json.dumps(match.group())[1:-1], written) if ensure_ascii else written
