"""Connections to Triton over TLS: who may be at the other end, and what is wrong with files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from frontend import errors
from frontend.settings import Settings, SettingsError
from frontend.triton.channel import TritonCredentials, triton_credentials
from frontend.triton.client import TritonClient
from tests.fakes import chunks
from tests.frontend.connections import self_signed
from tests.frontend.triton.conftest import Connect
from tests.frontend.triton.generating import completion_of, failure_of
from tests.frontend.triton.server import FakeTritonServer
from tests.waiting import DEADLINE_S

TRUSTED, STRANGER = "trusted", "stranger"


def credentials_of(cert: str, key: str, client_ca: str = "") -> grpc.ServerCredentials:
    """Return what a server has that shows a certificate, and may want one that an authority has signed."""
    authority = Path(client_ca).read_bytes() if client_ca else None
    return grpc.ssl_server_credentials([(Path(key).read_bytes(), Path(cert).read_bytes())], authority, bool(client_ca))


async def connected(
    connect: Connect, folder: Path, *, wants_certificate: bool = False, **settings: Any
) -> TritonClient:
    """Run a Triton with the trusted certificate, and return a client with these settings."""
    cert, key = self_signed.make(folder, TRUSTED)  # it is also its own authority
    server = FakeTritonServer()
    server.script = list(chunks("a"))
    credentials = credentials_of(cert, key, client_ca=cert if wants_certificate else "")
    return await connect(server, triton_credentials(Settings(**settings)), credentials=credentials)


async def test_a_triton_that_the_authority_vouches_for_is_talked_to(connect: Connect, tmp_path: Path) -> None:
    client = await connected(connect, tmp_path, triton_tls_ca=str(tmp_path / f"{TRUSTED}.pem"))
    assert await completion_of(client) == chunks("a")


def test_files_that_do_not_fit_change_nothing_and_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = self_signed.make(tmp_path, TRUSTED)
    credentials = TritonCredentials(Settings(triton_tls_ca=cert, triton_tls_cert=cert, triton_tls_key=key))
    first = credentials.latest()
    old_key, new_key = Path(key).read_bytes(), Path(self_signed.make(tmp_path, STRANGER)[1]).read_bytes()
    Path(key).write_bytes(new_key)
    assert [credentials.latest(), credentials.latest()] == [first, first]
    (line,) = caplog.messages
    assert line.startswith("the certificates for Triton cannot be read again, the last ones stay: --triton-tls-cert=")
    Path(key).write_bytes(old_key)
    assert credentials.latest() is not first


@pytest.mark.parametrize(("name", "is_let_in"), [(TRUSTED, True), (STRANGER, False), ("", False)])
async def test_a_triton_may_want_a_certificate_of_the_frontend(
    connect: Connect, tmp_path: Path, name: str, is_let_in: bool
) -> None:
    own = self_signed.make(tmp_path, STRANGER) if name == STRANGER else self_signed.paths(tmp_path, name)
    files = dict(zip(("triton_tls_cert", "triton_tls_key"), own, strict=True)) if name else {}
    ca, _ = self_signed.paths(tmp_path, TRUSTED)
    client = await connected(connect, tmp_path, wants_certificate=True, triton_tls_ca=ca, **files)
    if is_let_in:
        assert await completion_of(client) == chunks("a")
    else:
        failure = await asyncio.wait_for(failure_of(client), DEADLINE_S)
        assert isinstance(failure, errors.TritonUnreachable)


def test_files_of_no_use_are_named(tmp_path: Path) -> None:
    cert, key = self_signed.make(tmp_path, TRUSTED)
    _, other_key = self_signed.make(tmp_path, STRANGER)
    for settings, message in (
        ({"triton_tls_ca": "/nowhere.pem"}, "--triton-tls-ca='/nowhere.pem': No such file"),
        ({"triton_tls_ca": key}, f"--triton-tls-ca='{key}': "),
        (
            {"triton_tls_ca": cert, "triton_tls_cert": cert, "triton_tls_key": other_key},
            f"--triton-tls-cert='{cert}': ",
        ),
    ):
        with pytest.raises(SettingsError, match=f"^{message}"):
            triton_credentials(Settings(**settings))  # type: ignore[arg-type]
