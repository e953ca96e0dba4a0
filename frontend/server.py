"""Runs the application on a port until a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import uvloop
from aiohttp import web

from frontend.app import create_app
from frontend.connections.certificates import Certificates
from frontend.connections.connection import HEADER_TIMEOUT_S, LINGERING_S, Connection, answer, drop_dead_peers
from frontend.connections.crowd import Crowd, max_connections, raise_file_limit
from frontend.connections.refusals import PARSER_LIMITS
from frontend.operations.app import create_operations_app
from frontend.operations.supervisor import Supervisor
from frontend.request_context import DRAIN, KEYS, SETTINGS, TRITON
from frontend.settings import Settings
from frontend.supervision import BEGIN_DRAIN, END_NOW, RELOAD_KEYS, SUPERVISED
from frontend.triton.client import TritonClient

CLOSE_TIMEOUT_S = 3.0  # time for the last bytes of answers, after the drain
TURN_INTERVAL_S = 1.0
_MAX_OPERATIONS = 64  # connections of the operations port

logger = logging.getLogger(__name__)


def run(
    settings: Settings,
    *,
    parent: int | None = None,
    on_listening: Callable[[], None] = lambda: None,
    on_turn: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code: 1 if the port is not available.

    Args:
        settings: the settings.
        parent: of one of several workers: a file descriptor that closes when their parent ends.
        on_listening: called once the port is open.
        on_turn: then called at an interval by the event loop, until the process stops.
    """
    raise_file_limit()
    tune_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, parent, on_listening, on_turn))


def tune_collector() -> None:
    """Have the garbage collector walk over few objects, and seldom: requests leave few cycles."""
    # Modules and classes stay for ever; a walk over them stops the event loop for some 50 ms. Nothing else exists yet:
    # a frozen channel to a Triton that has ended would stay open.
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def app_runner(
    settings: Settings,
    tritons: Mapping[str, TritonClient] | None = None,
    tell_others: Callable[[], None] = lambda: None,
) -> ConnectionRunner:
    """Return the runner of the application; not set up. The arguments are those of `create_app`."""
    return ConnectionRunner(create_app(settings, tritons, tell_others), settings, max_connections())


def operations_runner(public: ConnectionRunner, supervisor: Supervisor) -> ConnectionRunner:
    """Return the runner of the operations port; not set up. `public` is set up.

    Its handlers continue when their clients hang up, so that an unload is never half done.
    """
    app = create_operations_app(public.app, supervisor)
    return ConnectionRunner(app, app[SETTINGS], _MAX_OPERATIONS, handler_cancellation=False)


def log_unavailable(host: str, port: int, exc: OSError) -> None:
    """Log that a port is not available."""
    logger.error("cannot listen on %s port %d: %s", host, port, exc.strerror or exc)


async def _turn(on_turn: Callable[[], None]) -> None:
    while True:
        on_turn()
        await asyncio.sleep(TURN_INTERVAL_S)


async def _serve(
    settings: Settings, parent: int | None, on_listening: Callable[[], None], on_turn: Callable[[], None]
) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set() and not is_supervised:
            hurry.set()
        stop.set()

    def on_end_now() -> None:
        hurry.set()
        stop.set()

    def on_parent_gone() -> None:
        assert parent is not None
        loop.remove_reader(parent)  # it stays readable, which would keep the loop busy
        stop.set()

    is_shared = parent is not None
    is_supervised = is_shared or SUPERVISED in os.environ
    supervisor = Supervisor(os.getppid() if is_shared else os.getpid())
    loop.add_signal_handler(signal.SIGTERM, on_signal)
    loop.add_signal_handler(END_NOW, on_end_now)
    # Ctrl-C reaches the parent of several workers too, and the parent signals them: it must not count twice.
    loop.add_signal_handler(signal.SIGINT, on_signal if parent is None else lambda: None)
    runner = app_runner(settings, tell_others=supervisor.begin_drain if is_shared else lambda: None)
    drain, keys = runner.app.get(DRAIN), runner.app.get(KEYS)
    if drain is not None:
        loop.add_signal_handler(BEGIN_DRAIN, drain.begin)
    if parent is not None:
        loop.add_reader(parent, on_parent_gone)
    public_tls = Certificates(settings) if settings.tls_cert else None
    admin_tls = Certificates(replace(settings, tls_client_ca="")) if settings.tls_cert and settings.admin_port else None
    following = [loop.create_task(each.follow()) for each in (public_tls, admin_tls) if each is not None]
    runners = [runner]
    await runner.setup()
    if keys is not None:  # otherwise the signal ends the process, as usual
        loop.add_signal_handler(RELOAD_KEYS, keys.reload_or_log)
    try:
        urls = await _listen(runner, settings.host, settings.port, is_shared, public_tls)
        operations_urls: list[str] | None = []
        if settings.admin_port:
            runners.append(operations_runner(runner, supervisor))
            await runners[1].setup()
            operations_urls = await _listen(runners[1], settings.admin_host, settings.admin_port, is_shared, admin_tls)
        if urls is None or operations_urls is None:
            return 1
        following.append(loop.create_task(_turn(on_turn)))
        on_listening()  # precedes the log lines: their readers may kill this worker
        for url in urls:
            logger.info("process %d listens on %s", os.getpid(), url)
        for url in operations_urls:
            logger.info("process %d has its operations on %s", os.getpid(), url)
        await stop.wait()
        logger.info("stopping")
        if drain is not None:
            # The port stays open: new requests get 503, and health is not ready.
            await drain.finish(settings.drain_timeout_s, hurry, runner.app[TRITON].end_all)
    finally:
        if parent is not None:
            loop.remove_reader(parent)
        for task in following:
            task.cancel()
        for each in runners:
            await each.cleanup()
    return 0


