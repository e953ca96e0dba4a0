"""The command line. Each command imports its own modules only, since a cluster starts `health` every few seconds."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import itertools
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable, Sequence, Set
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from frontend.gateway.keys_command import add_actions
from frontend.launcher.models import MODEL_OPTIONS
from frontend.launcher.triton_server import ADDRESS, DEFAULT_FRONTEND
from frontend.options import TLS_OF_SERVER, TLS_TO_TRITON, add_options, settings_from, settings_of_environment
from frontend.settings import Settings, SettingsError, is_loopback
from frontend.terminal import Colour, print_error, write_coloured
from frontend.triton.endpoints import Endpoints
from model_repository.system.command_parser import CommandParser
from model_repository.system.home import add_home, conch_home
from model_repository.system.model_memory import add_model_memory
from model_repository.system.process_start import prepare_process
from model_repository.system.running_servers import running_servers
from model_repository.system.terminal_text import escape_output

if TYPE_CHECKING:
    from frontend.cli.chat_client import ChatClient
    from frontend.cli.typed_lines import History


class _Parser(CommandParser):
    """Parses the commands that have a question too."""

    others = MappingProxyType(
        {
            "cp": "`conch build MODEL --alias NAME` gives a model a further name",
            "push": "Conch publishes no models",
            "ls": "`conch list` lists the models",
        }
    )

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Take words behind an option for the question too: argparse of Python 3.12.1 leaves them."""
        options, rest = super().parse_known_args(args, namespace)
        if "question" in options and not any(word.startswith("-") for word in rest):
            options.question = [*options.question, *rest]
            rest = []
        return options, rest

    def error(self, message: str) -> NoReturn:
        """Refuse the words; argparse itself would write plain text, also beside --log-format json."""
        raise SettingsError(f"{message} (--help lists the options)")


type _Run = Callable[[argparse.Namespace], int | None]

