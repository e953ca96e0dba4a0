"""The commands of a conversation, and the requests that it makes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frontend.cli.chat_client import ChatClient, ChatFailed, Kind, Piece
from frontend.cli.conversation import CommandFailed, Conversation
from frontend.cli.request_fields import OF_OLLAMA, REFUSED, SETTINGS
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
        if body.get("reasoning_effort") == "extreme" and body["enable_thinking"] is None:
            raise ChatFailed("reasoning_effort: unknown")
        if body.get("temperature") == 9:
            raise ChatFailed("temperature=9: at most 2")
        return ["min_p"]

    def answer(self, body: dict[str, Any]) -> Iterator[Piece]:
        self.asked.append(json.loads(json.dumps(body)))
        self.usage = {"prompt_tokens": 7, "completion_tokens": 11}
        self.timing_ms = {"prefill": 10.0, "decode": 1000.0} if "include_timing" in body["stream_options"] else {}
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


USAGE = {"stream_options": {"include_usage": True}}  # of each request to another server than Conch


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
    words = ("/system", "/set", "/image", "/file", "/edit", "/retry", "/clear", "/save", "/load", "/model", "/exit")
    for word in (*words, "/show", "/stats", "/bye", "/set parameter NAME VALUE", "/set think [LEVEL]", '"""'):
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
        ("/set parameter num_gpu 1", "/set num_gpu: a property of the served model: `conch build --help`"),
        ("/set parameter nonsense 1", "/set nonsense: expected one of "),
        ("/set parameter", "expected /set parameter NAME VALUE"),
        ("/set nowordwrap", "/set nowordwrap: the terminal itself wraps lines"),
        ("/set verbose now", "expected /set verbose"),
        ("/set format xml", "/set format xml: expected json; /set response_format takes a JSON schema"),
        ("/show info", "/show info: expected one of model, .*; `conch show MODEL` describes a model"),
        ("/stats", "/stats: there is no whole answer yet"),
        ("/edit", "/edit: an editor needs a terminal"),
        ("/load a b", "/load a b: expected one path: one with spaces is in quotes"),
        ("/load ~no-such-user/file", "/load ~no-such-user/file: No such file or directory"),
        ("/file no-such-file.pdf", "/file no-such-file.pdf: No such file or directory"),
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
    assert server.asked == [{"model": "small", "messages": [user("one")], **USAGE, **settings}]
    assert text_of(conversation.obey("/set")).startswith('temperature 0.5\nstop ["\\n"]\nreasoning_effort "low"\n')


def test_null_brings_back_the_value_that_a_conversation_begins_with(server: Server) -> None:
    conversation = Conversation(server, "large")
    for command in ("/set max_tokens 3", "/set max_tokens null", "/set seed null"):
        list(conversation.obey(command))
    list(conversation.ask("one"))
    options = {"include_usage": True, "include_timing": True}
    asked = {"model": "large", "messages": [user("one")], "max_tokens": 4096, "stream_options": options}
    assert server.asked == [asked]


def test_a_value_that_the_server_refuses_is_not_set(conversation: Conversation, server: Server) -> None:
    with pytest.raises(ChatFailed, match=r"^temperature=9: at most 2$"):
        list(conversation.obey("/set temperature 9"))
    list(conversation.ask("one"))
    assert "temperature" not in server.asked[0]


def test_every_setting_is_a_field_of_the_api() -> None:
    assert set(SETTINGS) <= set(ChatCompletionRequest.model_fields)
    assert set(OF_OLLAMA.values()) <= set(SETTINGS) and not {*OF_OLLAMA, *REFUSED} & set(SETTINGS)


@pytest.mark.parametrize(
    ("commands", "settings"),
    [
        (["/set parameter num_predict 5", "/set repeat_penalty 1.1"], {"max_tokens": 5, "repetition_penalty": 1.1}),
        (["/set parameter temperature 0.5", "/set parameter seed 3"], {"temperature": 0.5, "seed": 3}),
        (["/set parameter stop User: Me:"], {"stop": ["User:", "Me:"]}),
        (['/set parameter stop ["a b"]'], {"stop": ["a b"]}),
        (["/set stop a b"], {"stop": "a b"}),
        (["/set format json"], {"response_format": {"type": "json_object"}}),
        (["/set format json", "/set noformat"], {}),
        (["/set think"], {"enable_thinking": True}),
        (["/set nothink"], {"enable_thinking": False}),
        (["/set nothink", "/set think high"], {"reasoning_effort": "high"}),
    ],
)
def test_the_words_of_ollama_set_fields(
    commands: list[str], settings: dict[str, Any], conversation: Conversation, server: Server
) -> None:
    for command in commands:
        assert text_of(conversation.obey(command)) == ""
    list(conversation.ask("one"))
    assert server.asked == [{"model": "small", "messages": [user("one")], **USAGE, **settings}]


