"""The commands of a conversation, and the requests that it makes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frontend.cli.chat_client import ChatClient, ChatFailed, Kind, Piece
from frontend.cli.conversation import SETTINGS, CommandFailed, Conversation, completions
from frontend.protocol.chat import ChatCompletionRequest


class Server(ChatClient):
    """Answers each request with the number of requests so far, and keeps the requests."""

    def __init__(self) -> None:
        super().__init__("http://server")
        self.asked: list[dict[str, Any]] = []
        self.failures: list[ChatFailed] = []  # of the next requests
        self.now_s = 0.0

    def models(self, model: str = "") -> dict[str, int]:
        return {"small": 0, "large": 4096}

    def check(self, body: dict[str, Any]) -> list[str]:
        if body.get("temperature") == 9:
            raise ChatFailed("temperature=9: at most 2")
        return ["min_p"]

    def answer(self, body: dict[str, Any]) -> Iterator[Piece]:
        self.asked.append(json.loads(json.dumps(body)))
        self.usage = {"prompt_tokens": 7, "completion_tokens": 11}
        self.now_s += 0.5
        if self.failures:
            raise self.failures.pop(0)
        yield Piece("thought", Kind.THINKING)
        yield Piece("answer ")
        self.now_s += 2.0
        yield Piece(str(len(self.asked)))


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def conversation(server: Server) -> Conversation:
    return Conversation(server, "")


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def text_of(pieces: Iterator[Piece], kind: Kind = Kind.NOTE) -> str:
    """Return what was yielded of one kind."""
    return "".join(piece.text for piece in pieces if piece.kind is kind)


def messages_of_next(conversation: Conversation, server: Server) -> list[dict[str, Any]]:
    """Ask, and return the request's messages before the question."""
    list(conversation.ask("next"))
    return server.asked[-1]["messages"][:-1]


def test_a_question_comes_with_what_was_said_and_without_the_thinking(
    conversation: Conversation, server: Server
) -> None:
    assert text_of(conversation.ask("one"), Kind.TEXT) == "answer 1"
    assert messages_of_next(conversation, server) == [user("one"), assistant("answer 1")]


def test_help_names_every_command(conversation: Conversation) -> None:
    text = text_of(conversation.obey("/help"))
    for word in ("/system", "/set", "/image", "/retry", "/clear", "/save", "/load", "/model", "/exit", "/bye", '"""'):
        assert f"\n{word} " in text


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("/sav", "/sav: expected one of /help, .*; did you mean /save?"),
        ("/save", "expected /save FILE"),
        ("/clear now", "expected /clear"),
        ("/load no-such-file", "/load no-such-file: No such file or directory"),
        ("/save no-such-folder/file", "/save no-such-folder/file: No such file or directory"),
        ("/set temperatur 0", "/set temperatur: expected one of .*; did you mean temperature?"),
        ("/set temperature", "expected /set temperature VALUE"),
        ("/set min_p 0.1", "/set min_p: without effect on small"),
        ("/model larg", "/model larg: expected one of small, large; did you mean large?"),
        ("/image notes.txt", "/image notes.txt: expected the name of an image file, such as cat.png"),
        ("/image 'cat.png", "/image 'cat.png: No closing quotation"),
        ("/retry", "/retry: there is no question yet"),
        ("/set num_ctx 8192", "/set num_ctx: `conch run MODEL --context-window N` sets the window"),
        ("/set system Be brief.", "/set system: /system TEXT sets the system prompt"),
        ("/show", "/show: `conch show MODEL` describes a model"),
        ("/show info", "/show: `conch show MODEL` describes a model"),
    ],
)
def test_a_command_that_cannot_be_done_is_refused(
    command: str, error: str, conversation: Conversation, server: Server
) -> None:
    with pytest.raises(CommandFailed, match=f"^{error.replace('?', '[?]')}"):
        list(conversation.obey(command))
    assert not server.asked


def test_a_system_prompt_comes_first_until_it_is_removed(conversation: Conversation, server: Server) -> None:
    assert text_of(conversation.obey("/system Be brief.\nBe kind.")) == ""
    assert text_of(conversation.obey("/system")) == "Be brief.\nBe kind."
    assert messages_of_next(conversation, server) == [{"role": "system", "content": "Be brief.\nBe kind."}]
    list(conversation.obey("/clear"))
    assert messages_of_next(conversation, server) == [{"role": "system", "content": "Be brief.\nBe kind."}]
    list(conversation.obey('/system ""'))
    list(conversation.obey("/clear"))
    assert messages_of_next(conversation, server) == []


