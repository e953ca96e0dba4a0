"""The state of a conversation with a model, and the commands that change it."""

from __future__ import annotations

import base64
import io
import itertools
import json
import mimetypes
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from frontend.cli.chat_client import ChatClient, ChatFailed, Kind, Message, Piece, chosen
from model_repository.system.command_parser import expected_one_of

# Fields of a request that /set knows.
SETTINGS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "response_format",
    "reasoning_effort",
    "chat_template_kwargs",
)

# Commands and fields that users of Ollama type, with the way here.
_OF_OLLAMA = {
    "/show": "`conch show MODEL` describes a model, in another terminal",
    "/set system": "/system TEXT sets the system prompt",
    "/set parameter": "/set NAME VALUE sets a field, without the word parameter",
    "/set num_ctx": "`conch run MODEL --context-window N` sets the window, and `conch serve` too",
    "/set num_predict": "/set max_tokens N limits an answer",
    "/set repeat_penalty": "/set repetition_penalty N penalizes repetitions",
    "/set think": "/set reasoning_effort high lets a model think, if it can",
    "/set nothink": "/set reasoning_effort none ends the thinking of a model that can answer without it",
    "/set format": '/set response_format {"type": "json_object"} asks for JSON',
    "/set verbose": "/stats shows the time and the tokens of each answer",
    "/set quiet": "/stats ends the lines about time and tokens",
}


class CommandFailed(Exception):
    """A command of the conversation is unknown, or cannot be done."""