def test_a_level_of_thinking_is_checked_as_it_will_be_sent(conversation: Conversation, server: Server) -> None:
    """The server checked it with thinking switched off, accepted it, and refused the next questions."""
    list(conversation.obey("/set nothink"))
    with pytest.raises(ChatFailed, match=r"^reasoning_effort: unknown$"):
        list(conversation.obey("/set think extreme"))
    assert text_of(conversation.obey("/show parameters")) == "enable_thinking false"


def test_a_conversation_shows_its_model_system_prompt_and_fields(server: Server) -> None:
    conversation = Conversation(server, "large")
    unset = "system\n  (There is no system prompt.)\nparameters\n  (No field is set.)"
    model = "large of http://server, with a context window of 4,096 tokens"
    assert text_of(conversation.obey("/show")) == f"model\n  {model}\n{unset}"
    for command in ("/set system Be brief.", "/set seed 3"):
        list(conversation.obey(command))
    shown = [text_of(conversation.obey(f"/show {name}")) for name in ("model", "system", "parameters")]
    assert shown == [model, "Be brief.", "seed 3"]


def test_no_typed_lines_are_kept_on_demand(conversation: Conversation) -> None:
    assert conversation.has_history
    list(conversation.obey("/set nohistory"))
    assert not conversation.has_history
    list(conversation.obey("/set history"))
    assert conversation.has_history


def test_a_file_of_an_image_goes_with_one_question(conversation: Conversation, server: Server, tmp_path: Path) -> None:
    (tmp_path / "my cat.png").write_bytes(b"pixels")
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(b'pixels').decode()}"}}
    path = str(tmp_path / "my cat.png").replace(" ", "\\ ")
    assert text_of(conversation.obey(f"/image {path}")) == "(my cat.png goes with the next question.)"
    list(conversation.obey(f"/image '{tmp_path}/my cat.png' What's this?"))
    assert server.asked[0]["messages"] == [user([part, part, {"type": "text", "text": "What's this?"}])]
    assert messages_of_next(conversation, server)[1:] == [assistant("answer 1")]
    assert server.asked[1]["messages"][-1] == user("next")


def test_a_document_goes_with_one_question(conversation: Conversation, server: Server, tmp_path: Path) -> None:
    (tmp_path / "my notes.pdf").write_bytes(b"%PDF")
    data = f"data:application/pdf;base64,{base64.b64encode(b'%PDF').decode()}"
    part = {"type": "file", "file": {"filename": "my notes.pdf", "file_data": data}}
    note = text_of(conversation.obey(f"/file '{tmp_path}/my notes.pdf'"))
    assert note == "(my notes.pdf goes with the next question.)"
    list(conversation.ask("What is this?"))
    assert server.asked[0]["messages"] == [user([part, {"type": "text", "text": "What is this?"}])]
    list(conversation.obey(f"/file '{tmp_path}/my notes.pdf' And this?"))
    assert server.asked[1]["messages"][-1] == user([part, {"type": "text", "text": "And this?"}])