def test_settings_go_with_the_next_requests(conversation: Conversation, server: Server) -> None:
    for command in ("/set temperature 0.5", '/set stop ["\\n"]', "/set reasoning_effort low"):
        list(conversation.obey(command))
    list(conversation.ask("one"))
    settings = {"temperature": 0.5, "stop": ["\n"], "reasoning_effort": "low"}
    assert server.asked == [{"model": "small", "messages": [user("one")], **settings}]
    assert text_of(conversation.obey("/set")).startswith('temperature 0.5\nstop ["\\n"]\nreasoning_effort "low"\n')


def test_null_brings_back_the_value_that_a_conversation_begins_with(server: Server) -> None:
    conversation = Conversation(server, "large")
    for command in ("/set max_tokens 3", "/set max_tokens null", "/set seed null"):
        list(conversation.obey(command))
    list(conversation.ask("one"))
    assert server.asked == [{"model": "large", "messages": [user("one")], "max_tokens": 4096}]


def test_a_value_that_the_server_refuses_is_not_set(conversation: Conversation, server: Server) -> None:
    with pytest.raises(ChatFailed, match=r"^temperature=9: at most 2$"):
        list(conversation.obey("/set temperature 9"))
    list(conversation.ask("one"))
    assert "temperature" not in server.asked[0]


def test_every_setting_is_a_field_of_the_api() -> None:
    assert set(SETTINGS) <= set(ChatCompletionRequest.model_fields)


def test_a_file_of_an_image_goes_with_one_question(conversation: Conversation, server: Server, tmp_path: Path) -> None:
    (tmp_path / "my cat.png").write_bytes(b"pixels")
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(b'pixels').decode()}"}}
    path = str(tmp_path / "my cat.png").replace(" ", "\\ ")
    assert text_of(conversation.obey(f"/image {path}")) == "(my cat.png goes with the next question.)"
    list(conversation.obey(f"/image '{tmp_path}/my cat.png' What's this?"))
    assert server.asked[0]["messages"] == [user([part, part, {"type": "text", "text": "What's this?"}])]
    assert messages_of_next(conversation, server)[1:] == [assistant("answer 1")]
    assert server.asked[1]["messages"][-1] == user("next")


def test_retry_answers_the_last_question_in_place_of_its_answer(conversation: Conversation, server: Server) -> None:
    list(conversation.ask("one"))
    list(conversation.ask("two"))
    assert text_of(conversation.obey("/retry"), Kind.TEXT) == "answer 3"
    said = [user("one"), assistant("answer 1"), user("two")]
    assert server.asked[2]["messages"] == said
    assert messages_of_next(conversation, server) == [*said, assistant("answer 3")]


def test_retry_asks_again_after_a_failure(conversation: Conversation, server: Server) -> None:
    server.failures = [ChatFailed("busy")]
    with pytest.raises(ChatFailed, match=r"^busy$"):
        list(conversation.ask("one"))
    list(conversation.obey("/retry"))
    assert [body["messages"] for body in server.asked] == [[user("one")]] * 2


def test_a_failed_answer_leaves_the_conversation_as_it_was(conversation: Conversation, server: Server) -> None:
    list(conversation.ask("one"))
    for question in (conversation.ask("two"), conversation.obey("/retry")):
        server.failures = [ChatFailed("busy")]
        with pytest.raises(ChatFailed):
            list(question)
    assert messages_of_next(conversation, server) == [user("one"), assistant("answer 1")]


def test_an_interrupted_answer_is_kept_as_far_as_it_came(conversation: Conversation, server: Server) -> None:
    pieces = conversation.ask("one")
    assert [next(pieces).text, next(pieces).text] == ["thought", "answer "]
    pieces.close()  # type: ignore[attr-defined]
    assert messages_of_next(conversation, server) == [user("one"), assistant("answer ")]


