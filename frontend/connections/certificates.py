"""The server's certificate. New handshakes use the new files after a change, old connections stay."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

from frontend.settings import Settings, SettingsError
from frontend.tls_files import no_password, reason_of, versions_of

logger = logging.getLogger(__name__)

RELOAD_INTERVAL_S = 5.0


class Certificates:
    """The certificate and key for handshakes.

    Args:
        settings: with the files.

    Raises:
        SettingsError: the files cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._paths = (settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        try:
            self._seen = versions_of(self._paths)
            self._current = self._load()
            self.context = self._load()
        except (OSError, ssl.SSLError) as exc:
            raise SettingsError(f"--tls-cert={settings.tls_cert!r}: {reason_of(exc)}") from exc
        self.context.sni_callback = self._choose

    async def follow(self) -> None:
        """Reload changed files, until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            self.reload()

    def reload(self) -> None:
        """Read the files again if they have changed. Files that cannot be used change nothing."""
        try:
            versions = versions_of(self._paths)
            if versions == self._seen:
                return
            self._current = self._load()
            self._seen = versions
            logger.info("the certificate was read again")
        except (OSError, ssl.SSLError) as exc:
            logger.error("the certificate cannot be read again, the last one stays: %s", reason_of(exc))

    def _choose(self, connection: Any, server_name: str | None, context: ssl.SSLContext) -> None:
        """Use the current files for a handshake. OpenSSL calls this for each, also without a server name."""
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self._settings.tls_client_ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self._settings.tls_cert, self._settings.tls_key, password=no_password)
        if self._settings.tls_client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
        return context
