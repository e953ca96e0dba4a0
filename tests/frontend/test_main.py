"""The command line: examples in its help, defaults, and mistakes."""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest

from build_engines.__main__ import _parser as parser_of_builds
from build_engines.__main__ import main as build_engines
from frontend.__main__ import _parser, main
from frontend.cli.chat_client import ChatClient
from frontend.launcher.launcher import LauncherSettings
from frontend.launcher.state_lock import server_lock
from frontend.settings import SettingsError
from model_repository.system.lock_file import write_holder

EXAMPLE = re.compile(r"^(?:examples?:)? +conch (\S.*?)(?:  .*)?$", re.MULTILINE)


def test_every_command_has_examples_and_they_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["conch"])  # the name in the examples
    for parser in (_parser(), parser_of_builds()):
        [commands] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        for name, command in commands.choices.items():
            if command.add_help:  # else the other parser has it
                examples = EXAMPLE.findall((command.epilog or "").replace("\\\n", ""))
                assert examples, f"{name}: its help has no example"
                for example in map(shlex.split, examples):
                    assert parser.parse_args(example) and example[0] == name


@pytest.mark.parametrize(
    "words", [["run", "demo", "What", "now?"], ["run", "--lines", "demo", "--port", "0", "What", "now?", "--stats"]]
)
def test_a_question_may_come_before_and_after_options(words: list[str]) -> None:
    options = _parser().parse_args(words)
    assert (options.models, options.question) == (["demo"], ["What", "now?"])


def test_serve_without_a_model_offers_the_store(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Path] = []

    def serve(settings: LauncherSettings, *_: object, **__: object) -> int:
        served.append(settings.repository)
        return 0

    monkeypatch.setattr("frontend.launcher.command.serve", serve)
    home = f"--home={tmp_path}"
    assert main(["serve", home]) == 2
    assert capfd.readouterr().err.startswith("error: MODEL: required, since there is no model of a `conch build`: ")
    for model in ("demo", "demo-embedder"):
        assert build_engines(["build", model, home, f"--repository={tmp_path / 'repository'}"]) == 0
    assert main(["serve", home, "--max-sequences=3", "--pin"]) == 0
    assert main(["serve", home, "--repository=other"]) == 0
    repository = tmp_path / "servers" / "8000" / "repository"
    assert served == [repository, Path("other")]
    for model in ("demo", "demo-embedder"):
        text = (repository / model / "config.pbtxt").read_text()
        assert all(part in text for part in ('load\\":\\"demand', 'is_pinned\\":true', 'max_sequences\\":3'))


@pytest.mark.parametrize(
    "words", [["--precision=q8_0"], ["--alias=x"], ["--context-window=9"], ["--pin", "--repository=r"]]
)
def test_options_of_a_build_need_a_model(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words, f"--home={tmp_path}"]) == 2
    assert capsys.readouterr().err == f"error: {words[0]}: goes with a MODEL, which is built with it\n"