async def _listen(
    runner: ConnectionRunner, host: str, port: int, is_shared: bool, certificates: Certificates | None
) -> list[str] | None:
    """Listen and return the URLs; log that the port is not available and return None if so."""
    context = None if certificates is None else certificates.context
    try:
        where: dict[str, Any] = {"host": host, "port": port, "reuse_port": is_shared}
        if host == "::":  # the event loop would open it for IPv6 alone
            both = socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True, reuse_port=is_shared)
            where = {"sock": both}
        addresses = await runner.listen(context, **where)
    except OSError as exc:
        log_unavailable(host, port, exc)
        return None
    scheme = "http" if context is None else "https"
    names = [(f"[{address}]" if ":" in address else address, port) for address, port, *_ in addresses]
    return [f"{scheme}://{name}:{port}" for name, port in names]


class ConnectionRunner(web.AppRunner):
    """aiohttp's runner with our connections and ports; not set up.

    Args:
        app: the application.
        settings: with the timeouts.
        max_connections: that may be open; `Crowd` closes some of the others.
        handler_cancellation: a client's hang-up cancels its handler.
    """

    def __init__(
        self, app: web.Application, settings: Settings, max_connections: int, *, handler_cancellation: bool = True
    ) -> None:
        shutdown_timeout = min(settings.drain_timeout_s, CLOSE_TIMEOUT_S)
        super().__init__(app, handler_cancellation=handler_cancellation, shutdown_timeout=shutdown_timeout)
        self._crowd = Crowd(max_connections)
        self._idle_timeout_s = settings.idle_timeout_s
        self._ports: list[asyncio.Server] = []

    async def setup(self) -> None:
        """Start the application."""
        await super().setup()
        assert self.server is not None
        self.server.request_handler = partial(answer, self.server.request_handler)

    async def listen(self, context: ssl.SSLContext | None = None, **where: Any) -> list[Any]:
        """Open a port and return its addresses. The deadline for TLS handshakes is that of heads.

        Args:
            context: for TLS; None: no TLS.
            where: arguments of `create_server`: host and port, or a socket.

        Raises:
            OSError: the port is not available.
        """
        deadline: dict[str, Any] = {} if context is None else {"ssl_handshake_timeout": HEADER_TIMEOUT_S}
        port = await asyncio.get_running_loop().create_server(
            self._connection, ssl=context, backlog=128, **deadline, **where
        )
        self._ports.append(port)
        for listener in port.sockets:
            drop_dead_peers(listener)
        return [listener.getsockname() for listener in port.sockets]

    async def cleanup(self) -> None:
        """Close the ports, then the connections, then the application."""
        for port in self._ports:
            port.close()
        await super().cleanup()

    def _connection(self) -> Connection:
        assert self.server is not None
        return Connection(
            self.server,
            self._crowd,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=self._idle_timeout_s,
            lingering_time=LINGERING_S,
            tcp_keepalive=False,  # the listener's is inherited
            **PARSER_LIMITS,
        )
