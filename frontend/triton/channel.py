"""The connection to one Triton, its TLS credentials, and calls with one answer."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from frontend import loop_time
from frontend.errors import TritonTimeout
from frontend.settings import Settings, SettingsError
from frontend.tls_files import no_password, reason_of, versions_of
from frontend.triton.failures import error_from_rpc
from frontend.triton.restricted import METADATA
from model_repository.contract.tensors import CALL_TIMEOUT_S

logger = logging.getLogger(__name__)

RPC_TIMEOUT_S = CALL_TIMEOUT_S
_DISCONNECTED = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.TRANSIENT_FAILURE)
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A returning Triton is noticed within a second; grpc's own pauses grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # also the timeout of one attempt
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    # A name is resolved again after a lost connection. One address is used at a time, since a stream and the control
    # of its engine must reach the same server. The first one is random, so that frontends spread over the addresses.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.service_config", '{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}'),
    ("grpc.enable_http_proxy", 0),  # a proxy in the environment is not meant for Triton
)


class TritonCredentials:
    """The credentials of new TLS connections to Triton, from the files as they are then.

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
        """Return the same credentials until the files change. Half-written or unusable files change nothing."""
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
        flag, value = "--triton-tls-ca", self._ca
        try:
            context = ssl.create_default_context(cafile=value)  # grpc itself reports no bad file
            if self._cert:
                flag, value = "--triton-tls-cert", self._cert
                context.load_cert_chain(value, self._key, password=no_password)
            files = (Path(file).read_bytes() if file else None for file in (self._ca, self._key, self._cert))
            return grpc.ssl_channel_credentials(*files)
        except (OSError, ssl.SSLError) as exc:
            raise SettingsError(f"{flag}={value!r}: {reason_of(exc)}") from exc


def triton_credentials(settings: Settings) -> TritonCredentials | None:
    """Return the credentials of connections to Triton; None: without encryption.

    Raises:
        SettingsError: the files are of no use.
    """
    return TritonCredentials(settings) if settings.triton_tls_ca else None


class TritonChannel:
    """A channel to one Triton. It connects at the first call.

    A channel of grpc's keeps the credentials that it was opened with, also for a connection that it makes months later.
    So once it is disconnected, and there are newer ones, another channel takes its place.

    Args:
        endpoint: a gRPC host:port.
        credentials: for TLS; None: it is not encrypted.
        server_name: that the server's certificate must have, and that requests are addressed to; empty: the host.
        key: to the server's restricted APIs; empty: they stay closed.
    """

    def __init__(
        self, endpoint: str, credentials: TritonCredentials | None = None, server_name: str = "", key: str = ""
    ) -> None:
        self.endpoint = endpoint
        self.key_metadata = ((METADATA, key),) if key else ()
        self._credentials = credentials
        self._options = (*_OPTIONS, ("grpc.default_authority", server_name)) if server_name else _OPTIONS
        self._open(None if credentials is None else credentials.latest())

    @property
    def stub(self) -> Any:
        """Triton's gRPC service on the channel, for the next call. Keeping it keeps the channel."""
        if self._credentials is not None and self._channel.get_state() in _DISCONNECTED:
            latest = self._credentials.latest()
            if latest is not self._opened_with:
                self._open(latest)  # the old one has no calls, and closes without references
        return self._stub

    async def close(self) -> None:
        """End all calls, and close the channel."""
        await self._channel.close()

    def _open(self, credentials: grpc.ChannelCredentials | None) -> None:
        self._opened_with = credentials
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(self.endpoint, options=self._options)
        else:
            self._channel = grpc.aio.secure_channel(self.endpoint, credentials, options=self._options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)


async def unary(
    method: Callable[..., Any],
    request: Any,
    timeout_s: float = RPC_TIMEOUT_S,
    metadata: tuple[tuple[str, str], ...] = (),
) -> Any:
    """Return the only answer to a request.

    Raises:
        APIError: the error of Triton or of grpc.
    """
    try:
        return await loop_time.within(timeout_s, method(request, metadata=metadata))
    except TimeoutError as exc:
        raise TritonTimeout() from exc
    except grpc.aio.AioRpcError as exc:
        raise error_from_rpc(exc) from exc