@pytest.mark.parametrize(
    ("words", "wait_s"),
    [
        ([], 600.0),
        (["--max-queue-wait-s=30"], 30.0),
        (["--host=0.0.0.0", "--allow-anonymous"], 30.0),
        (["--key-file=keys.json"], 30.0),
    ],
)
def test_the_programs_of_one_person_wait_long(
    words: list[str], wait_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    def serve(settings: LauncherSettings, *_: object, **__: object) -> int:
        waits_s.append(settings.frontend.max_queue_wait_s)
        return 0

    monkeypatch.setattr("frontend.launcher.command.serve", serve)
    monkeypatch.chdir(tmp_path)
    Path("keys.json").write_text('{"keys": []}')
    assert main(["serve", "--repository=any", f"--home={tmp_path}", *words]) == 0
    assert waits_s == [wait_s]


def test_the_embedder_is_served_behind_the_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[list[str]] = []

    def build_models(models: list[str], *_: object, **__: object) -> int:
        built.append(models)
        return 1

    monkeypatch.setattr("frontend.launcher.models.build_models", build_models)
    assert main(["serve", "demo", "--with-embedder", f"--home={tmp_path}"]) == 1
    assert built == [["demo", "demo-embedder"]]
    assert main(["serve", "--with-embedder", f"--home={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("error: --with-embedder: goes with a MODEL")


def test_a_command_of_ollama_is_answered_with_the_way_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cp", "demo", "mine"]) == 2
    assert capsys.readouterr().err.startswith("error: cp: no such command; `conch build MODEL --alias NAME` gives a")


def test_an_unknown_option_is_no_question() -> None:
    with pytest.raises(SettingsError, match=r"^--nonsense: no such option of chat"):
        _parser().parse_args(["chat", "--nonsense", "What"])


def test_only_the_model_of_run_is_required() -> None:
    with pytest.raises(SettingsError, match=r"are required: MODEL \("):
        _parser().parse_args(["run"])


@pytest.mark.parametrize("words", [["--log-format=json", "--colour=red"], ["--log-format", "json", "--port=-1"]])
def test_with_json_a_wrong_option_is_an_object(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("api", "serve"):
        assert main([command, *words]) == 2
        line = json.loads(capsys.readouterr().err)
        assert (line["process"], line["level"]) == (command, "ERROR")
        assert line["message"].startswith("error: " + words[-1].partition("=")[0])


@pytest.mark.parametrize("command", [["chat"], ["run", "no-such-model"]])
def test_a_history_that_others_may_read_is_refused_before_a_model_is_loaded(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    path = tmp_path / "history"
    path.touch(0o644)
    path.chmod(0o644)
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setenv("CONCH_HOME", str(tmp_path))
    assert main([*command, f"--history={path}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: --history={path}: others may read or write the file: ")


@pytest.mark.parametrize("command", [["chat", "Hello!"], ["launch", "claude"], ["bench"]])
def test_the_only_running_server_is_found(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONCH_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with server_lock(tmp_path, "9", is_shared=False) as file:
        write_holder(file, url="http://127.0.0.1:9", models=["demo"])
        assert main(command) == 1
        assert capsys.readouterr().err == "error: no server at http://127.0.0.1:9: `conch serve` starts one\n"
        with server_lock(tmp_path, "10", is_shared=False) as other:
            write_holder(other, url="http://127.0.0.1:10", models=["demo"])
            assert main(command) == 2
    several = "--url: required, since 2 servers run: http://127.0.0.1:10, http://127.0.0.1:9"
    assert capsys.readouterr().err == f"error: {several}\n"


@pytest.mark.parametrize(
    ("words", "port", "model", "question"),
    [
        (["run", "large", "What", "now?"], 10, "large", "What now?"),
        (["run", "small", "What now?"], 9, "small", "What now?"),
        (["chat", "large", "What now?"], 10, "large", "What now?"),
        (["chat", "--model=small", "large?"], 9, "small", "large?"),
        (["chat", "--url=10", "small"], 10, "", "small"),
    ],
)
def test_the_running_server_that_has_the_named_model_is_used(
    words: list[str], port: int, model: str, question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONCH_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    used: list[tuple[str, str, str]] = []

    def chat(client: ChatClient, model: str, *_: object, question: str, **__: object) -> int:
        used.append((client.url, model, question))
        return 0

    monkeypatch.setattr("frontend.cli.chat.chat", chat)
    with server_lock(tmp_path, "9", is_shared=False) as file, server_lock(tmp_path, "10", is_shared=False) as other:
        write_holder(file, url="http://127.0.0.1:9", models=["small"])
        write_holder(other, url="http://127.0.0.1:10", models=["large"])
        assert main(words) == 0
    assert used == [(f"http://127.0.0.1:{port}", model, question)]


@pytest.mark.parametrize(("named", "model"), [("brief", "brief"), ("model.gguf", "model")])
def test_run_talks_to_the_preset_that_it_has_served(
    named: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def chat(client: ChatClient, model: str, *_: object, **__: object) -> int:
        used.append(model)
        return 0

    def serve(*_: object, lock: TextIO, talk: Callable[[str, str], int], **__: object) -> int:
        write_holder(lock, url="http://127.0.0.1:9", models=["model", "brief"])
        return talk("http://127.0.0.1:9", "model")

    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("frontend.launcher.models.build_models", lambda *_, **__: 0)
    monkeypatch.setattr("frontend.launcher.command.serve", serve)
    monkeypatch.setattr("frontend.cli.chat.chat", chat)
    assert main(["run", named, "Hello!", f"--home={tmp_path}"]) == 0
    assert used == [model]


def test_stop_says_that_no_server_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", f"--home={tmp_path}"]) == 1
    assert capsys.readouterr().err == f"error: --home={tmp_path}: no server of this folder runs\n"
