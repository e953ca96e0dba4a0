"""Documents as token ids, exactly as a server's chat template and tokenizer make them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tokenizers import Tokenizer

from model_repository.reasoning_formats import REASONING_FORMATS
from model_repository.tokenizer.vocabulary import Vocabulary
from tests.workshop.demo_training.checkpoint import CHECKPOINT
from tests.workshop.demo_training.conversation import Document, Message
from tests.workshop.demo_training.hermes import RESPONSE, RESPONSE_END, calls_text, system_content
from tests.workshop.demo_training.tokenizer import END_OF_TEXT, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, IM_END, IM_START

THINKING = REASONING_FORMATS["think"]


@dataclass(frozen=True)
class Encoded:
    """A document's tokens; the model learns to predict those that are marked."""

    token_ids: list[int]
    is_learned: list[bool]
    has_thought: bool = False


@dataclass(frozen=True)
class Turn:
    """The text between `<|im_start|>` and `<|im_end|>`, after the line of the role."""

    role: str
    token_ids: list[int]
    is_learned: bool


class DocumentEncoder:
    """Encodes contents as plain text, and only the template's own markers as the added tokens."""

    def __init__(self, folder: Path = CHECKPOINT) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.server_vocabulary = Vocabulary(self.tokenizer)
        vocabulary = self.tokenizer.get_vocab()
        self.end_of_text, self.im_start, self.im_end = (vocabulary[token] for token in (END_OF_TEXT, IM_START, IM_END))
        self.fim_prefix, self.fim_suffix, self.fim_middle = (
            vocabulary[token] for token in (FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE)
        )
        self.response, self.response_end = (vocabulary[token] for token in (RESPONSE, RESPONSE_END))
        self.newline = self.plain("\n")

    def plain(self, text: str) -> list[int]:
        """Encode a text, the names of the added tokens in it as the characters they are."""
        return self.server_vocabulary.encode_plain(text)

    def marked(self, text: str) -> list[int]:
        """Encode a text of the template, with the added tokens that it names."""
        token_ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return token_ids

    def encode(self, document: Document, only_last: bool = False) -> Encoded:
        """Encode a document for the training or, with `only_last`, to judge its last answer alone."""
        return self.encode_chat(document, only_last) if document.messages else self.encode_text(document)

    def encode_text(self, document: Document) -> Encoded:
        prompt, completion = self.plain(document.prompt), [*self.plain(document.completion), self.end_of_text]
        if document.suffix:
            prompt = [self.fim_prefix, *prompt, self.fim_suffix, *self.plain(document.suffix), self.fim_middle]
        return Encoded(prompt + completion, [False] * len(prompt) + [True] * len(completion))

    def encode_chat(self, document: Document, only_last: bool) -> Encoded:
        turns = list(self.turns(document))
        token_ids: list[int] = []
        is_learned: list[bool] = []
        for position, turn in enumerate(turns):
            is_last = position == len(turns) - 1
            head = [self.im_start, *self.plain(turn.role + "\n")]
            body = [*turn.token_ids, self.im_end]
            if is_last and document.thought:
                head += self.plain(THINKING.begin)
                thought = [*self.plain(document.thought), *self.plain(THINKING.end)]
                head, body = (head + thought, body) if document.is_thought_cut else (head, thought + body)
            learns = turn.is_learned and (is_last or not only_last)
            token_ids += head + body + self.newline
            is_learned += [False] * len(head) + [learns] * len(body) + [False] * len(self.newline)
        return Encoded(token_ids[: -len(self.newline)], is_learned[: -len(self.newline)], bool(document.thought))

    def turns(self, document: Document) -> Iterator[Turn]:
        """Yield a chat's turns: consecutive results of tools share one, of the user."""
        messages = document.messages
        if document.tools:
            has_system = messages[0]["role"] == "system"
            system = messages[0]["content"] if has_system else ""
            messages = messages[1:] if has_system else messages
            yield Turn("system", self.plain(system_content(system, document.tools)), is_learned=False)
        for is_result, group in groupby(messages, key=lambda message: message["role"] == "tool"):
            if is_result:
                yield Turn("user", self.results(group), is_learned=False)
                continue
            for message in group:
                yield Turn(message["role"], self.body(message), message["role"] == "assistant")

    def body(self, message: Message) -> list[int]:
        if calls := message.get("tool_calls"):
            return self.marked(calls_text(calls))
        return self.plain(message["content"])

    def results(self, messages: Iterable[Message]) -> list[int]:
        token_ids: list[int] = []
        for position, message in enumerate(messages):
            token_ids += self.newline if position else []
            token_ids += [self.response, *self.plain(f"\n{message['content']}\n"), self.response_end]
        return token_ids
