"""Conversations to token ids, by the model's chat template."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from model_repository.capabilities import callable_tools
from model_repository.contract.request import ChatPrompt, Thinking
from model_repository.errors import InvalidRequest
from model_repository.reasoning_formats import REASONING_FORMATS
from model_repository.tokenizer.chat_template import ChatTemplate
from model_repository.tokenizer.plain_text import MarkedText
from model_repository.tokenizer.role_order import RoleOrder
from model_repository.tokenizer.text_limit import TextLimit
from model_repository.tokenizer.tokenizer_files import TokenizerFiles
from model_repository.tokenizer.tool_messages import (
    Arguments,
    RawArguments,
    messages_with_calls_as_text,
    messages_with_history_ids,
    messages_with_plain_tools,
    messages_with_single_calls,
    messages_with_tool_prompt,
)
from model_repository.tokenizer.vocabulary import Vocabulary
from model_repository.tool_formats import PLAIN, TOOL_FORMATS

type _Encoded = tuple[Sequence[int], Thinking | None]

_ROLES = {"function": "tool"}  # OpenAI's role that few templates know


class ChatEncoder:
    """Renders and encodes conversations."""

    def __init__(
        self, files: TokenizerFiles, vocabulary: Vocabulary, tool_call_format: str, reasoning_format: str = ""
    ) -> None:
        def compiled(source: str | None) -> ChatTemplate | None:
            return ChatTemplate(source, files.special_tokens) if source else None

        self._template = compiled(files.chat_template)
        self._tool_template = compiled(files.tool_template) or self._template
        self._vocabulary = vocabulary
        self._marked_text = MarkedText(vocabulary.control_tokens)
        sources = files.chat_template or "", files.tool_template or "", *files.special_tokens.values()
        self._borders = vocabulary.borders(" ".join(sources))
        self._reasoning_format = found = REASONING_FORMATS.get(reasoning_format)
        self._has_thinking_tokens = found is not None and vocabulary.added_tokens.issuperset(found.special_tokens)
        self._tool_format = TOOL_FORMATS[tool_call_format]
        templates = {template for template in (self._template, self._tool_template) if template is not None}
        self._without_tools = {template for template in templates if not writes_tools(template)}
        self._without_calls = {template for template in templates if not _writes_calls(template)}
        self._role_orders = {template: RoleOrder(template) for template in templates}
        self._has_pairs = self._template is not None and writes_pairs(self._template)

    def encode_pair(self, query: str, document: str, limit: TextLimit, owner: str) -> Sequence[int] | None:
        """Return the token ids of a pair by the template of a reranker; None: the model has none.

        Raises:
            InvalidRequest: the template or the limit refuses the texts.
        """
        if not self._has_pairs:
            return None
        try:
            token_ids, _ = self.encode(ChatPrompt(_pair_messages(query, document)), limit, owner)
        except InvalidRequest as exc:
            raise type(exc)(exc.text, "text_pair") from exc
        return token_ids

    def encode(self, prompt: ChatPrompt, limit: TextLimit = lambda text, field: None, owner: str = "") -> _Encoded:
        """Return the conversation's token ids, without special tokens from its text, and how the model thinks then.

        Args:
            owner: its next conversations may begin like this one, see `Vocabulary.encode_pieces`.

        Raises:
            InvalidRequest: the model has no chat template, or the template or the limit refuses the conversation.
        """
        rendered, mark = self._rendered(prompt)
        limit(_without_mark(rendered, mark), "messages")
        thinking = self._thinking(rendered, is_new=prompt.add_generation_prompt)
        return self._token_ids(rendered, mark, owner), thinking

    def turn_lengths(self, prompt: ChatPrompt, owner: str = "") -> list[int]:
        """Return the number of tokens from each text of a user to the next one. A few may be counted twice.

        Args:
            owner: see `encode`.

        Raises:
            InvalidRequest: as for `encode`.
        """
        tag = secrets.token_hex()
        messages = tuple(
            {**message, "content": tag + (message["content"] or "")} if message["role"] == "user" else message
            for message in prompt.messages
        )
        rendered, mark = self._rendered(replace(prompt, messages=messages))
        _, *turns = rendered.split(tag)
        return [len(self._token_ids(turn, mark, owner)) for turn in turns]

    def _rendered(self, prompt: ChatPrompt) -> tuple[str, str | None]:
        """Return the conversation as text, and the mark of user text in it; see `MarkedText.protect`."""
        # Tools that may not be called are left out, so that the model cannot call them.
        tool_use = callable_tools(prompt)
        has_descriptions = self._tool_format.has_messages
        tools = tools_for_template(tool_use.tools, has_descriptions) if tool_use is not None else []
        template = self._tool_template if tools else self._template
        if template is None:
            raise InvalidRequest("this model has no chat template: use a text prompt", "messages")
        for name in prompt.template_kwargs:
            if name in template.own_names:
                raise InvalidRequest(f"{name!r} is not a request's to set", "chat_template_kwargs")
        messages = messages_for_template(prompt.messages)
        if prompt.continue_final_message and "tool_calls" in messages[-1]:
            raise InvalidRequest("the last message calls tools: there is no text to go on", "continue_final_message")
        messages, tools = self._with_tools(messages, tools, template)
        messages = self._role_orders[template].rewritten(messages)
        variables = {**prompt.template_kwargs, "messages": messages, "tools": tools or None}
        protected, mark = self._marked_text.protect(variables)
        try:
            if prompt.continue_final_message:
                rendered = _render_up_to_last_content(template, protected)
            else:
                rendered = template.render(protected, add_generation_prompt=prompt.add_generation_prompt)
        except InvalidRequest as exc:
            raise InvalidRequest(_without_mark(exc.text, mark), exc.field) from exc
        _check_encodable(rendered)
        return rendered, mark

    def _token_ids(self, rendered: str, mark: str | None, owner: str) -> Sequence[int]:
        if mark is None:
            return self._vocabulary.encode_pieces(self._borders.pieces(rendered), owner)
        return self._vocabulary.encode_parts(self._marked_text.split(rendered, mark), owner)

    def _with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], template: ChatTemplate
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return messages and tools as the template takes them; what it would leave out becomes text of messages."""
        if self._tool_format is PLAIN:
            return messages_with_plain_tools(messages, tools), []
        if self._tool_format.has_messages:
            messages = messages_with_single_calls(messages)
        if self._tool_format.history_id:
            messages = messages_with_history_ids(messages, self._tool_format.history_id)
        if template in self._without_calls:
            messages = messages_with_calls_as_text(messages, self._tool_format)
        if template in self._without_tools:
            return messages_with_tool_prompt(messages, tools, self._tool_format), []
        return messages, tools

    def _thinking(self, rendered: str, *, is_new: bool) -> Thinking | None:
        """Return how the model thinks behind a rendered conversation: the template may open or close the thinking."""
        found = self._reasoning_format
        if found is None:
            return None
        text = rendered.rstrip()
        is_open = text.endswith(found.begin)
        is_off = not is_open and (not is_new or text.endswith(found.end))
        if found.head:
            return None if is_off else Thinking(found, is_open)
        return Thinking(found, is_open, is_off=is_off, has_tokens=self._has_thinking_tokens)


