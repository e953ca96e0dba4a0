"""How the frontend and a Triton prove to each other who they are."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

from frontend.settings import Settings, SettingsError
from frontend.tls_files import no_password, reason_of, versions_of

logger = logging.getLogger(__name__)


class TritonCredentials:
    """What connections to Triton over TLS are opened with: the files as they are then.

    Args:
        settings: which files; with TLS.

    Raises:
        SettingsError: the files are of no use.
    """

    def __init__(self, settings: Settings) -> None:
        self._ca, self._cert, self._key = settings.triton_tls_ca, settings.triton_tls_cert, settings.triton_tls_key
        self._seen = versions_of((self._ca, self._cert, self._key))
        self._current = self._load()

    def latest(self) -> grpc.ChannelCredentials:
        """Return the same ones until the files change. What is half written, or of no use, changes nothing."""
        versions = versions_of((self._ca, self._cert, self._key))
        if versions != self._seen:
            self._seen = versions
            try:
                self._current = self._load()
                logger.info("the certificates for Triton were read again")
            except SettingsError as exc:
                logger.error("the certificates for Triton cannot be read again, the last ones stay: %s", exc)
        return self._current

    def _load(self) -> grpc.ChannelCredentials:
        name, value = "triton_tls_ca", self._ca
        try:
            context = ssl.create_default_context(cafile=value)  # grpc itself says nothing of a bad file, ever
            if self._cert:
                name, value = "triton_tls_cert", self._cert
                context.load_cert_chain(value, self._key, password=no_password)
            files = (Path(file).read_bytes() if file else None for file in (self._ca, self._key, self._cert))
            return grpc.ssl_channel_credentials(*files)
        except (OSError, ssl.SSLError) as exc:
            raise SettingsError(f"{name}={value!r}: {reason_of(exc)}") from exc


def triton_credentials(settings: Settings) -> TritonCredentials | None:
    """Return what connections to Triton are opened with; None: they are not encrypted.

    Raises:
        SettingsError: the files are of no use.
    """
    return TritonCredentials(settings) if settings.triton_tls_ca else None
