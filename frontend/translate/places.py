"""The places of schemas, grammars and tools in the client's body, for those that the stages name."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping

from frontend.errors import APIError, InvalidRequest
from frontend.protocol.body import Body
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.fields import GenerationBody
from frontend.protocol.tools import ToolDefinition

_FORM = "response_format"  # the stages' errors of any form have this param
_SCHEMA = "schema"  # the stages' name of its schema
_PLACE = re.compile(r"[^:\s]+(?=: )")


def offered_tools(chat: ChatCompletionRequest) -> list[tuple[ToolDefinition, Mapping[str, str]]]:
    """Return the tools that the prompt names, in its order, with the places of their parts; see `Tool.places`."""
    tools: list[tuple[ToolDefinition, Mapping[str, str]]] = [
        (tool.definition, tool.places(f"tools[{index}]")) for index, tool in enumerate(chat.tools or ())
    ]
    tools += [(function, {"function": f"functions[{index}]"}) for index, function in enumerate(chat.functions or ())]
    if chat.tool_choice is not None and chat.tool_choice.allowed_tools is not None:
        allowed = chat.tool_choice.types()
        tools = [each for each in tools if each[0].name in allowed]
    return tools


def client_places(found: Iterable[str], body: Body) -> list[str]:
    """Return the places in the client's body of parts of its generation request."""
    places = _places(body)
    prefixes = [(place, _prefix(place, places)) for place in found]
    return [place if ours is None else places[ours] + place.removeprefix(ours) for place, ours in prefixes]


@contextlib.contextmanager
def blaming(body: Body) -> Iterator[None]:
    """Name the client's places in the stages' errors of schemas, grammars and tools that the block raises."""
    try:
        yield
    except InvalidRequest as exc:
        _blame(exc, body)
        raise


def _blame(error: APIError, body: Body) -> None:
    if error.param is None or not (error.param == _FORM or error.param.startswith("tools")):
        return
    is_tool = error.param.startswith("tools")
    places = {ours: theirs for ours, theirs in _places(body).items() if ours.startswith("tools") == is_tool}
    text = error.message
    if error.param in (_FORM, "tools"):
        text = text.removeprefix(f"{error.param}: ")
    ours = _prefix(text, places)
    if ours is not None:
        error.message = places[ours] + text.removeprefix(ours)
        found = _PLACE.match(error.message)
        error.param = places[ours] if found is None else found[0]
    elif _FORM in places:
        error.blame(_FORM, places[_FORM])


def _places(body: Body) -> dict[str, str]:
    """Return the client's places by the stages' own."""
    places: dict[str, str] = {}
    if isinstance(body, ChatCompletionRequest):
        for number, (_, parts) in enumerate(offered_tools(body)):
            for part, place in parts.items():
                places[f"tools[{number}]{'.' if part else ''}{part}"] = place
    if isinstance(body, GenerationBody):
        if body.structured_outputs is not None:
            places |= {_FORM: "structured_outputs", _SCHEMA: "structured_outputs.json"}
        elif body.response_format is not None:
            places[_FORM], places[_SCHEMA] = body.response_format.places()
        else:
            places |= {_FORM: "regex" if body.regex is not None else "ebnf"}
    return places


def _prefix(text: str, places: Mapping[str, str]) -> str | None:
    """Return the longest of our places that a text begins with; None: it begins with no place."""
    found = [
        ours for ours in places if text.startswith(ours) and text[len(ours) : len(ours) + 1] in ("", ".", "[", ":")
    ]
    return max(found, key=len, default=None)
