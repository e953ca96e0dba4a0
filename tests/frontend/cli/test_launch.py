"""How coding agents are started."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NoReturn

import pytest

from frontend.__main__ import main
from frontend.cli.chat_client import ChatClient, ChatFailed
from frontend.cli.launch import AGENTS, launch

URL, BIG = "http://127.0.0.1:8000", 'org/big "9B"'
KEY_VARIABLES = {"claude": "ANTHROPIC_AUTH_TOKEN", "codex": "CONCH_API_KEY", "opencode": "CONCH_API_KEY"}


class Server(ChatClient):
    """A server with two models; the context window of the second one is not known."""

    def models(self, model: str = "") -> dict[str, int]:
        """Return both."""
        return {BIG: 65536, "small": 0}


class Executed(Exception):
    """The program would run now."""


def started(
    folder: Path, program: str, *arguments: str, model: str = "", key: str = "", **environment: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment with which a program that is in a folder is started."""
    (folder / program).touch(mode=0o755)

    def execute(file: str, command: list[str], environment: dict[str, str]) -> NoReturn:
        assert file == command[0] == program
        raise Executed(command, environment)

    streams = io.StringIO(), io.StringIO()
    with pytest.raises(Executed) as raised:
        environment |= {"PATH": str(folder)}
        launch(Server(f"{URL}/v1"), program, model, list(arguments), key, environment, *streams, execute)
    assert [stream.getvalue() for stream in streams] == ["", ""]
    command, given = raised.value.args
    return command, given


def codex_settings(command: list[str]) -> dict[str, Any]:
    """Return the settings of a command line as Codex reads them."""
    assert set(command[1::2]) == {"-c"}
    return tomllib.loads("\n".join(command[2::2]))


def test_claude_code_sends_every_model_to_one_model_and_reads_no_other_address(tmp_path: Path) -> None:
    own = {"ANTHROPIC_API_KEY": "sk-own", "CLAUDE_CODE_USE_BEDROCK": "1", "HOME": "/home/me"}
    command, environment = started(tmp_path, "claude", "-p", "Hello!", **own)
    models = {f"ANTHROPIC_DEFAULT_{name}_MODEL" for name in ("FABLE", "HAIKU", "OPUS", "SONNET")}
    models |= {"ANTHROPIC_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"}
    providers = {f"CLAUDE_CODE_USE_{name}" for name in ("BEDROCK", "FOUNDRY", "VERTEX")}
    variables = {
        **dict.fromkeys(models, BIG),
        **dict.fromkeys(providers | {"ANTHROPIC_API_KEY"}, ""),
        "ANTHROPIC_BASE_URL": URL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536",
    }
    token = {"ANTHROPIC_AUTH_TOKEN": "none"}
    assert environment == {**variables, **token, "HOME": "/home/me", "PATH": str(tmp_path)}
    settings = json.loads(command[2])
    assert (command[1], settings, command[3:]) == ("--settings", {"env": variables}, ["-p", "Hello!"])


def test_codex_gets_a_provider_of_responses(tmp_path: Path) -> None:
    command, environment = started(tmp_path, "codex", HOME="/home/me")
    provider = {"name": "Conch", "base_url": f"{URL}/v1", "wire_api": "responses", "env_key": "CONCH_API_KEY"}
    assert codex_settings(command) == {
        "model": BIG,
        "model_provider": "conch",
        "model_providers": {"conch": provider},
        "model_context_window": 65536,
    }
    assert environment == {"CONCH_API_KEY": "none", "HOME": "/home/me", "PATH": str(tmp_path)}


def test_opencode_gets_a_provider_of_chat_completions(tmp_path: Path) -> None:
    command, environment = started(tmp_path, "opencode", "run", "Hello!")
    assert json.loads(environment["OPENCODE_CONFIG_CONTENT"]) == {
        "model": f"conch/{BIG}",
        "small_model": f"conch/{BIG}",
        "provider": {
            "conch": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Conch",
                "options": {"baseURL": f"{URL}/v1", "apiKey": "{env:CONCH_API_KEY}"},
                "models": {BIG: {"name": BIG, "limit": {"context": 65536, "output": 16384}}},
            }
        },
    }
    assert command == ["opencode", "run", "Hello!"]


