"""TLS with certificates of the tests."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from frontend.connections.certificates import Certificates
from frontend.settings import Settings, SettingsError
from tests.frontend.connections.self_signed import make


def settings(folder: Path, name: str = "first", tls_client_ca: str = "") -> Settings:
    cert, key = make(folder, name)
    return Settings(tls_cert=cert, tls_key=key, tls_client_ca=tls_client_ca)


async def echo_server(certificates: Certificates) -> asyncio.Server:
    """Start a server that echoes lines."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    return await asyncio.start_server(echo, "127.0.0.1", 0, ssl=certificates.context)


async def dial(
    server: asyncio.Server, client: ssl.SSLContext, server_name: str | None = "localhost"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = server.sockets[0].getsockname()[1]
    return await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=server_name)


async def ask(server: asyncio.Server, client: ssl.SSLContext) -> None:
    """Send a line and wait for the echo: with TLS 1.3 a client notices its refusal only then."""
    reader, writer = await dial(server, client)
    try:
        writer.write(b"hello\n")
        await reader.readexactly(6)
    finally:
        writer.transport.abort()


def trusting(*certs: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for cert in certs:
        context.load_verify_locations(cert)
    return context


def common_name(writer: asyncio.StreamWriter) -> str:
    ((((_, name),),)) = writer.get_extra_info("peercert")["subject"]
    return str(name)


def replace(old: str, new: str) -> None:
    Path(new).rename(old)


async def test_a_changed_certificate_is_for_new_connections_and_old_ones_go_on(tmp_path: Path) -> None:
    first = settings(tmp_path)
    certificates = Certificates(first)
    new_cert, new_key = make(tmp_path, "second")
    client = trusting(first.tls_cert, new_cert)
    async with await echo_server(certificates) as server:
        reader, writer = await dial(server, client)
        assert common_name(writer) == "first"
        replace(first.tls_cert, new_cert)
        certificates.reload()  # half of the change: the key does not go with it
        _, half = await dial(server, client)
        assert common_name(half) == "first"
        replace(first.tls_key, new_key)
        certificates.reload()
        for server_name in ("localhost", "127.0.0.1"):  # an address is named in no handshake
            _, newer = await dial(server, client, server_name)
            assert common_name(newer) == "second"
            newer.close()
        writer.write(b"still here\n")
        assert await reader.readline() == b"still here\n"
        writer.close()
        half.close()


async def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    certificates = Certificates(settings(tmp_path))
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with await echo_server(certificates) as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await dial(server, old)
    assert certificates.context.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_only_clients_of_the_current_client_authority_come_in(tmp_path: Path) -> None:
    mine, my_key = make(tmp_path, "client")
    other, other_key = make(tmp_path, "other")
    served = settings(tmp_path, tls_client_ca=mine)
    certificates = Certificates(served)
    first, second, without = (trusting(served.tls_cert) for _ in range(3))
    first.load_cert_chain(mine, my_key)
    second.load_cert_chain(other, other_key)
    async with await echo_server(certificates) as server:
        await ask(server, first)
        for stranger in (second, without):
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                await ask(server, stranger)
        replace(mine, other)
        certificates.reload()
        await ask(server, second)
        for stranger in (first, without):
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                await ask(server, stranger)


@pytest.mark.parametrize("text", ["", "no certificate"])
def test_files_that_cannot_be_used_stop_the_start(tmp_path: Path, text: str) -> None:
    bad = tmp_path / "bad.pem"
    with pytest.raises(SettingsError, match=r"^--tls-cert=.*No such file"):
        Certificates(Settings(tls_cert=str(bad), tls_key=str(bad)))
    bad.write_text(text)
    with pytest.raises(SettingsError, match=r"^--tls-cert="):
        Certificates(Settings(tls_cert=str(bad), tls_key=str(bad)))
