"""The command line: `serve` runs Triton and the frontend, `api` and `triton` one of them alone; `probe` asks engines,
`drain` takes a Triton out of service, `keys` is for API keys. Each command imports what it alone needs, since a cluster
starts `probe` every few seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from frontend.gateway.keys_options import add_actions
from frontend.launcher.triton_server import ADDRESS, DEFAULT_FRONTEND
from frontend.options import TLS_OF_SERVER, TLS_TO_TRITON, add_options, settings_from, settings_of_environment
from frontend.settings import Settings, SettingsError
from frontend.triton.endpoints import Endpoints

_HTTP_HELP = "Triton's own HTTP, on loopback; no part of Conch uses it (default: not opened)"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage of two dozen options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help lists the options)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 2 for a wrong option or value."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except SettingsError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m frontend", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("serve", help="run tritonserver and the frontend until Ctrl-C")
    command.add_argument("--repository", type=Path, required=True, metavar="DIR", help="what build_engines rendered")
    command.add_argument(
        "--state-dir", type=Path, default=".conch", metavar="DIR", help="used by one launcher at a time (%(default)s)"
    )
    for name, default in (("grpc", 8001), ("metrics", 8002)):
        command.add_argument(
            f"--triton-{name}-port", type=int, default=default, metavar="PORT", help="0: any free one (%(default)s)"
        )
    command.add_argument("--triton-http-port", type=int, metavar="PORT", help=f"0: any free one; {_HTTP_HELP}")
    command.add_argument("--tritonserver", type=Path, metavar="PATH", help="the server to use; else one is looked for")
    command.add_argument(
        "--ready-timeout-s", type=float, default=120, metavar="S", help="for the models to answer (%(default)s)"
    )
    command.add_argument(
        "--stop-timeout-s", type=float, default=5, metavar="S", help="then a child is killed (%(default)s)"
    )
    command.add_argument(
        "--max-restarts",
        type=int,
        default=5,
        metavar="N",
        help="of Triton and of the frontend, in ten minutes, after they were ready (%(default)s)",
    )
    command.add_argument(
        "--triton-hang-s",
        type=float,
        default=30,
        metavar="S",
        help="one that has answered no probe for so long is killed, and started again (%(default)s); 0: none is",
    )
    add_options(command.add_argument_group("the frontend"), DEFAULT_FRONTEND, without={"triton_endpoints"})
    command.set_defaults(command=_serve)

    command = commands.add_parser("api", help="run the frontend alone, for a Triton that runs elsewhere")
    add_options(command, Settings())
    command.set_defaults(command=_api)

    command = commands.add_parser("triton", help="run tritonserver alone, for frontends that run elsewhere")
    command.add_argument("--repository", type=Path, required=True, metavar="DIR", help="what build_engines rendered")
    command.add_argument(
        "--state-dir", type=Path, default=".conch", metavar="DIR", help="for what the server needs (%(default)s)"
    )
    command.add_argument(
        "--address",
        default=ADDRESS,
        help="of gRPC and metrics; whoever reaches them can generate: admit frontends only (%(default)s)",
    )
    for name, default in (("grpc", 8001), ("metrics", 8002)):
        command.add_argument(f"--{name}-port", type=int, default=default, metavar="PORT", help="(%(default)s)")
    command.add_argument("--http-port", type=int, metavar="PORT", help=_HTTP_HELP)
    command.add_argument(
        "--exit-timeout-s", type=int, default=25, metavar="S", help="for requests under way, at the end (%(default)s)"
    )
    add_options(command.add_argument_group("TLS of gRPC"), Settings(), only=TLS_OF_SERVER)
    command.add_argument("--tritonserver", type=Path, metavar="PATH", help="the server to use; else one is looked for")
    command.set_defaults(command=_triton)

    command = commands.add_parser("probe", help="ask a Triton's engines whether they work; exit status 0 or 1")
    command.add_argument("--triton", required=True, metavar="HOST:PORT", help="its gRPC endpoint")
    add_options(command, Settings(), only=TLS_TO_TRITON)
    command.add_argument("--model", default="", metavar="ID", help="the only one to ask; else all that are served")
    command.add_argument("--deadline", type=float, default=5, metavar="S", help="for everything (%(default)s)")
    command.add_argument(
        "--stall", type=float, default=60, metavar="S", help="one step that takes longer hangs (%(default)s)"
    )
    command.add_argument("--generate", action="store_true", help="ask for a token each, not only for the engine's word")
    command.set_defaults(command=_probe)

    command = commands.add_parser("drain", help="have frontends leave a Triton alone, and wait until it is idle")
    command.add_argument("--triton", required=True, metavar="HOST:PORT", help="its gRPC endpoint")
    add_options(command, Settings(), only=TLS_TO_TRITON)
    command.add_argument(
        "--notice", type=float, default=5, metavar="S", help="in which all frontends have heard of it (%(default)s)"
    )
    command.add_argument("--timeout", type=float, default=60, metavar="S", help="for what still runs (%(default)s)")
    command.add_argument("--undo", action="store_true", help="have them send again")
    command.set_defaults(command=_drain)

    add_actions(commands.add_parser("keys", help="make, list or remove API keys"))

    command = commands.add_parser("reference", help="write the pages of the documentation that come from the code")
    command.add_argument("folder", type=Path, metavar="DIR")
    command.set_defaults(command=_reference)
    return parser


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
    return serve(settings, sys.stdout, sys.stderr)


def _api(options: argparse.Namespace) -> int:
    from frontend.gateway.socket_server import run as run_admission
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


def _probe(options: argparse.Namespace) -> int:
    _stay_small()
    from frontend.triton.commands import probe_endpoint

    asked = Settings(
        triton_endpoints=_one_endpoint(options), stats_deadline_s=options.deadline, engine_stall_s=options.stall
    )
    settings = settings_from(options, settings_of_environment(os.environ, asked))
    result = asyncio.run(probe_endpoint(settings, model=options.model, is_generating=options.generate))
    print(f"{'ok' if result.is_well else 'failed'}: {result.reason}")
    return 0 if result.is_well else 1


def _drain(options: argparse.Namespace) -> int:
    _stay_small()
    from frontend.triton.commands import drain_endpoint

    asked = settings_of_environment(os.environ, Settings(triton_endpoints=_one_endpoint(options)))
    settings = settings_from(options, asked)
    is_done, why = asyncio.run(
        drain_endpoint(settings, notice_s=options.notice, timeout_s=options.timeout, is_undone=options.undo)
    )
    print(f"{'ok' if is_done else 'failed'}: {why}")
    return 0 if is_done else 1


def _stay_small() -> None:
    """Keep numpy from starting a thread for each core, for a command that a cluster runs every few seconds."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _one_endpoint(options: argparse.Namespace) -> tuple[str]:
    """Return what `--triton` names, for what is about one server and not about what is offered.

    Raises:
        SettingsError: it is not one endpoint.
    """
    if "=" in options.triton or "," in options.triton:
        raise SettingsError(f"--triton={options.triton!r}: must be one host:port, without a model")
    Endpoints.parse((options.triton,))
    return (options.triton,)


def _check(settings: Settings) -> None:
    """Check endpoints, limits, and the files of keys and certificates before anything is started.

    Raises:
        SettingsError: one breaks a rule, or a file cannot be read.
    """
    Endpoints.parse(settings.triton_endpoints)
    if settings.model_limits:
        from frontend.gateway.model_limits import model_limits_of

        model_limits_of(settings)
    if settings.key_file:
        from frontend.gateway.key_file import read_keys

        read_keys(Path(settings.key_file))
    if settings.triton_tls_ca:
        from frontend.triton.channel import triton_credentials

        triton_credentials(settings)


def _reference(options: argparse.Namespace) -> int:
    from frontend.reference import pages

    for name, page in pages().items():
        (options.folder / name).write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