@pytest.mark.parametrize(
    ("program", "window", "said"),
    [
        ("claude", 32_768, "error: m has a window of 32,768 tokens, and claude needs at least 45,000: "),
        ("claude", 49_152, "warning: m has a window of 49,152 tokens, and claude wants 65,536: "),
        ("codex", 2048, "error: m has a window of 2,048 tokens, and codex needs at least 16,384: "),
        ("opencode", 32_768, "warning: m has a window of 32,768 tokens, and opencode wants 65,536: "),
    ],
)
def test_a_window_that_an_agent_cannot_work_in_is_named(
    program: str,
    window: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(ChatClient, "models", lambda self, model="": {"m": window})
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", program, "--url=9"]) == 1  # it is not installed
    out, err = capsys.readouterr()
    way = "`conch serve MODEL --context-window 65536 --max-sequences 2` serves more, if the model has it\n"
    assert err.startswith(f"{said}{way}") and bool(out) is said.startswith("warning")


def test_an_unknown_context_window_is_not_set(tmp_path: Path) -> None:
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS" not in started(tmp_path, "claude", model="small")[1]
    assert "model_context_window" not in codex_settings(started(tmp_path, "codex", model="small")[0])
    config = json.loads(started(tmp_path, "opencode", model="small")[1]["OPENCODE_CONFIG_CONTENT"])
    assert config["provider"]["conch"]["models"] == {"small": {"name": "small"}}


@pytest.mark.parametrize("program", AGENTS)
def test_the_key_is_in_a_variable_alone(program: str, tmp_path: Path) -> None:
    command, environment = started(tmp_path, program, key="sk-secret")
    assert [name for name, value in environment.items() if "sk-secret" in value] == [KEY_VARIABLES[program]]
    assert "sk-secret" not in " ".join(command)


@pytest.mark.parametrize("key", ["", "sk-secret"])
@pytest.mark.parametrize("program", AGENTS)
def test_without_the_program_the_same_start_is_printed_for_a_shell(program: str, key: str, tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    arguments = ["-p", "it's"]
    assert launch(Server(URL), program, "", arguments, key, {"PATH": str(tmp_path)}, out, err) == 1
    assert err.getvalue() == f"error: {program} is not on PATH. To install and start it:\n"
    install, *lines = out.getvalue().splitlines()
    assert install == f"npm install -g {AGENTS[program].package}" and "sk-secret" not in out.getvalue()

    command, environment = started(tmp_path, program, *arguments, key=key, OPENAI_API_KEY=key)
    printer = f"#!{sys.executable}\nimport json, os, sys\njson.dump([sys.argv, dict(os.environ)], sys.stdout)"
    (tmp_path / program).write_text(printer)
    shell = ["/bin/sh", "-c", "\n".join(lines)]
    done = subprocess.run(shell, env={"PATH": str(tmp_path), "OPENAI_API_KEY": key}, capture_output=True, check=True)
    words, variables = json.loads(done.stdout)
    assert words[1:] == command[1:]
    assert environment.items() <= variables.items()


def test_a_model_that_the_server_does_not_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "claude").touch(mode=0o755)
    with pytest.raises(ChatFailed, match=r"^model='none': expected one of org/big \"9B\", small$"):
        launch(Server(URL), "claude", "none", [], "", {"PATH": str(tmp_path)}, io.StringIO(), io.StringIO())


def test_a_server_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "codex", "--url", "127.0.0.1:9"]) == 1
    assert capsys.readouterr().err == "error: no server at http://127.0.0.1:9: `conch serve` starts one\n"


def test_another_program_is_refused_with_the_names_of_the_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "vim"]) == 2
    error = capsys.readouterr().err
    assert "vim" in error and all(name in error for name in AGENTS)


@pytest.mark.parametrize("name", ["{file:/etc/passwd}", "a{env:HOME}"])
def test_a_server_gets_neither_a_file_nor_a_variable_by_the_name_of_a_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """opencode replaces such words in its configuration, and sends the name with each request."""
    monkeypatch.setattr(Server, "models", lambda self, model="": {name: 0})
    with pytest.raises(ChatFailed, match="opencode takes no name with braces"):
        launch(Server(URL), "opencode", "", [], "", {}, io.StringIO(), io.StringIO())
