"""The command `launch`: a coding agent on a running server, with nothing written into the agent's configuration."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO

from frontend.cli.chat_client import ChatClient, ChatFailed, chosen
from frontend.terminal import print_error

_NO_KEY = "none"  # the agents refuse to start without a key
_GOOD_WINDOW = 65536  # tokens, for tasks of some steps
_KEY_VARIABLE = "CONCH_API_KEY"  # not OPENAI_API_KEY: with it, agents offer OpenAI's models too

type Start = tuple[dict[str, str], list[str]]  # variables and arguments of one process of an agent


@dataclass(frozen=True, slots=True)
class Agent:
    """A program that works on code with a model.

    Args:
        package: its name at npm.
        key_variable: the variable in which it finds the API key.
        least_window: tokens; in less there is no room for its own prompt and an answer.
        start: takes the server's URL without /v1, a model, and its context window in tokens, 0 if unknown.
    """

    package: str
    key_variable: str
    least_window: int
    start: Callable[[str, str, int], Start]


def _claude(url: str, model: str, context_window: int) -> Start:
    """Send all of Claude Code's models and requests to one model.

    The `env` of a settings file comes before the variables of the process, and --settings before both.
    Claude Code takes the window of an unknown model for 200,000 tokens.

    Source: https://code.claude.com/docs/en/env-vars, https://code.claude.com/docs/en/model-config
    """
    families = ("FABLE", "HAIKU", "OPUS", "SONNET")
    others = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_USE_VERTEX")
    variables = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_MODEL": model,
        **{f"ANTHROPIC_DEFAULT_{family}_MODEL": model for family in families},
        "CLAUDE_CODE_SUBAGENT_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **dict.fromkeys(others, ""),
    }
    if context_window:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(context_window)
    return variables, ["--settings", json.dumps({"env": variables})]


def _codex(url: str, model: str, context_window: int) -> Start:
    """Define a provider on the command line, whose values are TOML; a JSON string is a string of TOML.

    Source: https://developers.openai.com/codex/config-reference
    """
    settings: dict[str, str | int] = {
        "model": model,
        "model_provider": "conch",
        "model_providers.conch.name": "Conch",
        "model_providers.conch.base_url": f"{url}/v1",
        "model_providers.conch.wire_api": "responses",
        "model_providers.conch.env_key": _KEY_VARIABLE,
    }
    if context_window:
        settings["model_context_window"] = context_window
    words = (("-c", f"{name}={json.dumps(value, ensure_ascii=False)}") for name, value in settings.items())
    return {}, [word for pair in words for word in pair]


def _opencode(url: str, model: str, context_window: int) -> Start:
    """Define a provider in the variable that opencode merges over its files.

    It compacts a conversation when less than the limit of an answer is left of the window. It replaces `{file:PATH}`
    and `{env:NAME}` in the variable, so with such a name of a model a server would get files and secrets.

    Source: https://opencode.ai/docs/config, https://opencode.ai/docs/providers
    """
    if "{" in model:
        raise ChatFailed(f"{model=}: opencode takes no name with braces")
    limit = {"limit": {"context": context_window, "output": context_window // 4}} if context_window else {}
    provider: dict[str, Any] = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Conch",
        "options": {"baseURL": f"{url}/v1", "apiKey": f"{{env:{_KEY_VARIABLE}}}"},
        "models": {model: {"name": model, **limit}},
    }
    names = dict.fromkeys(("model", "small_model"), f"conch/{model}")
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(names | {"provider": {"conch": provider}})}, []


AGENTS = {
    # It keeps 33,000 tokens free, and its first question has 50 kB.
    "claude": Agent("@anthropic-ai/claude-code", "ANTHROPIC_AUTH_TOKEN", 45_000, _claude),
    "codex": Agent("@openai/codex", _KEY_VARIABLE, 16_384, _codex),
    "opencode": Agent("opencode-ai", _KEY_VARIABLE, 16_384, _opencode),
}


def launch(
    client: ChatClient,
    program: str,
    model: str,
    arguments: list[str],
    key: str,
    environment: Mapping[str, str],
    out: TextIO,
    err: TextIO,
    execute: Callable[[str, list[str], dict[str, str]], NoReturn] = os.execvpe,
) -> int:
    """Become an agent, or print how to install and start it, and return the exit status 1.

    Args:
        program: a name of AGENTS.
        model: empty: the first one of the server.
        arguments: the agent's own.
        key: the API key; empty: none.
        environment: where the agent is looked for, and what it inherits.

    Raises:
        ChatFailed: the server cannot be reached or does not have the model, or the agent cannot work in its window.
        OSError: the program cannot be started.
    """
    models = client.models(model)
    model = chosen(model, models)
    agent, window = AGENTS[program], models[model]
    if 0 < window < _GOOD_WINDOW:
        rule = f"`conch serve MODEL --context-window {_GOOD_WINDOW} --max-sequences 2` serves more, if the model has it"
        if window < agent.least_window:
            needs = f"{program} needs at least {agent.least_window:,}"
            raise ChatFailed(f"{model} has a window of {window:,} tokens, and {needs}: {rule}")
        err.write(f"warning: {model} has a window of {window:,} tokens, and {program} wants {_GOOD_WINDOW:,}: {rule}\n")
        err.flush()
    variables, options = agent.start(client.url, model, window)
    command = [program, *options, *arguments]
    if shutil.which(program, path=environment.get("PATH")):
        execute(program, command, {**environment, **variables, agent.key_variable: key or _NO_KEY})
    print_error(f"{program} is not on PATH. To install and start it:", err)
    exports = {name: shlex.quote(value) for name, value in variables.items()}
    exports[agent.key_variable] = '"$OPENAI_API_KEY"' if key else _NO_KEY  # a terminal keeps what it shows
    out.write(f"npm install -g {agent.package}\n")
    out.writelines(f"export {name}={value}\n" for name, value in exports.items())
    out.write(f"{shlex.join(command)}\n")
    return 1