def test_old_questions_make_room_and_the_system_prompt_stays(conversation: Conversation, server: Server) -> None:
    list(conversation.obey("/system Be brief."))
    for text in ("one", "two"):
        list(conversation.ask(text))
    server.failures = [ChatFailed("too long", "context_length_exceeded")] * 2
    assert text_of(conversation.ask("three")).count("The oldest question and its answer are left out.") == 2
    assert server.asked[-1]["messages"] == [{"role": "system", "content": "Be brief."}, user("three")]


def test_a_saved_conversation_goes_on_after_it_is_loaded(server: Server, tmp_path: Path) -> None:
    first, second = Conversation(server, ""), Conversation(server, "")
    list(first.obey("/system Sé breve."))
    list(first.ask("one"))
    path = tmp_path / "conversation.json"
    assert text_of(first.obey(f"/save {path}")) == f"(2 messages are in {path}.)"
    system = {"role": "system", "content": "Sé breve."}
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved == {"messages": [system, user("one"), assistant("answer 1")]}
    assert text_of(second.obey(f"/load {path}")) == "(2 messages and a system prompt.)"
    list(second.obey("/retry"))
    assert server.asked[-1]["messages"] == [system, user("one")]
    assert messages_of_next(second, server) == [system, user("one"), assistant("answer 2")]


def test_a_file_of_another_conversation_is_kept(conversation: Conversation, tmp_path: Path) -> None:
    path = tmp_path / "conversation.json"
    path.write_text("mine")
    refused = f"^/save {path}: the file is not of this conversation: name another one$"
    with pytest.raises(CommandFailed, match=refused):
        list(conversation.obey(f"/save {path}"))
    assert path.read_text() == "mine"
    path.unlink()
    for command in (f"/save {path}", f"/save {path}", f"/load {path}", f"/save {path}", "/clear"):
        list(conversation.obey(command))
    with pytest.raises(CommandFailed, match=refused):
        list(conversation.obey(f"/save {path}"))


@pytest.mark.parametrize("content", ["{}", "[1]", '["user"]', "not JSON", "7", b"\xff".decode("latin-1")])
def test_a_file_of_another_form_is_refused(content: str, conversation: Conversation, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(CommandFailed, match=r'expected JSON of the form {"messages": \[...\]}$'):
        list(conversation.obey(f"/load {path}"))


def test_a_conversation_goes_on_with_another_model(conversation: Conversation, server: Server) -> None:
    assert text_of(conversation.obey("/model")) == "* small\n  large"
    list(conversation.obey("/model large"))
    list(conversation.ask("one"))
    assert (server.asked[0]["model"], server.asked[0]["max_tokens"]) == ("large", 4096)
    with pytest.raises(ChatFailed, match=r"^model='larg': expected one of small, large; did you mean large\?$"):
        Conversation(server, "larg")


@pytest.mark.parametrize("command", ["/exit", "/bye"])
def test_exit_ends_the_conversation(command: str, conversation: Conversation) -> None:
    list(conversation.obey(command))
    assert conversation.is_over


def test_stats_count_from_the_request_and_from_the_first_piece(server: Server) -> None:
    conversation = Conversation(server, "", has_stats=True, clock=lambda: server.now_s)
    note = text_of(conversation.ask("one"))
    assert note == "(0.50 s to the first token, 5.0 tokens/s, 7 prompt and 11 completion tokens)"
    assert server.asked[0]["stream_options"] == {"include_usage": True}
    assert text_of(conversation.obey("/stats")) == "(The time and the tokens of an answer are not shown.)"
    assert text_of(conversation.ask("two")) == ""


@pytest.mark.parametrize(
    ("line", "word", "words"),
    [
        ("/sy", "/sy", ["/system "]),
        ("/set se", "se", ["seed "]),
        ("/system se", "se", []),
        ("s", "s", []),
        ("What is /s", "/s", []),
    ],
)
def test_commands_and_fields_are_completed(line: str, word: str, words: list[str]) -> None:
    assert completions(line, word) == words


@pytest.mark.parametrize(("command", "limit"), [("/clear", ""), ("/set max_tokens 2", " or max_tokens is reached")])
def test_a_cut_answer_says_so(command: str, limit: str, conversation: Conversation, server: Server) -> None:
    list(conversation.obey(command))
    server.finish_reason = "length"
    assert text_of(conversation.ask("one")) == f"(The answer is cut off: the context window is full{limit}.)"
