"""The places of a request's parts in the client's body, for errors and for the header of ignored parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from frontend.errors import APIError, NotFinite
from frontend.protocol.body import ModelBody
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.embeddings import EmbeddingRequest
from frontend.protocol.fields import GenerationBody
from frontend.protocol.scores import ClassifyRequest, RerankRequest, ScoreRequest
from frontend.translate.embeddings import place_of
from frontend.translate.scores import place_of_longer, place_of_second

_FORM = "response_format"  # the stages' errors of any form have this param
_SCHEMA = "schema"  # the stages' name of its schema
_PARTS = {"tools": "tools[", _FORM: _SCHEMA}  # behind these params, the stages name a part
_PARTS_OF_TOOLS = ("", ".function", ".function.parameters", ".custom", ".custom.format.grammar")
_PAIR = "pair"  # of texts; what is wrong with one is wrong with both
_PATH = re.compile(r"\w+(?:\[\d+\]|\.\w+)*")
_PLACE = re.compile(r"[^:\s]+(?=: )")


class Places:
    """The places of parts in the client's body, by their places in the chat that it means, or by the stages' names.

    A translation of a body to a chat writes the places of its parts. Other places are the same in both. The parts are
    listed when the first place is asked for: few requests fail.
    """

    def __init__(self, body: ModelBody) -> None:
        self._unlisted: ModelBody | None = body
        self._listed: dict[str, str] = {}

    @property
    def _places(self) -> dict[str, str]:
        self._list()
        return self._listed

    def _list(self) -> None:
        if (body := self._unlisted) is not None:
            self._unlisted = None
            self._listed |= [(ours, self.of(place)) for ours, place in _stages_names(body)]

    def __setitem__(self, ours: str, theirs: str) -> None:
        self._places[ours] = theirs

    def add(self, body: ModelBody) -> None:
        """Add the stages' names of a body's parts; the places of a translated one are known."""
        self._list()
        self._unlisted = body

    def of(self, place: str) -> str:
        """Return the client's place of a part."""
        return "".join(self._split(place))

    def blame(self, error: APIError) -> None:
        """Name the client's place in an error."""
        if error.param is None:
            return
        param, rest = error.param, error.message.removeprefix(error.param)
        part = rest.removeprefix(": ")
        if part.startswith(_PARTS.get(param, "\0")):
            error.message = self.of(part)
            found = _PLACE.match(error.message)
            error.param = self._split(part)[0] if found is None else found[0]
            return
        if param == "prompt":
            names = (_PAIR, param) if isinstance(error, NotFinite) else (param,)
            param = next((each for name in names if (each := f"{name}[{error.index}]") in self._places), param)
        error.param = self.of(param)
        if rest != error.message:
            error.message = error.param + rest

    def _split(self, place: str) -> tuple[str, str]:
        """Return the client's place of the longest known beginning, and the rest: it is the same for the client."""
        path = found[0] if (found := _PATH.match(place)) else ""
        while path and path not in self._places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        if not path:
            return "", place
        # The parts of a message have other names in other APIs.
        return self._places[path], "" if path.startswith("messages") else place.removeprefix(path)


def _stages_names(body: ModelBody) -> Iterator[tuple[str, str]]:
    """Yield the names of a body's parts in the stages, each with its place in the body."""
    match body:
        case ChatCompletionRequest():
            yield from _of_chat(body)
        case CompletionRequest() if len(body.prompt) > 1:
            num_drawn = body.best_of or body.n or 1
            yield from _of_prompts(f"prompt[{index // num_drawn}]" for index in range(len(body.prompt) * num_drawn))
        case EmbeddingRequest() | ClassifyRequest():
            yield from _of_prompts(place_of("input", body.input, index) for index in range(len(body.input)))
        case RerankRequest() | ScoreRequest():
            for index, pair in enumerate(body.pairs()):
                yield f"prompt[{index}]", place_of_longer(body, pair, index)
                yield f"{_PAIR}[{index}]", place_of_second(body, index)
    if isinstance(body, CompletionRequest):
        yield "tokens", "prompt"
    if isinstance(body, GenerationBody):
        yield from _of_fields(body)


def _of_prompts(places: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((f"prompt[{index}]", place) for index, place in enumerate(places))


def _of_chat(chat: ChatCompletionRequest) -> Iterator[tuple[str, str]]:
    yield from dict.fromkeys(("prompt", "images"), "messages").items()
    yield from ((f"images[{index}]", place) for index, (place, _) in enumerate(chat.image_urls()))
    for number, (index, _) in enumerate(chat.named_tools()):
        if chat.functions:
            yield f"tools[{number}].function", f"functions[{index}]"
        else:
            yield from ((f"tools[{number}]{part}", f"tools[{index}]{part}") for part in _PARTS_OF_TOOLS)
    if chat.function_call is not None:
        yield "tool_choice", "function_call"
    is_vllms = chat.thinking_budget_tokens is None
    yield "thinking_budget", "thinking_token_budget" if is_vllms else "thinking_budget_tokens"


def _of_fields(body: GenerationBody) -> Iterator[tuple[str, str]]:
    if body.max_completion_tokens is not None:
        yield "max_tokens", "max_completion_tokens"
    for ours, llama_cpp in (("mirostat_target", "mirostat_tau"), ("mirostat_lr", "mirostat_eta")):
        if getattr(body, ours) is None:
            yield ours, llama_cpp
    if body.structured_outputs is not None:
        yield _FORM, "structured_outputs"
        yield _SCHEMA, "structured_outputs.json"
    elif body.response_format is not None:
        named = body.response_format.json_schema
        yield _SCHEMA, f"{_FORM}.schema" if named is None else f"{_FORM}.json_schema.schema"
    else:
        yield _FORM, "regex" if body.regex is not None else "ebnf"
