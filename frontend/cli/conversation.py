"""The state of a conversation with a model, and the commands that change it."""

from __future__ import annotations

import itertools
import json
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from frontend.cli.answer_figures import answer_figures
from frontend.cli.chat_client import ChatClient, ChatFailed, Kind, Message, Piece, chosen
from frontend.cli.editor import edited
from frontend.cli.request_fields import OF_OLLAMA, REFUSED, SETTINGS, value_of
from frontend.cli.typed_paths import completed_paths, document_part, image_part, path_and_rest
from model_repository.system.command_parser import expected_one_of


class CommandFailed(Exception):
    """A command of the conversation is unknown, or cannot be done."""


class Conversation:
    """Asks a model with all that was said before. It yields answers, and notes for the person.

    An answer that Ctrl-C ends is kept as far as it came. One that fails leaves the conversation as it was.

    Args:
        model: empty: the first one of the server.
        is_verbose: end each answer with its figures.
        read: asks the person for a line, given a prompt; None: a script talks.
        clock: gives seconds.

    Raises:
        ChatFailed: the server cannot be reached, or does not have the model.
    """

    def __init__(
        self,
        client: ChatClient,
        model: str,
        *,
        is_verbose: bool = False,
        read: Callable[[str], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_over = False
        self.has_history = True  # typed lines are kept
        self._client = client
        self._is_verbose = is_verbose
        self._read = read
        self._clock = clock
        self._models = client.models(model)
        self.model = chosen(model, self._models)
        self._settings: dict[str, Any] = {}
        self._system: list[Message] = []
        self._said: list[Message] = []
        self._attached: list[dict[str, Any]] = []  # parts of the next question
        self._typed = ""  # the last question
        self._question: Message | None = None  # the last one
        self._said_before: list[Message] = []  # the messages before it
        self._files: set[Path] = set()  # that hold this conversation as it was
        self._figures = ""  # of the last whole answer

    def ask(self, text: str) -> Iterator[Piece]:
        """Ask, with the images and documents that were given since the last question.

        Raises:
            ChatFailed: the answer failed.
        """
        content = [*self._attached, {"type": "text", "text": text}] if self._attached else text
        self._attached, self._typed = [], text
        self._question, self._said_before = {"role": "user", "content": content}, self._said
        return self._answer(self._question)

    def obey(self, command: str) -> Iterator[Piece]:
        """Follow a command, such as `/set temperature 0`.

        Raises:
            ChatFailed: an answer failed, or the server refuses a value.
            CommandFailed: the command is unknown, its argument is wrong, or a file cannot be read or written.
        """
        name = _name_of(command)
        if not name:
            word = command.split()[0]
            known = [name for name in _COMMANDS if " " not in name]
            raise CommandFailed(f"{word}: {expected_one_of(word, known)} (a space before the / makes it a question)")
        row, num_words = _COMMANDS[name], len(name.split())
        argument = "".join(command.split(maxsplit=num_words)[num_words:]).strip()
        if bool(argument) != bool(row.form) and not row.form.startswith("["):
            raise CommandFailed(f"expected {name} {row.form}".rstrip())
        try:
            result = row.run(self, argument)
        except OSError as exc:
            raise CommandFailed(f"{command}: {exc.strerror}") from exc
        except ValueError as exc:
            raise CommandFailed(f"{command}: {exc}") from exc
        yield from (Piece(result, Kind.NOTE),) if isinstance(result, str) else result or ()

    def completions(self, line: str, begin: int) -> list[str]:
        """Return how a line may go on behind its character `begin`, the first one of its last word."""
        if not line.startswith("/"):
            return []
        found = [f"{line[:begin]}{name[begin:].split(' ')[0]} " for name in _COMMANDS if name.startswith(line)]
        name = _name_of(line)
        if name and line.startswith(f"{name} "):
            argument = line.removeprefix(f"{name} ").lstrip()
            found += [f"{line.removesuffix(argument)}{each}" for each in _COMMANDS[name].complete(self, argument)]
        return list(dict.fromkeys(each[begin:] for each in found))

    def _answer(self, question: Message) -> Iterator[Piece]:
        said, kept = [*self._said_before, question], self._said
        while True:
            try:
                yield from self._attempt(said)
                return
            except ChatFailed as exc:
                self._said = kept
                said = list(itertools.dropwhile(lambda message: message["role"] != "user", said[1:]))
                if exc.code != "context_length_exceeded" or not said:
                    raise
            yield Piece("(The context window is full. The oldest question and its answer are left out.)", Kind.NOTE)

    def _attempt(self, said: list[Message]) -> Iterator[Piece]:
        answer = {"role": "assistant", "content": ""}
        times = [self._clock()]
        for piece in self._client.answer(self._body() | {"messages": [*self._system, *said]}):
            if piece.kind is not Kind.NOTE:
                times.append(self._clock())
            self._said = [*said, answer]
            if piece.kind is Kind.TEXT:
                answer["content"] += piece.text
            yield piece
        self._said = [*said, answer]
        if self._client.finish_reason == "length":
            limit = " or max_tokens is reached" if "max_tokens" in self._settings else ""
            yield Piece(f"(The answer is cut off: the context window is full{limit}.)", Kind.NOTE)
        window = self._models[self.model]
        self._figures = answer_figures(times, self._client.usage, self._client.timing_ms, window)
        if self._is_verbose:
            yield Piece(self._figures, Kind.NOTE)

    def _body(self, **setting: Any) -> dict[str, Any]:
        window = self._models[self.model]
        options = {"include_usage": True} | ({"include_timing": True} if window else {})
        is_limited = not window or self.model in self._client.limited
        body = {"model": self.model, "stream_options": options} | ({} if is_limited else {"max_tokens": window})
        return body | self._settings | setting

    def _help(self, argument: str) -> str:
        lines = [(f"{name} {row.form}", row.text) for name, row in _COMMANDS.items()]
        lines += [
            ('"""', "begins and ends several lines, also after /system"),
            ("\\", "at the end of a line: the next one belongs to it"),
        ]
        return "\n".join(f"{form:31} {text}" for form, text in lines)

    def _system_prompt(self, argument: str) -> str | None:
        if not argument:
            return "\n".join(str(message["content"]) for message in self._system) or "(There is no system prompt.)"
        self._system = [] if argument == '""' else [{"role": "system", "content": argument}]
        return None

    def _set(self, argument: str) -> str | None:
        if not argument:
            others = ", ".join(name for name in SETTINGS if name not in self._settings)
            return "\n".join([*self._parameters(), f"(Not set: {others}.)"])
        typed, text = (*argument.split(maxsplit=1), "")[:2]
        if typed in REFUSED:
            raise CommandFailed(f"/set {typed}: {REFUSED[typed]}")
        name = OF_OLLAMA.get(typed, typed)
        if name not in SETTINGS:
            raise CommandFailed(f"/set {typed}: {expected_one_of(typed, SETTINGS)}")
        if not text:
            raise CommandFailed(f"expected /set {typed} VALUE")
        self._set_fields(**{name: value_of(text)})
        return None

    def _set_parameter(self, argument: str) -> str | None:
        name, text = (*argument.split(maxsplit=1), "")[:2]
        if name == "stop" and text and value_of(text) == text:  # Ollama takes several words
            argument = f"stop {json.dumps(text.split())}"
        return self._set(argument)

    def _set_fields(self, **values: Any) -> None:
        body = self._body(**values) | {"messages": [{"role": "user", "content": "Hi"}]}
        if ignored := values.keys() & self._client.check(body):
            raise CommandFailed(f"/set {ignored.pop()}: without effect on {self.model}")
        fields = self._settings | values
        self._settings = {name: value for name, value in fields.items() if value is not None}

    def _set_think(self, argument: str) -> None:
        if argument:
            self._set_fields(reasoning_effort=argument, enable_thinking=None)  # the effort switches the thinking on
        else:
            self._set_fields(enable_thinking=True)

    def _set_nothink(self, argument: str) -> None:
        self._set_fields(enable_thinking=False)

    def _set_format(self, argument: str) -> None:
        if argument != "json":
            raise ValueError("expected json; /set response_format takes a JSON schema")
        self._set_fields(response_format={"type": "json_object"})

    def _set_noformat(self, argument: str) -> None:
        self._set_fields(response_format=None)

    def _set_verbose(self, argument: str) -> None:
        self._is_verbose = True

    def _set_quiet(self, argument: str) -> None:
        self._is_verbose = False

    def _set_history(self, argument: str) -> None:
        self.has_history = True

    def _set_nohistory(self, argument: str) -> None:
        self.has_history = False

    def _parameters(self) -> list[str]:
        return [f"{name} {json.dumps(value)}" for name, value in self._settings.items()]

    def _show(self, argument: str) -> str:
        window = self._models[self.model]
        size = f", with a context window of {window:,} tokens" if window else ""
        texts = {
            "model": f"{self.model} of {self._client.url}{size}",
            "system": self._system_prompt("") or "",
            "parameters": "\n".join(self._parameters()) or "(No field is set.)",
        }
        if argument and argument not in texts:
            way = "; `conch show MODEL` describes a model, in another terminal"
            raise ValueError(f"{expected_one_of(argument, texts)}{way}")
        return texts.get(argument) or "\n".join(f"{name}\n{textwrap.indent(texts[name], '  ')}" for name in texts)

    def _attach(self, argument: str, part_of: Callable[[Path], dict[str, Any]]) -> str | Iterator[Piece]:
        path, question = path_and_rest(argument)
        self._attached.append(part_of(path))
        return self.ask(question) if question else f"({path.name} goes with the next question.)"

    def _image(self, argument: str) -> str | Iterator[Piece]:
        return self._attach(argument, image_part)

    def _file(self, argument: str) -> str | Iterator[Piece]:
        return self._attach(argument, document_part)

    def _edit(self, argument: str) -> Iterator[Piece]:
        if self._read is None:
            raise ValueError("an editor needs a terminal")
        text = edited(self._typed)
        if self._question is not None and self._question not in self._said:  # it has failed: its files go again
            self._attached = [*_parts(self._question)[:-1], *self._attached]
        return itertools.chain((Piece(text, Kind.NOTE),), self.ask(text))

    def _save(self, argument: str) -> str:
        text = json.dumps({"messages": [*self._system, *self._said]}, ensure_ascii=False, indent=1)
        path = _path(argument)
        if path.exists() and path.absolute() not in self._files and not self._may_overwrite(path):
            return "(Nothing is written.)"
        path.write_text(f"{text}\n", encoding="utf-8")
        self._files.add(path.absolute())
        return f"({len(self._said)} messages are in {path}.)"

    def _may_overwrite(self, path: Path) -> bool:
        if self._read is None:
            raise ValueError("the file is not of this conversation: name another one")
        try:
            return self._read("The file is not of this conversation. Overwrite it? (y/N) ").strip().lower() == "y"
        except (EOFError, KeyboardInterrupt):
            return False

    def _load(self, argument: str) -> str:
        path = _path(argument)
        try:
            found = json.loads(path.read_bytes())
            messages = found["messages"] if isinstance(found, dict) else found
            roles = [message["role"] for message in messages]
        except (ValueError, LookupError, TypeError) as exc:
            raise ValueError('expected JSON of the form {"messages": [...]}') from exc
        num_system = sum(1 for _ in itertools.takewhile(lambda role: role in ("system", "developer"), roles))
        self._clear("")
        self._files.add(path.absolute())
        self._system, self._said = messages[:num_system], messages[num_system:]
        for index, message in enumerate(self._said):
            if message["role"] == "user":
                self._question, self._said_before = message, self._said[:index]
                self._typed = "".join(part.get("text", "") for part in _parts(message))
        return f"({len(self._said)} messages{' and a system prompt' if self._system else ''}.)"

    def _model(self, argument: str) -> str | None:
        self._models = self._client.models()
        if not argument:
            return "\n".join(f"{'*' if model == self.model else ' '} {model}" for model in self._models)
        if argument not in self._models:
            raise ValueError(expected_one_of(argument, self._models))
        self.model = argument
        return None

    def _retry(self, argument: str) -> Iterator[Piece]:
        if self._question is None:
            raise ValueError("there is no question yet")
        return self._answer(self._question)

    def _clear(self, argument: str) -> None:
        self._said, self._attached, self._typed, self._question, self._files = [], [], "", None, set()

    def _stats(self, argument: str) -> str:
        if not self._figures:
            raise ValueError("there is no whole answer yet")
        return self._figures

    def _exit(self, argument: str) -> None:
        self.is_over = True


type _Complete = Callable[[Conversation, str], Iterable[str]]


class _Command(NamedTuple):
    run: Callable[[Conversation, str], str | Iterator[Piece] | None]  # takes the argument
    form: str  # of the argument; in brackets: it may be left out
    text: str  # for /help
    complete: _Complete = lambda conversation, argument: ()  # returns what a half-typed argument may become


def _one_of(*words: str) -> _Complete:
    return lambda conversation, argument: [f"{word} " for word in words if word.startswith(argument)]


def _of_models(conversation: Conversation, argument: str) -> Iterable[str]:
    return _one_of(*conversation._models)(conversation, argument)


def _of_paths(conversation: Conversation, argument: str) -> Iterable[str]:
    return completed_paths(argument)


_COMMANDS = {
    "/help": _Command(Conversation._help, "", "list the commands"),
    "/?": _Command(Conversation._help, "", "the same"),
    "/system": _Command(Conversation._system_prompt, "[TEXT]", 'show or set the system prompt; "" removes it'),
    "/set": _Command(
        Conversation._set,
        "[NAME VALUE]",
        "show or set a field of the requests; null ends the setting",
        _one_of(*SETTINGS),
    ),
    "/set parameter": _Command(
        Conversation._set_parameter, "NAME VALUE", "the same as in Ollama", _one_of(*OF_OLLAMA, *SETTINGS)
    ),
    "/set system": _Command(Conversation._system_prompt, "TEXT", "set the system prompt"),
    "/set think": _Command(
        Conversation._set_think,
        "[LEVEL]",
        "let the model think, at low, medium or high",
        _one_of("low", "medium", "high"),
    ),
    "/set nothink": _Command(Conversation._set_nothink, "", "let the model answer without thinking"),
    "/set format": _Command(Conversation._set_format, "json", "have the answers in JSON", _one_of("json")),
    "/set noformat": _Command(Conversation._set_noformat, "", "have the answers as text again"),
    "/set verbose": _Command(Conversation._set_verbose, "", "show the figures of each answer"),
    "/set quiet": _Command(Conversation._set_quiet, "", "show no figures"),
    "/set history": _Command(Conversation._set_history, "", "keep typed lines, also in the file of --history"),
    "/set nohistory": _Command(Conversation._set_nohistory, "", "keep no typed lines"),
    "/show": _Command(
        Conversation._show,
        "[model|system|parameters]",
        "show the model, the system prompt and the set fields",
        _one_of("model", "system", "parameters"),
    ),
    "/image": _Command(
        Conversation._image, "PATH [QUESTION]", "send an image file with this question or the next one", _of_paths
    ),
    "/file": _Command(
        Conversation._file, "PATH [QUESTION]", "send a PDF, text, HTML, docx, xlsx or pptx file in this way", _of_paths
    ),
    "/edit": _Command(Conversation._edit, "", "write the last question anew in $VISUAL or $EDITOR, and send it"),
    "/retry": _Command(Conversation._retry, "", "answer the last question again"),
    "/clear": _Command(Conversation._clear, "", "forget questions and answers, and nothing else"),
    "/save": _Command(Conversation._save, "FILE", "write the conversation as messages of OpenAI's API", _of_paths),
    "/load": _Command(Conversation._load, "FILE", "go on with the conversation of such a file", _of_paths),
    "/model": _Command(Conversation._model, "[ID]", "list the server's models, or talk to another one", _of_models),
    "/stats": _Command(Conversation._stats, "", "show the figures of the last whole answer"),
    "/exit": _Command(Conversation._exit, "", "end the conversation, as /bye and Ctrl-D do"),
    "/bye": _Command(Conversation._exit, "", "the same"),
}


def is_command(text: str) -> bool:
    """Whether a text begins as a command; several lines only with a known one, since code may begin with a comment."""
    return text.startswith("/") and ("\n" not in text.strip() or bool(_name_of(text)))


def _name_of(text: str) -> str:
    """Return the command that a text begins with; empty: none."""
    words = text.split(maxsplit=2)
    return next((name for name in (" ".join(words[:2]), words[0]) if name in _COMMANDS), "")


def _parts(message: Message) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _path(argument: str) -> Path:
    path, rest = path_and_rest(argument)
    if rest:
        raise ValueError("expected one path: one with spaces is in quotes")
    return path