class Conversation:
    """Asks a model with all that was said before. It yields answers, and notes for the person.

    An answer that Ctrl-C ends is kept as far as it came. One that fails leaves the conversation as it was.

    Args:
        model: empty: the first one of the server.
        has_stats: end each answer with a note about its time and token counts.
        clock: gives seconds.

    Raises:
        ChatFailed: the server cannot be reached, or does not have the model.
    """

    def __init__(
        self, client: ChatClient, model: str, *, has_stats: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.is_over = False
        self._client = client
        self._has_stats = has_stats
        self._clock = clock
        self._models = client.models(model)
        self.model = chosen(model, self._models)
        self._settings: dict[str, Any] = {}
        self._system: list[Message] = []
        self._said: list[Message] = []
        self._images: list[dict[str, Any]] = []  # parts of the next question
        self._question: Message | None = None  # the last one
        self._said_before: list[Message] = []  # the messages before it
        self._files: set[Path] = set()  # that hold this conversation as it was

    def ask(self, text: str) -> Iterator[Piece]:
        """Ask, with the images that were given since the last question.

        Raises:
            ChatFailed: the answer failed.
        """
        content = [*self._images, {"type": "text", "text": text}] if self._images else text
        self._images = []
        self._question, self._said_before = {"role": "user", "content": content}, self._said
        return self._answer(self._question)

    def obey(self, command: str) -> Iterator[Piece]:
        """Follow a command, such as `/set temperature 0`.

        Raises:
            ChatFailed: an answer failed, or the server refuses a value.
            CommandFailed: the command is unknown, its argument is wrong, or a file cannot be read or written.
        """
        word, argument = (*command.split(maxsplit=1), "")[:2]
        for known in (word, " ".join(command.split()[:2])):
            if known in _OF_OLLAMA:
                raise CommandFailed(f"{known}: {_OF_OLLAMA[known]}")
        if word not in _COMMANDS:
            raise CommandFailed(
                f"{word}: {expected_one_of(word, _COMMANDS)} (a space before the / makes it a question)"
            )
        function, form, _ = _COMMANDS[word]
        if bool(argument) != bool(form) and not form.startswith("["):
            raise CommandFailed(f"expected {word} {form}".rstrip())
        try:
            result = function(self, argument.strip())
        except OSError as exc:
            raise CommandFailed(f"{command}: {exc.strerror}") from exc
        yield from (Piece(result, Kind.NOTE),) if isinstance(result, str) else result or ()

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
        if self._has_stats:
            yield Piece(_stats(times, self._client.usage), Kind.NOTE)

    def _body(self, **setting: Any) -> dict[str, Any]:
        limit = self._models[self.model]
        body = {"model": self.model} | ({"max_tokens": limit} if limit else {}) | self._settings | setting
        return body | ({"stream_options": {"include_usage": True}} if self._has_stats else {})

    def _help(self, argument: str) -> str:
        lines = [(f"{word} {form}", text) for word, (_, form, text) in _COMMANDS.items()]
        lines += [
            ('"""', "begins and ends several lines, also after /system"),
            ("\\", "at the end of a line: the next one belongs to it"),
        ]
        return "\n".join(f"{form:23} {text}" for form, text in lines)

    def _system_prompt(self, argument: str) -> str | None:
        if not argument:
            return "\n".join(str(message["content"]) for message in self._system) or "(There is no system prompt.)"
        self._system = [] if argument == '""' else [{"role": "system", "content": argument}]
        return None

    def _set(self, argument: str) -> str | None:
        if not argument:
            values = [f"{name} {json.dumps(value)}" for name, value in self._settings.items()]
            others = ", ".join(name for name in SETTINGS if name not in self._settings)
            return "\n".join([*values, f"(Not set: {others}.)"])
        name, text = (*argument.split(maxsplit=1), "")[:2]
        if name not in SETTINGS:
            raise CommandFailed(f"/set {name}: {expected_one_of(name, SETTINGS)}")
        if not text:
            raise CommandFailed(f"expected /set {name} VALUE")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        body = self._body(**{name: value}) | {"messages": [{"role": "user", "content": "Hi"}]}
        if name in self._client.check(body):
            raise CommandFailed(f"/set {name}: without effect on {self.model}")
        self._settings[name] = value
        if value is None:
            del self._settings[name]
        return None

    def _image(self, argument: str) -> str | Iterator[Piece]:
        rest = io.StringIO(argument)
        words = shlex.shlex(rest, posix=True)  # reads a path as a terminal writes a dropped file
        words.whitespace_split, words.commenters = True, ""
        try:
            path = Path(words.get_token() or "").expanduser()
        except ValueError as exc:
            raise CommandFailed(f"/image {argument}: {exc}") from exc
        kind = mimetypes.guess_type(path.name)[0] or ""
        if not kind.startswith("image/"):
            raise CommandFailed(f"/image {path}: expected the name of an image file, such as cat.png")
        url = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
        self._images.append({"type": "image_url", "image_url": {"url": url}})
        question = rest.read().strip()
        return self.ask(question) if question else f"({path.name} goes with the next question.)"

    def _save(self, argument: str) -> str:
        text = json.dumps({"messages": [*self._system, *self._said]}, ensure_ascii=False, indent=1)
        path = Path(argument).expanduser()
        try:
            with path.open("w" if path.absolute() in self._files else "x", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except FileExistsError as exc:
            raise CommandFailed(f"/save {argument}: the file is not of this conversation: name another one") from exc
        self._files.add(path.absolute())
        return f"({len(self._said)} messages are in {argument}.)"

    def _load(self, argument: str) -> str:
        path = Path(argument).expanduser()
        try:
            found = json.loads(path.read_bytes())
            messages = found["messages"] if isinstance(found, dict) else found
            roles = [message["role"] for message in messages]
        except (ValueError, LookupError, TypeError) as exc:
            raise CommandFailed(f'/load {argument}: expected JSON of the form {{"messages": [...]}}') from exc
        num_system = sum(1 for _ in itertools.takewhile(lambda role: role in ("system", "developer"), roles))
        self._clear("")
        self._files.add(path.absolute())
        self._system, self._said = messages[:num_system], messages[num_system:]
        for index, message in enumerate(self._said):
            if message["role"] == "user":
                self._question, self._said_before = message, self._said[:index]
        return f"({len(self._said)} messages{' and a system prompt' if self._system else ''}.)"

    def _model(self, argument: str) -> str | None:
        self._models = self._client.models()
        if not argument:
            return "\n".join(f"{'*' if model == self.model else ' '} {model}" for model in self._models)
        if argument not in self._models:
            raise CommandFailed(f"/model {argument}: {expected_one_of(argument, self._models)}")
        self.model = argument
        return None

    def _retry(self, argument: str) -> Iterator[Piece]:
        if self._question is None:
            raise CommandFailed("/retry: there is no question yet")
        return self._answer(self._question)

    def _clear(self, argument: str) -> None:
        self._said, self._images, self._question, self._files = [], [], None, set()

    def _switch_stats(self, argument: str) -> str:
        self._has_stats = not self._has_stats
        return f"(The time and the tokens of an answer are {'shown' if self._has_stats else 'not shown'}.)"

    def _exit(self, argument: str) -> None:
        self.is_over = True


type _Command = Callable[[Conversation, str], str | Iterator[Piece] | None]

# Each command with its function, the form of its argument, and a text for /help.
_COMMANDS: dict[str, tuple[_Command, str, str]] = {
    "/help": (Conversation._help, "", "list the commands"),
    "/?": (Conversation._help, "", "the same"),
    "/system": (Conversation._system_prompt, "[TEXT]", 'show or set the system prompt; "" removes it'),
    "/set": (Conversation._set, "[NAME VALUE]", "show or set a field of the requests; null ends the setting"),
    "/image": (Conversation._image, "PATH [QUESTION]", "send an image file with this question or the next one"),
    "/retry": (Conversation._retry, "", "answer the last question again"),
    "/clear": (Conversation._clear, "", "forget questions and answers, and nothing else"),
    "/save": (Conversation._save, "FILE", "write the conversation as messages of OpenAI's API"),
    "/load": (Conversation._load, "FILE", "go on with the conversation of such a file"),
    "/model": (Conversation._model, "[ID]", "list the server's models, or talk to another one"),
    "/stats": (Conversation._switch_stats, "", "show the time and the tokens of each answer, or no longer"),
    "/exit": (Conversation._exit, "", "end the conversation, as /bye and Ctrl-D do"),
    "/bye": (Conversation._exit, "", "the same"),
}


def is_command(text: str) -> bool:
    """Whether a text begins as a command; several lines only with a known one, since code may begin with a comment."""
    return text.startswith("/") and ("\n" not in text.strip() or text.split()[0] in _COMMANDS)


def completions(line: str, word: str) -> list[str]:
    """Return the commands, or the fields of /set, that the last word of a line begins."""
    words = {word: _COMMANDS, f"/set {word}": SETTINGS}.get(line, ()) if line.startswith("/") else ()
    return [f"{each} " for each in words if each.startswith(word)]


def _stats(times: list[float], usage: dict[str, int]) -> str:
    """Describe an answer by the times of its request and its pieces, in seconds, and its token counts."""
    if len(times) == 1 or len(usage) < 2:
        return "(The server gives no token counts.)"
    num_tokens, rest_s = usage["completion_tokens"], times[-1] - times[1]
    rate = f"{(num_tokens - 1) / rest_s:.1f} tokens/s, " if rest_s else ""
    counts = f"{usage['prompt_tokens']} prompt and {num_tokens} completion tokens"
    return f"({times[1] - times[0]:.2f} s to the first token, {rate}{counts})"