def test_an_editor_begins_with_the_last_question_and_its_text_is_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = Conversation(server, "", read=lambda prompt: "")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", """sh -c 'echo "/more" >> "$0"'""")
    for text in ("/more", "/more/more"):
        assert text_of(conversation.obey("/edit")) == text
    assert messages_of_next(conversation, server)[::2] == [user("/more"), user("/more/more")]
    monkeypatch.setenv("EDITOR", "false")
    with pytest.raises(CommandFailed, match=r"^/edit: false has ended with status 1: nothing is sent$"):
        list(conversation.obey("/edit"))
    assert len(server.asked) == 3


def test_an_edited_question_has_the_files_of_one_that_failed(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    conversation = Conversation(server, "", read=lambda prompt: "")
    monkeypatch.setenv("VISUAL", """sh -c 'echo more > "$0"'""")
    (tmp_path / "a.txt").write_text("a")
    server.failures.append(ChatFailed("too long"))
    with pytest.raises(ChatFailed):
        list(conversation.obey(f"/file {tmp_path}/a.txt What?"))
    list(conversation.obey("/edit"))
    [part, text] = server.asked[-1]["messages"][-1]["content"]
    assert (part["file"]["filename"], text["text"]) == ("a.txt", "more")


def test_an_answer_may_fill_the_window_unless_the_model_limits_it(server: Server) -> None:
    conversation = Conversation(server, "large")
    list(conversation.ask("one"))
    server.limited = {"large"}
    list(conversation.ask("two"))
    assert [body.get("max_tokens") for body in server.asked] == [4096, None]


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
    refused = f"^/save {path}: the file is not of this conversation: name another one$"  # a script talks
    with pytest.raises(CommandFailed, match=refused):
        list(conversation.obey(f"/save {path}"))
    assert path.read_text() == "mine"
    path.unlink()
    for command in (f"/save {path}", f"/save {path}", f"/load {path}", f"/save {path}", "/clear"):
        list(conversation.obey(command))
    with pytest.raises(CommandFailed, match=refused):
        list(conversation.obey(f"/save {path}"))


@pytest.mark.parametrize(
    ("answer", "is_written"),
    [("y", True), ("Y ", True), ("", False), ("n", False), (EOFError(), False), (KeyboardInterrupt(), False)],
)
def test_a_person_decides_whether_a_file_is_overwritten(
    answer: str | BaseException, is_written: bool, server: Server, tmp_path: Path
) -> None:
    def read(prompt: str) -> str:
        assert prompt == "The file is not of this conversation. Overwrite it? (y/N) "
        if isinstance(answer, BaseException):
            raise answer
        return answer

    path = tmp_path / "my conversation.json"
    path.write_text("mine")
    note = text_of(Conversation(server, "", read=read).obey(f"/save '{path}'"))
    assert note == (f"(0 messages are in {path}.)" if is_written else "(Nothing is written.)")
    assert (path.read_text() != "mine") == is_written


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


@pytest.mark.parametrize(
    ("model", "measured", "window"),
    [
        ("small", ("", "5.0"), ""),
        ("large", ("; prefill 700.0 tokens/s", "10.0"), "\ncontext window       18 of 4,096 tokens (0.4%)"),
    ],
)
def test_the_figures_of_an_answer_are_shown_on_demand(
    model: str, measured: tuple[str, str], window: str, server: Server
) -> None:
    conversation = Conversation(server, model, is_verbose=True, clock=lambda: server.now_s)
    figures = (
        "time to first token  0.50 s\n"
        f"prompt               7 tokens{measured[0]}\n"
        f"completion           11 tokens; decode {measured[1]} tokens/s{window}"
    )
    assert text_of(conversation.ask("one")) == figures
    list(conversation.obey("/set quiet"))
    assert text_of(conversation.ask("two")) == ""
    assert text_of(conversation.obey("/stats")) == figures
    list(conversation.obey("/set verbose"))
    assert text_of(conversation.ask("three")) == figures


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("/sy", ["/system "]),
        ("/set se", ["/set seed "]),
        ("/set pa", ["/set parameter "]),
        ("/set parameter num", ["/set parameter num_predict "]),
        ("/set t", ["/set think ", "/set temperature ", "/set top_p ", "/set top_k "]),
        ("/set format ", ["/set format json "]),
        ("/show s", ["/show system "]),
        ("/model l", ["/model large "]),
        ("/file no-such-folder/", []),
        ("/system se", []),
        ("s", []),
        ("What is /s", []),
    ],
)
def test_commands_fields_and_models_are_completed(line: str, completed: list[str], conversation: Conversation) -> None:
    begin = max(line.rfind(" "), line.rfind("/")) + 1
    assert conversation.completions(line, begin) == [each[begin:] for each in completed]


def test_paths_are_completed_behind_a_space_of_their_own(
    conversation: Conversation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my cat.png").touch()
    for command in ("/image", "/file", "/save", "/load"):
        assert conversation.completions(f"{command} m", len(command) + 1) == ["my\\ cat.png "]
        assert conversation.completions(f"{command} my\\ c", len(command) + 5) == ["cat.png "]


@pytest.mark.parametrize(("command", "limit"), [("/clear", ""), ("/set max_tokens 2", " or max_tokens is reached")])
def test_a_cut_answer_says_so(command: str, limit: str, conversation: Conversation, server: Server) -> None:
    list(conversation.obey(command))
    server.finish_reason = "length"
    assert text_of(conversation.ask("one")) == f"(The answer is cut off: the context window is full{limit}.)"
