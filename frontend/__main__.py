"""The command line. Each command imports its own modules only, since a cluster starts `health` every few seconds."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Sequence, Set
from pathlib import Path
from typing import NoReturn

from frontend.gateway.keys_command import add_actions
from frontend.launcher.triton_server import ADDRESS, DEFAULT_FRONTEND
from frontend.options import TLS_OF_SERVER, TLS_TO_TRITON, add_options, settings_from, settings_of_environment
from frontend.settings import Settings, SettingsError
from frontend.triton.endpoints import Endpoints


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, without the list of options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help lists the options)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 2 for a wrong option or value."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options) or 0)
    except SettingsError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m frontend", description="Serve models behind the OpenAI HTTP API.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("serve", help="Run tritonserver and the frontend until Ctrl-C.")
    _add_triton_options(command, "triton-")
    _add_number(command, "--ready-timeout-s", 120.0, "Seconds until all models must answer.")
    _add_number(command, "--stop-timeout-s", 5.0, "Seconds that each process may take to end; then it is killed.")
    _add_number(command, "--max-restarts", 5, "Restarts of Triton, or of the frontend, in ten minutes, once ready.")
    _add_number(command, "--triton-hang-s", 30.0, "Seconds without an answer that restart Triton; 0: no limit.")
    verbose_help = "Print the log of Triton and the frontend on a terminal too, where it goes to a file otherwise."
    command.add_argument("--verbose", action="store_true", help=verbose_help)
    add_options(command.add_argument_group("the frontend"), DEFAULT_FRONTEND, without={"triton_endpoints"})
    command.set_defaults(command=_serve)

    command = commands.add_parser("api", help="Run the frontend alone; Triton runs elsewhere.")
    add_options(command, Settings())
    command.set_defaults(command=_api)

    command = commands.add_parser("triton", help="Run tritonserver alone; frontends run elsewhere.")
    _add_triton_options(command)
    address_help = f"Address of gRPC and metrics. Every client that reaches it can generate. (default: {ADDRESS})"
    command.add_argument("--address", default=ADDRESS, help=address_help)
    _add_number(command, "--exit-timeout-s", 25, "Seconds that running requests may take to end after SIGTERM.")
    add_options(command.add_argument_group("TLS of gRPC"), Settings(), only=TLS_OF_SERVER)
    command.set_defaults(command=_triton)

    command = commands.add_parser("health", help="Check the engines of a Triton; exit status 0 or 1.")
    _add_endpoint_options(command, {"engine_stall_s"})
    command.add_argument("--model", default="", metavar="ID", help="Model to check; without it, every served model.")
    _add_number(command, "--timeout-s", 5.0, "Seconds that the whole check may take.")
    command.add_argument("--generate", action="store_true", help="Have each model make a token too.")
    command.set_defaults(command=_health)

    command = commands.add_parser("drain", help="Take a Triton out of service, and wait until it is idle.")
    _add_endpoint_options(command)
    _add_number(command, "--notice-s", 5.0, "Seconds until every frontend has noticed the drain.")
    _add_number(command, "--timeout-s", 60.0, "Seconds that running requests may take to end.")
    command.add_argument("--undo", action="store_true", help="Put the Triton back into service.")
    command.set_defaults(command=_drain)

    add_actions(commands.add_parser("keys", help="Make, list or remove API keys."))

    command = commands.add_parser("reference", help="Write the generated pages of the documentation.")
    command.add_argument("folder", type=Path, metavar="DIR", help="Folder of the pages, such as docs.")
    command.set_defaults(command=_reference)
    return parser


def _add_triton_options(command: argparse.ArgumentParser, prefix: str = "") -> None:
    command.add_argument(
        "--repository", type=Path, required=True, metavar="DIR", help="Repository that build_engines rendered."
    )
    state_help = "Folder for files of the running server, used by one `serve` at a time. (default: .conch)"
    command.add_argument("--state-dir", type=Path, default=".conch", metavar="DIR", help=state_help)
    free = "; 0 is any free port" if prefix else ""
    _add_number(command, f"--{prefix}grpc-port", 8001, f"Port of Triton's gRPC{free}.")
    _add_number(command, f"--{prefix}metrics-port", 8002, f"Port of Triton's metrics{free}.")
    http_help = "Port of Triton's own HTTP API, on loopback; no part of Conch uses it. (default: closed)"
    command.add_argument(f"--{prefix}http-port", type=int, metavar="N", help=http_help)
    binary_help = "The tritonserver to run. (default: an installed one)"
    command.add_argument("--tritonserver", type=Path, metavar="PATH", help=binary_help)


def _add_endpoint_options(command: argparse.ArgumentParser, settings: Set[str] = frozenset()) -> None:
    command.add_argument("--triton", required=True, metavar="HOST:PORT", help="gRPC endpoint of the Triton.")
    add_options(command, Settings(), only=TLS_TO_TRITON | settings)


def _add_number(command: argparse.ArgumentParser, flag: str, default: float, text: str) -> None:
    kind = {"type": type(default), "metavar": "N" if isinstance(default, int) else "S"}
    command.add_argument(flag, default=default, help=f"{text} (default: {default:g})", **kind)  # type: ignore[arg-type]


def _serve(options: argparse.Namespace) -> int:
    from frontend.launcher.command import serve
    from frontend.launcher.launcher import LauncherSettings

    settings = LauncherSettings(
        repository=options.repository,
        state_dir=options.state_dir,
        environment=os.environ,
        frontend=settings_from(options, settings_of_environment(os.environ, DEFAULT_FRONTEND)),
        triton_grpc_port=options.triton_grpc_port,
        triton_metrics_port=options.triton_metrics_port,
        triton_http_port=options.triton_http_port,
        tritonserver=options.tritonserver,
        ready_timeout_s=options.ready_timeout_s,
        stop_timeout_s=options.stop_timeout_s,
        max_restarts=options.max_restarts,
        triton_hang_s=options.triton_hang_s,
    )
    _check(settings.frontend)
    return serve(settings, sys.stdout, sys.stderr, is_verbose=options.verbose)


def _api(options: argparse.Namespace) -> int:
    from frontend.gateway.shared_limiter import run as run_admission
    from frontend.launcher.workers import run
    from frontend.telemetry.log_lines import configure_logging

    settings = settings_from(options, settings_of_environment(os.environ, Settings()))
    _check(settings)
    configure_logging(settings.log_format)
    return run(settings, run_admission)


def _triton(options: argparse.Namespace) -> int:
    from frontend.launcher.errors import LaunchError
    from frontend.launcher.triton_alone import TritonSettings, become_triton, tls_from
    from frontend.launcher.triton_server import TritonPorts

    settings = TritonSettings(
        repository=options.repository,
        state_dir=options.state_dir,
        address=options.address,
        ports=TritonPorts(grpc=options.grpc_port, http=options.http_port, metrics=options.metrics_port),
        exit_timeout_s=options.exit_timeout_s,
        tls=tls_from(settings_from(options, Settings())),
        key=settings_of_environment(os.environ, Settings()).triton_key or secrets.token_urlsafe(),
        tritonserver=options.tritonserver,
    )
    try:
        become_triton(settings, os.environ)
    except (LaunchError, OSError) as exc:
        print(f"error: {exc}", file=sys.stderr)
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
    is_done, why = asyncio.run(
        drain_endpoint(settings, notice_s=options.notice_s, timeout_s=options.timeout_s, is_undone=options.undo)
    )
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
    """Check endpoints, limits, and the files of keys and certificates before a process is started.

    Raises:
        SettingsError: a text breaks a rule, or a file cannot be read.
    """
    Endpoints.parse(settings.triton_endpoints)
    if settings.model_limits:
        from frontend.gateway.policy import Policy

        Policy(settings)
    if settings.key_file:
        from frontend.gateway.key_file import read_keys

        read_keys(Path(settings.key_file))
    if settings.triton_tls_ca:
        from frontend.triton.channel import triton_credentials

        triton_credentials(settings)


def _reference(options: argparse.Namespace) -> int:
    from frontend.reference import pages

    options.folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (options.folder / name).write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