_CONCH = "conch"
_URL = "http://127.0.0.1:8000"
_ENDPOINT = "127.0.0.1:8001"
_EXIT_STATUS = (
    "Exit status: 0 done, or a server that a signal has stopped; 1 failed; 2 wrong option or value; 130 after Ctrl-C; "
    "141 if the output is closed."
)
_KEY_VARIABLE = "OPENAI_API_KEY"
_PERSONS_QUEUE_WAIT_S = 600.0  # the programs of one person wait rather than try again
_OLD_HOME = Path(".conch", "artifacts")  # of each folder, before there was one for each user
_BUILD_COMMANDS = {
    "build": "Build a model, and render the repository that serves it.",
    "list": "List the models of this machine, or the catalog too.",
    "show": "Show what a model is.",
    "pull": "Download models, and build their artifacts.",
    "rm": "Remove models or presets from the store.",
    "create": "Give a model a further name, with a system prompt and defaults.",
    "plan": "Plan a model of the catalog on GPUs.",
    "quantize": "Write a smaller GGUF file.",
    "adapter": "Convert a LoRA adapter for a model.",
    "verify": "Check the files of an artifact.",
    "render": "Render the repository of several artifacts.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 2 for a wrong option or value."""
    words = (sys.argv[1:] if arguments is None else list(arguments)) or ["--help"]
    try:
        if arguments is None:
            prepare_process()
    except KeyboardInterrupt:  # it came while it was blocked
        return 128 + signal.SIGINT
    escape_output()
    if words[0] in _BUILD_COMMANDS:
        command = [sys.executable, "-P", "-m", "build_engines", *words]  # -P: nothing of the current folder
        os.execv(sys.executable, command)
    end = words.index("--") if words[0] == "launch" and "--" in words else len(words)
    try:
        options = _parser().parse_args(words[:end], argparse.Namespace(arguments=words[end + 1 :]))
        status = int(options.command(options) or 0)
        sys.stdout.flush()
        return status
    except SettingsError as exc:
        if "--log-format=json" in words or ("--log-format", "json") in itertools.pairwise(words):
            from frontend.launcher.child import json_line

            print(json_line(words[0], f"error: {exc}"), file=sys.stderr)
        else:
            print_error(exc, sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails
        return 128 + signal.SIGPIPE


def _parser() -> CommandParser:
    prog = _CONCH if Path(sys.argv[0]).name == _CONCH else "python -m frontend"
    parser = _Parser(prog=prog, description="Serve models behind the OpenAI HTTP API.", epilog=_EXIT_STATUS)
    parser.add_argument("--version", action="version", version=f"conch {version('conch')}")
    commands = parser.add_subparsers(metavar="COMMAND")

    def add_command(name: str, run: _Run | None, text: str, example: str) -> CommandParser:
        command: CommandParser = commands.add_parser(
            name, help=text, description=text, epilog=f"example: {prog} {name}{example}"
        )
        command.set_defaults(command=run)
        return command

    command = add_command("serve", _serve, "Run tritonserver and the frontend until Ctrl-C.", " demo")
    models_help = (
        "Model to build first, unless it is built: demo, demo-embedder, OWNER/NAME[:VARIANT] of the hub, the folder of "
        "a checkpoint, FILE.gguf, or FILE.yaml for several models with options; `conch build --help` explains them."
    )
    command.add_argument("models", nargs="*", metavar="MODEL", help=models_help)
    embedder_help = "Serve demo-embedder too, this project's tiny model for /v1/embeddings."
    command.add_argument("--with-embedder", action="store_true", help=embedder_help)
    _add_serve_options(command)

    command = add_command(
        "run", _run, "Chat with a model in the terminal until Ctrl-D, and serve it, unless a server has it.", " demo"
    )
    command.add_argument("models", nargs=1, metavar="MODEL", help=models_help)
    _add_chat_options(command)
    _add_serve_options(command)
    command.set_defaults(with_embedder=False)

    text = "Chat in the terminal with a model of a running server. OPENAI_API_KEY is its API key."
    command = add_command("chat", _chat, text, f' --url {_URL} --model demo "What is the capital of France?"')
    _add_chat_options(command)
    _add_url(command)
    text = "Model to chat with. (default: the first word, if a server of this machine has it, or the server's first)"
    command.add_argument("--model", default="", metavar="ID", help=text)

    text = (
        "Measure how fast a model answers chats: the time to the first token (TTFT) and tokens/s. The model is "
        "that of a running server, or is served for the measurement, on a free port. OPENAI_API_KEY is the "
        "server's API key, and also that of the server beside it."
    )
    command = add_command("bench", _bench, text, f" {_URL} --streams 1,8 --beside http://127.0.0.1:8080")
    target_help = "A model to serve, as for `conch serve`, or a --url."
    command.add_argument("target", nargs="?", default="", metavar="URL|MODEL", help=target_help)
    _add_url(command)
    command.add_argument("--model", default="", metavar="ID", help="Model of the server. (default: its first)")
    beside_help = (
        "Another server to measure in turns with the first one: its model of the same name, or else its first."
    )
    command.add_argument("--beside", metavar="URL", help=beside_help)
    streams_help = "Numbers of chats at the same time, one step for each. (default: 1,4,16)"
    command.add_argument("--streams", type=_counts, default="1,4,16", metavar="N,N...", help=streams_help)
    _add_number(command, "--seconds", 10.0, "Seconds of a step, without the end of its last answers.")
    _add_number(command, "--prompt-tokens", 256, "Tokens of a prompt, about.")
    _add_number(command, "--tokens", 128, "Tokens of an answer. A model of another server than Conch may end earlier.")
    command.add_argument("--json", action="store_true", help="Print an object instead of a table and a plot.")
    _add_model_options(command)

    text = (
        "Start a coding agent with a model of a running server, without a change of the agent's own configuration. "
        "Words behind -- are arguments of the agent. OPENAI_API_KEY is the server's API key."
    )
    command = add_command("launch", _launch, text, f" claude demo --url {_URL}")
    command.add_argument("program", choices=("claude", "codex", "opencode"), help="The agent.")
    model_help = "Model of the server. (default: its first)"
    command.add_argument("model", nargs="?", default="", metavar="MODEL", help=model_help)
    _add_url(command)

    text = "Check this machine for serving. The exit status is 1 if something is missing."
    command = add_command("doctor", _doctor, text, " --json")
    add_home(command, "Folder of artifacts and running servers.")
    command.add_argument("--json", action="store_true", help="Print a list of objects.")

    command = add_command("ps", _ps, "List the servers of this machine, and what they hold.", "")
    add_home(command, "Folder of artifacts and running servers.")

    for name, run, text in (
        ("load", _load, "Have a running server load a model; another one may be unloaded for it."),
        ("unload", _unload, "Have a running server unload a model. A request loads it again."),
    ):
        command = add_command(name, run, f"{text} OPENAI_API_KEY is the server's API key.", " demo")
        command.add_argument("model", metavar="MODEL", help="Name of the model.")
        _add_url(command)

    command = add_command("stop", _stop, "Stop servers of this machine, as Ctrl-C does.", " 8000")
    stop_help = "Port or process id of a server. (default: the only one)"
    command.add_argument("servers", nargs="*", type=int, metavar="PORT", help=stop_help)
    add_home(command, "Folder of artifacts and running servers.")

    for name, text in _BUILD_COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)  # main() gives them to build_engines

    text = "Run the frontend alone; Triton runs elsewhere."
    command = add_command("api", _api, text, f" --triton {_ENDPOINT} --port 8000")
    add_options(command, Settings())

    text = "Run tritonserver alone; frontends run elsewhere."
    command = add_command("triton", _triton, text, " --repository repository")
    command.add_argument(
        "--repository", type=Path, required=True, metavar="DIR", help="Repository that build_engines rendered."
    )
    add_model_memory(command, "Memory that all loaded models may hold together")
    _add_triton_options(command)
    address_help = (
        "Address of gRPC; 0.0.0.0 and :: are every address. Every client that reaches it can generate. "
        f"(default: {ADDRESS})"
    )
    command.add_argument("--address", default=ADDRESS, help=address_help)
    metrics_help = "Address of metrics; :: is every IPv6 address. (default: that of gRPC)"
    command.add_argument("--metrics-address", metavar="ADDRESS", help=metrics_help)
    _add_number(command, "--exit-timeout-s", 25, "Seconds that running requests may take to end after SIGTERM.")
    add_options(command, Settings(), only=TLS_OF_SERVER)

    text = "Check the engines of a Triton; exit status 0 or 1."
    command = add_command("health", _health, text, f" --triton {_ENDPOINT} --generate")
    _add_endpoint_options(command, {"engine_stall_s"})
    command.add_argument("--model", default="", metavar="ID", help="Model to check; without it, every served model.")
    _add_number(command, "--timeout-s", 5.0, "Seconds that the whole check may take.")
    command.add_argument("--generate", action="store_true", help="Have each model make a token too.")

    text = "Take a Triton out of service, and wait until it is idle."
    command = add_command("drain", _drain, text, f" --triton {_ENDPOINT} --undo")
    _add_endpoint_options(command)
    _add_number(command, "--notice-s", 5.0, "Seconds until every frontend has noticed the drain.")
    _add_number(command, "--timeout-s", 60.0, "Seconds that running requests may take to end.")
    hand_over_help = "Then have the frontends continue them at other Tritons; if there is none, they end with an error."
    command.add_argument("--hand-over", action="store_true", help=hand_over_help)
    command.add_argument("--undo", action="store_true", help="Put the Triton back into service.")

    text = "Make, list or remove API keys."
    add_actions(add_command("keys", None, text, " add --file keys.json --name alice"))  # each action has its function

    text = "Print a script with which a shell completes commands and options; source it from the shell's start file."
    command = add_command("completion", _completion, text, " bash")
    command.add_argument("shell", choices=("bash", "zsh", "fish"))

    command = add_command("reference", _reference, "Write the generated tables of the documentation's pages.", " docs")
    command.add_argument("folder", type=Path, metavar="DIR", help="Folder of the pages, such as docs.")
    return parser


def _add_chat_options(command: argparse.ArgumentParser) -> None:
    text = "Print the answer to this question, and end. Standard input follows it, unless that is a terminal."
    command.add_argument("question", nargs="*", default=[], metavar="QUESTION", help=text)
    text = "Standard input has a question, or a command such as `/set temperature 0`, in each line, not one question."
    command.add_argument("--lines", action="store_true", help=text)
    text = "Print the time to the first token, tokens/s and token counts of each answer on standard error."
    command.add_argument("--stats", action="store_true", help=text)
    text = "Keep up to 1,000 typed lines in this file for later conversations; others may not read it. (default: none)"
    command.add_argument("--history", type=Path, metavar="FILE", help=text)
    command.add_argument("--plain", action="store_true", help="Print Markdown without rendering it.")


def _add_model_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("of the models, as for `conch build`, which has more")
    for flag, (metavar, text) in MODEL_OPTIONS.items():
        kind = {"metavar": metavar} if metavar else {"nargs": 0}
        group.add_argument(flag, action=_ForBuild, dest="model_options", default=[], help=text, **kind)


def _add_serve_options(command: argparse.ArgumentParser) -> None:
    _add_model_options(command)
    repository_help = "Repository that build_engines rendered. (default: that of the MODEL, or of the whole store)"
    command.add_argument("--repository", type=Path, metavar="DIR", help=repository_help)
    add_model_memory(command, "Memory that all loaded models may hold together")
    _add_triton_options(command, "triton-")
    _add_number(command, "--ready-timeout-s", 120.0, "Seconds until all models must answer.")
    _add_number(
        command,
        "--stop-timeout-s",
        5.0,
        "Seconds that the frontend may take to end after its requests; then it is killed.",
    )
    _add_number(command, "--max-restarts", 5, "Restarts of Triton, or of the frontend, in ten minutes, once ready.")
    _add_number(command, "--triton-hang-s", 30.0, "Restart Triton after this many seconds without an answer; 0: never.")
    hang_help = "The same for the frontend."
    _add_number(command, "--frontend-hang-s", 30.0, hang_help)
    verbose_help = "On a terminal, print the logs instead of writing serve.log."
    command.add_argument("--verbose", action="store_true", help=verbose_help)
    add_options(command, DEFAULT_FRONTEND, without={"triton_endpoints"})


class _ForBuild(argparse.Action):
    """Keeps an option as it is written, for `build`."""

    def __call__(self, parser: object, namespace: argparse.Namespace, value: object, flag: str | None = None) -> None:
        namespace.model_options = [*namespace.model_options, flag if self.nargs == 0 else f"{flag}={value}"]


def _add_triton_options(command: argparse.ArgumentParser, prefix: str = "") -> None:
    add_home(command, "Folder of artifacts and running servers.")
    for name, port in (("grpc", 8001), ("metrics", 8002)):
        # `serve` has a frontend that knows the port.
        usual, note = (None, f"{port} if it is free, else any") if prefix else (port, str(port))
        port_help = f"Port of Triton's {'gRPC' if name == 'grpc' else name}. (default: {note})"
        command.add_argument(f"--{prefix}{name}-port", type=int, metavar="N", default=usual, help=port_help)
    http_help = "Port of Triton's own HTTP API, on loopback; no part of Conch uses it. (default: closed)"
    command.add_argument(f"--{prefix}http-port", type=int, metavar="N", help=http_help)
    binary_help = "The tritonserver to run. (default: an installed one)"
    command.add_argument("--tritonserver", type=Path, metavar="PATH", help=binary_help)


def _add_endpoint_options(command: argparse.ArgumentParser, settings: Set[str] = frozenset()) -> None:
    command.add_argument("--triton", required=True, metavar="HOST:PORT", help="gRPC endpoint of the Triton.")
    add_options(command, Settings(), only=TLS_TO_TRITON | settings)


def _add_url(command: argparse.ArgumentParser) -> None:
    text = f"URL of the server, HOST:PORT or PORT. (default: that of the only one that runs here, or {_URL})"
    command.add_argument("--url", default="", help=text)


def _url(options: argparse.Namespace) -> str:
    """Return the URL of --url, or without it that of the only server of this machine, or the only one with --model.

    Raises:
        SettingsError: there are several.
    """
    if options.url:
        return str(options.url)
    servers = [*running_servers(conch_home())]
    urls = [server.url for server in servers if options.model in server.models] or [server.url for server in servers]
    if len(urls) > 1:
        raise SettingsError(f"--url: required, since {len(urls)} servers run: {', '.join(urls)}")
    return next(iter(urls), _URL)


def _counts(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected numbers with commas between them, such as 1,4,16") from None


def _add_number(command: argparse.ArgumentParser, flag: str, default: float, text: str) -> None:
    kind = {"type": type(default), "metavar": "N" if isinstance(default, int) else "S"}
    command.add_argument(flag, default=default, help=f"{text} (default: {default:g})", **kind)  # type: ignore[arg-type]


def _serve(options: argparse.Namespace, talk: Callable[[str, str], int] | None = None) -> int:
    from frontend.launcher.checks import check_home
    from frontend.launcher.child import json_line
    from frontend.launcher.command import serve, write_error, write_line
    from frontend.launcher.errors import LaunchError
    from frontend.launcher.launcher import LauncherSettings
    from frontend.launcher.models import OF_BUILD, build_models
    from frontend.launcher.signals import EndingSignals
    from frontend.launcher.state_lock import server_lock

    if options.models and options.repository:
        raise SettingsError(f"--repository={options.repository}: not together with MODEL: write one of them")
    of_store = not options.models and not options.repository
    for option in options.model_options if not options.models else ():
        if options.repository or option.partition("=")[0] in OF_BUILD:
            raise SettingsError(f"{option}: goes with a MODEL, which is built with it")
    if options.with_embedder and not options.models:
        raise SettingsError("--with-embedder: goes with a MODEL; `conch serve demo-embedder` serves the embedder alone")
    models = [*options.models, *(["demo-embedder"] if options.with_embedder else [])]
    frontend = settings_from(options, settings_of_environment(os.environ, DEFAULT_FRONTEND))
    if "max_queue_wait_s" not in options and is_loopback(frontend.host) and not frontend.key_file:
        frontend = dataclasses.replace(frontend, max_queue_wait_s=_PERSONS_QUEUE_WAIT_S)
    settings = LauncherSettings(
        repository=options.repository or Path(),  # without one the server gets one of its own
        environment=os.environ,
        frontend=frontend,
        triton_grpc_port=options.triton_grpc_port,
        triton_metrics_port=options.triton_metrics_port,
        triton_http_port=options.triton_http_port,
        tritonserver=options.tritonserver,
        ready_timeout_s=options.ready_timeout_s,
        stop_timeout_s=options.stop_timeout_s,
        max_restarts=options.max_restarts,
        memory_bytes=options.model_memory,
        triton_hang_s=options.triton_hang_s,
        frontend_hang_s=options.frontend_hang_s,
    )
    _check(settings.frontend)
    check_home(options.home)
    if _OLD_HOME.exists() and options.home == conch_home() and not (options.home / "artifacts").exists():
        print(
            f"{_OLD_HOME.parent} is of an earlier version, and not used: models are in {options.home}", file=sys.stderr
        )
    if of_store and not any(options.home.glob("artifacts/[!.]*/manifest.json")):
        rule = "`conch serve demo` serves the demo model, and `conch list` shows the models of this machine"
        raise SettingsError(f"MODEL: required, since there is no model of a `conch build`: {rule}")
    is_json = frontend.log_format == "json"

    def log(line: str) -> None:
        write_line(json_line("build", line), sys.stderr)

    try:
        with (
            EndingSignals() as signals,
            server_lock(options.home, str(frontend.port or "any"), is_shared=not frontend.port) as lock,
        ):
            repository = options.repository or Path(lock.name).with_name("repository")
            settings = dataclasses.replace(settings, repository=repository)
            if options.models and sys.stderr.isatty():
                print(f"{'model':11} {', '.join(models)}", file=sys.stderr)  # the build may be silent for a while
            build_log = log if is_json and not sys.stderr.isatty() else None
            memory = [] if options.model_memory is None else [f"--model-memory={options.model_memory}"]
            build_options = [*options.model_options, *memory]
            status = 0
            if not options.repository:
                status = build_models(models, options.home, repository, build_options, signals=signals, log=build_log)
            if signals.has_come:
                return 0 if talk is None else 128 + signal.SIGINT
            if status:
                return status
            return serve(
                settings,
                sys.stdout,
                sys.stderr,
                signals=signals,
                lock=lock,
                is_verbose=options.verbose,
                talk=talk,
            )
    except (LaunchError, OSError) as exc:
        write_error(exc, sys.stderr, is_json=is_json)
        return 1


def _run(options: argparse.Namespace) -> int:
    from frontend.cli.chat_client import ChatClient

    question, [named] = _question(options), options.models
    history = _history(question, options)

    def talk(url: str, model: str) -> int:
        client = ChatClient(url, os.environ.get(_KEY_VARIABLE, ""), is_verified=False)
        names = {name for server in running_servers(options.home) if server.url == url for name in server.models}
        return _talk(client, named if named in names else model, question, options, history)

    serving = [server.url for server in running_servers(options.home) if named in server.models]
    if serving and not options.model_options and not options.repository:
        return talk(serving[0], named)
    if not any(option.startswith("--max-sequences=") for option in options.model_options):
        # One conversation, and a place for another client, unless it costs tokens of the window.
        options.model_options = ["--max-sequences=1", "--spare-sequences=1", *options.model_options]
    return _serve(options, talk)


def _chat(options: argparse.Namespace) -> int:
    from frontend.cli.chat_client import ChatClient

    served = {name for server in running_servers(conch_home()) for name in server.models}
    if not options.model and not options.url and options.question and options.question[0] in served:
        options.model, *options.question = options.question
    client = ChatClient(_url(options), os.environ.get(_KEY_VARIABLE, ""))
    question = _question(options)
    return _talk(client, options.model, question, options, _history(question, options))


def _question(options: argparse.Namespace) -> str:
    """Return the only question of a chat; empty: questions are read line by line.

    Raises:
        SettingsError: options contradict each other, or there is no question.
    """
    question = " ".join(options.question)
    if options.lines and question:
        raise SettingsError("--lines: not together with QUESTION: write one of them")
    if options.lines or sys.stdin.isatty():
        return question
    question = "\n\n".join(text for text in (question, sys.stdin.read().strip("\n")) if text)
    if not question:
        raise SettingsError("QUESTION: required, since standard input is empty")
    return question


def _history(question: str, options: argparse.Namespace) -> History | None:
    """Return the file of typed lines, if a person types some.

    Raises:
        SettingsError: the file cannot be used.
    """
    from frontend.cli.typed_lines import History

    return History(options.history) if options.history and not question and sys.stdin.isatty() else None


def _talk(client: ChatClient, model: str, question: str, options: argparse.Namespace, history: History | None) -> int:
    from frontend.cli.chat import chat

    return chat(
        client,
        model,
        sys.stdout,
        sys.stderr,
        question=question,
        is_interactive=sys.stdin.isatty() and not question,
        is_plain=options.plain,
        is_verbose=options.stats,
        history=history,
    )


def _launch(options: argparse.Namespace) -> int:
    from frontend.cli.chat_client import ChatClient, ChatFailed
    from frontend.cli.launch import launch

    key = os.environ.get(_KEY_VARIABLE, "")
    client = ChatClient(_url(options), key)
    try:
        return launch(
            client, options.program, options.model, options.arguments, key, os.environ, sys.stdout, sys.stderr
        )
    except (ChatFailed, OSError) as exc:
        print_error(exc, sys.stderr)
        return 1


def _bench(options: argparse.Namespace) -> int:
    from frontend.cli.bench import Load, Target, bench
    from frontend.cli.chat_client import ChatClient, ChatFailed, is_url

    load = Load(options.streams, options.seconds, options.prompt_tokens, options.tokens)
    key = os.environ.get(_KEY_VARIABLE, "")

    def measure(connect: Callable[[], ChatClient]) -> int:
        try:
            targets = [Target(connect, options.model)]
            if options.beside:
                client = ChatClient(options.beside, key)
                model = targets[0].model if targets[0].model in client.models() else ""
                targets.append(Target(functools.partial(ChatClient, options.beside, key), model))
        except ChatFailed as exc:
            print_error(exc, sys.stderr)
            return 1
        return bench(targets, load, sys.stdout, sys.stderr, is_json=options.json)

    if options.target and options.url:
        raise SettingsError(f"--url={options.url}: not together with {options.target}: write one of them")
    if options.target and not is_url(options.target):
        served = _parser().parse_args(["serve", options.target, *options.model_options, "--port=0"])
        return _serve(served, lambda url, _: measure(functools.partial(ChatClient, url, key, is_verified=False)))
    if options.model_options:
        raise SettingsError(f"{options.model_options[0]}: goes with a MODEL, which is served with it, not with a URL")
    return measure(functools.partial(ChatClient, options.target or _url(options), key))


def _ps(options: argparse.Namespace) -> None:
    from frontend.cli.loading import print_servers

    print_servers(running_servers(options.home), os.environ.get(_KEY_VARIABLE, ""), sys.stdout)


def _load(options: argparse.Namespace) -> int:
    from frontend.cli.loading import load

    return _order(options, lambda client: load(client, options.model, sys.stderr), "loaded")


def _unload(options: argparse.Namespace) -> int:
    from frontend.cli.loading import unload

    return _order(options, lambda client: unload(client, options.model), "unloaded")


def _order(options: argparse.Namespace, order: Callable[[ChatClient], None], state: str) -> int:
    from frontend.cli.chat_client import ChatClient, ChatFailed

    client = ChatClient(_url(options), os.environ.get(_KEY_VARIABLE, ""))
    try:
        order(client)
    except ChatFailed as exc:
        print_error(exc, sys.stderr)
        return 1
    print(f"{options.model} is {state} at {client.url}")
    return 0


def _stop(options: argparse.Namespace) -> int:
    running = [server for server in running_servers(options.home) if server.is_here]
    if not options.servers and len(running) > 1:
        urls = ", ".join(server.url for server in running)
        raise SettingsError(f"PORT: required, since {len(running)} servers run: {urls}")
    if not running:
        print_error(f"--home={options.home}: no server of this folder runs", sys.stderr)
    status = int(not running)
    for number in options.servers or [server.pid for server in running]:
        found = [server for server in running if number in (server.port, server.pid)]
        for server in found:
            server.stop()
            print(f"{server.url} is asked to stop")
        if not found:
            print_error(f"{number}: no server with this port or process id; `conch ps` lists them", sys.stderr)
            status = 1
    return status


def _doctor(options: argparse.Namespace) -> int:
    from frontend.cli.doctor import findings

    found = list(findings(options.home))
    if options.json:
        print(json.dumps([dataclasses.asdict(each) for each in found], indent=1))
    else:
        for each in found:
            word, colour = ("ok     ", Colour.GREEN) if each.is_well else ("PROBLEM", Colour.RED)
            write_coloured(word, colour, sys.stdout)
            print(f"  {each.subject:14}{each.text}")
    return 0 if all(each.is_well for each in found) else 1


def _completion(options: argparse.Namespace) -> None:
    from frontend.cli.shell_completion import script

    sys.stdout.write(script(options.shell))


def _api(options: argparse.Namespace) -> int:
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        os.environ.pop(name, None)  # another program's: prometheus_client would read it in the imports below
    from frontend.gateway.shared_limiter import run as run_admission
    from frontend.launcher.guard import stand_in
    from frontend.launcher.workers import run
    from frontend.telemetry.log_lines import configure_logging

    settings = settings_from(options, settings_of_environment(os.environ, Settings()))
    _check(settings)
    configure_logging(settings.log_format)
    stand_in(os.environ)
    return run(settings, run_admission)


def _triton(options: argparse.Namespace) -> int:
    from frontend.launcher.errors import LaunchError
    from frontend.launcher.triton_alone import become_triton, tls_from
    from frontend.launcher.triton_server import TritonOptions, TritonPorts

    of_triton = TritonOptions(
        ports=TritonPorts(grpc=options.grpc_port, http=options.http_port, metrics=options.metrics_port),
        key=settings_of_environment(os.environ, Settings()).triton_key or secrets.token_urlsafe(),
        tls=tls_from(settings_from(options, Settings())),
        address=options.address,
        metrics_address=options.metrics_address or options.address,
        exit_timeout_s=options.exit_timeout_s,
    )
    try:
        become_triton(
            options.repository, options.home, options.tritonserver, of_triton, os.environ, options.model_memory
        )
    except (LaunchError, OSError) as exc:
        print_error(exc, sys.stderr)
    return 1


def _health(options: argparse.Namespace) -> int:
    _stay_small()
    from frontend.triton.commands import check_endpoint

    settings = _settings_of_one_endpoint(options)
    result = asyncio.run(
        check_endpoint(settings, model=options.model, is_generating=options.generate, deadline_s=options.timeout_s)
    )
    print(f"{'ok' if result.is_well else 'failed'}: {result.reason}")
    return 0 if result.is_well else 1


def _drain(options: argparse.Namespace) -> int:
    _stay_small()
    from frontend.triton.commands import drain_endpoint

    settings = _settings_of_one_endpoint(options)
    times = {"notice_s": options.notice_s, "timeout_s": options.timeout_s}
    is_done, why = asyncio.run(drain_endpoint(settings, **times, hands_over=options.hand_over, is_undone=options.undo))
    print(f"{'ok' if is_done else 'failed'}: {why}")
    return 0 if is_done else 1


def _stay_small() -> None:
    """Keep numpy from starting a thread for each core: a cluster runs the command every few seconds."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _settings_of_one_endpoint(options: argparse.Namespace) -> Settings:
    """Return the settings of a command for one server.

    Raises:
        SettingsError: `--triton` is not one endpoint, or another option breaks a rule.
    """
    if "=" in options.triton or "," in options.triton:
        raise SettingsError(f"--triton={options.triton!r}: must be one host:port, without a model")
    Endpoints.parse((options.triton,))
    defaults = settings_of_environment(os.environ, Settings(triton_endpoints=(options.triton,)))
    return settings_from(options, defaults)


def _check(settings: Settings) -> None:
    """Check endpoints, limits, URLs of databases, and the files of the settings before a process is started.

    Raises:
        SettingsError: a text breaks a rule, or a file cannot be read.
    """
    Endpoints.parse(settings.triton_endpoints)
    if settings.model_limits or settings.redis_url:
        from frontend.gateway.limiter import local_limiter

        local_limiter(settings)
    if settings.key_file:
        from frontend.gateway.key_file import read_keys

        read_keys(Path(settings.key_file))
    if settings.store:
        from frontend.store.place import check_place

        check_place(settings)
    if settings.triton_tls_ca:
        from frontend.triton.channel import triton_credentials

        triton_credentials(settings)


def _reference(options: argparse.Namespace) -> int:
    from frontend.reference.pages import filled

    paths = list(options.folder.glob("*.md"))
    if not paths:
        raise SettingsError(f"{options.folder}: the folder has no pages; expected one such as docs")
    for path in paths:
        page = path.read_text(encoding="utf-8")
        path.write_text(filled(page, DEFAULT_FRONTEND), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