def tools_for_template(tools: Sequence[Mapping[str, Any]], has_descriptions: bool = False) -> list[dict[str, Any]]:
    """Return OpenAI's tools without `strict`, which models do not know.

    Args:
        has_descriptions: the template needs a description of each.
    """
    extra = {"description": ""} if has_descriptions else {}
    return [
        {**tool, "function": extra | {key: value for key, value in tool["function"].items() if key != "strict"}}
        for tool in tools
    ]


def messages_for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return OpenAI's messages as templates expect them: known roles, arguments as objects, content always a text.

    A client sends back a model's own output, so arguments may be any text.

    Raises:
        InvalidRequest: a tool call is malformed.
    """
    changed = []
    for index, message in enumerate(messages):
        # As in vLLM, an empty text and not None: templates without tool calls would write "None".
        kept = {name: value for name, value in message.items() if name != "tool_calls"}
        kept["content"] = message.get("content") or ""
        kept["role"] = _ROLES.get(message["role"], message["role"])
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise InvalidRequest("expected a list", f"messages[{index}].tool_calls")
        if calls:
            path = f"messages[{index}].tool_calls"
            kept["tool_calls"] = [_call_for_template(call, f"{path}[{number}]") for number, call in enumerate(calls)]
        changed.append(kept)
    return changed


def _call_for_template(call: Any, path: str) -> dict[str, Any]:
    match call:
        case {"function": {"name": str(), **rest} as function}:
            arguments = _parsed_arguments(rest.get("arguments"), f"{path}.function.arguments")
            return {**call, "function": {**function, "arguments": arguments}}
        case _:
            raise InvalidRequest('expected {"function": {"name": str, "arguments": JSON of an object}}', path)


def _parsed_arguments(arguments: Any, path: str) -> Arguments:
    if arguments is None or arguments == "":
        return Arguments()
    if isinstance(arguments, dict):
        return Arguments(arguments)
    if not isinstance(arguments, str):
        raise InvalidRequest("expected a JSON object, or its text", path)
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        parsed = None
    return Arguments(parsed) if isinstance(parsed, dict) else RawArguments({"": arguments})


def _render_up_to_last_content(template: ChatTemplate, variables: Mapping[str, Any]) -> str:
    """Render without the template's text behind the last message's content.

    Source: continue_final_message in transformers' render_jinja_template, including templates that strip the content.
    """
    # The space shows whether the template stripped the content.
    tag = secrets.token_hex()
    *others, last = variables["messages"]
    tagged = [*others, {**last, "content": f"{last['content']}{tag} "}]
    rendered = template.render({**variables, "messages": tagged}, add_generation_prompt=False)
    end = rendered.rfind(tag)
    if end < 0:
        rule = "the model's chat template does not write the last message's content as it is"
        raise InvalidRequest(rule, "continue_final_message")
    text = rendered[:end]
    return text if rendered.startswith(" ", end + len(tag)) else text.rstrip()


def _pair_messages(query: str, document: str) -> tuple[dict[str, str], ...]:
    """Return a pair as the templates of rerankers have it.

    Source: sentence-transformers' CrossEncoder, and vLLM's score templates.
    """
    return ({"role": "query", "content": query}, {"role": "document", "content": document})


def writes_tools(template: ChatTemplate) -> bool:
    """Whether the template tells the model about tools."""
    name = f"f{secrets.token_hex()}"
    function = {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}}
    messages = [{"role": "user", "content": "a"}]
    return template.writes(name, messages, [{"type": "function", "function": function}]) is not False


def writes_pairs(template: ChatTemplate) -> bool:
    """Whether the template is a reranker's: it knows the roles of a pair. Others may write a message of any role."""
    query, document, role = (secrets.token_hex() for _ in range(3))
    writes = all(template.writes(text, _pair_messages(query, document)) for text in (query, document))
    return writes and not template.writes(query, [{"role": role, "content": query}])


def _writes_calls(template: ChatTemplate) -> bool:
    name = f"f{secrets.token_hex()}"
    call = {"id": name, "type": "function", "function": {"name": name, "arguments": Arguments()}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    return template.writes(name, [{"role": "user", "content": "a"}, calling]) is not False


def _without_mark(text: str, mark: str | None) -> str:
    # An exception's text may contain it as an escape.
    return text if mark is None else text.replace(mark, "").replace(ascii(mark)[1:-1], "")


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"a lone surrogate (U+{ord(text[exc.start]):04X}) is not text", "messages") from exc
