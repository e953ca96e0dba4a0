"""How the frontend and a Triton prove to each other who they are."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from frontend.settings import Settings, SettingsError


def triton_credentials(settings: Settings) -> grpc.ChannelCredentials | None:
    """Read the files for connections to Triton over TLS; None: they are not encrypted.

    Raises:
        SettingsError: the files are of no use.
    """
    if not settings.triton_tls_ca:
        return None
    name, value = "triton_tls_ca", settings.triton_tls_ca
    try:
        context = ssl.create_default_context(cafile=value)  # grpc itself says nothing of a bad file, ever
        if not settings.triton_tls_cert:
            return grpc.ssl_channel_credentials(Path(value).read_bytes())
        name, value = "triton_tls_cert", settings.triton_tls_cert
        context.load_cert_chain(value, settings.triton_tls_key)
        files = (settings.triton_tls_ca, settings.triton_tls_key, value)
        return grpc.ssl_channel_credentials(*(Path(file).read_bytes() for file in files))
    except (OSError, ssl.SSLError) as exc:
        reason = exc.reason if isinstance(exc, ssl.SSLError) and exc.reason else exc.strerror or str(exc)
        raise SettingsError(f"{name}={value!r}: {reason}") from exc
